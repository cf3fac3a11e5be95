//! `shunt nvme disk --vfio-user` with a driver of the tests' own in front, and a target behind it.

#![allow(clippy::cast_possible_truncation, reason = "numbers of the tests' own")]

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_nvme::wire::Status;
use shunt_nvme::wire::opcode::io;
use shunt_vfio::{DATA, Driver, FAR, command};

use crate::Target;
use crate::disk::{Disk, STORE, pattern};

fn start(sandbox: &Sandbox, port: u16, args: &[&str]) -> Disk {
    Disk::of_kind("--vfio-user", sandbox, port, args)
}

/// Whatever way the connection goes, and however long a command is.
#[test]
fn a_guests_bytes_are_the_targets() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::quick(&sandbox, STORE);
        let image = sandbox.path().join("disk.img");
        let disk = start(&sandbox, target.port, &["--queues", "2", "--queue-depth", "4"]);
        let mut driver = Driver::start(&disk.socket, 2);

        // Pages of their own, and lists; more than a command of the target's takes.
        let len = 512 << 10;
        let bytes = pattern(len, 1);
        for (block, at) in [(1000, DATA + 0x204), (5000, FAR)] {
            driver.write(at, &bytes);
            assert_eq!(driver.store(block, at, len as u64), Status::SUCCESS);
            let flush = command(io::FLUSH, 1, [0, 0]);
            assert_eq!(driver.execute(1, flush).status(), Status::SUCCESS);
            let there = std::fs::read(&image).unwrap();
            let first = block as usize * 512;
            assert!(there[first..first + len] == bytes, "{mode}: other bytes are in the file");
            driver.write(at, &vec![0; len]);
            assert_eq!(driver.load(block, at, len as u64), Status::SUCCESS);
            assert!(driver.read(at, len) == bytes, "{mode}: other bytes were read");
        }

        // What the target answers is what the guest hears.
        let same = driver.transfer(io::COMPARE, 5000, FAR, len as u64);
        assert_eq!(driver.execute(1, same).status(), Status::SUCCESS);
        driver.write(FAR + len as u64 - 1, &[!bytes[len - 1]]);
        let other = driver.transfer(io::COMPARE, 5000, FAR, len as u64);
        let code = driver.execute(1, other).status().code();
        assert_eq!(code, Status::COMPARE_FAILURE.code());

        // Two ranges are given up, and what is between them stays; then zeros.
        let range = |start: u64| [&[0; 4][..], &8u32.to_le_bytes(), &start.to_le_bytes()].concat();
        driver.write(DATA, &[range(1000), range(1016)].concat());
        let mut discard = command(io::DATASET_MANAGEMENT, 1, [DATA, 0]);
        (discard.cdw10, discard.cdw11) = (1.into(), 4.into());
        assert_eq!(driver.execute(1, discard).status(), Status::SUCCESS);
        let mut zeroes = command(io::WRITE_ZEROES, 1, [0, 0]);
        zeroes.set_cdw10_64(1024);
        zeroes.cdw12 = 15.into();
        assert_eq!(driver.execute(1, zeroes).status(), Status::SUCCESS);
        assert_eq!(driver.load(1024, DATA, 8192), Status::SUCCESS);
        assert_eq!(driver.read(DATA, 8192), [0; 8192]);
        assert_eq!(driver.load(1008, DATA, 4096), Status::SUCCESS);
        assert_eq!(driver.read(DATA, 4096), bytes[4096..8192]);
        assert_eq!(driver.load(1 << 15, DATA, 512), Status::LBA_OUT_OF_RANGE.dnr());

        // Thousands, many at once, in more than the target's queue takes.
        for round in 0..25 {
            for n in 0..120u64 {
                let at = DATA + n * 8192 + 4 * round;
                driver.write(at, &pattern(4096, round as usize * 200 + n as usize));
                let sqe = driver.transfer(io::WRITE, n * 8, at, 4096);
                driver.submit((n % 2 + 1) as u16, sqe);
            }
            for queue in [1, 2] {
                for _ in 0..60 {
                    assert_eq!(driver.complete(queue).status(), Status::SUCCESS);
                }
            }
            let there = std::fs::read(&image).unwrap();
            for n in 0..120 {
                let expected = pattern(4096, round as usize * 200 + n);
                assert!(there[n * 4096..(n + 1) * 4096] == expected, "{mode}: {round} {n}");
            }
        }
        drop(driver);
        disk.end();
        target.end();
    }
}

/// Writes go on while the target is killed and comes back: each is answered, and is there. So does a controller that is
/// reset meanwhile.
#[test]
fn a_target_that_is_killed_costs_nothing_but_time() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let mut target = Target::quick(&sandbox, STORE);
        let port = target.port;
        let disk = start(&sandbox, port, &["--queues", "1"]);
        let mut driver = Driver::start(&disk.socket, 1);
        driver.patience = Duration::from_secs(60);
        let place = |n: u64| DATA + n * 16384;
        for round in 0..3u64 {
            for n in 0..60u64 {
                driver.write(place(n), &pattern(16384, (round * 60 + n) as usize));
                let sqe = driver.transfer(io::WRITE, n * 32, place(n), 16384);
                driver.submit(1, sqe);
                if n == 30 {
                    target.process.kill();
                }
            }
            // Nobody is there to answer.
            std::thread::sleep(Duration::from_millis(300));
            let mut answered = 0;
            while let Some(cqe) = driver.peek(1) {
                assert_eq!(cqe.status(), Status::SUCCESS);
                answered += 1;
            }
            driver.acknowledge(1);
            assert!(answered < 60);
            let resets = round == 2;
            if resets {
                driver.set_register(0x14, 0);
            }
            drop(target);
            target = Target::at(&sandbox, port, STORE);
            if resets {
                driver.settles(0);
            } else {
                for _ in answered..60 {
                    assert_eq!(driver.complete(1).status(), Status::SUCCESS, "{mode}");
                }
            }
            let there = std::fs::read(sandbox.path().join("disk.img")).unwrap();
            for n in 0..60 {
                let at = n * 16384;
                let expected = pattern(16384, round as usize * 60 + n);
                assert!(there[at..at + 16384] == expected, "{mode}: write {n} is not there");
            }
        }
        driver.enable();
        assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
        assert_eq!(driver.load(0, FAR, 16384), Status::SUCCESS);
        assert!(driver.read(FAR, 16384) == pattern(16384, 120));
        drop(driver);
        disk.end();
        target.end();
    }
}

/// With leave to do so the target reads what is written where it is: no byte of it is copied into a ring. Without, all are.
#[test]
fn guests_memory_is_granted_where_that_is_allowed() {
    if !Mode::enabled().contains(&Mode::Attach) {
        return;
    }
    const LEN: u64 = 1 << 16;
    const WRITES: u64 = 200;
    for grant in [true, false] {
        let sandbox = Sandbox::new(Mode::Attach);
        let target = Target::quick(&sandbox, &["--memory", "16MiB", "--block-size", "512"]);
        let mut args = vec!["--queues", "1"];
        args.extend(grant.then_some("--grant"));
        let disk = start(&sandbox, target.port, &args);
        let mut driver = Driver::start(&disk.socket, 1);
        // The connection is promoted by its first bytes; and memory is shown by the first write from it, which is copied.
        assert_eq!(driver.load(0, DATA, LEN), Status::SUCCESS);
        for _ in 0..2 {
            assert_eq!(driver.store(0, DATA, LEN), Status::SUCCESS);
        }
        let before = sandbox.stats();
        for n in 0..WRITES {
            driver.write(DATA, &pattern(LEN as usize, n as usize));
            assert_eq!(driver.store(n % 64 * 128, DATA, LEN), Status::SUCCESS);
        }
        for n in 136..WRITES {
            assert_eq!(driver.load(n % 64 * 128, FAR, LEN), Status::SUCCESS);
            assert!(driver.read(FAR, LEN as usize) == pattern(LEN as usize, n as usize));
        }
        drop(driver);
        disk.end();
        target.end();
        let after = sandbox.stats();
        let since = |name| after.get(name) - before.get(name);
        let bytes = if grant { WRITES * LEN } else { 0 };
        assert_eq!(since("bytes_granted"), bytes, "{after:?}");
        assert_eq!((since("tx_zerocopy_fail"), since("grants_taken_back")), (0, 0), "{after:?}");
        // Admin Queue and I/O queue.
        sandbox.assert_shunted(4);
    }
}

/// A driver that goes in the middle of its commands, and the next one.
#[test]
fn the_next_guest_is_served() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, STORE);
    let disk = start(&sandbox, target.port, &[]);
    for round in 0..20 {
        let mut driver = Driver::start(&disk.socket, 1);
        driver.write(DATA, &pattern(4096, round));
        assert_eq!(driver.store(0, DATA, 4096), Status::SUCCESS);
        assert_eq!(driver.load(0, FAR, 4096), Status::SUCCESS);
        assert!(driver.read(FAR, 4096) == pattern(4096, round));
        for n in 0..30 {
            let sqe = driver.transfer(io::WRITE, 8 + n * 32, DATA, 16384);
            driver.submit(1, sqe);
        }
    }
    disk.end();
    target.end();
}

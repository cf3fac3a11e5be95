//! `shunt nvme disk --vfio-user` with a driver of the tests' own in front, and a target behind it.

#![allow(clippy::cast_possible_truncation, reason = "numbers of the tests' own")]

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_guest::vfio::{DATA, Driver, FAR, command};
use shunt_nvme::wire::Status;
use shunt_nvme::wire::opcode::io;
use shunt_nvme::wire::registers::CC;

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

/// A controller that is reset while its target is away waits for what that has in hand, and works again.
#[test]
fn a_reset_waits_for_a_target_that_was_killed() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let mut target = Target::quick(&sandbox, STORE);
        let port = target.port;
        let disk = start(&sandbox, port, &["--queues", "1"]);
        let mut driver = Driver::start(&disk.socket, 1);
        driver.patience = Duration::from_secs(60);
        target.process.kill();
        for n in 0..60u64 {
            let at = DATA + n * 16384;
            driver.write(at, &pattern(16384, n as usize));
            let sqe = driver.transfer(io::WRITE, n * 32, at, 16384);
            driver.submit(1, sqe);
        }
        // The controller has taken all of them by then.
        std::thread::sleep(Duration::from_millis(300));
        driver.set_register(CC, 0);
        drop(target);
        target = Target::at(&sandbox, port, STORE);
        driver.settles(0);
        let there = std::fs::read(sandbox.path().join("disk.img")).unwrap();
        for (n, stretch) in there.chunks_exact(16384).take(60).enumerate() {
            assert!(stretch == pattern(16384, n), "{mode}: write {n} is not there");
        }
        driver.enable();
        assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
        assert_eq!(driver.load(0, FAR, 16384), Status::SUCCESS);
        assert!(driver.read(FAR, 16384) == pattern(16384, 0));
        drop(driver);
        disk.end();
        target.end();
    }
}

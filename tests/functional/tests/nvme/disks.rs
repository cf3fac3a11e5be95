//! What holds for an emulated disk whatever driver is in front of it.

#![allow(clippy::cast_possible_truncation, reason = "numbers of the tests' own")]

use std::time::{Duration, Instant};

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_guest::{Memory, vfio, vhost};
use shunt_nvme::wire::Status;
use shunt_nvme::wire::opcode::io;

use crate::Target;
use crate::disk::{Disk, IN, OUT, STORE, pattern};

/// How long the disk may take to find its target again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A driver with one queue.
trait Guest: Sized {
    /// The disk's option for such a driver's socket.
    const SOCKET: &str;
    /// Memory for data, of a MiB and more; and elsewhere.
    const DATA: u64;
    const FAR: u64;

    fn attach(disk: &Disk) -> Self;
    fn memory(&self) -> &Memory;
    /// Hands a write of `len` bytes from `at` over, and does not wait.
    fn submit(&mut self, sector: u64, at: u64, len: u32);
    /// Takes the answers that have come: how many. All are good.
    fn answers(&mut self) -> usize;
    fn write(&mut self, sector: u64, at: u64, len: u32);
    fn read(&mut self, sector: u64, at: u64, len: u32);
}

struct Virtio {
    driver: vhost::Driver,
    heads: Vec<u16>,
}

impl Guest for Virtio {
    const SOCKET: &str = "--socket";
    const DATA: u64 = vhost::DATA;
    const FAR: u64 = vhost::FAR;

    fn attach(disk: &Disk) -> Self {
        Self { driver: vhost::Driver::connect(&disk.socket), heads: Vec::new() }
    }

    fn memory(&self) -> &Memory {
        &self.driver.memory
    }

    fn submit(&mut self, sector: u64, at: u64, len: u32) {
        self.heads.push(self.driver.submit(OUT, sector, &[(at, len, false)]));
    }

    fn answers(&mut self) -> usize {
        let mut count = 0;
        while self.driver.back() > 0 {
            let (head, written) = self.driver.used();
            assert_eq!((self.driver.status(head as u16), written), (0, 1));
            let place = self.heads.iter().position(|one| u32::from(*one) == head);
            self.heads.swap_remove(place.expect("an answer to nothing"));
            count += 1;
        }
        count
    }

    fn write(&mut self, sector: u64, at: u64, len: u32) {
        assert_eq!(self.driver.request(OUT, sector, &[(at, len, false)]), (0, 1));
    }

    fn read(&mut self, sector: u64, at: u64, len: u32) {
        assert_eq!(self.driver.request(IN, sector, &[(at, len, true)]), (0, len + 1));
    }
}

impl Guest for vfio::Driver {
    const SOCKET: &str = "--vfio-user";
    const DATA: u64 = vfio::DATA;
    const FAR: u64 = vfio::FAR;

    fn attach(disk: &Disk) -> Self {
        Self::start(&disk.socket, 1)
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn submit(&mut self, sector: u64, at: u64, len: u32) {
        let sqe = self.transfer(io::WRITE, sector, at, len.into());
        self.submit(1, sqe);
    }

    fn answers(&mut self) -> usize {
        let mut count = 0;
        while let Some(cqe) = self.peek(1) {
            assert_eq!(cqe.status(), Status::SUCCESS);
            count += 1;
        }
        self.acknowledge(1);
        count
    }

    fn write(&mut self, sector: u64, at: u64, len: u32) {
        assert_eq!(self.store(sector, at, len.into()), Status::SUCCESS);
    }

    fn read(&mut self, sector: u64, at: u64, len: u32) {
        assert_eq!(self.load(sector, at, len.into()), Status::SUCCESS);
    }
}

/// Writes go on while the target is killed and comes back: each is answered, and is there.
#[test]
fn a_target_that_is_killed_costs_nothing_but_time() {
    fn with<G: Guest>() {
        for mode in Mode::enabled() {
            let sandbox = Sandbox::new(mode);
            let mut target = Target::quick(&sandbox, STORE);
            let port = target.port;
            let disk = Disk::of_kind(G::SOCKET, &sandbox, port, &["--queues", "1"]);
            let mut guest = G::attach(&disk);
            let place = |n: u64| G::DATA + n * 16384;
            for round in 0..3u64 {
                for n in 0..60u64 {
                    guest.memory().put(place(n), &pattern(16384, (round * 60 + n) as usize));
                    guest.submit(n * 32, place(n), 16384);
                    if n == 30 {
                        target.process.kill();
                    }
                }
                // Nobody is there to answer.
                std::thread::sleep(Duration::from_millis(300));
                let mut answered = guest.answers();
                assert!(answered < 60);
                drop(target);
                target = Target::at(&sandbox, port, STORE);
                let until = Instant::now() + PATIENCE;
                while answered < 60 {
                    assert!(Instant::now() < until, "{mode}: {answered} answers");
                    std::thread::sleep(Duration::from_millis(1));
                    answered += guest.answers();
                }
                let there = std::fs::read(sandbox.path().join("disk.img")).unwrap();
                for n in 0..60 {
                    let at = n * 16384;
                    let expected = pattern(16384, round as usize * 60 + n);
                    assert!(there[at..at + 16384] == expected, "{mode}: write {n} is not there");
                }
            }
            drop(guest);
            disk.end();
            target.end();
        }
    }
    with::<Virtio>();
    with::<vfio::Driver>();
}

/// With leave to do so the target reads what is written where it is: no byte of it is copied into a ring. Without, all are.
#[test]
fn guests_memory_is_granted_where_that_is_allowed() {
    const LEN: u32 = 1 << 16;
    const WRITES: u64 = 200;
    fn with<G: Guest>(grant: bool) {
        let sandbox = Sandbox::new(Mode::Attach);
        let target = Target::quick(&sandbox, &["--memory", "16MiB", "--block-size", "512"]);
        let mut args = vec!["--queues", "1"];
        args.extend(grant.then_some("--grant"));
        let disk = Disk::of_kind(G::SOCKET, &sandbox, target.port, &args);
        let mut guest = G::attach(&disk);
        // The connection is promoted by its first bytes; and memory is shown by the first write from it, which is copied.
        guest.read(0, G::DATA, LEN);
        for _ in 0..2 {
            guest.write(0, G::DATA, LEN);
        }
        let before = sandbox.stats();
        for n in 0..WRITES {
            guest.memory().put(G::DATA, &pattern(LEN as usize, n as usize));
            guest.write(n % 64 * 128, G::DATA, LEN);
        }
        for n in 136..WRITES {
            guest.read(n % 64 * 128, G::FAR, LEN);
            let there = guest.memory().get(G::FAR, LEN as usize);
            assert!(there == pattern(LEN as usize, n as usize));
        }
        drop(guest);
        disk.end();
        target.end();
        let after = sandbox.stats();
        let since = |name| after.get(name) - before.get(name);
        let bytes = if grant { WRITES * u64::from(LEN) } else { 0 };
        assert_eq!(since("bytes_granted"), bytes, "{after:?}");
        assert_eq!((since("tx_zerocopy_fail"), since("grants_taken_back")), (0, 0), "{after:?}");
        // Admin Queue and I/O queue.
        sandbox.assert_shunted(4);
    }
    if !Mode::enabled().contains(&Mode::Attach) {
        return;
    }
    for grant in [true, false] {
        with::<Virtio>(grant);
        with::<vfio::Driver>(grant);
    }
}

/// A driver that goes in the middle of its requests, and the next one.
#[test]
fn the_next_guest_is_served() {
    fn with<G: Guest>() {
        let sandbox = Sandbox::new(Mode::Plain);
        let target = Target::quick(&sandbox, STORE);
        let disk = Disk::of_kind(G::SOCKET, &sandbox, target.port, &[]);
        for round in 0..20 {
            let mut guest = G::attach(&disk);
            guest.memory().put(G::DATA, &pattern(4096, round));
            guest.write(0, G::DATA, 4096);
            guest.read(0, G::FAR, 4096);
            assert!(guest.memory().get(G::FAR, 4096) == pattern(4096, round));
            for n in 0..30 {
                guest.submit(8 + n * 32, G::DATA, 16384);
            }
        }
        disk.end();
        target.end();
    }
    with::<Virtio>();
    with::<vfio::Driver>();
}

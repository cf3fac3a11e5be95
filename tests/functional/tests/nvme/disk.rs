//! `shunt nvme disk` with a driver of the tests' own in front, and a target behind it.

#![allow(clippy::cast_possible_truncation, reason = "numbers of the tests' own")]

use std::path::PathBuf;
use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Process, Sandbox};
use shunt_functional::waiting::settles;
use shunt_guest::vhost::{DATA, Driver, FAR};

use crate::{Target, scraped};
use shunt_functional::binaries::built;

/// Requests of virtio (VIRTIO 1.2, 5.2.6).
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
const FLUSH: u32 = 4;
const ID: u32 = 8;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;

/// A disk, and where it is reached.
pub struct Disk {
    pub process: Process,
    pub socket: PathBuf,
}

impl Disk {
    pub fn start(sandbox: &Sandbox, port: u16, args: &[&str]) -> Self {
        Self::of_kind("--socket", sandbox, port, args)
    }

    /// One whose option for the socket is this.
    pub fn of_kind(kind: &str, sandbox: &Sandbox, port: u16, args: &[&str]) -> Self {
        let socket = sandbox.path().join("disk.sock");
        let mut command = sandbox.command(built("shunt"));
        command.args(["nvme", "disk", "--target", &format!("127.0.0.1:{port}"), kind]);
        command.arg(&socket).args(args);
        let process = sandbox.spawn(command);
        settles("the disk's socket", &true, || socket.exists());
        Self { process, socket }
    }

    /// Ends it as people do.
    pub fn end(self) {
        self.process.signal(libc::SIGTERM);
        let _ = self.process.wait().success();
        assert!(!self.socket.exists());
    }

    /// Ends it and its target. Under Shunt a guest's writes were granted, over at least so many connection ends.
    pub fn end_granted(self, target: Target, sandbox: &Sandbox, ends: u64) {
        self.end();
        target.end();
        if sandbox.mode == Mode::Attach {
            let granted = sandbox.stats().get("bytes_granted");
            // How far it comes with what it writes when it is killed differs.
            assert!(granted > 50_000_000, "{granted} bytes were granted");
            sandbox.assert_shunted(ends);
        }
    }
}

/// The store of a target whose disk a guest has.
pub const GUESTS_STORE: &[&str] =
    &["--file", "disk.img", "--size", "256MiB", "--block-size", "512"];

/// Bytes that do not come again after as many as a command has.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    shunt_functional::nvme::pattern(seed as u64, 0, len)
}

/// A range of sectors, as a request has it.
fn range(sector: u64, sectors: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat()
}

pub const STORE: &[&str] = &["--file", "disk.img", "--size", "16MiB", "--block-size", "512"];

/// Whatever way the connection goes, and however long a request is.
#[test]
fn a_guests_bytes_are_the_targets() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::quick(&sandbox, STORE);
        let image = sandbox.path().join("disk.img");
        let disk = Disk::start(&sandbox, target.port, &["--queues", "2", "--queue-depth", "4"]);
        let mut driver = Driver::connect(&disk.socket);
        assert_eq!(driver.config(8), (16u64 << 11).to_le_bytes());
        assert_eq!(driver.request(ID, 0, &[(DATA, 20, true)]).0, 0);
        assert!(driver.read(DATA, 20).iter().any(|byte| *byte != 0), "no serial number");

        // More than a command of the target's takes, in pieces that begin anywhere.
        let len = 2 << 20;
        let bytes = pattern(len, 1);
        let (one, other) = (bytes.split_at(700_001).0, bytes.split_at(700_001).1);
        driver.write(DATA + 3, one);
        driver.write(FAR + 77, other);
        let parts = |write| [(DATA + 3, 700_001, write), (FAR + 77, (len - 700_001) as u32, write)];
        assert_eq!(driver.request(OUT, 1000, &parts(false)), (0, 1));
        assert_eq!(driver.request(FLUSH, 0, &[]), (0, 1));
        let there = std::fs::read(&image).unwrap();
        assert!(there[512_000..512_000 + len] == bytes, "{mode}: other bytes are in the file");
        driver.write(DATA + 3, &vec![0; one.len()]);
        driver.write(FAR + 77, &vec![0; other.len()]);
        assert_eq!(driver.request(IN, 1000, &parts(true)), (0, len as u32 + 1));
        let mut back = driver.read(DATA + 3, one.len());
        back.extend(driver.read(FAR + 77, other.len()));
        assert!(back == bytes, "{mode}: other bytes were read");

        driver.write(DATA, &[range(1000, 8), range(1016, 8)].concat());
        assert_eq!(driver.request(DISCARD, 0, &[(DATA, 32, false)]), (0, 1));
        driver.write(DATA, &range(1024, 16));
        assert_eq!(driver.request(ZEROES, 0, &[(DATA, 16, false)]), (0, 1));
        assert_eq!(driver.request(IN, 1024, &[(DATA, 8192, true)]), (0, 8193));
        assert_eq!(driver.read(DATA, 8192), [0; 8192]);
        assert_eq!(driver.request(IN, 1008, &[(DATA, 4096, true)]), (0, 4097));
        assert_eq!(driver.read(DATA, 4096), bytes[4096..8192]);
        assert_eq!(driver.request(IN, 1 << 15, &[(DATA, 512, true)]).0, 1);

        // Many at once, more than the queue takes.
        for round in 0..5 {
            let heads: Vec<_> = (0..60u64)
                .map(|n| {
                    driver.write(DATA + n * 4096, &pattern(4096, round * 100 + n as usize));
                    driver.submit(OUT, n * 8, &[(DATA + n * 4096, 4096, false)])
                })
                .collect();
            heads.iter().for_each(|_| assert!(driver.used().1 == 1));
            assert!(heads.iter().all(|head| driver.status(*head) == 0));
            let there = std::fs::read(&image).unwrap();
            for n in 0..60 {
                assert!(there[n * 4096..(n + 1) * 4096] == pattern(4096, round * 100 + n));
            }
        }
        drop(driver);
        disk.end();
        target.end();
    }
}

/// Both are started at once: the disk waits for the target.
#[test]
fn a_target_that_is_being_started_is_waited_for() {
    let sandbox = Sandbox::new(Mode::Plain);
    let port = shunt_functional::net::free_port();
    let starting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        port
    });
    let socket = sandbox.path().join("disk.sock");
    let mut command = sandbox.command(built("shunt"));
    command.args(["nvme", "disk", "--target", &format!("127.0.0.1:{port}"), "--socket"]);
    command.arg(&socket);
    let process = sandbox.spawn(command);
    let target = Target::at(&sandbox, starting.join().unwrap(), &["--null", "1MiB"]);
    settles("the disk's socket", &true, || socket.exists());
    Disk { process, socket }.end();
    target.end();
}

/// Metrics say what a guest has asked for, how it was sent, and how the way to the target is.
#[test]
fn what_a_disk_does_is_counted() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let mut target = Target::quick(&sandbox, STORE);
        let port = target.port;
        let at = sandbox.path().join("disk-metrics.sock");
        let metrics = format!("--metrics=unix:{}", at.display());
        let disk = Disk::start(&sandbox, port, &["--queues", "1", "--grant", &metrics]);
        let count = |name: &str| scraped(&at, &format!("shunt_disk_{name}"));
        let path = |name: &str| count(&format!("{name}{{address=\"127.0.0.1:{port}\"}}"));
        assert_eq!((count("front_ends_total"), path("path_up")), (0, 1));
        let mut driver = Driver::connect(&disk.socket);
        driver.patience = Duration::from_secs(60);
        driver.write(DATA, &pattern(16384, 1));
        for n in 0..10 {
            assert_eq!(driver.request(OUT, n * 32, &[(DATA, 16384, false)]).0, 0);
        }
        assert_eq!(driver.request(IN, 0, &[(DATA, 4096, true)]).0, 0);
        assert_eq!(driver.request(FLUSH, 0, &[]).0, 0);
        assert_eq!(driver.request(IN, 1 << 15, &[(DATA, 512, true)]).0, 1);
        for (name, value) in [
            ("writes_total", 10),
            ("written_bytes_total", 163_840),
            ("offered_bytes_total", 163_840),
            ("copied_bytes_total", 0),
            ("reads_total", 1),
            ("read_bytes_total", 4096),
            ("flushes_total", 1),
            ("refused_requests_total", 1),
            ("failed_requests_total", 0),
            ("repeated_commands_total", 0),
            ("front_ends_total", 1),
            ("write_latency_seconds_count", 10),
            ("write_latency_seconds_bucket{le=\"+Inf\"}", 10),
            ("other_latency_seconds_count", 1),
        ] {
            assert_eq!(count(name), value, "{mode}: {name}");
        }
        assert_eq!(path("path_connects_total"), 1);

        // A write for which the target has to come back.
        target.process.kill();
        driver.submit(OUT, 0, &[(DATA, 16384, false)]);
        settles("the path", &0, || path("path_up"));
        drop(target);
        let target = Target::at(&sandbox, port, STORE);
        driver.used();
        settles("the path", &1, || path("path_up"));
        assert!(path("path_connects_total") >= 2 && count("writes_total") == 11, "{mode}");
        drop(driver);
        settles("the front end", &1, || count("front_ends_gone_total"));
        disk.end();
        assert!(!at.exists());
        target.end();
    }
}

/// Mistakes are told, and nothing is left.
#[test]
fn what_cannot_be_had_is_told() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--null", "1MiB"]);
    let at = format!("127.0.0.1:{}", target.port);
    let nobody = format!("127.0.0.1:{}", shunt_functional::net::free_port());
    let socket = sandbox.path().join("d.sock");
    for (args, why) in [
        (vec!["--target", &*nobody], "refused"),
        (vec!["--target", &*at, "--nsid", "7"], "no namespace 7"),
        (vec!["--target", &*at, "--nqn", "nqn.2024-01.org.example:other"], "example:other"),
        (vec!["--target", &*at, "--nqn", "disk"], "--nqn"),
        (vec!["--target", &*at, "--key-file", "/no/such/file"], "/no/such/file"),
    ] {
        let mut command = sandbox.plain(built("shunt"));
        command.args(["nvme", "disk", "--socket"]).arg(&socket).args(&args);
        let finished = sandbox.spawn(command).wait();
        let said = format!("{finished}");
        assert!(said.to_lowercase().contains(why), "{args:?}: {said}");
        assert!(!socket.exists());
    }
    target.end();
}

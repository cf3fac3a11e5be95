//! What a device does for drivers that keep to the rules.

use std::time::{Duration, Instant};

use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use super::ram::Ram;
use super::served::Served;
use crate::door::{Options, ServeError};
use crate::metrics::{Counter, Totals};
use crate::port::Geometry;
use shunt_guest::vhost::{DATA, Driver, FAR, HEADERS, INDIRECT, NEXT, WRITE};

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const ZEROES: u32 = 13;

pub const OK: u8 = 0;
pub const FAILED: u8 = 1;
pub const UNSUPPORTED: u8 = 2;

pub fn geometry() -> Geometry {
    let mut serial = [0; 20];
    serial[..5].copy_from_slice(b"shunt");
    Geometry {
        blocks: 2048,
        block_size: 512,
        read_only: false,
        serial,
        nguid: None,
        uuid: None,
        compare: true,
        discard: true,
        write_zeroes: true,
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// A range of a discard.
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

#[test]
fn bytes_go_and_come_in_whatever_pieces() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let config = driver.config(60);
    assert_eq!(config[..8], 2048u64.to_le_bytes());
    assert_eq!(config[20..24], 512u32.to_le_bytes());

    let bytes = pattern(4096, 1);
    driver.write(DATA, &bytes[..1000]);
    driver.write(FAR + 77, &bytes[1000..]);
    let pieces = [(DATA, 1000, false), (FAR + 77, 3096, false)];
    assert_eq!(driver.request(OUT, 8, &pieces), (OK, 1));
    assert_eq!(disk.state.lock().unwrap().bytes[4096..8192], bytes);
    let pieces = [(FAR + 9, 3001, true), (DATA + 5, 1, true), (DATA + 9001, 1094, true)];
    assert_eq!(driver.request(IN, 8, &pieces), (OK, 4097));
    let mut back = driver.read(FAR + 9, 3001);
    back.extend(driver.read(DATA + 5, 1));
    back.extend(driver.read(DATA + 9001, 1094));
    assert_eq!(back, bytes);

    assert_eq!(driver.request(FLUSH, 0, &[]), (OK, 1));
    assert_eq!(disk.state.lock().unwrap().flushes, 1);
    assert_eq!(driver.request(ID, 0, &[(DATA, 20, true)]), (OK, 21));
    assert_eq!(driver.read(DATA, 20), geometry().serial);
    disk.state.lock().unwrap().bad = Some(9);
    assert_eq!(driver.request(IN, 9, &[(DATA, 512, true)]), (FAILED, 1));
    assert_eq!(driver.request(77, 0, &[(DATA, 512, true)]), (UNSUPPORTED, 1));
}

/// 5.2.6: the framing of a message is the driver's affair.
#[test]
fn header_data_and_status_may_share_buffers() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let bytes = pattern(1024, 2);
    // Half of the header, then the rest with all data.
    driver.header(DATA, OUT, 4);
    let header = driver.read(DATA, 16);
    driver.write(DATA + 100, &header[8..]);
    driver.write(DATA + 108, &bytes);
    driver.ring(0, DATA, 8, NEXT, 1);
    driver.ring(1, DATA + 100, 8 + 1024, NEXT, 2);
    driver.ring(2, DATA + 5000, 1, WRITE, 0);
    driver.offer(0);
    assert_eq!(driver.used(), (0, 1));
    assert_eq!(driver.read(DATA + 5000, 1), [OK]);
    // All data with the status in one buffer.
    driver.header(DATA, IN, 4);
    driver.ring(3, DATA, 16, NEXT, 4);
    driver.ring(4, FAR, 1025, WRITE, 0);
    driver.offer(3);
    assert_eq!(driver.used(), (3, 1025));
    assert_eq!((driver.read(FAR, 1024), driver.read(FAR + 1024, 1)), (bytes, vec![OK]));
}

#[test]
fn indirect_tables() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let bytes = pattern(512 * 126, 3);
    driver.write(DATA, &bytes);
    driver.header(HEADERS, OUT, 0);
    // The most buffers that there may be.
    let table = FAR + 0x1000;
    driver.describe(table, 0, HEADERS, 16, NEXT, 1);
    for n in 0..126 {
        let at = DATA + u64::from(n) * 512;
        driver.describe(table, n + 1, at, 512, NEXT, n + 2);
    }
    driver.describe(table, 127, HEADERS + 16, 1, WRITE, 0);
    driver.ring(9, table, 128 * 16, INDIRECT, 0);
    driver.offer(9);
    assert_eq!(driver.used(), (9, 1));
    assert_eq!(driver.read(HEADERS + 16, 1), [OK]);
    assert_eq!(disk.state.lock().unwrap().bytes[..bytes.len()], bytes);
}

#[test]
fn blocks_are_given_up_and_made_zero() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let two = [range(0, 8, 0), range(64, 128, 0)].concat();
    driver.write(DATA, &two);
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 32, false)]), (OK, 1));
    assert_eq!(disk.state.lock().unwrap().discarded, [(0, 8), (64, 128)]);
    disk.state.lock().unwrap().bytes.fill(7);
    driver.write(DATA, &range(1, 2, 1));
    assert_eq!(driver.request(ZEROES, 0, &[(DATA, 16, false)]), (OK, 1));
    let state = disk.state.lock().unwrap();
    assert!(state.bytes[512..1536].iter().all(|byte| *byte == 0));
    assert_eq!((state.bytes[511], state.bytes[1536]), (7, 7));
    drop(state);
    // Unmap is none of a discard's flags, and others are reserved.
    for (kind, flags) in [(DISCARD, 1), (DISCARD, 2), (ZEROES, 2)] {
        driver.write(DATA, &range(0, 8, flags));
        assert_eq!(driver.request(kind, 0, &[(DATA, 16, false)]), (UNSUPPORTED, 1));
    }
}

#[test]
fn a_disk_that_cannot_be_written() {
    let disk = Ram::new(Geometry { read_only: true, ..geometry() });
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    assert_ne!(driver.features & 1 << 5, 0);
    driver.write(DATA, &range(0, 8, 0));
    assert_eq!(driver.request(OUT, 0, &[(DATA, 512, false)]), (FAILED, 1));
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 16, false)]), (FAILED, 1));
    assert_eq!(driver.request(ZEROES, 0, &[(DATA, 16, false)]), (FAILED, 1));
    assert_eq!(driver.request(IN, 0, &[(DATA, 512, true)]), (OK, 513));
}

#[test]
fn blocks_of_4096_bytes_are_read_whole() {
    let disk = Ram::new(Geometry { blocks: 16, block_size: 4096, ..geometry() });
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    assert_eq!(driver.request(IN, 8, &[(DATA, 8192, true)]), (OK, 8193));
    assert_eq!(driver.request(IN, 8, &[(DATA, 512, true)]), (FAILED, 1));
    assert_eq!(driver.request(IN, 1, &[(DATA, 4096, true)]), (FAILED, 1));
    driver.write(DATA, &range(8, 12, 0));
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 16, false)]), (FAILED, 1));
}

/// Interrupts come when the driver has asked for them (2.7.10).
#[test]
fn interrupts_come_when_they_are_wanted() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    driver.interrupt_from(3);
    for _ in 0..3 {
        driver.request(FLUSH, 0, &[]);
        assert_eq!(driver.interrupts(), 0);
    }
    driver.request(FLUSH, 0, &[]);
    let started = Instant::now();
    while driver.interrupts() == 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "no interrupt");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(driver);
    let mut driver = Driver::with(&served.path, 1, !(1 << VIRTIO_RING_F_EVENT_IDX));
    driver.want_interrupts(false);
    for _ in 0..3 {
        driver.request(FLUSH, 0, &[]);
        assert_eq!(driver.interrupts(), 0);
    }
    driver.want_interrupts(true);
    driver.request(FLUSH, 0, &[]);
    let started = Instant::now();
    while driver.interrupts() == 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "no interrupt");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// More requests than the lane takes, which end in another order.
#[test]
fn many_requests_at_once() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    for round in 0..20u8 {
        let heads: Vec<_> = (0..40u64)
            .map(|n| {
                let at = DATA + n * 512;
                driver.write(at, &pattern(512, round.wrapping_add(n as u8)));
                driver.submit(OUT, n, &[(at, 512, false)])
            })
            .collect();
        let mut back: Vec<_> = heads.iter().map(|_| driver.used().0).collect();
        back.sort_unstable();
        let mut expected: Vec<_> = heads.iter().map(|head| u32::from(*head)).collect();
        expected.sort_unstable();
        assert_eq!(back, expected);
        for n in 0..40u64 {
            let at = n as usize * 512;
            let there = disk.state.lock().unwrap().bytes[at..at + 512].to_vec();
            assert_eq!(there, pattern(512, round.wrapping_add(n as u8)));
        }
    }
}

/// GET_VRING_BASE is answered when what was taken is over.
#[test]
fn a_ring_that_is_stopped_leaves_nothing_under_way() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    disk.hold();
    driver.submit(OUT, 0, &[(DATA, 512, false)]);
    while disk.state.lock().unwrap().taken == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    use vhost::VhostBackend;
    let front = driver.front.clone();
    let stopped = std::thread::spawn(move || front.get_vring_base(0).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!stopped.is_finished(), "the ring was given back with a request under way");
    disk.release();
    assert_eq!(stopped.join().unwrap(), 1);
    assert_eq!(driver.back(), 1);
    driver.used();
    // It goes on where it was.
    driver.start(1);
    assert_eq!(driver.request(FLUSH, 0, &[]), (OK, 1));
}

/// What a front end that is gone has written does not overtake what the next one writes.
#[test]
fn the_next_front_end_waits_for_the_last_ones_requests() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 2);
    let mut driver = Driver::connect(&served.path);
    driver.write(DATA, &[1; 512]);
    disk.hold();
    driver.submit(OUT, 0, &[(DATA, 512, false)]);
    while disk.state.lock().unwrap().taken == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(driver);
    let path = served.path.clone();
    let next = std::thread::spawn(move || {
        let mut driver = Driver::connect(&path);
        driver.write(DATA, &[2; 512]);
        assert_eq!(driver.request(OUT, 0, &[(DATA, 512, false)]), (OK, 1));
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!next.is_finished() && disk.state.lock().unwrap().taken == 1);
    disk.release();
    next.join().unwrap();
    assert_eq!(disk.state.lock().unwrap().bytes[..512], [2; 512]);
}

#[test]
fn at_the_end_requests_that_were_taken_are_answered() {
    let disk = Ram::new(geometry());
    let mut served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    disk.hold();
    let head = driver.submit(OUT, 0, &[(DATA, 512, false)]);
    while disk.state.lock().unwrap().taken == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    served.stop();
    std::thread::sleep(Duration::from_millis(50));
    // One that comes later is the next process' to take.
    driver.submit(FLUSH, 0, &[]);
    disk.release();
    served.ended().unwrap();
    assert_eq!((driver.used().0, driver.status(head)), (u32::from(head), OK));
    assert_eq!((driver.back(), disk.state.lock().unwrap().taken), (0, 1));
    assert!(!served.path.exists());
}

#[test]
fn sockets_that_cannot_be_had() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&served.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let missing = dir.path().join("none/at/all");
    let try_at = |socket: &std::path::Path| {
        let stop = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let options = Options { socket: socket.to_owned(), mode: 0o600, queues: 1 };
        use std::os::fd::AsFd;
        crate::serve::serve_until(&disk, &options, &Totals::new(1), stop.as_fd(), || ())
    };
    assert!(matches!(try_at(&served.path), Err(ServeError::InUse(_))));
    assert!(matches!(try_at(&file), Err(ServeError::NoSocket(_))));
    assert!(matches!(try_at(&missing), Err(ServeError::Socket(..))));
    assert!(served.path.exists() && file.exists());
    // One that was killed has left its socket.
    let left = dir.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    try_at(&left).unwrap();
}

/// Requests are counted once each, by how they ended; also those of front ends that came one after the other.
#[test]
fn requests_are_counted() {
    let disk = Ram::new(geometry());
    disk.state.lock().unwrap().bad = Some(100);
    let mut served = Served::new(&disk, 1);
    for _ in 0..2 {
        let mut driver = Driver::connect(&served.path);
        assert_eq!(driver.request(OUT, 0, &[(DATA, 1024, false)]), (OK, 1));
        assert_eq!(driver.request(OUT, 100, &[(DATA, 512, false)]).0, FAILED);
        assert_eq!(driver.request(IN, 0, &[(DATA, 512, true)]), (OK, 513));
        assert_eq!(driver.request(FLUSH, 0, &[]), (OK, 1));
        driver.write(DATA, &range(8, 8, 0));
        assert_eq!(driver.request(DISCARD, 0, &[(DATA, 16, false)]), (OK, 1));
        assert_eq!(driver.request(IN, 1 << 15, &[(DATA, 512, true)]).0, FAILED);
        assert_eq!(driver.request(99, 0, &[]).0, UNSUPPORTED);
    }
    served.stop();
    served.ended().unwrap();
    for (counter, value) in [
        (Counter::Writes, 4),
        (Counter::BytesWritten, 2048),
        (Counter::BytesCopied, 3072),
        (Counter::Reads, 2),
        (Counter::BytesRead, 1024),
        (Counter::Flushes, 2),
        (Counter::Discards, 2),
        (Counter::Failures, 2),
        (Counter::Refused, 4),
        (Counter::BytesOffered, 0),
        (Counter::BrokenRings, 0),
        (Counter::FrontEnds, 2),
    ] {
        assert_eq!(served.totals.of(counter), value, "{counter:?}");
    }
}

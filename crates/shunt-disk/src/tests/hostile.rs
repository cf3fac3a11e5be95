//! Drivers that keep to no rule: they get errors, or nothing, and the device goes on.

use std::sync::mpsc;
use std::time::Duration;

use vhost_user_backend::VringT;
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic};

use super::exact::{DISCARD, FAILED, FLUSH, ID, IN, OK, OUT, ZEROES, geometry, range};
use super::ram::Ram;
use super::served::Served;
use crate::port::{Disk, Memory, Size};
use crate::worker::{Ring, Worker};
use shunt_guest::vhost::{DATA, Driver, FAR, HEADERS, INDIRECT, NEXT, REGION, SIZE, WRITE};

/// The device works.
fn works(driver: &mut Driver) {
    assert_eq!(driver.request(IN, 0, &[(DATA, 512, true)]), (OK, 513));
}

#[test]
fn requests_that_are_out_of_bounds_fail() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let data = |write| (DATA, 512, write);
    let outside = |at, len, write| vec![(at, len, write)];
    for (kind, sector, parts) in [
        (IN, 2048, vec![data(true)]),
        (IN, 2047, vec![data(true), data(true)]),
        (OUT, u64::MAX, vec![data(false)]),
        (OUT, u64::MAX / 512, vec![data(false)]),
        (IN, 0, vec![]),
        (IN, 0, vec![(DATA, 511, true)]),
        (OUT, 0, vec![(DATA, 513, false)]),
        // Neither a read from nor a write to what goes the other way.
        (IN, 0, vec![data(false)]),
        (OUT, 0, vec![data(true)]),
        // Not the guest's memory, or not all of it.
        (IN, 0, outside(REGION, 512, true)),
        (OUT, 0, outside(REGION - 256, 512, false)),
        (IN, 0, outside(FAR - 1, 512, true)),
        (OUT, 0, outside(u64::MAX - 511, 512, false)),
        (OUT, 0, outside(u64::MAX, 512, false)),
        (OUT, 0, vec![data(false), (FAR + REGION, 512, false)]),
        (ID, 0, outside(REGION - 4, 20, true)),
        // Longer than what is said to be the longest.
        (IN, 0, outside(DATA, 0xffff_fe00, true)),
        (DISCARD, 0, vec![]),
        (DISCARD, 0, vec![(DATA, 15, false)]),
        (DISCARD, 0, vec![(DATA, 16 * 33, false)]),
        (DISCARD, 0, outside(REGION, 16, false)),
    ] {
        let told = driver.request(kind, sector, &parts);
        assert_eq!(told, (FAILED, 1), "{kind} {sector} {parts:?}");
        works(&mut driver);
    }
    for (sector, sectors) in [(2048, 1), (2040, 9), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, 0)] {
        driver.write(DATA, &range(sector, sectors, 0));
        for kind in [DISCARD, ZEROES] {
            let told = driver.request(kind, 0, &[(DATA, 16, false)]);
            assert_eq!(told, (FAILED, 1), "{kind} {sector} {sectors}");
        }
    }
    let state = disk.state.lock().unwrap();
    assert!(state.discarded.is_empty() && state.bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn broken_chains_come_back_and_nothing_is_done() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    works(&mut driver);
    let (header, status) = (HEADERS + 0x8000, HEADERS + 0x8010);
    driver.header(header, OUT, 0);
    driver.write(DATA, &[0x55; 512]);
    let taken = disk.state.lock().unwrap().taken;
    type Build = fn(&Driver, u64, u64);
    let chains: &[(&str, Build)] = &[
        ("a next one that is none of the ring", |d, h, _| d.ring(100, h, 16, NEXT, SIZE)),
        ("no end", |d, h, _| {
            d.ring(100, h, 16, NEXT, 101);
            d.ring(101, DATA, 512, NEXT, 101);
        }),
        ("no status", |d, h, _| d.ring(100, h, 16, 0, 0)),
        ("a status without room", |d, h, s| {
            d.ring(100, h, 16, NEXT, 101);
            d.ring(101, s, 0, WRITE, 0);
        }),
        ("half a header", |d, h, s| {
            d.ring(100, h, 15, NEXT, 101);
            d.ring(101, s, 1, WRITE, 0);
        }),
        ("what is read behind what is written", |d, h, s| {
            d.ring(100, h, 16, NEXT, 101);
            d.ring(101, s, 1, WRITE | NEXT, 102);
            d.ring(102, DATA, 512, 0, 0);
        }),
        ("an end that is none", |d, h, s| {
            d.ring(100, h, 16, NEXT, 101);
            d.ring(101, DATA, 512, NEXT, 102);
            d.ring(102, s, 1, WRITE | NEXT, SIZE);
        }),
        ("what is read between what is written", |d, h, s| {
            d.header(h + 0x100, IN, 0);
            d.ring(100, h + 0x100, 16, NEXT, 101);
            d.ring(101, DATA + 0x2000, 512, WRITE | NEXT, 102);
            d.ring(102, DATA, 512, NEXT, 103);
            d.ring(103, s, 1, WRITE, 0);
        }),
        ("a header out of memory", |d, _, s| {
            d.ring(100, REGION - 8, 16, NEXT, 101);
            d.ring(101, s, 1, WRITE, 0);
        }),
        ("a status out of memory", |d, h, _| {
            d.ring(100, h, 16, NEXT, 101);
            d.ring(101, REGION, 1, WRITE, 0);
        }),
        ("more than 4 GiB", |d, h, s| {
            d.ring(100, h, 16, NEXT, 101);
            d.ring(101, DATA, u32::MAX, NEXT, 102);
            d.ring(102, DATA, 512, NEXT, 103);
            d.ring(103, s, 1, WRITE, 0);
        }),
        ("a table that is none", |d, _, _| d.ring(100, FAR, 17, INDIRECT, 0)),
        ("a table with a part of a descriptor", |d, h, s| {
            d.describe(FAR, 0, h, 16, NEXT, 1);
            d.describe(FAR, 1, DATA, 512, NEXT, 2);
            d.describe(FAR, 2, s, 1, WRITE, 0);
            d.ring(100, FAR, 3 * 16 + 8, INDIRECT, 0);
        }),
        ("a table out of memory", |d, _, _| d.ring(100, FAR + REGION, 32, INDIRECT, 0)),
        ("an empty table", |d, _, _| d.ring(100, FAR, 0, INDIRECT, 0)),
        ("a table that is too long", |d, h, s| {
            d.describe(FAR, 0, h, 16, NEXT, 1);
            for n in 1..1000 {
                d.describe(FAR, n, DATA, 512, NEXT, n + 1);
            }
            d.describe(FAR, 1000, s, 1, WRITE, 0);
            d.ring(100, FAR, 1001 * 16, INDIRECT, 0);
        }),
        ("a table in a table", |d, _, _| {
            d.describe(FAR, 0, FAR, 16, INDIRECT, 0);
            d.ring(100, FAR, 16, INDIRECT, 0);
        }),
    ];
    for (what, build) in chains {
        driver.write(status, &[0xee]);
        build(&driver, header, status);
        driver.offer(100);
        let (id, written) = driver.used();
        assert!(id == 100 && written <= 1, "{what}: {id} {written}");
        assert_ne!(driver.read(status, 1), [OK], "{what}");
        assert_eq!(disk.state.lock().unwrap().bytes[..512], [0; 512], "{what}");
    }
    assert_eq!(driver.read(DATA, 512), [0x55; 512]);
    // The status out of memory is of a request without data, which fails for that.
    assert_eq!(disk.state.lock().unwrap().taken, taken);
    works(&mut driver);
}

/// No head of the ring: it cannot come back, and the next one is served.
#[test]
fn heads_that_are_none() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    driver.offer(SIZE);
    driver.offer(u16::MAX);
    works(&mut driver);
}

/// A ring that says more than it can have is not looked at any more; a ring that begins anew is.
#[test]
fn a_ring_with_a_broken_index_is_left_alone() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 2);
    let mut driver = Driver::connect(&served.path);
    works(&mut driver);
    driver.jump(SIZE * 3);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((driver.back(), disk.state.lock().unwrap().taken), (0, 1));
    drop(driver);
    works(&mut Driver::connect(&served.path));
}

/// Of the available ring the index is the last that is memory: its thread does not look for an entry for ever.
#[test]
fn a_ring_out_of_memory_is_left_alone() {
    let disk = Ram::new(geometry());
    let (far, len) = (GuestAddress(FAR), REGION as usize);
    let ranges = [(GuestAddress(0), len), (far, len)];
    let memory = GuestMemoryAtomic::new(Memory::from_ranges(&ranges).unwrap());
    let ring = Ring::new(memory.clone(), SIZE).unwrap();
    ring.set_queue_size(SIZE);
    ring.set_queue_info(0, REGION - 4, 0xc000).unwrap();
    ring.set_queue_ready(true);
    ring.set_enabled(true);
    memory.memory().write_obj(1u16, GuestAddress(REGION - 2)).unwrap();
    let (lane, size) = (disk.lane().unwrap(), Size::new(geometry().blocks));
    let mut worker = Worker::new(lane, memory, geometry(), size, std::sync::Arc::default());
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        worker.run(&ring);
        done.send(worker.in_flight()).unwrap();
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(0));
}

/// The same chain again and again, without waiting: no more are taken than a ring can have.
#[test]
fn no_more_is_taken_than_a_ring_has_places() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    disk.state.lock().unwrap().room = usize::MAX;
    disk.hold();
    for _ in 0..2 * SIZE {
        // The ring's index never says more than a ring's worth at a time.
        driver.submit(FLUSH, 0, &[]);
        std::thread::sleep(Duration::from_micros(50));
    }
    while disk.state.lock().unwrap().taken < usize::from(SIZE) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(disk.state.lock().unwrap().taken, usize::from(SIZE));
    disk.release();
}

/// Front ends that say nothing, half of a message, or nonsense.
#[test]
fn front_ends_that_are_none() {
    use std::io::Write;
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 2);
    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 5000], &[0; 12]] {
        let mut stream = std::os::unix::net::UnixStream::connect(&served.path).unwrap();
        let _cut_off = stream.write_all(said);
        drop(stream);
        works(&mut Driver::connect(&served.path));
    }
}

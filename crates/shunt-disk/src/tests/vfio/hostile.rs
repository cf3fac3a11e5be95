//! Guests and monitors that keep to no rule: they get errors, or nothing, and the device goes on.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use shunt_guest::vfio::{BAR0, DATA, Driver, LISTS, REGION, command, submission};
use shunt_nvme::wire::log::lid;
use shunt_nvme::wire::opcode::{admin, io};
use shunt_nvme::wire::registers::{ACQ, AQA, ASQ, CC, Configuration};
use shunt_nvme::wire::{Sqe, Status};
use zerocopy::IntoBytes;

use super::exact::taken;
use crate::message::Message;
use crate::metrics::Counter;
use crate::tests::exact::geometry;
use crate::tests::ram::Ram;
use crate::tests::served::Served;
use crate::vfio::wire::FRAMING;

/// The device works.
fn works(driver: &mut Driver) {
    assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
}

fn changed(mut sqe: Sqe, change: impl FnOnce(&mut Sqe)) -> Sqe {
    change(&mut sqe);
    sqe
}

#[test]
fn commands_that_make_no_sense_fail() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    let invalid = Status::INVALID_FIELD.dnr();
    let (range, offset) = (Status::LBA_OUT_OF_RANGE.dnr(), Status::PRP_OFFSET_INVALID.dnr());
    let transfer = Status::DATA_TRANSFER_ERROR.dnr();
    let opcode = Status::INVALID_OPCODE.dnr();
    let blocks = |first: u64, last: u32, prps| {
        changed(command(io::WRITE, 1, prps), |sqe| {
            sqe.set_cdw10_64(first);
            sqe.cdw12 = last.into();
        })
    };
    // A list whose last page is a list that is no memory; and one that is nothing but that.
    driver.write(LISTS, &[LISTS; 512].as_bytes()[..4088]);
    driver.write(LISTS + 4088, REGION.as_bytes());
    driver.write(REGION - 8, REGION.as_bytes());
    let ranges = |first: u64, count: u32| {
        let mut list = [0; 16];
        list[4..8].copy_from_slice(&count.to_le_bytes());
        list[8..].copy_from_slice(&first.to_le_bytes());
        list
    };
    for (sqe, why) in [
        (blocks(2048, 0, [DATA, 0]), range),
        (blocks(2047, 1, [DATA, 0]), range),
        (blocks(u64::MAX, 0, [DATA, 0]), range),
        (blocks(0, 0xffff, [DATA, 0]), range),
        (blocks(0, 1024, [DATA, LISTS]), invalid),
        (blocks(0, 0, [DATA + 1, 0]), offset),
        (blocks(0, 8, [DATA, DATA + 8]), offset),
        (blocks(0, 0, [REGION, 0]), transfer),
        (blocks(0, 0, [REGION - 4, REGION]), transfer),
        (blocks(0, 0, [u64::MAX - 3, 0]), transfer),
        (blocks(0, 16, [DATA, u64::MAX - 7]), transfer),
        (blocks(0, 1023, [DATA, REGION - 8]), transfer),
        (blocks(0, 1023, [DATA, LISTS + 4088]), transfer),
        (changed(blocks(0, 0, [DATA, 0]), |sqe| sqe.flags = 0x40), invalid),
        (changed(blocks(0, 0, [DATA, 0]), |sqe| sqe.flags = 0x80), invalid),
        (changed(blocks(0, 0, [DATA, 0]), |sqe| sqe.flags = 1), invalid),
        (
            changed(blocks(0, 0, [DATA, 0]), |sqe| sqe.nsid = 2.into()),
            Status::INVALID_NAMESPACE.dnr(),
        ),
        (command(io::COMPARE, 1, [REGION, 0]), transfer),
        (command(io::VERIFY, 1, [DATA, 0]), opcode),
        (command(io::RESERVATION_REPORT, 1, [DATA, 0]), opcode),
        (command(0xff, 1, [DATA, 0]), opcode),
        (command(io::FLUSH, 0, [0, 0]), Status::INVALID_NAMESPACE.dnr()),
    ] {
        assert_eq!(driver.execute(1, sqe).status(), why, "{sqe:x?}");
        works(&mut driver);
    }
    for (first, count) in [(2048, 1), (2040, 9), (u64::MAX, 1), (0, u32::MAX), (u64::MAX, u32::MAX)]
    {
        driver.write(DATA, &ranges(first, count));
        let discard = changed(command(io::DATASET_MANAGEMENT, 1, [DATA, 0]), |sqe| {
            sqe.cdw11 = 4.into();
        });
        assert_eq!(driver.execute(1, discard).status(), range, "{first} {count}");
    }
    let discard = changed(command(io::DATASET_MANAGEMENT, 1, [REGION - 16, REGION]), |sqe| {
        sqe.cdw10 = 0xff.into();
    });
    assert_eq!(driver.execute(1, discard).status(), transfer);
    let state = disk.state.lock().unwrap();
    assert!(state.discarded.is_empty() && state.bytes.iter().all(|byte| *byte == 0));
    assert!(served.totals.of(Counter::Refused) > 20);
}

#[test]
fn admin_commands_that_make_no_sense_fail() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 1);
    let identifier = Status::INVALID_QUEUE_IDENTIFIER.dnr();
    let size = Status::INVALID_QUEUE_SIZE.dnr();
    let invalid = Status::INVALID_FIELD.dnr();
    let opcode = Status::INVALID_OPCODE.dnr();
    let place = submission(2);
    let queue = |opcode, at: u64, cdw10: u32, cdw11: u32| {
        changed(command(opcode, 0, [at, 0]), |sqe| {
            sqe.cdw10 = cdw10.into();
            sqe.cdw11 = cdw11.into();
        })
    };
    let answers = |at, cdw10, cdw11| queue(admin::CREATE_COMPLETION_QUEUE, at, cdw10, cdw11);
    let commands = |at, cdw10, cdw11| queue(admin::CREATE_SUBMISSION_QUEUE, at, cdw10, cdw11);
    let log = |page, offset, len| {
        changed(shunt_nvme::wire::log::GetLogPage::sqe(page, 0, offset, len), |sqe| {
            sqe.flags = 0;
            sqe.sgl = command(0, 0, [DATA, 0]).sgl;
        })
    };
    for (sqe, why) in [
        (answers(place, 7 << 16, 1), identifier),
        (answers(place, 7 << 16 | 3, 1), identifier),
        (answers(place, 7 << 16 | 0xffff, 1), identifier),
        (answers(place, 7 << 16 | 1, 1), identifier),
        (answers(place, 2, 1), size),
        (answers(place, 1024 << 16 | 2, 1), size),
        (answers(place, 0xffff << 16 | 2, 1), size),
        (answers(place + 8, 7 << 16 | 2, 1), Status::PRP_OFFSET_INVALID.dnr()),
        (answers(place, 7 << 16 | 2, 0), invalid),
        (answers(REGION, 7 << 16 | 2, 1), invalid),
        (answers(REGION - 4096, 1023 << 16 | 2, 1), invalid),
        (answers(u64::MAX - 4095, 1023 << 16 | 2, 1), invalid),
        (answers(place, 7 << 16 | 2, 3 << 16 | 3), Status::INVALID_INTERRUPT_VECTOR.dnr()),
        (commands(place, 7 << 16 | 1, 1 << 16 | 1), identifier),
        (commands(place, 7 << 16 | 2, 1), identifier),
        (commands(place, 7 << 16 | 2, 2 << 16 | 1), Status::COMPLETION_QUEUE_INVALID.dnr()),
        (commands(place, 7 << 16 | 2, 0xffff << 16 | 1), Status::COMPLETION_QUEUE_INVALID.dnr()),
        (commands(REGION - 4096, 1023 << 16 | 2, 1 << 16 | 1), invalid),
        (log(lid::ERROR, 2, 64), invalid),
        (log(lid::ERROR, 1 << 40, 64), invalid),
        (log(lid::ERROR, 0, u32::MAX), invalid),
        (log(lid::ANA, 0, 64), Status::INVALID_LOG_PAGE.dnr()),
        (command(admin::IDENTIFY, 2, [DATA, 0]), Status::INVALID_NAMESPACE.dnr()),
        (command(admin::IDENTIFY, 1, [REGION, 0]), Status::DATA_TRANSFER_ERROR.dnr()),
        (command(admin::IDENTIFY, 1, [DATA + 4, DATA + 4]), Status::PRP_OFFSET_INVALID.dnr()),
        (changed(command(admin::IDENTIFY, 1, [DATA, 0]), |sqe| sqe.cdw10 = 0x1c.into()), invalid),
        (changed(command(admin::IDENTIFY, 1, [DATA, 0]), |sqe| sqe.flags = 0x40), invalid),
        (command(admin::KEEP_ALIVE, 0, [0, 0]), opcode),
        (command(admin::DOORBELL_BUFFER_CONFIG, 0, [DATA, DATA]), invalid),
        (command(0x80, 1, [0, 0]), opcode),
    ] {
        assert_eq!(driver.execute(0, sqe).status(), why, "{sqe:x?}");
        works(&mut driver);
    }
    // As many events can be waited for as the controller says; a request can be taken back.
    let asked: Vec<_> =
        (0..4).map(|_| driver.submit(0, command(admin::ASYNC_EVENT, 0, [0, 0]))).collect();
    let fifth = driver.execute(0, command(admin::ASYNC_EVENT, 0, [0, 0])).status();
    assert_eq!(fifth, Status::AER_LIMIT_EXCEEDED.dnr());
    let abort = changed(command(admin::ABORT, 0, [0, 0]), |sqe| {
        sqe.cdw10 = (u32::from(asked[2]) << 16).into();
    });
    driver.submit(0, abort);
    assert_eq!(driver.complete(0).status(), Status::ABORT_REQUESTED);
    assert_eq!(driver.complete(0).result.get(), 0);
    assert_eq!(driver.execute(0, abort).result.get(), 1);
}

/// Doorbells that there are not, and values that queues cannot have, are told, and change nothing.
#[test]
fn doorbells_that_make_no_sense() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 1);
    for (doorbell, value, event) in [
        (0x1000 + 8 * 2, 0, 0x01_0000),
        (0x1000 + 8 * 2 + 4, 0, 0x01_0000),
        (0x1ffc, 7, 0x01_0000),
        (0x1000 + 8, 64, 0x01_0100),
        (0x1000 + 8, u32::MAX, 0x01_0100),
        (0x1000 + 8 + 4, 64, 0x01_0100),
        (0x1000 + 8 + 4, 63, 0x01_0100),
    ] {
        let asked = driver.submit(0, command(admin::ASYNC_EVENT, 0, [0, 0]));
        driver.set_register(doorbell, value);
        let cqe = driver.complete(0);
        assert_eq!((cqe.cid.get(), cqe.result.get()), (asked, event), "{doorbell:#x} {value}");
        // The page says no more of it; once it is read the next event is told.
        let mut page = shunt_nvme::wire::log::GetLogPage::sqe(lid::ERROR, 0, 0, 64);
        page.flags = 0;
        page.sgl = command(0, 0, [DATA, 0]).sgl;
        assert_eq!(driver.execute(0, page).status(), Status::SUCCESS);
        works(&mut driver);
    }
    // Of other sizes, and at other places.
    for (at, len) in [(0x1001, 4), (0x1008, 2), (0x1008, 1), (0x14, 3), (0x1008, 16), (0x1008, 3)] {
        driver.client.region_write(BAR0, at, &vec![0xff; len]).unwrap();
    }
    driver.client.region_write(BAR0, u64::MAX - 3, &[0xff; 4]).unwrap();
    driver.client.region_write(BAR0, 0x3ffc, &[0xff; 64]).unwrap();
    works(&mut driver);
}

/// Queues that are no memory end the controller until it is disabled, and nothing else.
#[test]
fn queues_out_of_memory_are_fatal() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    for at in [REGION, u64::MAX, 1 << 40] {
        driver.set_register(AQA, 31 << 16 | 31);
        for register in [ASQ, ACQ] {
            driver.client.region_write(BAR0, register.into(), &at.to_le_bytes()).unwrap();
        }
        driver.set_register(CC, Configuration::ENABLE.0);
        driver.settles(1);
        driver.set_register(0x1000, 1);
        driver.settles(0b11);
        driver.set_register(0x1000, 2);
        driver.disable();
    }
    // No size, and no command set.
    for (attributes, configuration) in [(0, 0x46_0001), (31 << 16 | 31, 0x46_0071)] {
        driver.set_register(AQA, attributes);
        driver.set_register(CC, configuration);
        driver.settles(0b10);
        driver.disable();
    }
    driver.enable();
    assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
    works(&mut driver);
    // Memory that goes under the queues.
    driver.client.dma_unmap(0, REGION).unwrap();
    driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    driver.settles(0b11);
}

/// A queue whose commands never end takes no more than it has places.
#[test]
fn no_more_is_taken_than_a_queue_has_places() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    disk.state.lock().unwrap().room = usize::MAX;
    disk.hold();
    for _ in 0..200 {
        driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    }
    taken(&disk, 64);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(disk.state.lock().unwrap().taken, 64);
    disk.release();
}

/// A message: its header, and what follows.
fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = 16 + body.len() as u32;
    let header = [&7u16.to_le_bytes()[..], &command.to_le_bytes(), &size.to_le_bytes()].concat();
    [&header[..], &flags.to_le_bytes(), &[0; 4], body].concat()
}

/// QEMU wants no answer to writes: the next answer is that of the next message that wants one.
#[test]
fn posted_writes_are_not_answered() {
    const NO_REPLY: u32 = 1 << 4;
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut stream = UnixStream::connect(&served.path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let access = |region: u32, data: &[u8]| {
        let (at, count) = (u64::from(AQA).to_le_bytes(), 4u32.to_le_bytes());
        [&at[..], &region.to_le_bytes(), &count, data].concat()
    };
    for value in [7u32, 9, 31] {
        let write = access(BAR0, &value.to_le_bytes());
        stream.write_all(&message(10, NO_REPLY, &write)).unwrap();
        // One that fails is not answered, either.
        stream.write_all(&message(10, NO_REPLY, &access(99, &[0; 4]))).unwrap();
        stream.write_all(&message(9, 0, &access(BAR0, &[]))).unwrap();
        let mut answer = [0; 36];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!((answer[2], &answer[8..16]), (9, &[1, 0, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(answer[32..], value.to_le_bytes());
    }
}

/// Each is answered with an error, and the next one is heard.
#[test]
fn messages_that_make_no_sense_are_refused() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut stream = UnixStream::connect(&served.path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let access = |region: u32, count: u32| {
        [&0u64.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes()].concat()
    };
    let irqs = |flags: u32, index: u32, start: u32, count: u32| {
        [20, flags, index, start, count].map(u32::to_le_bytes).concat()
    };
    for said in [
        message(0, 0, b""),
        message(1, 0, b""),
        message(1, 0, &[9, 0, 0, 0]),
        message(2, 0, &[0; 31]),
        message(3, 0, &[0; 3]),
        message(3, 0, &[[0xff; 4], [2, 0, 0, 0], [1; 4], [1; 4], [1; 4], [1; 4]].concat()),
        message(4, 1, &[0; 16]),
        message(5, 0, &[0xff; 32]),
        message(6, 0, &[0; 32]),
        message(7, 0, &[0xff; 16]),
        message(8, 0, &[0; 8]),
        message(8, 0, &irqs(0x24, 2, 0, u32::MAX)),
        message(8, 0, &irqs(0x24, 2, u32::MAX, 1)),
        message(8, 0, &irqs(0x24, 0, 0, 1)),
        message(8, 0, &irqs(0x22, 2, 0, 1)),
        message(8, 0, &irqs(0x09, 2, 0, 1)),
        message(9, 0, &access(0, u32::MAX)),
        message(9, 0, &access(9, 4)),
        message(10, 0, &access(0, 4)),
        message(10, 0, &access(u32::MAX, 0)),
        message(11, 0, &[0; 64]),
        message(15, 0, &[0; 64]),
        message(u16::MAX, 0, b""),
    ] {
        stream.write_all(&said).unwrap();
        let mut answer = [0; 16];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], [&said[..4], &[16, 0, 0, 0]].concat(), "{said:?}");
        assert!(answer[8] == 0x21 && answer[12] != 0, "{said:?} {answer:?}");
    }
    // Without an answer, and with one.
    stream.write_all(&message(10, 0x10, &[&access(0, 4)[..], &[0; 4]].concat())).unwrap();
    stream.write_all(&message(4, 0, &[0; 16])).unwrap();
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[2], 4);
    drop(stream);
    works(&mut Driver::start(&served.path, 1));
}

/// As QEMU's client says it: memory comes at an address where there is some, or goes by a flag and no address.
#[test]
fn all_memory_goes_at_once() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let stream = UnixStream::connect(&served.path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(0x4000).unwrap();
    let said = |command: u16, words: &[u64], fds: usize| {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let fds = (0..fds).map(|_| file.try_clone().unwrap().into()).collect();
        Message { bytes: message(command, 0, &body), fds }.send(&stream).unwrap();
        let answer = Message::receive(&stream, &FRAMING).unwrap().unwrap();
        answer.word(8) == 1
    };
    let (read, write) = (1 << 32, 3 << 32);
    let map = |flags: u64, at, fds| said(2, &[flags | 32, 0, at, 0x4000], fds);
    for _ in 0..3 {
        assert!(map(write, 0, 1) && map(write, 0x8000, 1));
        assert!(!map(write, 0x2000, 1) && !map(write, 0x10000, 2));
        // Not for this device, which has nothing of it.
        assert!(map(read, 0x2000, 1) && map(write, 0x2000, 0));
        let unmap = |flags: u64, at, len| said(3, &[flags << 32 | 24, at, len], 0);
        assert!(!unmap(2, 0, 0x4000) && !unmap(0, 0, 0x2000));
        assert!(unmap(2, 0, 0));
    }
}

/// Monitors that say nothing, half of a message, or nonsense.
#[test]
fn monitors_that_are_none() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 5000], &[0; 16], &[0; 7]] {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        let _cut_off = stream.write_all(said);
        drop(stream);
        works(&mut Driver::start(&served.path, 1));
    }
}

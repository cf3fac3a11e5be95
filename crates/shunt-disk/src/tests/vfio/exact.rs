//! What drivers that keep to the rules get, byte by byte.

use std::time::{Duration, Instant};

use shunt_guest::vfio::{BAR0, CONFIG, DATA, Driver, FAR, FAR_LEN, PAGE, command};
use shunt_nvme::wire::feature::fid;
use shunt_nvme::wire::identify::{Controller, EVENT_NAMESPACE_ATTRIBUTE, Namespace, cns};
use shunt_nvme::wire::log::{GetLogPage, Smart, lid};
use shunt_nvme::wire::opcode::{admin, io};
use shunt_nvme::wire::registers::{CC, Configuration};
use shunt_nvme::wire::{Sqe, Status};
use zerocopy::FromBytes;

use crate::metrics::Counter;
use crate::port::Geometry;
use crate::tests::exact::{geometry, pattern};
use crate::tests::ram::Ram;
use crate::tests::served::Served;

/// Answers an Admin command with data of one page; the data.
fn asked(driver: &mut Driver, mut sqe: Sqe) -> Vec<u8> {
    driver.write(DATA, &[0xee; PAGE as usize]);
    sqe.flags = 0;
    sqe.sgl = command(0, 0, [DATA, 0]).sgl;
    assert_eq!(driver.execute(0, sqe).status(), Status::SUCCESS, "{sqe:?}");
    driver.read(DATA, PAGE as usize)
}

fn identify(driver: &mut Driver, which: u8, nsid: u32) -> Vec<u8> {
    let mut sqe = command(admin::IDENTIFY, nsid, [0, 0]);
    sqe.cdw10 = u32::from(which).into();
    asked(driver, sqe)
}

fn feature(driver: &mut Driver, opcode: u8, feature: u8, value: u32) -> Result<u64, Status> {
    let mut sqe = command(opcode, 0, [0, 0]);
    sqe.cdw10 = u32::from(feature).into();
    sqe.cdw11 = value.into();
    let cqe = driver.execute(0, sqe);
    if cqe.status().is_success() { Ok(cqe.result.get()) } else { Err(cqe.status()) }
}

/// Waits until so many requests were taken.
pub fn taken(disk: &Ram, count: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    while disk.state.lock().unwrap().taken < count {
        assert!(Instant::now() < until, "requests were not taken");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn bytes_go_both_ways() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 2);
    let len = 512 << 10;
    let bytes = pattern(len, 1);
    // One page or two, lists, any beginning; the longest command.
    for (block, at, len) in [
        (0, DATA, 512),
        (5, DATA + 0xffc, 512),
        (7, DATA + 4, 4096),
        (100, DATA + 0xe00, 8192),
        (300, FAR, 65536),
        (500, FAR + 0x204, 65536),
        (1000, DATA + 0x800, len as u64),
    ] {
        driver.write(at, &bytes[..len as usize]);
        assert_eq!(driver.store(block, at, len), Status::SUCCESS, "{at:#x} {len}");
        let from = block as usize * 512;
        let there = disk.state.lock().unwrap().bytes[from..from + len as usize].to_vec();
        assert!(there == bytes[..len as usize], "{at:#x} {len}: other bytes were written");
        // Not a byte more, and not one before.
        driver.write(at - 4 * u64::from(at != FAR), &vec![0xee; len as usize + 8]);
        assert_eq!(driver.load(block, at, len), Status::SUCCESS);
        assert!(driver.read(at, len as usize) == bytes[..len as usize], "{at:#x} {len}");
        assert_eq!(driver.read(at + len, 4), [0xee; 4]);
    }
    assert!(driver.raised(1) > 0 && driver.raised(2) == 0);
    let counted = [Counter::Writes, Counter::Reads, Counter::Refused];
    assert_eq!(counted.map(|counter| served.totals.of(counter)), [7, 7, 0]);
}

#[test]
fn other_commands_reach_the_disk() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    driver.write(DATA, &pattern(4096, 3));
    assert_eq!(driver.store(8, DATA, 4096), Status::SUCCESS);
    for (nsid, count) in [(1, 1), (u32::MAX, 2)] {
        let flush = command(io::FLUSH, nsid, [0, 0]);
        assert_eq!(driver.execute(1, flush).status(), Status::SUCCESS);
        assert_eq!(disk.state.lock().unwrap().flushes, count);
    }
    let mut zeroes = command(io::WRITE_ZEROES, 1, [0, 0]);
    zeroes.set_cdw10_64(9);
    zeroes.cdw12 = 1.into();
    assert_eq!(driver.execute(1, zeroes).status(), Status::SUCCESS);
    let there = disk.state.lock().unwrap().bytes[8 * 512..12 * 512].to_vec();
    assert!(there[512..1536] == [0; 1024] && there[..512] == pattern(512, 3));
    // Three ranges of which one is empty, and hints without deallocation.
    let range = |start: u64, blocks: u32| {
        [&[0; 4][..], &blocks.to_le_bytes(), &start.to_le_bytes()].concat()
    };
    driver.write(DATA + 8, &[range(16, 8), range(0, 0), range(2040, 8)].concat());
    let mut discard = command(io::DATASET_MANAGEMENT, 1, [DATA + 8, 0]);
    discard.cdw10 = 2.into();
    for (attributes, count) in [(0b011, 0), (0b100, 2)] {
        discard.cdw11 = attributes.into();
        assert_eq!(driver.execute(1, discard).status(), Status::SUCCESS);
        assert_eq!(disk.state.lock().unwrap().discarded.len(), count);
    }
    assert_eq!(disk.state.lock().unwrap().discarded, [(16, 8), (2040, 8)]);
}

#[test]
fn blocks_are_compared() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    driver.write(DATA, &pattern(8192, 3));
    assert_eq!(driver.store(8, DATA, 8192), Status::SUCCESS);
    let compare = driver.transfer(io::COMPARE, 8, DATA, 8192);
    assert_eq!(driver.execute(1, compare).status(), Status::SUCCESS);
    driver.write(DATA + 8191, &[0]);
    let compare = driver.transfer(io::COMPARE, 8, DATA, 8192);
    assert_eq!(driver.execute(1, compare).status(), Status::COMPARE_FAILURE);
    let beyond = driver.transfer(io::COMPARE, 2047, DATA, 8192);
    assert_eq!(driver.execute(1, beyond).status(), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(served.totals.of(Counter::Compares), 2);
}

/// A write with Force Unit Access completes behind a flush.
#[test]
fn a_durable_write_is_flushed() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    for (fua, flushes) in [(0, 0), (1, 1), (1, 2)] {
        let mut sqe = driver.transfer(io::WRITE, 0, DATA, 512);
        sqe.cdw12 = (fua << 30).into();
        assert_eq!(driver.execute(1, sqe).status(), Status::SUCCESS);
        assert_eq!(disk.state.lock().unwrap().flushes, flushes);
    }
    // One that fails is not.
    disk.state.lock().unwrap().bad = Some(0);
    let mut sqe = driver.transfer(io::WRITE, 0, DATA, 512);
    sqe.cdw12 = (1 << 30).into();
    assert_eq!(driver.execute(1, sqe).status(), Status::WRITE_FAULT);
    assert_eq!(driver.load(0, DATA, 512), Status::UNRECOVERED_READ);
    assert_eq!(disk.state.lock().unwrap().flushes, 2);
}

#[test]
fn thousands_of_commands_at_depth() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 2);
    for round in 0..40u64 {
        let mut wanted = [0, 0];
        for n in 0..60u64 {
            let (queue, at) = ((n % 2 + 1) as u16, DATA + n * 8192 + round * 4);
            driver.write(at, &pattern(4096, (round * 60 + n) as u8));
            let sqe = driver.transfer(io::WRITE, n * 8, at, 4096);
            driver.submit(queue, sqe);
            wanted[n as usize % 2] += 1;
        }
        for (queue, wanted) in (1..).zip(wanted) {
            for _ in 0..wanted {
                assert_eq!(driver.complete(queue).status(), Status::SUCCESS);
            }
        }
        let state = disk.state.lock().unwrap();
        for n in 0..60 {
            let expected = pattern(4096, (round * 60 + n as u64) as u8);
            assert!(state.bytes[n * 4096..(n + 1) * 4096] == expected, "{round} {n}");
        }
    }
    assert_eq!(served.totals.of(Counter::Writes), 2400);
}

/// Completions wait for the driver to read others, and no command is taken meanwhile; wherever its doorbells are.
#[test]
fn a_full_completion_queue_loses_nothing() {
    for is_shadowed in [false, true] {
        let disk = Ram::new(geometry());
        let served = Served::nvme(&disk, 1);
        let mut driver = Driver::start(&served.path, 0);
        assert_eq!(driver.create(1, 4), [Status::SUCCESS; 2]);
        if is_shadowed {
            assert_eq!(driver.shadow(), Status::SUCCESS);
        }
        for round in 0..20 {
            // The queue has room for three, and one more waits. The last ones stay where they are.
            for (sends, wanted) in [(3, 3), (1, 4), (3, 4)] {
                for _ in 0..sends {
                    driver.submit(1, command(io::FLUSH, 1, [0, 0]));
                }
                taken(&disk, round * 7 + wanted);
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(disk.state.lock().unwrap().taken, round * 7 + wanted);
            }
            let mut found = 0;
            while found < 7 {
                match driver.peek(1) {
                    Some(cqe) => {
                        assert_eq!(cqe.status(), Status::SUCCESS);
                        found += 1;
                    }
                    None => driver.acknowledge(1),
                }
            }
            driver.acknowledge(1);
        }
    }
}

/// Disabling waits for what is under way; the controller begins again as it was at first.
#[test]
fn a_reset_in_the_midst_of_commands() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    for round in 1..4 {
        disk.state.lock().unwrap().taken = 0;
        disk.hold();
        for n in 0..20 {
            let sqe = driver.transfer(io::WRITE, n * 8, DATA + n * 4096, 4096);
            driver.submit(1, sqe);
        }
        taken(&disk, 4);
        driver.set_register(CC, 0);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(driver.register(0x1c), 1, "commands are under way");
        if round == 3 {
            // Enabled before it has ended: it begins by itself.
            driver.set_register(CC, Configuration::ENABLE.0);
        }
        disk.release();
        driver.settles(u32::from(round == 3));
        // No more were taken, and none completes any more.
        std::thread::sleep(Duration::from_millis(50));
        assert!(disk.state.lock().unwrap().taken == 4 && driver.peek(1).is_none());
        driver.set_register(CC, 0);
        driver.settles(0);
        driver.enable();
        assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
        assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
    }
    // As a device; registers and queues are gone.
    for way in 0..2 {
        if way == 0 {
            driver.client.reset().unwrap();
        } else {
            driver.client.region_write(CONFIG, 0x48, &[0, 0x80]).unwrap();
        }
        assert_eq!((driver.register(CC), driver.register(0x1c), driver.register(0x28)), (0, 0, 0));
        driver.enable();
        assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
        assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
    }
}

#[test]
fn a_shutdown_flushes_what_was_written() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    driver.complete(1);
    disk.hold();
    let sqe = driver.transfer(io::WRITE, 0, DATA, 4096);
    driver.submit(1, sqe);
    taken(&disk, 2);
    driver.set_register(CC, Configuration::ENABLE.with_shutdown().0);
    driver.settles(1 | 1 << 2);
    disk.release();
    driver.settles(1 | 2 << 2);
    assert_eq!(disk.state.lock().unwrap().flushes, 2);
    // What was under way has completed, and nothing is taken any more.
    assert_eq!(driver.complete(1).status(), Status::SUCCESS);
    driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    std::thread::sleep(Duration::from_millis(50));
    assert!(driver.peek(1).is_none());
    driver.disable();
    driver.enable();
    assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
    assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
}

/// Memory that is taken back is not used any more: commands that use it are over before the monitor hears that.
#[test]
fn memory_goes_when_commands_are_over() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    disk.state.lock().unwrap().bytes[..4096].fill(0x77);
    disk.state.lock().unwrap().taken = 0;
    disk.hold();
    let sqe = driver.transfer(io::READ, 0, FAR, 4096);
    driver.submit(1, sqe);
    taken(&disk, 1);
    let (held, began) = (disk.clone(), Instant::now());
    let releasing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        held.release();
    });
    driver.client.dma_unmap(FAR, FAR_LEN).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(200), "the memory went under a command");
    releasing.join().unwrap();
    assert_eq!(driver.read(FAR, 4096), [0x77; 4096]);
    assert_eq!(driver.complete(1).status(), Status::SUCCESS);
    driver.write(FAR, &[0; 4096]);
    assert_eq!(driver.load(0, FAR, 4096), Status::DATA_TRANSFER_ERROR.dnr());
    assert_eq!(driver.read(FAR, 4096), [0; 4096]);
    assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
}

#[test]
fn the_disk_says_what_it_is() {
    let ids = (Some([7; 16]), Some([9; 16]));
    let disk = Ram::new(Geometry { nguid: ids.0, uuid: ids.1, read_only: true, ..geometry() });
    let served = Served::nvme(&disk, 3);
    let mut driver = Driver::start(&served.path, 1);
    let controller = identify(&mut driver, cns::CONTROLLER, 0);
    let controller = Controller::ref_from_bytes(&controller).unwrap();
    assert_eq!(
        (&controller.sn[..8], controller.mdts, controller.nn.get()),
        (&b"shunt   "[..], 7, 1)
    );
    assert_eq!((controller.sqes, controller.cqes, controller.sgls.get()), (0x66, 0x44, 0));
    assert_eq!(controller.oacs.get(), 1 << 8);
    assert_eq!((controller.oncs.get(), controller.vwc, controller.ver.get()), (0xd, 7, 0x10400));
    assert!(controller.subnqn.starts_with(b"nqn.2024-01.org.shunt:disk."));
    let namespace = identify(&mut driver, cns::NAMESPACE, 1);
    let namespace = Namespace::ref_from_bytes(&namespace).unwrap();
    assert_eq!((namespace.nsze.get(), namespace.format().lbads, namespace.nsattr), (2048, 9, 1));
    let list = identify(&mut driver, cns::ACTIVE_NAMESPACES, 0);
    assert!(list[..8] == [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(identify(&mut driver, cns::ACTIVE_NAMESPACES, 1) == [0; 4096]);
    let descriptors = identify(&mut driver, cns::NAMESPACE_DESCRIPTORS, 1);
    assert_eq!(descriptors[..8], [2, 16, 0, 0, 7, 7, 7, 7]);
    assert_eq!(descriptors[20..28], [3, 16, 0, 0, 9, 9, 9, 9]);
    let common = identify(&mut driver, cns::NAMESPACE, u32::MAX);
    assert_eq!(Namespace::ref_from_bytes(&common).unwrap().nsze.get(), 0);

    assert_eq!(driver.store(0, DATA, 512), Status::NAMESPACE_WRITE_PROTECTED.dnr());
    assert_eq!(driver.load(0, DATA, 512), Status::SUCCESS);
    let firmware = asked(&mut driver, GetLogPage::sqe(lid::FIRMWARE, 0, 0, 512));
    assert_eq!((firmware[0], &firmware[8..11]), (1, &env!("CARGO_PKG_VERSION").as_bytes()[..3]));
    let smart = asked(&mut driver, GetLogPage::sqe(lid::SMART, u32::MAX, 0, 512));
    let (smart, _) = Smart::ref_from_prefix(&smart).unwrap();
    assert_eq!((smart.host_reads.get(), smart.data_units_read.get()), (1, 1));
    assert_eq!((smart.host_writes.get(), smart.error_entries.get()), (0, 1));
    // The write that has failed, from its command's number on.
    let errors = asked(&mut driver, GetLogPage::sqe(lid::ERROR, 0, 8, 56));
    assert_eq!((errors[0], &errors[56..60]), (1, &[0xee; 4][..]));
}

#[test]
fn features_are_set_and_told() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 3);
    let mut driver = Driver::start(&served.path, 0);
    let (set, get) = (admin::SET_FEATURES, admin::GET_FEATURES);
    let queues = Ok(0x2_0002);
    assert_eq!(feature(&mut driver, set, fid::NUMBER_OF_QUEUES, 0x7_0007), queues);
    assert_eq!(feature(&mut driver, get, fid::NUMBER_OF_QUEUES, 0), queues);
    for none in [0xffff, 0xffff << 16] {
        let refused = feature(&mut driver, set, fid::NUMBER_OF_QUEUES, none);
        assert_eq!(refused, Err(Status::INVALID_FIELD.dnr()));
    }
    assert_eq!(driver.create(1, 8), [Status::SUCCESS; 2]);
    let late = feature(&mut driver, set, fid::NUMBER_OF_QUEUES, 0);
    assert_eq!(late, Err(Status::COMMAND_SEQUENCE_ERROR.dnr()));
    assert_eq!(feature(&mut driver, set, fid::TEMPERATURE_THRESHOLD, 300), Ok(0));
    assert_eq!(feature(&mut driver, get, fid::TEMPERATURE_THRESHOLD, 0), Ok(300));
    assert_eq!(feature(&mut driver, get, fid::VOLATILE_WRITE_CACHE, 0), Ok(1));
    let off = feature(&mut driver, set, fid::VOLATILE_WRITE_CACHE, 0);
    assert_eq!(off, Err(Status::FEATURE_NOT_CHANGEABLE.dnr()));
    for unknown in [fid::KEEP_ALIVE, 0, 0x77] {
        let invalid = Err(Status::INVALID_FIELD.dnr());
        assert_eq!(feature(&mut driver, set, unknown, 0), invalid);
        assert_eq!(feature(&mut driver, get, unknown, 0), invalid);
    }
    // Reset sets all back.
    driver.disable();
    driver.enable();
    assert_eq!(feature(&mut driver, get, fid::TEMPERATURE_THRESHOLD, 0), Ok(0));
}

#[test]
fn a_guest_hears_of_another_size() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    let configured =
        feature(&mut driver, admin::SET_FEATURES, fid::ASYNC_EVENT, EVENT_NAMESPACE_ATTRIBUTE);
    assert_eq!(configured, Ok(0));
    let event = driver.submit(0, command(admin::ASYNC_EVENT, 0, [0, 0]));
    // It does not hold other commands up.
    assert_eq!(feature(&mut driver, admin::GET_FEATURES, fid::ARBITRATION, 0), Ok(0));
    disk.resize(4096);
    let cqe = driver.complete(0);
    assert_eq!((cqe.cid.get(), cqe.result.get()), (event, 0x04_0002));
    let namespace = identify(&mut driver, cns::NAMESPACE, 1);
    assert_eq!(Namespace::ref_from_bytes(&namespace).unwrap().nsze.get(), 4096);
    assert_eq!(driver.load(4095, DATA, 512), Status::SUCCESS);
    for changed in [1, 0] {
        let page = asked(&mut driver, GetLogPage::sqe(lid::CHANGED_NAMESPACES, 0, 0, 4096));
        assert_eq!(page[0], changed);
    }
}

/// A submission queue goes when its commands are over, and its completion queue after it.
#[test]
fn queues_are_deleted() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 2);
    disk.hold();
    let under_way = driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    taken(&disk, 1);
    let delete = |opcode, queue: u32| {
        let mut sqe = command(opcode, 0, [0, 0]);
        sqe.cdw10 = queue.into();
        sqe
    };
    let (queue, answers) = (admin::DELETE_SUBMISSION_QUEUE, admin::DELETE_COMPLETION_QUEUE);
    let deletion = driver.submit(0, delete(queue, 1));
    let used = driver.execute(0, delete(answers, 1)).status();
    assert_eq!(used, Status::INVALID_QUEUE_DELETION.dnr());
    let twice = driver.execute(0, delete(queue, 1)).status();
    assert_eq!(twice, Status::INVALID_QUEUE_IDENTIFIER.dnr());
    assert!(driver.peek(0).is_none());
    disk.release();
    assert_eq!(driver.complete(0).cid.get(), deletion);
    assert_eq!(driver.complete(1).cid.get(), under_way);
    assert_eq!(driver.execute(0, delete(answers, 1)).status(), Status::SUCCESS);
    for gone in [delete(queue, 1), delete(answers, 1), delete(queue, 0), delete(answers, 0)] {
        let status = driver.execute(0, gone).status();
        assert_eq!(status, Status::INVALID_QUEUE_IDENTIFIER.dnr());
    }
    assert_eq!(driver.create(1, 16), [Status::SUCCESS; 2]);
    assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
}

/// The next monitor is served when all requests of the last one are over; the end waits for them, too.
#[test]
fn monitors_come_and_go() {
    let disk = Ram::new(geometry());
    let mut served = Served::nvme(&disk, 1);
    for round in 0..5 {
        let mut driver = Driver::start(&served.path, 1);
        driver.write(DATA, &pattern(4096, round));
        assert_eq!(driver.store(0, DATA, 4096), Status::SUCCESS);
        let before = disk.state.lock().unwrap().taken;
        disk.hold();
        let sqe = driver.transfer(io::WRITE, 0, DATA, 4096);
        driver.submit(1, sqe);
        taken(&disk, before + 1);
        drop(driver);
        disk.release();
    }
    let mut driver = Driver::start(&served.path, 1);
    let before = disk.state.lock().unwrap().taken;
    disk.hold();
    driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    taken(&disk, before + 1);
    served.stop();
    std::thread::sleep(Duration::from_millis(50));
    disk.release();
    assert!(served.ended().is_ok());
    // It was answered.
    assert!(driver.peek(1).is_some_and(|cqe| cqe.status() == Status::SUCCESS));
    assert!(!served.path.exists());
    assert_eq!(served.totals.of(Counter::FrontEndsGone), 5);
}

/// The end waits also for what a monitor has left that has gone.
#[test]
fn the_end_waits_for_what_is_left() {
    let disk = Ram::new(geometry());
    let mut served = Served::nvme(&disk, 1);
    let mut driver = Driver::start(&served.path, 1);
    disk.hold();
    driver.submit(1, command(io::FLUSH, 1, [0, 0]));
    taken(&disk, 1);
    drop(driver);
    std::thread::sleep(Duration::from_millis(50));
    served.stop();
    std::thread::sleep(Duration::from_millis(50));
    disk.release();
    assert!(served.ended().is_ok());
    assert_eq!(disk.state.lock().unwrap().flushes, 1);
}

/// Those of a vector without an eventfd are not raised, and no others are missed.
#[test]
fn interrupts_are_set_and_forgotten() {
    const MSIX: u32 = 2;
    // Data are eventfds, or none; interrupts are raised.
    const EVENTFD: u32 = 1 << 2;
    const NONE: u32 = 1 << 0;
    const TRIGGER: u32 = 1 << 5;
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 2);
    let raised = |driver: &Driver| [0, 1, 2].map(|vector| driver.raised(vector) > 0);
    let flush = |driver: &mut Driver| {
        for queue in [1, 2] {
            driver.execute(queue, command(io::FLUSH, 1, [0, 0]));
        }
        // The interrupt follows its completion.
        std::thread::sleep(Duration::from_millis(20));
    };
    raised(&driver);
    flush(&mut driver);
    assert_eq!(raised(&driver), [false, true, true]);
    driver.client.set_irqs(MSIX, EVENTFD | TRIGGER, 1, 1, &[]).unwrap();
    flush(&mut driver);
    assert_eq!(raised(&driver), [false, false, true]);
    driver.client.set_irqs(MSIX, NONE | TRIGGER, 0, 3, &[]).unwrap();
    assert_eq!(raised(&driver), [true, false, true]);
    driver.client.set_irqs(MSIX, NONE | TRIGGER, 0, 0, &[]).unwrap();
    flush(&mut driver);
    assert_eq!(raised(&driver), [false; 3]);
}

/// What BAR0 holds besides registers.
#[test]
fn the_msix_table_is_kept() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let table = pattern(32, 5);
    driver.client.region_write(BAR0, 0x2000, &table).unwrap();
    let mut found = [0; 40];
    driver.client.region_read(BAR0, 0x2000, &mut found).unwrap();
    assert_eq!((&found[..32], &found[32..]), (&table[..], &[0; 8][..]));
    driver.client.region_read(BAR0, 0x3000, &mut found).unwrap();
    assert_eq!(found, [0; 40]);
}

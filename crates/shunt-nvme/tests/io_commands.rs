//! I/O commands of hosts, over both ends of connections, against a target with a model store.

mod common;

use common::{
    DISK, HOST,
    fabric::{BLOCK, Fabric, Link, fabric, namespace},
    nqn,
};
use shunt_nvme::{
    host::Transfer,
    subsystem::{NamespaceConfig, Notice},
    wire::{
        Fuse, Sqe, Status,
        fabrics::{Connect, ConnectData, Property},
        feature::fid,
        log::{AnaState, GetLogPage, lid},
        opcode::{admin, io},
        registers,
    },
};
use zerocopy::IntoBytes;

const NO_DATA: Transfer = Transfer::None;

fn blocks(opcode: u8, slba: u64, number: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode, 1);
    sqe.set_cdw10_64(slba);
    sqe.cdw12 = (number - 1).into();
    sqe
}

fn len(number: u32) -> u32 {
    number * u32::try_from(BLOCK).unwrap()
}

#[test]
fn blocks_and_what_is_done_to_them() {
    let mut fabric = fabric();
    let (_admin, cntlid) = fabric.controller(0);
    let mut link = fabric.io_queue(cntlid, 2);
    let data: Vec<u8> = fabric.random.bytes(4 * BLOCK);
    let bytes = len(4);
    for transfer in [Transfer::InCapsule(bytes), Transfer::ToController(bytes)] {
        let outcome = fabric.call_with(&mut link, &blocks(io::WRITE, 8, 4), transfer, &data);
        assert_eq!(outcome.status, Status::SUCCESS);
        assert_eq!(fabric.store[8 * BLOCK..12 * BLOCK], data);
        let outcome = fabric.call(&mut link, &blocks(io::READ, 8, 4), Transfer::ToHost(bytes));
        assert_eq!((outcome.status, &outcome.data), (Status::SUCCESS, &data));
        fabric.store.fill(0);
    }
    fabric.store[8 * BLOCK..12 * BLOCK].copy_from_slice(&data);
    let transfer = Transfer::ToController(bytes);
    let compare = blocks(io::COMPARE, 8, 4);
    let outcome = fabric.call_with(&mut link, &compare, transfer, &data);
    assert_eq!(outcome.status, Status::SUCCESS);
    let outcome = fabric.call_with(&mut link, &compare, transfer, &[0; 4 * BLOCK]);
    assert_eq!(outcome.status, Status::COMPARE_FAILURE);
    for opcode in [io::FLUSH, io::VERIFY] {
        let outcome = fabric.call(&mut link, &blocks(opcode, 8, 4), NO_DATA);
        assert_eq!(outcome.status, Status::SUCCESS);
    }
    let outcome = fabric.call(&mut link, &blocks(io::WRITE_ZEROES, 8, 1), NO_DATA);
    assert_eq!(outcome.status, Status::SUCCESS);
    assert_eq!(fabric.store[8 * BLOCK..9 * BLOCK], [0; BLOCK]);
    assert_eq!(fabric.store[9 * BLOCK..12 * BLOCK], data[BLOCK..]);
    // Dataset Management: two ranges of one block.
    let mut ranges = Vec::new();
    for slba in [9_u64, 11] {
        ranges.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        ranges.extend(slba.to_le_bytes());
    }
    let mut sqe = Sqe::new(io::DATASET_MANAGEMENT, 1);
    sqe.cdw10 = 1.into();
    sqe.cdw11 = 4.into();
    let outcome = fabric.call_with(&mut link, &sqe, Transfer::InCapsule(32), &ranges);
    assert_eq!(outcome.status, Status::SUCCESS);
    assert_eq!(fabric.store[9 * BLOCK..10 * BLOCK], [0; BLOCK]);
    assert_eq!(fabric.store[10 * BLOCK..11 * BLOCK], data[2 * BLOCK..3 * BLOCK]);
    sqe.cdw10 = 2.into();
    let outcome = fabric.call_with(&mut link, &sqe, Transfer::InCapsule(32), &ranges);
    assert_eq!(outcome.status, Status::SGL_INVALID_LENGTH.dnr());
    // Room for more ranges than there are, as Linux sends it.
    let mut room = ranges.clone();
    room.resize(4096, 0xff);
    sqe.cdw10 = 1.into();
    let outcome = fabric.call_with(&mut link, &sqe, Transfer::InCapsule(4096), &room);
    assert_eq!(outcome.status, Status::SUCCESS);
    ranges[24..32].copy_from_slice(&1024_u64.to_le_bytes());
    sqe.cdw10 = 1.into();
    let outcome = fabric.call_with(&mut link, &sqe, Transfer::InCapsule(32), &ranges);
    assert_eq!(outcome.status, Status::LBA_OUT_OF_RANGE.dnr());
}

#[test]
fn refused_blocks() {
    let mut fabric = fabric();
    let (_admin, cntlid) = fabric.controller(0);
    let mut link = fabric.io_queue(cntlid, 1);
    let read = |fabric: &mut Fabric, link: &mut Link, slba, number, bytes| {
        fabric.call(link, &blocks(io::READ, slba, number), Transfer::ToHost(bytes)).status
    };
    let range = Status::LBA_OUT_OF_RANGE.dnr();
    assert_eq!(read(&mut fabric, &mut link, 1023, 1, len(1)), Status::SUCCESS);
    assert_eq!(read(&mut fabric, &mut link, 1023, 2, len(2)), range);
    assert_eq!(read(&mut fabric, &mut link, u64::MAX, 2, len(2)), range);
    assert_eq!(read(&mut fabric, &mut link, 0, 2, len(1)), Status::SGL_INVALID_LENGTH.dnr());
    let too_long = 2 * 1024 * 1024;
    assert_eq!(read(&mut fabric, &mut link, 0, 1, too_long), Status::INVALID_FIELD.dnr());
    let mut sqe = blocks(io::READ, 0, 1);
    sqe.nsid = 7.into();
    let outcome = fabric.call(&mut link, &sqe, Transfer::ToHost(len(1)));
    assert_eq!(outcome.status, Status::INVALID_NAMESPACE.dnr());
    // Write Uncorrectable, and Copy.
    for opcode in [0x04, 0x19] {
        let transfer = if opcode == 4 { NO_DATA } else { Transfer::InCapsule(32) };
        let outcome = fabric.call_with(&mut link, &blocks(opcode, 0, 1), transfer, &[0; 32]);
        assert_eq!(outcome.status, Status::INVALID_OPCODE.dnr());
    }
    let states = [
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
        (AnaState::NonOptimized, Status::SUCCESS),
    ];
    for (state, expected) in states {
        fabric.target.set_ana(&nqn(DISK), 1, 1, state);
        assert_eq!(read(&mut fabric, &mut link, 0, 1, len(1)), expected);
    }
    let read_only = NamespaceConfig { read_only: true, ..namespace() };
    fabric.target.add_namespace(&nqn(DISK), 1, read_only);
    let write = blocks(io::WRITE, 0, 1);
    let outcome = fabric.call_with(&mut link, &write, Transfer::InCapsule(512), &[1; 512]);
    assert_eq!(outcome.status, Status::NAMESPACE_WRITE_PROTECTED.dnr());
    fabric.target.remove_namespace(&nqn(DISK), 1);
    let gone = Status::INVALID_NAMESPACE.dnr();
    assert_eq!(read(&mut fabric, &mut link, 0, 1, len(1)), gone);
}

#[test]
fn fused() {
    let mut fabric = fabric();
    let (_admin, cntlid) = fabric.controller(0);
    let mut link = fabric.io_queue(cntlid, 2);
    let transfer = Transfer::InCapsule(512);
    let fused = |opcode, slba, fuse| {
        let mut sqe = blocks(opcode, slba, 1);
        sqe.set_fuse(fuse);
        sqe
    };
    let mut pair = |compare: &Sqe, write: &Sqe, expected: u8, new: u8| {
        let first = fabric.submit(&mut link, compare, transfer, &[expected; 512]);
        let second = fabric.submit(&mut link, write, transfer, &[new; 512]);
        let first = fabric.outcome(&mut link, first).unwrap().status;
        let second = fabric.outcome(&mut link, second).unwrap().status;
        (first, second, fabric.store[0])
    };
    let compare = fused(io::COMPARE, 0, Fuse::First);
    let write = fused(io::WRITE, 0, Fuse::Second);
    assert_eq!(pair(&compare, &write, 0, 1), (Status::SUCCESS, Status::SUCCESS, 1));
    let failed = (Status::COMPARE_FAILURE, Status::FUSED_FAILED, 1);
    assert_eq!(pair(&compare, &write, 0, 2), failed);
    // Other blocks (NVM 2.1.3.1: both), and another command between.
    let invalid = Status::INVALID_FIELD.dnr();
    for elsewhere in [1, 9999] {
        let elsewhere = fused(io::WRITE, elsewhere, Fuse::Second);
        assert_eq!(pair(&compare, &elsewhere, 1, 2), (invalid, invalid, 1));
    }
    let plain = blocks(io::WRITE, 5, 1);
    assert_eq!(pair(&compare, &plain, 1, 2), (Status::FUSED_MISSING, Status::SUCCESS, 1));
    let missing = (Status::SUCCESS, Status::FUSED_MISSING.dnr(), 1);
    assert_eq!(pair(&plain, &write, 1, 2), missing);
    let beyond = fused(io::COMPARE, 9999, Fuse::First);
    let refused = (Status::LBA_OUT_OF_RANGE.dnr(), Status::FUSED_FAILED, 1);
    assert_eq!(pair(&beyond, &write, 1, 2), refused);
    // Commands that are no Compare, or no Write: the one is not what the other one belongs to.
    let wrong = fused(io::COMPARE, 0, Fuse::Second);
    assert_eq!(pair(&compare, &wrong, 1, 2), (Status::FUSED_MISSING, invalid, 1));
    let wrong = fused(0x19, 0, Fuse::Second);
    let unknown = (Status::FUSED_MISSING, Status::INVALID_OPCODE.dnr(), 1);
    assert_eq!(pair(&compare, &wrong, 1, 2), unknown);
    let wrong = fused(io::WRITE, 0, Fuse::First);
    assert_eq!(pair(&wrong, &write, 1, 2), (invalid, Status::FUSED_FAILED, 1));
    // A first one behind a first one: the second goes with the later one.
    let first = fabric.submit(&mut link, &compare, transfer, &[1; 512]);
    assert!(fabric.outcome(&mut link, first).is_none());
    let again = fabric.submit(&mut link, &compare, transfer, &[1; 512]);
    let second = fabric.submit(&mut link, &write, transfer, &[3; 512]);
    let ends = [first, again, second].map(|c| fabric.outcome(&mut link, c).unwrap().status);
    assert_eq!(ends, [Status::FUSED_MISSING, Status::SUCCESS, Status::SUCCESS]);
    assert_eq!(fabric.store[0], 3);
    // A command of Fabrics is none of them either.
    let first = fabric.submit(&mut link, &compare, transfer, &[3; 512]);
    let between = fabric.submit(&mut link, &Property::get(registers::CC, false), NO_DATA, &[]);
    let second = fabric.submit(&mut link, &write, transfer, &[4; 512]);
    let ends = [first, between, second].map(|c| fabric.outcome(&mut link, c).unwrap().status);
    assert_eq!((ends[0], ends[2]), (Status::FUSED_MISSING, Status::FUSED_MISSING.dnr()));
    assert!(!ends[1].is_success());
    assert_eq!(fabric.store[0], 3);
    // A Write that fails by itself leaves the Compare as it is (NVM 2.1.3.1).
    for read_only in [true, false] {
        fabric.target.add_namespace(&nqn(DISK), 1, NamespaceConfig { read_only, ..namespace() });
        for (expected, compared) in [(3, Status::SUCCESS), (4, Status::COMPARE_FAILURE)] {
            let first = fabric.submit(&mut link, &compare, transfer, &[expected; 512]);
            let transfer = if read_only { transfer } else { Transfer::InCapsule(1024) };
            let second = fabric.submit(&mut link, &write, transfer, &[5; 1024]);
            let ends = [first, second].map(|c| fabric.outcome(&mut link, c).unwrap().status);
            let wrong = [Status::SGL_INVALID_LENGTH, Status::NAMESPACE_WRITE_PROTECTED];
            assert_eq!(ends, [compared, wrong[usize::from(read_only)].dnr()]);
        }
    }
    assert_eq!(fabric.store[0], 3);
    // A connection that is lost between them: nothing is written, and the next one begins anew.
    fabric.submit(&mut link, &compare, transfer, &[3; 512]);
    fabric.run(&mut link);
    drop(link);
    let mut link = fabric.io_queue(cntlid, 3);
    let second = fabric.submit(&mut link, &write, transfer, &[5; 512]);
    let missing = Status::FUSED_MISSING.dnr();
    assert_eq!(fabric.outcome(&mut link, second).unwrap().status, missing);
    assert_eq!(fabric.store[0], 3);
}

/// Admin Queue and I/O queue of another host, with another identifier; the controller's.
fn other_host(fabric: &mut Fabric) -> (Link, Link, u16) {
    let mut admin = fabric.link();
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    let data = |cntlid| ConnectData::new([8; 16], cntlid, &nqn(DISK), &nqn(HOST));
    let outcome = fabric.connect(&mut admin, &connect, data(0xffff).as_bytes());
    let cntlid = u16::try_from(outcome.result).unwrap();
    fabric.call(&mut admin, &Property::set(registers::CC, false, 0x0046_0001), NO_DATA);
    let mut queue = fabric.link();
    let connect = Connect { qid: 1, ..connect };
    fabric.connect(&mut queue, &connect, data(cntlid).as_bytes());
    (admin, queue, cntlid)
}

/// A reservation command for namespace 1.
fn reserve(fabric: &mut Fabric, link: &mut Link, opcode: u8, cdw10: u32, keys: [u64; 2]) -> Status {
    let mut sqe = Sqe::new(opcode, 1);
    sqe.cdw10 = cdw10.into();
    let bytes = keys.as_bytes();
    let bytes = if opcode == io::RESERVATION_RELEASE { &bytes[..8] } else { bytes };
    let transfer = Transfer::InCapsule(u32::try_from(bytes.len()).unwrap());
    fabric.call_with(link, &sqe, transfer, bytes).status
}

#[test]
fn reservations() {
    let mut fabric = fabric();
    let (_first, cntlid) = fabric.controller(0);
    let mut holder = fabric.io_queue(cntlid, 1);
    let (_other_admin, mut other, _) = other_host(&mut fabric);

    let success = Status::SUCCESS;
    let register = io::RESERVATION_REGISTER;
    assert_eq!(reserve(&mut fabric, &mut holder, register, 0, [0, 5]), success);
    let acquire = io::RESERVATION_ACQUIRE;
    assert_eq!(reserve(&mut fabric, &mut holder, acquire, 1 << 8, [5, 0]), success);
    let write = blocks(io::WRITE, 0, 1);
    let transfer = Transfer::InCapsule(512);
    let writes = |fabric: &mut Fabric, link: &mut Link| {
        fabric.call_with(link, &write, transfer, &[1; 512]).status
    };
    assert_eq!(writes(&mut fabric, &mut holder), success);
    assert_eq!(writes(&mut fabric, &mut other), Status::RESERVATION_CONFLICT);
    let outcome = fabric.call(&mut other, &blocks(io::READ, 0, 1), Transfer::ToHost(512));
    assert_eq!(outcome.status, success);
    let mut report = Sqe::new(io::RESERVATION_REPORT, 1);
    report.cdw10 = 31.into();
    report.cdw11 = 1.into();
    let outcome = fabric.call(&mut other, &report, Transfer::ToHost(128));
    assert_eq!((outcome.data[4], outcome.data[66], outcome.data[80]), (1, 1, 7));
    let release = io::RESERVATION_RELEASE;
    assert_eq!(reserve(&mut fabric, &mut holder, release, 1 << 8, [5, 0]), success);
    assert_eq!(writes(&mut fabric, &mut other), success);
}

/// Base 8.19, 5.2, 5.16.1.24: the registrant whom a release concerns is told by an event, and reads what has happened.
#[test]
fn reservation_notifications() {
    let mut fabric = fabric();
    let (mut own_admin, cntlid) = fabric.controller(0);
    let mut own = fabric.io_queue(cntlid, 1);
    let (mut admin, mut other, other_cntlid) = other_host(&mut fabric);
    let success = Status::SUCCESS;
    let (register, acquire) = (io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE);
    assert_eq!(reserve(&mut fabric, &mut own, register, 0, [0, 5]), success);
    assert_eq!(reserve(&mut fabric, &mut other, register, 0, [0, 6]), success);
    // Write Exclusive - Registrants Only, taken and released.
    let cycle = |fabric: &mut Fabric, own: &mut Link| {
        assert_eq!(reserve(fabric, own, acquire, 3 << 8, [5, 0]), success);
        assert_eq!(reserve(fabric, own, io::RESERVATION_RELEASE, 3 << 8, [5, 0]), success);
    };
    let read = |fabric: &mut Fabric, link: &mut Link, retain: bool| {
        let mut sqe = GetLogPage::sqe(lid::RESERVATION, 0xffff_ffff, 0, 64);
        sqe.cdw10 = (sqe.cdw10.get() | u32::from(retain) << 15).into();
        let outcome = fabric.call(link, &sqe, Transfer::ToHost(64));
        assert!(outcome.status.is_success());
        // Count, type, pages that follow, namespace.
        (outcome.data[0], outcome.data[8], outcome.data[9], outcome.data[12])
    };
    let ask = |fabric: &mut Fabric, link: &mut Link| {
        let command = fabric.submit(link, &Sqe::new(admin::ASYNC_EVENT, 0), NO_DATA, &[]);
        assert!(fabric.outcome(link, command).is_none());
    };
    let told = |fabric: &Fabric| {
        let told = fabric.notices.iter().filter_map(|notice| match notice {
            Notice::Completed { cntlid, result, .. } => Some((*cntlid, *result)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(read(&mut fabric, &mut admin, false), (0, 0, 0, 0));

    // No event is wanted by the feature: this one comes nevertheless, once, and to the other host alone.
    let event = (other_cntlid, 0x0080_0006);
    ask(&mut fabric, &mut admin);
    ask(&mut fabric, &mut own_admin);
    cycle(&mut fabric, &mut own);
    assert_eq!(told(&fabric), [event]);
    cycle(&mut fabric, &mut own);
    ask(&mut fabric, &mut admin);
    assert_eq!(told(&fabric), [event]);
    // Kept where RAE is set; and what is left is another event.
    assert_eq!(read(&mut fabric, &mut admin, true), (1, 2, 1, 1));
    assert_eq!(read(&mut fabric, &mut admin, false), (1, 2, 1, 1));
    assert_eq!(told(&fabric), [event; 2]);
    assert_eq!(read(&mut fabric, &mut admin, false), (2, 2, 0, 1));
    // All is read: no event waits.
    ask(&mut fabric, &mut admin);
    assert_eq!(read(&mut fabric, &mut admin, false), (0, 0, 0, 0));
    assert_eq!(told(&fabric), [event; 2]);

    // More than are kept: the count of the last one says how many were lost.
    for _ in 0..70 {
        cycle(&mut fabric, &mut own);
    }
    for n in 0..63 {
        assert_eq!(read(&mut fabric, &mut admin, false), (3 + n, 2, 63 - n, 1));
    }
    assert_eq!(read(&mut fabric, &mut admin, false), (72, 2, 0, 1));
    assert_eq!(read(&mut fabric, &mut own_admin, false), (0, 0, 0, 0));

    // Masked, by the namespace and by all.
    let feature = |fabric: &mut Fabric, link: &mut Link, opcode, nsid, value: u32| {
        let mut sqe = Sqe::new(opcode, nsid);
        sqe.cdw10 = u32::from(fid::RESERVATION_MASK).into();
        sqe.cdw11 = value.into();
        let outcome = fabric.call(link, &sqe, NO_DATA);
        (outcome.status, outcome.result)
    };
    let (get, set) = (admin::GET_FEATURES, admin::SET_FEATURES);
    assert_eq!(feature(&mut fabric, &mut admin, set, 1, 1 << 2), (success, 0));
    assert_eq!(feature(&mut fabric, &mut own_admin, get, 1, 0), (success, 4));
    cycle(&mut fabric, &mut own);
    assert_eq!(read(&mut fabric, &mut admin, false), (0, 0, 0, 0));
    assert_eq!(feature(&mut fabric, &mut admin, set, 0xffff_ffff, 0), (success, 0));
    assert_eq!(feature(&mut fabric, &mut admin, get, 1, 0), (success, 0));
    cycle(&mut fabric, &mut own);
    assert_eq!(read(&mut fabric, &mut admin, false), (73, 2, 0, 1));
    let invalid = (Status::INVALID_FIELD.dnr(), 0);
    assert_eq!(feature(&mut fabric, &mut admin, set, 1, 1), invalid);
    assert_eq!(feature(&mut fabric, &mut admin, set, 1, 1 << 4), invalid);
    let gone = (Status::INVALID_NAMESPACE.dnr(), 0);
    assert_eq!(feature(&mut fabric, &mut admin, set, 2, 0), gone);
    assert_eq!(feature(&mut fabric, &mut admin, get, 0xffff_ffff, 0), gone);

    // A controller that was reset begins anew.
    cycle(&mut fabric, &mut own);
    for value in [0x0046_0000, 0x0046_0001] {
        fabric.call(&mut admin, &Property::set(registers::CC, false, value), NO_DATA);
    }
    assert_eq!(read(&mut fabric, &mut admin, false), (0, 0, 0, 0));
}

//! Commands of hosts, over both ends of connections, against a target with a model store.

mod common;

use common::{
    DISK, HOST, connect_data,
    fabric::{Fabric, Link, fabric, fabric_for, namespace},
    nqn,
};
use core::time::Duration;
use shunt_nvme::{
    auth::{Group, Initiator, Secret, Step},
    host::Transfer,
    subsystem::{Context, Hosts, Keys, Limits, NamespaceConfig, Notice, Reply, SubsystemConfig},
    wire::{
        Nqn, Sqe, Status,
        discovery::{self, Record, SubsystemType},
        fabrics::{self, Authentication, Connect, ConnectData, Property, connect_field},
        feature::fid,
        identify::{self, cns},
        log::{self, AnaState, GetLogPage, lid},
        opcode::{admin, io},
        registers,
    },
};
use zerocopy::{FromBytes, IntoBytes};

const KEY: &str = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";

const NO_DATA: Transfer = Transfer::None;

fn identify(fabric: &mut Fabric, link: &mut Link, which: u8, nsid: u32) -> (Status, Vec<u8>) {
    let mut sqe = Sqe::new(admin::IDENTIFY, nsid);
    sqe.cdw10 = u32::from(which).into();
    let outcome = fabric.call(link, &sqe, Transfer::ToHost(4096));
    (outcome.status, outcome.data)
}

#[test]
fn the_life_of_a_controller() {
    let mut fabric = fabric();
    let mut admin = fabric.link();
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: false, kato: 5000 };
    let outcome = fabric.connect(&mut admin, &connect, &connect_data(0xffff));
    assert_eq!((outcome.status, outcome.result), (Status::SUCCESS, 1));
    let cap = fabric.call(&mut admin, &Property::get(registers::CAP, true), NO_DATA);
    assert_eq!(registers::max_queue_entries(cap.result), 127);
    let version = fabric.call(&mut admin, &Property::get(registers::VS, false), NO_DATA);
    assert_eq!(version.result, 0x0002_0000);
    // Nothing but properties before EN.
    let early = fabric.call(&mut admin, &Sqe::new(admin::KEEP_ALIVE, 0), NO_DATA);
    assert_eq!(early.status, Status::COMMAND_SEQUENCE_ERROR.dnr());
    let enable = Property::set(registers::CC, false, 0x0046_0001);
    assert_eq!(fabric.call(&mut admin, &enable, NO_DATA).status, Status::SUCCESS);
    let status = Property::get(registers::CSTS, false);
    assert_eq!(fabric.call(&mut admin, &status, NO_DATA).result, 1);
    // Keep alive: 5 s from the last command, and half as much again.
    fabric.now = Duration::from_secs(4);
    assert!(fabric.call(&mut admin, &Sqe::new(admin::KEEP_ALIVE, 0), NO_DATA).status.is_success());
    assert_eq!(fabric.target.deadline(), Some(Duration::from_millis(11_500)));
    fabric.now = Duration::from_millis(11_499);
    fabric.target.expire(fabric.now);
    assert_eq!(fabric.target.controllers().count(), 1);
    // Shutdown.
    let shutdown = Property::set(registers::CC, false, 0x0046_4001);
    fabric.call(&mut admin, &shutdown, NO_DATA);
    assert_eq!(fabric.notices, [Notice::Shutdown { cntlid: 1 }]);
    assert_eq!(fabric.call(&mut admin, &status, NO_DATA).result, 1 | 1 << 2);
    fabric.target.shutdown_complete(1);
    assert_eq!(fabric.call(&mut admin, &status, NO_DATA).result, 1 | 2 << 2);
    // Silence.
    fabric.target.expire(Duration::from_millis(18_998));
    assert_eq!(fabric.target.poll(), None);
    fabric.target.expire(Duration::from_millis(18_999));
    assert_eq!(fabric.target.poll(), Some(Notice::Ended { cntlid: 1 }));
    let gone = fabric.call(&mut admin, &Sqe::new(admin::KEEP_ALIVE, 0), NO_DATA);
    assert_eq!(gone.status, Status::SQ_DELETION);
}

/// Base 3.9: commands on any queue keep a controller alive. Without a time nothing ends it, but for
/// discovery controllers, whose time is two minutes then (Base 3.1.2.3).
#[test]
fn silence() {
    let at = Duration::from_secs;
    let mut fabric = fabric();
    let (_admin, cntlid) = fabric.controller(2000);
    let queue = fabric.io_queue(cntlid, 1);
    fabric.now = at(2);
    queue.session.heard(&mut fabric.target, fabric.now);
    fabric.target.expire(at(4));
    assert_eq!(fabric.target.controllers().count(), 1);
    fabric.target.expire(at(5));
    assert_eq!(fabric.target.controllers().count(), 0);

    let (_admin, _) = fabric.controller(0);
    fabric.target.expire(at(1 << 30));
    assert_eq!(fabric.target.controllers().count(), 1);

    let mut discovery = fabric.link();
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    let data =
        ConnectData::new([7; 16], 0xffff, &nqn(shunt_nvme::wire::nqn::DISCOVERY), &nqn(HOST));
    assert!(fabric.connect(&mut discovery, &connect, data.as_bytes()).status.is_success());
    fabric.now = at(100);
    fabric.call(&mut discovery, &Property::get(registers::CSTS, false), NO_DATA);
    fabric.target.expire(at(219));
    assert_eq!(fabric.target.controllers().count(), 2);
    fabric.target.expire(at(220));
    assert_eq!(fabric.target.controllers().count(), 1);
}

#[test]
fn an_unsupported_configuration_is_fatal() {
    let mut fabric = fabric();
    let mut admin = fabric.link();
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    fabric.connect(&mut admin, &connect, &connect_data(0xffff));
    let enable = Property::set(registers::CC, false, 0x0046_0001 | 1 << 7);
    fabric.call(&mut admin, &enable, NO_DATA);
    let status = fabric.call(&mut admin, &Property::get(registers::CSTS, false), NO_DATA);
    assert_eq!(status.result, 2);
}

/// Base 6.3: each field of Connect, and the place in the result of a refusal.
#[test]
fn refusals_of_connect() {
    let hosts = Hosts::Listed([(nqn(HOST), None)].into());
    let mut fabric = fabric_for(hosts, Limits::default());
    let (_admin, cntlid) = fabric.controller(0);
    let good = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    let io = Connect { qid: 1, ..good };
    let stranger = nqn("nqn.2014-08.org.nvmexpress:uuid:2");
    let data = |cntlid, subsystem: &Nqn, host: &Nqn, hostid| {
        ConnectData::new([hostid; 16], cntlid, subsystem, host).as_bytes().to_vec()
    };
    let (disk, host) = (nqn(DISK), nqn(HOST));
    let mut nameless = connect_data(0xffff);
    nameless[256..512].fill(b'x');
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let invalid_host = Status::CONNECT_INVALID_HOST.dnr();
    let format = Status::CONNECT_INCOMPATIBLE_FORMAT.dnr();
    let cases = [
        (Connect { recfmt: 1, ..good }, connect_data(0xffff), format, connect_field::RECFMT),
        (Connect { sqsize: 0, ..good }, connect_data(0xffff), invalid, connect_field::SQSIZE),
        (Connect { sqsize: 128, ..good }, connect_data(0xffff), invalid, connect_field::SQSIZE),
        (good, connect_data(1), invalid, connect_field::CNTLID),
        (good, nameless, invalid, connect_field::SUBNQN),
        (good, data(0xffff, &stranger, &host, 7), invalid, connect_field::SUBNQN),
        (good, data(0xffff, &disk, &stranger, 7), invalid_host, connect_field::HOSTNQN),
        (io, connect_data(9), invalid, connect_field::CNTLID),
        (io, data(cntlid, &stranger, &host, 7), invalid, connect_field::SUBNQN),
        (io, data(cntlid, &disk, &stranger, 7), invalid_host, connect_field::HOSTNQN),
        (io, data(cntlid, &disk, &host, 8), invalid, connect_field::HOSTID),
        (Connect { qid: 129, ..good }, connect_data(cntlid), invalid, connect_field::QID),
    ];
    for (connect, data, status, field) in cases {
        let mut link = fabric.link();
        let outcome = fabric.connect(&mut link, &connect, &data);
        assert_eq!((outcome.status, outcome.result), (status, u64::from(field)), "{connect:?}");
    }
    // A queue twice.
    let _queue = fabric.io_queue(cntlid, 1);
    let mut link = fabric.link();
    let outcome = fabric.connect(&mut link, &io, &connect_data(cntlid));
    assert_eq!(outcome.result, u64::from(connect_field::QID));
    // Before Connect nothing else is taken.
    let outcome = fabric.call(&mut link, &Sqe::new(admin::KEEP_ALIVE, 0), NO_DATA);
    assert_eq!(outcome.status, Status::COMMAND_SEQUENCE_ERROR.dnr());
}

#[test]
fn bounded() {
    let limits = Limits { controllers: 2, async_events: 2, ..Limits::default() };
    let mut fabric = fabric_for(Hosts::Any, limits);
    let (mut first, _) = fabric.controller(0);
    let _second = fabric.controller(0);
    let mut third = fabric.link();
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    let outcome = fabric.connect(&mut third, &connect, &connect_data(0xffff));
    assert_eq!(outcome.status, Status::CONNECT_CONTROLLER_BUSY);
    let request = Sqe::new(admin::ASYNC_EVENT, 0);
    for _ in 0..2 {
        let command = fabric.submit(&mut first, &request, NO_DATA, &[]);
        assert!(fabric.outcome(&mut first, command).is_none());
    }
    let outcome = fabric.call(&mut first, &request, NO_DATA);
    assert_eq!(outcome.status, Status::AER_LIMIT_EXCEEDED.dnr());
    // The end of an Admin Queue is that of its controller.
    first.session.closed(&mut fabric.target);
    let outcome = fabric.connect(&mut third, &connect, &connect_data(0xffff));
    assert!(outcome.status.is_success());
}

#[test]
fn identification() {
    let mut fabric = fabric();
    let (mut link, cntlid) = fabric.controller(0);
    let (_, data) = identify(&mut fabric, &mut link, cns::CONTROLLER, 0);
    let controller = identify::Controller::ref_from_bytes(&data).unwrap();
    assert_eq!(controller.cntlid.get(), cntlid);
    assert_eq!((&controller.sn[..3], &controller.mn[..6]), (&b"S1 "[..], &b"Model "[..]));
    assert_eq!(controller.ioccsz.get(), (64 + 8192) / 16);
    assert_eq!((controller.mdts, controller.nn.get()), (8, 1024));
    let (_, data) = identify(&mut fabric, &mut link, cns::NAMESPACE, 1);
    let data = identify::Namespace::ref_from_bytes(&data).unwrap();
    assert_eq!((data.nsze.get(), data.format().lbads, data.anagrpid.get()), (1024, 9, 1));
    let (_, data) = identify(&mut fabric, &mut link, cns::ACTIVE_NAMESPACES, 0);
    assert_eq!(data[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let (_, data) = identify(&mut fabric, &mut link, cns::NAMESPACE_DESCRIPTORS, 1);
    let kinds: Vec<_> = identify::parse_descriptors(&data).map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [3, 4, 2]);
    for which in [
        cns::NAMESPACE_OF_COMMAND_SET,
        cns::CONTROLLER_OF_COMMAND_SET,
        cns::ACTIVE_NAMESPACES_OF_COMMAND_SET,
        cns::COMMAND_SETS,
        cns::NAMESPACE_INDEPENDENT,
    ] {
        let (status, data) = identify(&mut fabric, &mut link, which, 1);
        assert_eq!((status, data.len()), (Status::SUCCESS, 4096), "{which:#x}");
    }
    let (status, data) = identify(&mut fabric, &mut link, cns::NAMESPACE, 2);
    assert_eq!((status, data), (Status::SUCCESS, vec![0; 4096]));
    let (status, _) = identify(&mut fabric, &mut link, cns::NAMESPACE, 0xffff_ffff);
    assert_eq!(status, Status::INVALID_NAMESPACE.dnr());
    let (status, _) = identify(&mut fabric, &mut link, 0x99, 1);
    assert_eq!(status, Status::INVALID_FIELD.dnr());
}

#[test]
fn features() {
    let mut fabric = fabric();
    let (mut link, _) = fabric.controller(3000);
    let mut feature = |opcode, id: u8, value: u32| {
        let mut sqe = Sqe::new(opcode, 0);
        sqe.cdw10 = u32::from(id).into();
        sqe.cdw11 = value.into();
        let outcome = fabric.call(&mut link, &sqe, NO_DATA);
        (outcome.status, outcome.result)
    };
    let success = Status::SUCCESS;
    assert_eq!(
        feature(admin::SET_FEATURES, fid::NUMBER_OF_QUEUES, 7 | 7 << 16),
        (success, 0x7f_007f)
    );
    assert_eq!(feature(admin::GET_FEATURES, fid::KEEP_ALIVE, 0), (success, 3000));
    assert_eq!(feature(admin::SET_FEATURES, fid::KEEP_ALIVE, 9000), (success, 0));
    assert_eq!(feature(admin::GET_FEATURES, fid::KEEP_ALIVE, 0), (success, 9000));
    assert_eq!(feature(admin::GET_FEATURES, fid::VOLATILE_WRITE_CACHE, 0), (success, 1));
    assert_eq!(feature(admin::SET_FEATURES, fid::VOLATILE_WRITE_CACHE, 0), (success, 0));
    assert_eq!(feature(admin::GET_FEATURES, fid::VOLATILE_WRITE_CACHE, 0), (success, 0));
    let invalid = Status::INVALID_FIELD.dnr();
    assert_eq!(feature(admin::SET_FEATURES, fid::ASYNC_EVENT, 1 << 9), (invalid, 0));
    assert_eq!(feature(admin::GET_FEATURES, 0xc0, 0), (invalid, 0));
    let fixed = Status::FEATURE_NOT_CHANGEABLE.dnr();
    assert_eq!(feature(admin::SET_FEATURES, fid::ARBITRATION, 1), (fixed, 0));
}

fn read_log(fabric: &mut Fabric, link: &mut Link, page: u8, len: u32) -> (Status, Vec<u8>) {
    let sqe = GetLogPage::sqe(page, 0xffff_ffff, 0, len);
    let outcome = fabric.call(link, &sqe, Transfer::ToHost(len));
    (outcome.status, outcome.data)
}

/// Base 5.2: an event is reported once, and again after its log was read.
#[test]
fn events() {
    let mut fabric = fabric();
    let (mut link, cntlid) = fabric.controller(0);
    let mut configure = Sqe::new(admin::SET_FEATURES, 0);
    configure.cdw10 = u32::from(fid::ASYNC_EVENT).into();
    configure.cdw11 = (1_u32 << 8 | 1 << 11).into();
    assert!(fabric.call(&mut link, &configure, NO_DATA).status.is_success());
    let request = Sqe::new(admin::ASYNC_EVENT, 0);
    let first = fabric.submit(&mut link, &request, NO_DATA, &[]);
    fabric.run(&mut link);
    let second = fabric.submit(&mut link, &request, NO_DATA, &[]);
    fabric.run(&mut link);
    let cids = [first, second].map(|command| link.host.cid(command).unwrap());
    fabric.notices.clear();
    let larger = NamespaceConfig { blocks: 2048, ..namespace() };
    assert!(fabric.target.add_namespace(&nqn(DISK), 1, larger));
    assert!(fabric.target.add_namespace(&nqn(DISK), 2, namespace()));
    fabric.run(&mut link);
    let completed =
        |cid, result| Notice::Completed { cntlid, cid, status: Status::SUCCESS, result };
    let changed = completed(cids[0], 0x0004_0002);
    assert_eq!(fabric.notices, [changed]);
    assert!(fabric.target.set_ana(&nqn(DISK), 1, 1, AnaState::Inaccessible));
    fabric.run(&mut link);
    let ana = completed(cids[1], 0x000c_0302);
    assert_eq!(fabric.notices, [changed, ana]);
    let (_, log) = read_log(&mut fabric, &mut link, lid::CHANGED_NAMESPACES, 4096);
    assert_eq!(log[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    let (_, log) = read_log(&mut fabric, &mut link, lid::CHANGED_NAMESPACES, 4096);
    assert_eq!(log, vec![0; 4096]);
    let (_, log) = read_log(&mut fabric, &mut link, lid::ANA, 56);
    let (changes, groups) = log::parse_ana(&log).unwrap();
    assert_eq!((changes, groups[0].state, &groups[0].namespaces[..]), (1, 3, &[1, 2][..]));
}

#[test]
fn log_pages() {
    let mut fabric = fabric();
    let (mut link, _) = fabric.controller(0);
    let (_, supported) = read_log(&mut fabric, &mut link, lid::SUPPORTED, 1024);
    for page in 0..=255_u8 {
        let (status, _) = read_log(&mut fabric, &mut link, page, 64);
        assert_eq!(status.is_success(), supported[usize::from(page) * 4] == 1, "{page:#x}");
    }
    // 256 - 8 refusals; the latest come first, 16 are kept.
    let (_, errors) = read_log(&mut fabric, &mut link, lid::ERROR, 1024);
    assert_eq!(errors[..2], [248, 0]);
    let (_, smart) = read_log(&mut fabric, &mut link, lid::SMART, 512);
    assert_eq!((smart[1], smart[3], smart[176]), (0x2c, 100, 248));
    let (_, effects) = read_log(&mut fabric, &mut link, lid::EFFECTS, 4096);
    let io_effects = 1024 + usize::from(io::WRITE) * 4;
    assert_eq!((effects[io_effects], effects[1024 + 4 * 4]), (3, 0));
    let mut beyond = GetLogPage::sqe(lid::SMART, 0, 516, 512);
    assert!(!fabric.call(&mut link, &beyond, Transfer::ToHost(512)).status.is_success());
    beyond.cdw12 = 508.into();
    let outcome = fabric.call(&mut link, &beyond, Transfer::ToHost(512));
    assert_eq!((outcome.status, outcome.data), (Status::SUCCESS, vec![0; 512]));
}

/// Base 5.16.1.23, 3.1.2.3: a discovery controller tells what a host may know, and no more.
#[test]
fn discovery_service() {
    let mut fabric = fabric();
    let hidden = nqn("nqn.2026-11.io.shunt:hidden");
    fabric.target.add_subsystem(SubsystemConfig {
        nqn: hidden.clone(),
        serial: String::new(),
        model: String::new(),
        firmware: String::new(),
        hosts: Hosts::Listed([].into()),
    });
    let record = |kind, subnqn, port| Record {
        kind,
        subnqn,
        address: ([192, 0, 2, 1], port).into(),
        portid: 1,
        max_admin_queue: 128,
    };
    let disk = record(SubsystemType::Nvm, nqn(DISK), 4420);
    let referral = record(SubsystemType::Referral, nqn(shunt_nvme::wire::nqn::DISCOVERY), 8009);
    fabric.target.set_discovery(vec![
        (0, disk.clone()),
        (2, disk.clone()),
        (0, record(SubsystemType::Nvm, hidden, 4420)),
        (1, referral.clone()),
    ]);
    let mut link = fabric.link();
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    let name = nqn(shunt_nvme::wire::nqn::DISCOVERY);
    let data = ConnectData::new([7; 16], 0xffff, &name, &nqn(HOST));
    assert!(fabric.connect(&mut link, &connect, data.as_bytes()).status.is_success());
    let enable = Property::set(registers::CC, false, 0x0046_0001);
    fabric.call(&mut link, &enable, NO_DATA);
    let (_, log) = read_log(&mut fabric, &mut link, lid::DISCOVERY, 4096);
    assert_eq!(log[8], 2);
    let entries: Vec<_> = (1..3)
        .map(|at| {
            let entry = discovery::Entry::ref_from_bytes(&log[at * 1024..][..1024]).unwrap();
            Record::of(entry).unwrap()
        })
        .collect();
    assert_eq!(entries, [disk, referral]);
    let (status, _) = read_log(&mut fabric, &mut link, lid::SMART, 512);
    assert_eq!(status, Status::INVALID_LOG_PAGE.dnr());
    let (status, _) = identify(&mut fabric, &mut link, cns::NAMESPACE, 1);
    assert_eq!(status, Status::INVALID_FIELD.dnr());
}

/// Base 3.4.2: Compare and Write as one.
/// Base 8.19: a reservation of one host stops another.
#[test]
fn aborted() {
    let mut fabric = fabric();
    let (mut link, _) = fabric.controller(0);
    let request = fabric.submit(&mut link, &Sqe::new(admin::ASYNC_EVENT, 0), NO_DATA, &[]);
    fabric.run(&mut link);
    let mut abort = Sqe::new(admin::ABORT, 0);
    abort.cdw10 = (u32::from(link.host.cid(request).unwrap()) << 16).into();
    assert_eq!(fabric.call(&mut link, &abort, NO_DATA).result, 0);
    let outcome = fabric.outcome(&mut link, request).unwrap();
    assert_eq!(outcome.status, Status::ABORT_REQUESTED);
    assert_eq!(fabric.call(&mut link, &abort, NO_DATA).result, 1);
}

/// Base 5.1: an Abort completes when the queue of its command has said what became of that.
#[test]
fn aborted_on_other_queues() {
    let mut fabric = fabric();
    let (mut admin, cntlid) = fabric.controller(0);
    let mut queue = fabric.io_queue(cntlid, 1);
    let mut abort = |fabric: &mut Fabric, qid: u16, cid: u16| {
        let mut sqe = Sqe::new(admin::ABORT, 0);
        sqe.cdw10 = (u32::from(qid) | u32::from(cid) << 16).into();
        let command = fabric.submit(&mut admin, &sqe, NO_DATA, &[]);
        fabric.run(&mut admin);
        command
    };
    let first = abort(&mut fabric, 1, 7);
    assert_eq!(fabric.notices.pop(), Some(Notice::Abort { cntlid, qid: 1, cid: 7 }));
    let second = abort(&mut fabric, 1, 8);
    let third = abort(&mut fabric, 1, 9);
    // There is no such queue, and so no such command.
    let fourth = abort(&mut fabric, 2, 7);
    fabric.target.aborted(cntlid, 1, 8, false);
    fabric.target.aborted(cntlid, 1, 7, true);
    // Of what is not known nothing becomes.
    fabric.target.aborted(cntlid, 1, 7, true);
    let mut result = |fabric: &mut Fabric, command| {
        fabric.outcome(&mut admin, command).map(|o| (o.status, o.result))
    };
    assert_eq!(result(&mut fabric, first), Some((Status::SUCCESS, 0)));
    assert_eq!(result(&mut fabric, second), Some((Status::SUCCESS, 1)));
    assert_eq!(result(&mut fabric, fourth), Some((Status::SUCCESS, 1)));
    assert_eq!(result(&mut fabric, third), None);
    // The queue goes: nothing can be aborted on it, and the Abort ends.
    queue.session.closed(&mut fabric.target);
    assert_eq!(result(&mut fabric, third), Some((Status::SUCCESS, 1)));
}

/// Base 5.1: no more than ACL, which Identify tells.
#[test]
fn aborts_have_a_limit() {
    let mut fabric = fabric();
    let (mut admin, cntlid) = fabric.controller(0);
    let _queue = fabric.io_queue(cntlid, 1);
    let (_, data) = identify(&mut fabric, &mut admin, 1, 0);
    let acl = usize::from(data[258]);
    for n in 0..=acl + 1 {
        let mut sqe = Sqe::new(admin::ABORT, 0);
        sqe.cdw10 = (1 | u32::try_from(n).unwrap() << 16).into();
        let command = fabric.submit(&mut admin, &sqe, NO_DATA, &[]);
        let status = fabric.outcome(&mut admin, command).map(|outcome| outcome.status);
        let beyond = (n > acl).then_some(Status::ABORT_LIMIT_EXCEEDED.dnr());
        assert_eq!(status, beyond, "{n}");
    }
}

/// A change of the configuration ends what it does not allow any more, and nothing else.
#[test]
fn hosts_that_may_not_stay() {
    let [mine, other] = [KEY, "DHHC-1:00:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:"]
        .map(|key| Keys { host: Secret::new(key).unwrap(), controller: None });
    let listed = |keys: Option<&Keys>| Hosts::Listed([(nqn(HOST), keys.cloned())].into());
    let nobody = Hosts::Listed([].into());
    let config = |hosts: &Hosts| SubsystemConfig {
        nqn: nqn(DISK),
        serial: String::new(),
        model: String::new(),
        firmware: String::new(),
        hosts: hosts.clone(),
    };
    for (before, after, stays) in [
        (Hosts::Any, Hosts::Any, true),
        (Hosts::Any, listed(None), true),
        (Hosts::Any, listed(Some(&mine)), false),
        (Hosts::Any, nobody.clone(), false),
        (listed(None), nobody, false),
        (listed(None), listed(Some(&mine)), false),
        (listed(Some(&mine)), listed(Some(&mine)), true),
        (listed(Some(&mine)), listed(Some(&other)), false),
        (listed(Some(&mine)), listed(None), true),
    ] {
        let mut fabric = fabric_for(before.clone(), Limits::default());
        let mut link = fabric.link();
        let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
        let outcome = fabric.connect(&mut link, &connect, &connect_data(0xffff));
        assert!(outcome.status.is_success(), "{outcome:?}");
        assert!(fabric.target.add_subsystem(config(&after)));
        assert_eq!(fabric.target.controllers().count() == 1, stays, "{before:?} {after:?}");
        fabric.target.end_host(&nqn(DISK), &nqn("nqn.2026-11.io.shunt:stranger"));
        assert_eq!(fabric.target.controllers().count() == 1, stays);
        fabric.target.end_host(&nqn(DISK), &nqn(HOST));
        assert_eq!(fabric.target.controllers().count(), 0);
    }
}

/// Base 8.13: until the host has proved who it is nothing else is done, on each queue.
#[test]
fn authentication() {
    let key = Secret::new(KEY).unwrap();
    let keys = Keys { host: key.clone(), controller: None };
    let hosts = Hosts::Listed([(nqn(HOST), Some(keys))].into());
    let mut fabric = fabric_for(hosts, Limits::default());
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, no_flow_control: true, kato: 0 };
    for good in [false, true] {
        let mut link = fabric.link();
        let outcome = fabric.connect(&mut link, &connect, &connect_data(0xffff));
        assert!(outcome.result & u64::from(fabrics::AUTHENTICATION_REQUIRED) != 0);
        let get = Property::get(registers::CAP, true);
        let refused = fabric.call(&mut link, &get, NO_DATA);
        assert_eq!(refused.status, Status::AUTHENTICATION_REQUIRED.dnr());
        // The session by itself says so, too.
        let mut random = |_: &mut [u8]| {};
        let mut context = Context { now: Duration::ZERO, random: &mut random };
        let none = shunt_nvme::controller::Transfer::None;
        let reply = link.session.execute(&mut fabric.target, &get, none, &[], &mut context);
        let status = Status::AUTHENTICATION_REQUIRED.dnr();
        assert_eq!(reply, Reply::Done { status, result: 0, data: Vec::new() });
        let mine = if good {
            key.clone()
        } else {
            let other = "DHHC-1:00:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:";
            Secret::new(other).unwrap()
        };
        let mut initiator =
            Initiator::new(nqn(HOST), nqn(DISK), mine, None, vec![Group::Ffdhe2048], 1);
        let mut entropy = common::Random(5);
        let mut random = |bytes: &mut [u8]| bytes.fill_with(|| entropy.next().to_le_bytes()[0]);
        let result = loop {
            match initiator.step() {
                Ok(Step::Send(message)) => {
                    let len = u32::try_from(message.len()).unwrap();
                    let transfer = Transfer::InCapsule(len);
                    let sqe = Authentication::send(len);
                    let outcome = fabric.call_with(&mut link, &sqe, transfer, &message);
                    assert_eq!(outcome.status, Status::SUCCESS);
                }
                Ok(Step::Receive) => {
                    let sqe = Authentication::receive(4096);
                    let outcome = fabric.call(&mut link, &sqe, Transfer::ToHost(4096));
                    initiator.receive(&outcome.data, &mut random);
                }
                Ok(Step::Done) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        assert_eq!(result.is_ok(), good, "{result:?}");
        assert_eq!(link.session.has_failed(), !good);
        let outcome = fabric.call(&mut link, &get, NO_DATA);
        assert_eq!(outcome.status.is_success(), good);
    }
}

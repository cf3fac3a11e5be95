//! Link groups that agents' threads make with each other, over loopback and the device in the process.

mod common;
#[path = "common/hostile.rs"]
mod hostile;
#[path = "common/keys.rs"]
mod keys;
#[path = "common/until.rs"]
mod until;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Running;
use hostile::Hostile;
use keys::{Id, ids};
use shunt_peer::{Event, Message};
use shunt_rdma::report::{PeerState, Report};
use shunt_rdma::{Config, Host, PeerName, Plane, Promote};
use shunt_verbs::fake::FakePort;
use shunt_verbs::value::Loss;
use until::until;

const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no device.
const NONE: &str = "it is gone";

fn name(at: SocketAddr, id: &Id) -> PeerName {
    PeerName::new(&at.to_string(), id.0).unwrap()
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

/// An agent's thread with this device, or with none.
fn start(id: &Id, peer: PeerName, port: Option<FakePort>) -> Plane {
    start_by(id, peer, move || port.clone().ok_or_else(|| NONE.to_owned()))
}

/// The same, with a device that is opened so.
fn start_by(
    id: &Id,
    peer: PeerName,
    open: impl FnMut() -> Result<FakePort, String> + Send + 'static,
) -> Plane {
    let device = "fake0".parse().unwrap();
    let (listen, key) = ("127.0.0.1:0".parse().unwrap(), id.1.clone());
    let (peers, promote) = (vec![peer], Promote::Always);
    let (servers, host) = (None, Host::default());
    let config = Config { device, listen, key, peers, promote, servers, host };
    Plane::start_with(config, open).unwrap()
}

fn two(ports: [Option<FakePort>; 2]) -> [Plane; 2] {
    let ([dialer, answerer], [first, second]) = (ids(), ports);
    let second = start(&answerer, name(nowhere(), &dialer), second);
    let first = start(&dialer, name(second.report().unwrap().listen, &answerer), first);
    [first, second]
}

fn are_up(planes: &[Plane]) {
    for plane in planes {
        until(plane, |report| report.peers[0].link_groups == 1);
    }
}

/// Waits until the last link group failed, or was refused, for this reason.
fn failed_for(plane: &Plane, why: &str) {
    let is_it = |report: &Report| {
        let reason = report.peers[0].link_group_reason.as_ref();
        reason.is_some_and(|reason| reason.contains(why))
    };
    until(plane, is_it);
}

#[test]
fn peers_with_devices_make_a_link_group() {
    let running = Running::new(1);
    let planes = two([(); 2].map(|()| Some(running.network.host())));
    are_up(&planes);
    for plane in &planes {
        let report = plane.report().unwrap();
        assert_eq!(report.memory_registered, 2 * 256 * 128);
        assert!(report.device_lacks.is_none() && report.device_address.is_some());
        assert_eq!(report.peers[0].link_group_reason, None);
        assert_eq!(report.peers[0].has_device, Some(true));
    }
}

#[test]
fn queue_pairs_that_fail_are_made_anew() {
    let running = Running::new(2);
    let planes = two([(); 2].map(|()| Some(running.network.host())));
    are_up(&planes);
    running.network.break_all();
    for plane in &planes {
        until(plane, |report| report.peers[0].link_group_reason.is_some());
    }
    are_up(&planes);
    for plane in &planes {
        // Of the one that failed nothing is left.
        let report = until(plane, |report| report.memory_registered == 2 * 256 * 128);
        assert_eq!(report.peers[0].state, PeerState::Connected);
    }
}

#[test]
fn a_wire_that_is_cut_is_a_reason_and_tried_again() {
    let running = Running::new(3);
    running.network.set_cut(true);
    let planes = two([(); 2].map(|()| Some(running.network.host())));
    failed_for(&planes[0], "the peer's device does not answer");
    failed_for(&planes[1], "the peer's end of the link has failed");
    running.network.set_cut(false);
    are_up(&planes);
}

#[test]
fn without_a_device_there_is_none() {
    let running = Running::new(4);
    for which in 0..2 {
        let mut ports = [None, None];
        ports[which] = Some(running.network.host());
        let planes = two(ports);
        for plane in &planes {
            until(plane, |report| report.count(PeerState::Connected) == 1);
        }
        let without = planes[1 - which].report().unwrap();
        assert_eq!(without.device_lacks.as_deref(), Some(NONE));
        assert!(planes.iter().all(|plane| plane.report().unwrap().memory_registered == 0));
    }
}

#[test]
fn memory_that_may_not_be_registered_is_a_reason_at_both_ends() {
    let running = Running::new(5);
    let [enough, little] = [usize::MAX, 1000].map(|limit| running.network.host_with_limit(limit));
    let [first, second] = two([Some(enough), Some(little)]);
    failed_for(&second, "raise RLIMIT_MEMLOCK");
    failed_for(&first, "the peer refuses: it may not register more memory (RLIMIT_MEMLOCK)");
    until(&first, |report| report.memory_registered == 0);
    assert_eq!(first.report().unwrap().count(PeerState::Connected), 1);
}

#[test]
fn an_agent_that_is_started_anew_makes_another_one() {
    let running = Running::new(6);
    let [dialer, answerer] = ids();
    let port = || Some(running.network.host());
    let second = start(&answerer, name(nowhere(), &dialer), port());
    let peer = name(second.report().unwrap().listen, &answerer);
    let first = start(&dialer, peer.clone(), port());
    are_up(std::slice::from_ref(&second));
    drop(first);
    let alone = until(&second, |report| report.peers[0].state == PeerState::Awaited);
    assert_eq!((alone.peers[0].link_groups, alone.memory_registered), (0, 0));
    let first = start(&dialer, peer, port());
    are_up(&[first, second]);
}

#[test]
fn of_a_peer_that_is_named_no_more_nothing_is_left() {
    let running = Running::new(9);
    let planes = two([(); 2].map(|()| Some(running.network.host())));
    are_up(&planes);
    planes[1].set_peers(Vec::new()).unwrap();
    for plane in &planes {
        until(plane, |report| report.memory_registered == 0);
    }
}

/// Whether that was heard before it was parted with or not.
#[test]
fn with_a_peer_that_is_named_again_there_is_another_link_group() {
    let running = Running::new(10);
    let (ids, port) = (ids(), || Some(running.network.host()));
    let second = start(&ids[1], name(nowhere(), &ids[0]), port());
    let peer = name(second.report().unwrap().listen, &ids[1]);
    let first = start(&ids[0], peer.clone(), port());
    let planes = [first, second];
    for pause in [0, 0, 1, 5, 20, 100] {
        are_up(&planes);
        planes[0].set_peers(Vec::new()).unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        planes[0].set_peers(vec![peer.clone()]).unwrap();
        until(&planes[0], |report| report.peers.len() == 1);
    }
    are_up(&planes);
}

/// A device that comes and goes.
#[derive(Clone)]
struct Slot(Arc<Mutex<Option<FakePort>>>);

impl Slot {
    fn start(&self, id: &Id, peer: PeerName) -> Plane {
        let slot = self.clone();
        start_by(id, peer, move || slot.0.lock().unwrap().clone().ok_or_else(|| NONE.to_owned()))
    }

    fn put(&self, port: Option<FakePort>) {
        *self.0.lock().unwrap() = port;
    }
}

/// A host whose device is lost lets go of it, and both make a link group again when there is one.
#[test]
fn a_device_that_is_lost_is_let_go_and_looked_for_again() {
    let losses = [Loss::Removed, Loss::Failed, Loss::PortDown, Loss::Address, Loss::Overrun];
    std::thread::scope(|scope| {
        for (seed, loss) in (20..).zip(losses) {
            scope.spawn(move || device_is_lost(seed, loss));
        }
    });
}

fn device_is_lost(seed: u64, loss: Loss) {
    let running = Running::new(seed);
    let who = usize::from(seed.is_multiple_of(2));
    let ports = [(); 2].map(|()| running.network.host());
    let slots = ports.each_ref().map(|port| Slot(Arc::new(Mutex::new(Some(port.clone())))));
    let [dialer, answerer] = ids();
    let second = slots[1].start(&answerer, name(nowhere(), &dialer));
    let at = second.report().unwrap().listen;
    let planes = [slots[0].start(&dialer, name(at, &answerer)), second];
    are_up(&planes);
    slots[who].put(None);
    ports[who].lose(loss);
    let why = loss.to_string();
    let lost = until(&planes[who], |report| report.device_lacks.is_some());
    assert_eq!((lost.device_address, lost.memory_registered), (None, 0));
    for plane in &planes {
        until(plane, |report| report.peers[0].link_groups == 0);
    }
    let is_it = |report: &Report| report.peers[0].link_group_reason.is_some();
    let reason = until(&planes[who], is_it).peers[0].link_group_reason.clone().unwrap();
    // Requests that the device ends may be noticed before.
    let known = [&why, NONE, "the queue pair had failed before"];
    assert!(known.iter().any(|it| reason.contains(*it)), "{reason}");
    failed_for(&planes[1 - who], "the peer");
    // The other one is told, on the connection that there is.
    let told = until(&planes[1 - who], |report| report.peers[0].has_device == Some(false));
    assert_eq!(told.peers[0].state, PeerState::Connected);
    let deadline = Instant::now() + PATIENCE;
    while ports[who].objects() > 0 {
        assert!(Instant::now() < deadline, "{} things are left of it", ports[who].objects());
        std::thread::sleep(Duration::from_millis(5));
    }
    until(&planes[who], |report| report.device_lacks.as_deref() == Some(NONE));
    slots[who].put(Some(running.network.host()));
    are_up(&planes);
    for plane in &planes {
        let report = until(plane, |report| report.memory_registered == 2 * 256 * 128);
        assert_eq!((report.device_lacks, report.peers[0].state), (None, PeerState::Connected));
        assert_eq!((report.peers[0].has_device, &report.peers[0].reason), (Some(true), &None));
    }
}

#[test]
fn a_peer_that_speaks_of_what_there_is_not_loses_its_connection_alone() {
    let running = Running::new(7);
    let [dialer, answerer] = ids();
    let agent = start(&answerer, name(nowhere(), &dialer), Some(running.network.host()));
    let at = agent.report().unwrap().listen;
    for message in [Message::Gone(1), Message::Refuse(1, shunt_peer::message::Refusal::Many)] {
        let mut hostile = Hostile::connect(&dialer, at, answerer.0);
        until(&agent, |report| report.count(PeerState::Connected) == 1);
        hostile.say(&message);
        let over = until(&agent, |report| report.peers[0].state == PeerState::Awaited);
        let why = over.peers[0].reason.clone().unwrap();
        assert!(why.starts_with("it spoke of "), "{why}");
    }
}

#[test]
fn a_peer_that_offers_what_it_does_not_have_costs_nothing_for_long() {
    let running = Running::new(8);
    let [dialer, answerer] = ids();
    let agent = start(&answerer, name(nowhere(), &dialer), Some(running.network.host()));
    let mut hostile = Hostile::connect(&dialer, agent.report().unwrap().listen, answerer.0);
    let pair = shunt_verbs::value::PeerPair {
        gid: shunt_verbs::value::Gid([9; 16]),
        number: shunt_verbs::value::PairNumber(77),
        first_packet: shunt_verbs::value::PacketNumber::new(1),
        mtu: shunt_verbs::value::Mtu::B1024,
    };
    // More than it may have: the rest is refused.
    for group in 0..100 {
        hostile.say(&Message::Offer(shunt_peer::message::Group { group: group * 2, pair }));
    }
    let refused = Message::Refuse(64 * 2, shunt_peer::message::Refusal::Many);
    hostile.until(|event| *event == Event::Said(refused.clone()));
    let report = until(&agent, |report| report.memory_registered > 0);
    assert!(report.memory_registered <= 64 * 2 * 256 * 128);
    drop(hostile);
    until(&agent, |report| report.memory_registered == 0);
}

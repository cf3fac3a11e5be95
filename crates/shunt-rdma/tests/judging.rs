//! What agents' threads make of a link that is faster than TCP, or slower: over the device in the process, and loopback, either of which
//! can be slowed down so far that the other one wins however busy the machine is.

mod common;
#[path = "common/hostile.rs"]
mod hostile;
#[path = "common/keys.rs"]
mod keys;
#[path = "common/until.rs"]
mod until;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use common::Running;
use hostile::Hostile;
use keys::{Id, ids};
use shunt_peer::message::{Group, Judgement, Lane, Measurable, Place, Refusal, Region, Token};
use shunt_peer::session::{PREAMBLE, measures};
use shunt_peer::{Event, Message};
use shunt_rdma::report::{PeerReport, PeerState, Promotion, Report};
use shunt_rdma::{Config, Host, PeerName, Plane, Promote};
use shunt_verbs::Memory;
use shunt_verbs::fake::{FakePair, FakePort, FakeQueue};
use shunt_verbs::port::{Pair, Patience, Port, Region as _};
use shunt_verbs::value::{Access, Capacity, PacketNumber, PeerPair, ReceiveRequest};
use until::until;

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that are registered for a link group, and to measure it.
const LINK: u64 = 2 * 256 * 128;
const SCRATCH: u64 = 64 * 1024;

/// What becomes of a connection that is to be measured.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tcp {
    Fast,
    Slow,
    /// It is closed at once.
    Closed,
    /// Something else answers.
    Other,
}

/// Stands between the agents.
struct Relay {
    at: SocketAddr,
    tcp: Arc<AtomicU8>,
}

impl Relay {
    fn start(to: SocketAddr, tcp: Tcp) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let tcp = Arc::new(AtomicU8::new(tcp as u8));
        let is = Arc::clone(&tcp);
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let is = Arc::clone(&is);
                std::thread::spawn(move || carry(near, to, &is));
            }
        });
        Self { at, tcp }
    }

    fn set(&self, tcp: Tcp) {
        self.tcp.store(tcp as u8, Ordering::Relaxed);
    }
}

fn carry(mut near: TcpStream, to: SocketAddr, is: &Arc<AtomicU8>) {
    let mut name = [0; 8];
    if near.read_exact(&mut name).is_err() {
        return;
    }
    let is_measured = name == measures(Token([0; 16]))[..8];
    let tcp = is.load(Ordering::Relaxed);
    let is_broken = [Tcp::Closed as u8, Tcp::Other as u8].contains(&tcp);
    if is_measured && is_broken {
        // All of it, or the end would be a reset.
        near.read_exact(&mut [0; 16]).unwrap();
        if tcp == Tcp::Closed as u8 {
            return;
        }
        let _ = near.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        return;
    }
    let mut far = TcpStream::connect(to).unwrap();
    [&near, &far].iter().for_each(|stream| stream.set_nodelay(true).unwrap());
    far.write_all(&name).unwrap();
    let pause = Duration::from_millis(if is_measured && tcp == Tcp::Slow as u8 { 20 } else { 0 });
    let (back, there) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    std::thread::spawn(move || pass(back, there, pause));
    pass(near, far, pause);
}

fn pass(mut from: TcpStream, mut to: TcpStream, pause: Duration) {
    let mut room = [0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut room) {
        std::thread::sleep(pause);
        if to.write_all(&room[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn start(id: &Id, at: SocketAddr, peer: &Id, port: FakePort, promote: Promote) -> Plane {
    let device = "fake0".parse().unwrap();
    let (listen, key) = ("127.0.0.1:0".parse().unwrap(), id.1.clone());
    let peers = vec![PeerName::new(&at.to_string(), peer.0).unwrap()];
    let (servers, host) = (None, Host::default());
    let config = Config { device, listen, key, peers, promote, servers, host };
    Plane::start_with(config, move || Ok(port.clone())).unwrap()
}

/// Two agents with a device each, and the relay between them.
struct Two {
    running: Running,
    relay: Relay,
    planes: [Plane; 2],
}

impl Two {
    fn start(is_slow: bool, tcp: Tcp, promote: [Promote; 2]) -> Self {
        let running = Running::new(1);
        running.set_slow(is_slow);
        let [dialer, answerer] = ids();
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let second = start(&answerer, nowhere, &dialer, running.network.host(), promote[1]);
        let relay = Relay::start(second.report().unwrap().listen, tcp);
        let first = start(&dialer, relay.at, &answerer, running.network.host(), promote[0]);
        Self { running, relay, planes: [first, second] }
    }

    /// Waits until both sides say so.
    fn until(&self, wanted: [Promotion; 2]) -> [PeerReport; 2] {
        let [first, second] = [0, 1].map(|who: usize| {
            until(&self.planes[who], |report| report.peers[0].promotion == Some(wanted[who]))
        });
        [first, second].map(|mut report| report.peers.remove(0))
    }
}

const FASTER: [Promote; 2] = [Promote::Faster; 2];

#[test]
fn a_link_that_is_slower_than_tcp_promotes_nothing_and_both_sides_say_why() {
    let two = Two::start(true, Tcp::Fast, FASTER);
    for peer in two.until([Promotion::Slower; 2]) {
        let why = peer.promotion_reason.unwrap();
        assert!(why.starts_with("the link is slower than TCP"), "{why}");
        let measured = peer.measured.unwrap();
        assert!(measured.link_round_trip_ns > measured.tcp_round_trip_ns, "{measured:?}");
        assert!(measured.tcp_bytes_per_s > 0 && measured.link_bytes_per_s > 0, "{measured:?}");
        assert!(measured.wake_up_ns > 0 && measured.peer_wake_up_ns > 0, "{measured:?}");
    }
    for plane in &two.planes {
        assert_eq!(plane.report().unwrap().memory_registered, LINK + SCRATCH);
    }
}

#[test]
fn a_link_that_is_faster_promotes_until_it_is_slower_and_again() {
    let two = Two::start(false, Tcp::Slow, FASTER);
    for peer in two.until([Promotion::Faster; 2]) {
        assert_eq!(peer.promotion_reason, None);
        let measured = peer.measured.unwrap();
        assert!(measured.link_bytes_per_s > measured.tcp_bytes_per_s, "{measured:?}");
    }
    // It is judged anew when there is another link.
    for (is_slow, tcp, wanted) in
        [(true, Tcp::Fast, Promotion::Slower), (false, Tcp::Slow, Promotion::Faster)]
    {
        two.running.set_slow(is_slow);
        two.relay.set(tcp);
        two.running.network.break_all();
        two.until([wanted; 2]);
    }
}

#[test]
fn either_side_may_refuse_what_the_other_one_always_promotes() {
    for who in 0..2 {
        let mut promote = FASTER;
        promote[who] = Promote::Always;
        let two = Two::start(true, Tcp::Fast, promote);
        let mut wanted = [Promotion::Slower; 2];
        wanted[who] = Promotion::Refused;
        let peers = two.until(wanted);
        let why = peers[who].promotion_reason.clone().unwrap();
        assert!(why.contains("the peer"), "{why}");
        // Nor is it so by the next rule of the other one.
        two.planes[1 - who].set_promote(Promote::Always);
        two.until([Promotion::Always; 2]);
        two.planes[who].set_promote(Promote::Faster);
        wanted = [Promotion::Refused; 2];
        wanted[who] = Promotion::Slower;
        two.until(wanted);
    }
}

#[test]
fn nothing_is_measured_where_both_always_promote() {
    let two = Two::start(true, Tcp::Closed, [Promote::Always; 2]);
    for peer in two.until([Promotion::Always; 2]) {
        assert_eq!((peer.promotion_reason, peer.measured), (None, None));
    }
    assert_eq!(two.planes[0].report().unwrap().memory_registered, LINK);
}

#[test]
fn a_link_that_cannot_be_measured_promotes_nothing_and_the_reason_is_told() {
    for (tcp, why) in [(Tcp::Closed, "broken it off"), (Tcp::Other, "something else answers")] {
        let two = Two::start(false, tcp, FASTER);
        let is_told = |report: &Report| {
            let reason = report.peers[0].promotion_reason.as_ref();
            reason.is_some_and(|reason| reason.contains(why))
        };
        until(&two.planes[0], is_told);
        // The other side has waited for a connection.
        let waited = |report: &Report| {
            let reason = report.peers[0].promotion_reason.as_ref();
            reason.is_some_and(|reason| reason.contains("could not be measured"))
        };
        until(&two.planes[1], waited);
        two.until([Promotion::Unmeasured; 2]);
        // It is tried again.
        two.relay.set(Tcp::Slow);
        two.until([Promotion::Faster; 2]);
    }
}

const GROUP: u32 = 4;

/// A hostile dialer with a link group that is up, of whose link it says nothing.
struct Linked {
    running: Running,
    agent: Plane,
    dialer: Id,
    answerer: Id,
    hostile: Hostile,
    region: Region,
    _device: (FakePair, FakeQueue, Memory, shunt_verbs::fake::FakeRegion),
}

impl Linked {
    fn start() -> Self {
        let running = Running::new(5);
        let [dialer, answerer] = ids();
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let agent = start(&answerer, nowhere, &dialer, running.network.host(), Promote::Faster);
        let at = agent.report().unwrap().listen;
        let mut hostile = Hostile::connect(&dialer, at, answerer.0);
        let port = running.network.host();
        let queue = port.queue(64, &port.channel().unwrap(), 0, 0).unwrap();
        let pair = port.pair(&queue, Capacity { send: 8, receive: 8, pieces: 1 }).unwrap();
        let memory = Memory::new(2 * 64 * 1024).unwrap();
        let scratch = port.register(&memory, 0..2 * 64 * 1024, Access::RemoteWrite).unwrap();
        pair.initialize().unwrap();
        for id in 0..8 {
            let at = 64 * 1024 + usize::try_from(id).unwrap() * 128;
            let piece = scratch.piece(at..at + 128).unwrap();
            pair.post_receive(&ReceiveRequest { id, piece }).unwrap();
        }
        let first_packet = PacketNumber::new(1);
        let (gid, number, mtu) = (port.gid(), pair.number(), port.mtu());
        let own = PeerPair { gid, number, first_packet, mtu };
        hostile.say(&Message::Offer(Group { group: GROUP, pair: own }));
        let accepted = hostile.until(|event| matches!(event, Event::Said(Message::Accept(_))));
        let Event::Said(Message::Accept(far)) = accepted else { unreachable!() };
        pair.receive_from(&far.pair).unwrap();
        pair.send_with(first_packet, Patience::DEFAULT).unwrap();
        let region = Region { at: scratch.as_remote(), length: 64 * 1024 };
        let _device = (pair, queue, memory, scratch);
        Self { running, agent, dialer, answerer, hostile, region, _device }
    }

    fn at(&self) -> SocketAddr {
        self.agent.report().unwrap().listen
    }

    fn measure(&mut self, group: u32, length: u32, token: Token) {
        let region = Region { length, ..self.region };
        let measurable = Measurable { group, wake_up: 1, region };
        self.hostile.say(&Message::Measure(measurable, token));
    }

    /// Until the agent awaits the connection.
    fn until_awaited(&mut self) {
        self.hostile.until(|event| matches!(event, Event::Said(Message::Measurable(_))));
    }

    /// The connection that is to be measured.
    fn measured(&self, token: Token) -> TcpStream {
        let mut stream = TcpStream::connect(self.at()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&measures(token)).unwrap();
        stream.read_exact(&mut [0; PREAMBLE]).unwrap();
        stream
    }

    fn says(&self, why: &str) {
        let is_said = |report: &Report| {
            let reason = report.peers[0].promotion_reason.as_ref();
            reason.is_some_and(|reason| reason.contains(why))
        };
        let report = until(&self.agent, is_said);
        // Nothing else happens to it.
        assert_eq!(report.peers[0].state, PeerState::Connected);
        assert_eq!(report.peers[0].promotion, Some(Promotion::Unmeasured));
    }
}

/// True when nothing but an end comes.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut said = Vec::new();
    // It may be reset.
    let _ = stream.read_to_end(&mut said);
    said.is_empty()
}

const TOKEN: Token = Token([9; 16]);

#[test]
fn a_peer_that_answers_wrongly_is_not_measured_and_its_connection_is_closed() {
    let mut linked = Linked::start();
    linked.measure(GROUP, 64 * 1024, TOKEN);
    linked.until_awaited();
    let mut stream = linked.measured(TOKEN);
    stream.read_exact(&mut [0]).unwrap();
    stream.write_all(&[77]).unwrap();
    linked.says("did not keep to what is to be sent");
    assert!(is_closed(stream));
    // The token is of no use a second time, and at once it may not begin again.
    assert!(is_closed(linked.measured(TOKEN)));
    until(&linked.agent, |report| report.turned_away == 1);
    linked.measure(GROUP, 64 * 1024, TOKEN);
    let refused = Message::NotMeasurable(GROUP, Refusal::Busy);
    linked.hostile.until(|event| *event == Event::Said(refused.clone()));
}

#[test]
fn a_peer_that_never_connects_is_not_waited_for_long() {
    let mut linked = Linked::start();
    linked.measure(GROUP, 64 * 1024, TOKEN);
    linked.until_awaited();
    // A connection with another token is not it.
    assert!(is_closed(linked.measured(Token([8; 16]))));
    let report = until(&linked.agent, |report| report.turned_away == 1);
    assert!(report.turned_away_last.unwrap().contains("which was not agreed upon"));
    linked.says("has not answered in time");
    assert!(is_closed(linked.measured(TOKEN)));
}

#[test]
fn a_peer_that_asks_for_what_cannot_be_measured_is_refused_or_loses_its_connection() {
    let mut linked = Linked::start();
    linked.measure(GROUP + 2, 64 * 1024, TOKEN);
    let refused = Message::NotMeasurable(GROUP + 2, Refusal::Unknown);
    linked.hostile.until(|event| *event == Event::Said(refused.clone()));
    // What was not asked for means nothing.
    let far = Measurable { group: GROUP, wake_up: 1, region: linked.region };
    linked.hostile.say(&Message::Measurable(far));
    linked.hostile.say(&Message::NotMeasurable(GROUP, Refusal::Failed));
    // Nor does it promote anything that the peer does.
    linked.hostile.say(&Message::Judged(Judgement::Always));
    linked.says("was not measured yet");
    let place = Place { group: GROUP, slot: 0, generation: 1 };
    let (client, server) = ("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    let region = Region { length: 256 * 1024, ..linked.region };
    linked.hostile.say(&Message::Open(Lane { place, client, server, region }));
    let refused = Message::NotOpened(place, Refusal::Slower);
    linked.hostile.until(|event| *event == Event::Said(refused.clone()));
    linked.measure(GROUP, 64 * 1024 - 1, TOKEN);
    let over = until(&linked.agent, |report| report.peers[0].state == PeerState::Awaited);
    let why = over.peers[0].reason.clone().unwrap();
    assert!(why.contains("memory that is too small"), "{why}");
    // It may come again, and has to be measured anew.
    let again = Hostile::connect(&linked.dialer, linked.at(), linked.answerer.0);
    until(&linked.agent, |report| report.peers[0].state == PeerState::Connected);
    drop((again, linked.running));
}

/// The peer takes all that TCP brings, and nothing of what the link does.
#[test]
fn a_link_that_is_never_answered_fails_alone() {
    let mut linked = Linked::start();
    linked.measure(GROUP, 64 * 1024, TOKEN);
    linked.until_awaited();
    let mut stream = linked.measured(TOKEN);
    stream.read_exact(&mut [0]).unwrap();
    // The agent's turn.
    stream.write_all(&[3]).unwrap();
    let failed = until(&linked.agent, |report| report.peers[0].link_group_reason.is_some());
    let why = failed.peers[0].link_group_reason.clone().unwrap();
    assert!(why.contains("has not answered in time"), "{why}");
    assert_eq!(failed.peers[0].state, PeerState::Connected);
    assert!(is_closed(stream));
}

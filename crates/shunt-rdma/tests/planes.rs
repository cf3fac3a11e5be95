//! Agents' threads that connect to each other over loopback, and what others can do to them.

#[path = "common/until.rs"]
mod until;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use shunt_peer::{PublicKey, SecretKey};
use shunt_rdma::device::Wanted;
use shunt_rdma::report::{PeerReport, PeerState};
use shunt_rdma::{Config, Host, PeerName, Plane, Promote, StartError};
use until::until;

/// A key pair.
#[derive(Clone)]
struct Id(SecretKey, PublicKey);

impl Id {
    fn new() -> Self {
        let secret = SecretKey::generate().unwrap();
        let public = secret.public().unwrap();
        Self(secret, public)
    }

    /// So many, in the order of their keys: the one before dials the one behind.
    fn several<const N: usize>() -> [Self; N] {
        let mut ids = [(); N].map(|()| Self::new());
        ids.sort_by_key(|id| id.1);
        ids
    }
}

fn name(at: SocketAddr, id: &Id) -> PeerName {
    PeerName::new(&at.to_string(), id.1).unwrap()
}

/// Where nobody listens.
fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

fn try_start(id: &Id, peers: Vec<PeerName>) -> Result<Plane, StartError> {
    let device = "nosuch0".parse().unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let (key, promote) = (id.0.clone(), Promote::Faster);
    let servers = None;
    Plane::start(Config { device, listen, key, peers, promote, servers, host: Host::default() })
}

fn start(id: &Id, peers: Vec<PeerName>) -> Plane {
    try_start(id, peers).unwrap()
}

fn address(of: &Plane) -> SocketAddr {
    of.report().unwrap().listen
}

fn peer_until(plane: &Plane, wanted: impl Fn(&PeerReport) -> bool) -> PeerReport {
    until(plane, |report| wanted(&report.peers[0])).peers.remove(0)
}

fn connected(plane: &Plane) -> PeerReport {
    peer_until(plane, |peer| peer.state == PeerState::Connected)
}

/// One that dials, and one that answers it.
fn two() -> [Plane; 2] {
    let [dialer, answerer] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &dialer)]);
    let first = start(&dialer, vec![name(address(&second), &answerer)]);
    [first, second]
}

#[test]
fn peers_that_name_each_other_connect() {
    let [first, second] = two();
    let there = connected(&first);
    assert_eq!(there.address, Some(address(&second)));
    assert_eq!(there.has_device, Some(false));
    assert!(there.name.is_some_and(|name| !name.is_empty()) && there.connected_s.is_some());
    assert_eq!(connected(&second).reason, None);
    let report = second.report().unwrap();
    assert!(report.device_lacks.is_some());
    assert_eq!((report.turned_away, report.count(PeerState::Connected)), (0, 1));
}

#[test]
fn listeners_are_told_as_they_come_and_go() {
    let [first, second] = two();
    let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    first.set_listeners(all(&["0.0.0.0:80", "127.0.0.1:81", "10.0.0.1:82", "[::1]:83"]));
    let wanted = all(&["0.0.0.0:80", "10.0.0.1:82"]);
    peer_until(&second, |peer| peer.listeners == wanted);
    first.set_listeners(all(&["10.0.0.1:82"]));
    peer_until(&second, |peer| peer.listeners == all(&["10.0.0.1:82"]));
    // The addresses are this machine's own, which may have none.
    assert!(connected(&first).addresses.iter().all(|ip| !ip.is_loopback()));
}

#[test]
fn a_listener_is_told_to_a_peer_that_comes_later() {
    let [dialer, answerer] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &dialer)]);
    second.set_listeners(vec!["10.0.0.1:82".parse().unwrap()]);
    let first = start(&dialer, vec![name(address(&second), &answerer)]);
    peer_until(&first, |peer| peer.listeners.len() == 1);
}

#[test]
fn a_stranger_is_refused_and_both_are_told_why() {
    let [stranger, answerer, other] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &other)]);
    let first = start(&stranger, vec![name(address(&second), &answerer)]);
    let refused = peer_until(&first, |peer| peer.state == PeerState::Refused);
    assert!(refused.reason.unwrap().contains("may not know this agent's key"));
    let report = until(&second, |report| report.turned_away > 0);
    let why = report.turned_away_last.unwrap();
    assert!(why.contains(&stranger.1.to_string()) && why.contains("--peer"), "{why}");
    assert_eq!(report.peers[0].state, PeerState::Connecting);
}

#[test]
fn an_agent_with_another_key_is_refused() {
    let [dialer, answerer, expected] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &dialer)]);
    let first = start(&dialer, vec![name(address(&second), &expected)]);
    peer_until(&first, |peer| peer.state == PeerState::Refused);
    let report = until(&second, |report| report.turned_away > 0);
    assert!(report.turned_away_last.unwrap().contains("another key"));
    assert_eq!(report.peers[0].state, PeerState::Awaited);
}

#[test]
fn something_else_that_answers_is_no_agent() {
    let [dialer, answerer] = Id::several();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let first = start(&dialer, vec![name(at, &answerer)]);
    let refused = peer_until(&first, |peer| peer.state == PeerState::Refused);
    assert!(refused.reason.unwrap().starts_with("something else than an agent answers"));
    answers.join().unwrap();
}

#[test]
fn whoever_cannot_be_reached_is_tried_again() {
    let [dialer, answerer] = Id::several();
    let place = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = place.local_addr().unwrap();
    drop(place);
    let first = start(&dialer, vec![name(at, &answerer)]);
    let away = peer_until(&first, |peer| peer.reason.is_some());
    assert_eq!(away.state, PeerState::Connecting);
    let (device, key) = (Wanted::Hardware, answerer.0.clone());
    let peers = vec![name(nowhere(), &dialer)];
    let second = Plane::start(Config {
        device,
        listen: at,
        key,
        peers,
        promote: Promote::Faster,
        servers: None,
        host: Host::default(),
    })
    .unwrap();
    connected(&second);
    assert_eq!(connected(&first).reason, None);
}

#[test]
fn an_agent_that_ends_and_comes_back_is_connected_again() {
    let [dialer, answerer] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &dialer)]);
    let peers = vec![name(address(&second), &answerer)];
    let first = start(&dialer, peers.clone());
    connected(&second);
    drop(first);
    let gone = peer_until(&second, |peer| peer.state == PeerState::Awaited);
    assert!(gone.reason.unwrap().ends_with("it ends"));
    let _first = start(&dialer, peers);
    connected(&second);
}

#[test]
fn a_newer_connection_of_a_peer_takes_the_place_of_the_older_one() {
    let [dialer, answerer] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &dialer)]);
    let peers = vec![name(address(&second), &answerer)];
    let first = start(&dialer, peers.clone());
    connected(&first);
    connected(&second);
    // The same agent, started anew, while the old one still seems to be there.
    let again = start(&dialer, peers);
    connected(&again);
    let replaced = peer_until(&first, |peer| peer.state == PeerState::Refused);
    assert!(replaced.reason.unwrap().contains("newer connection"));
}

#[test]
fn a_peer_that_is_named_no_more_is_refused() {
    let [first, second] = two();
    connected(&first);
    connected(&second);
    second.set_peers(Vec::new()).unwrap();
    let removed = peer_until(&first, |peer| peer.state == PeerState::Refused);
    assert!(removed.reason.unwrap().contains("no peer of its any more"));
    assert!(until(&second, |report| report.peers.is_empty()).peers.is_empty());
}

#[test]
fn a_peer_that_is_named_later_is_connected() {
    let [dialer, answerer] = Id::several();
    let second = start(&answerer, Vec::new());
    let first = start(&dialer, vec![name(address(&second), &answerer)]);
    peer_until(&first, |peer| peer.state == PeerState::Refused);
    second.set_peers(vec![name(nowhere(), &dialer)]).unwrap();
    connected(&first);
}

#[test]
fn impossible_peers_change_nothing() {
    let [first, second] = two();
    connected(&first);
    connected(&second);
    let own = Id::new();
    assert!(matches!(try_start(&own, vec![name(nowhere(), &own)]), Err(StartError::Own(_))));
    let key = first.report().unwrap().peers[0].key.parse().unwrap();
    let twice = vec![PeerName::new("a", key).unwrap(), PeerName::new("b", key).unwrap()];
    assert!(matches!(first.set_peers(twice), Err(StartError::Twice(_))));
    assert_eq!(connected(&second).state, connected(&first).state);
}

#[test]
fn a_place_that_is_taken_is_named() {
    let (id, taken) = (Id::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let listen = taken.local_addr().unwrap();
    let (device, peers, promote) = (Wanted::Hardware, Vec::new(), Promote::Faster);
    let config =
        Config { device, listen, key: id.0, peers, promote, servers: None, host: Host::default() };
    let why = Plane::start(config).unwrap_err();
    assert!(matches!(&why, StartError::Listen(at, _) if *at == listen));
    assert!(why.to_string().contains("--rdma-listen"));
}

#[test]
fn strangers_that_say_nothing_keep_no_peer_out() {
    let [dialer, answerer] = Id::several();
    let second = start(&answerer, vec![name(nowhere(), &dialer)]);
    let at = address(&second);
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
    let first = start(&dialer, vec![name(at, &answerer)]);
    connected(&first);
    connected(&second);
    // All but a few were turned away at once, and those are after a while.
    let report = until(&second, |report| report.turned_away >= 84);
    assert_eq!(report.peers[0].state, PeerState::Connected);
    until(&second, |report| report.turned_away == 100);
    drop(silent);
}

#[test]
fn strangers_that_say_anything_do_no_harm() {
    let [first, second] = two();
    let at = address(&second);
    connected(&first);
    connected(&second);
    let mut preamble = shunt_peer::session::Preamble::OWN.bytes().to_vec();
    preamble.extend([0, 96]);
    preamble.extend([7; 96]);
    let whole = preamble.clone();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], b"shunt", &preamble[..40], &whole]
    {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = Vec::new();
        // It may be reset, as not all was read.
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() <= 16, "{said:?}");
    }
    let report = until(&second, |report| report.turned_away == 5);
    assert_eq!(report.peers[0].state, PeerState::Connected);
}

//! A link is measured: what that takes, and what it leaves alone.

use std::time::Duration;

use shunt_far::link::{Event, Load, NotMeasured, SCRATCH};
use shunt_far::{Cause, Link, Mirror, News, Settings};
use shunt_shm::region::{Section, Side};
use shunt_verbs::fake::{FakePort, FakeQueue, Faults, Network};
use shunt_verbs::port::{Completions, Port, Queue};
use shunt_verbs::value::{PacketNumber, Remote, RemoteKey};

/// No connection.
#[derive(Debug)]
struct Empty;

impl Mirror for Empty {
    fn side(&self, _: usize) -> Side {
        Side::Client
    }

    fn slots(&self) -> usize {
        0
    }

    fn ring(&self) -> u64 {
        256
    }

    fn section(&self, _: usize, _: Side) -> &Section {
        unreachable!("it has no connections")
    }

    fn wake(&mut self, _: usize, _: News) {}
}

struct End {
    link: Link<FakePort, Empty>,
    queue: FakeQueue,
    port: FakePort,
}

impl End {
    fn new(network: &Network, messages: u16, bytes: usize) -> Self {
        let port = network.host_with_limit(bytes);
        let queue = port.queue(256, &port.channel().unwrap(), 0, 0).unwrap();
        let settings = Settings { messages, ..Settings::DEFAULT };
        let link = Link::new(&port, &queue, Empty, settings, PacketNumber::new(7)).unwrap();
        Self { link, queue, port }
    }

    fn turn(&mut self, now: Duration) {
        let mut into = Completions::default();
        self.queue.poll(&mut into).unwrap();
        into.drain().for_each(|completion| self.link.complete(&completion, now));
        self.link.pump(now);
    }
}

const NOW: Duration = Duration::from_secs(9);
const LATER: Duration = Duration::from_millis(9_012);

fn two(messages: u16) -> (Network, End, End) {
    let network = Network::new(3, Faults::NONE);
    let mut ends = [(); 2].map(|()| End::new(&network, messages, usize::MAX));
    let described = ends.each_ref().map(|end| end.link.described());
    ends[0].link.connect(&described[1]).unwrap();
    ends[1].link.connect(&described[0]).unwrap();
    let [one, other] = ends;
    (network, one, other)
}

/// Both run until nothing moves.
fn settle(network: &Network, one: &mut End, other: &mut End, now: Duration) {
    for _ in 0..8 {
        network.settle(10_000);
        one.turn(now);
        other.turn(now);
    }
}

#[test]
fn what_is_measured_takes_from_its_beginning_to_its_answer() {
    let (network, mut one, mut other) = two(16);
    let far = other.link.scratch(&other.port).unwrap();
    one.link.scratch(&one.port).unwrap();
    for load in [Load::Ping, Load::Bulk, Load::Ping] {
        assert_eq!(one.link.measure(load, far, NOW), Ok(()));
        assert_eq!(one.link.measure(load, far, NOW), Err(NotMeasured::Busy), "one at a time");
        assert_eq!(one.link.event(), None);
        settle(&network, &mut one, &mut other, LATER);
        assert_eq!(one.link.event(), Some(Event::Measured(LATER - NOW)), "{load:?}");
        assert_eq!((one.link.event(), other.link.event()), (None, None));
        assert_eq!((one.link.cause(), other.link.cause()), (None, None));
    }
    // The other side can do the same, though it has sent acknowledgements that nobody acknowledges.
    let far = one.link.scratch(&one.port).unwrap();
    assert_eq!(other.link.measure(Load::Bulk, far, NOW), Ok(()));
    settle(&network, &mut one, &mut other, LATER);
    assert_eq!(other.link.event(), Some(Event::Measured(LATER - NOW)));
    // None of that is traffic of connections.
    assert!(one.link.is_quiet(Duration::MAX, LATER) && other.link.is_quiet(Duration::MAX, LATER));
}

#[test]
fn memory_to_measure_with_is_registered_once_and_goes_with_the_device() {
    let (_, mut one, _) = two(16);
    let before = one.port.objects();
    let first = one.link.scratch(&one.port).unwrap();
    assert_eq!(one.link.scratch(&one.port).unwrap(), first);
    assert_eq!(one.port.objects(), before + 1);
    one.link.let_go(Cause::Told);
    assert!(one.link.scratch(&one.port).is_err());
    assert_eq!(one.link.measure(Load::Ping, first, NOW), Err(NotMeasured::Link));
}

#[test]
fn a_link_that_cannot_be_measured_is_left_alone() {
    let nowhere = Remote { address: 1 << 40, key: RemoteKey(77) };
    let network = Network::new(3, Faults::NONE);
    // It is not connected; there is no memory for it.
    let mut end = End::new(&network, 16, 16 * 1024);
    assert_eq!(end.link.measure(Load::Ping, nowhere, NOW), Err(NotMeasured::Link));
    assert!(end.link.scratch(&end.port).is_err());
    // There are too few places.
    let (_, mut one, _) = two(8);
    one.link.scratch(&one.port).unwrap();
    assert_eq!(one.link.measure(Load::Ping, nowhere, NOW), Err(NotMeasured::Link));
    // Addresses end before the memory of the peer's does.
    let (_, mut one, _) = two(16);
    one.link.scratch(&one.port).unwrap();
    let end = Remote { address: u64::MAX - 3, ..nowhere };
    assert_eq!(one.link.measure(Load::Ping, end, NOW), Err(NotMeasured::Link));
    assert_eq!((one.link.cause(), one.link.deadline()), (None, None));
}

/// A peer that names memory that it does not have loses its link, and is measured no more.
#[test]
fn memory_that_the_peer_does_not_have_ends_the_link_and_tells_no_time() {
    let (network, mut one, mut other) = two(16);
    one.link.scratch(&one.port).unwrap();
    let there = other.link.scratch(&other.port).unwrap();
    let beyond = Remote { address: there.address + SCRATCH as u64, ..there };
    assert_eq!(one.link.measure(Load::Ping, beyond, NOW), Ok(()));
    settle(&network, &mut one, &mut other, LATER);
    assert!(matches!(one.link.cause(), Some(Cause::Request(_))), "{:?}", one.link.cause());
    assert_eq!(one.link.event(), None);
}

//! The far side is a queue pair by itself, which sends any message.

use std::time::Duration;

use shunt_far::link::{Event, Position, Rings};
use shunt_far::message::{Kind, LEN, Lane, Malformed, Words};
use shunt_far::{Cause, Link, Message, Mirror, News, Settings, Worker};
use shunt_shm::handover;
use shunt_shm::region::{RESET, Section, Side};
use shunt_shm::sync::Ordering;
use shunt_verbs::fake::{FakePair, FakePort, FakeQueue, FakeRegion, Faults, Network};
use shunt_verbs::port::{Completions, Pair, Patience, Port, Queue, Region};
use shunt_verbs::value::{
    Access, Capacity, Done, Failure, Loss, Operation, PacketNumber, PeerPair, ReceiveRequest,
    Remote, RemoteKey, SendRequest,
};
use shunt_verbs::{Memory, Refused};

pub const RING: usize = 256;
const SETTINGS: Settings = Settings { messages: 8, ..Settings::DEFAULT };
pub const LANE: Lane = Lane { slot: 0, generation: 3 };
/// A worker's link.
const NAME: u64 = 1;
const START: Duration = Duration::from_secs(100);

#[derive(Debug, Default)]
pub struct Sections {
    all: [[Section; 2]; 2],
    pub woken: Vec<(usize, News)>,
}

impl Mirror for Sections {
    fn side(&self, _: usize) -> Side {
        Side::Client
    }

    fn slots(&self) -> usize {
        self.all.len()
    }

    fn ring(&self) -> u64 {
        RING as u64
    }

    fn section(&self, slot: usize, side: Side) -> &Section {
        &self.all[slot][side as usize]
    }

    fn wake(&mut self, slot: usize, news: News) {
        self.woken.push((slot, news));
    }
}

/// A link, and a queue pair that speaks to it.
pub struct Hostile {
    network: Network,
    pub link: Link<FakePort, Sections>,
    queue: FakeQueue,
    pub rings: Memory,
    pub port: FakePort,
    far: FakePair,
    far_queue: FakeQueue,
    far_memory: Memory,
    far_region: FakeRegion,
    pub ring: Remote,
}

/// Whether the local program waits for the far one's end, and whether it heard that the far one has left.
pub fn says(far: &Hostile, slot: usize) -> (u32, bool) {
    let theirs = far.link.mirror().section(slot, Side::Server);
    let has_left = handover::has_left(&theirs.ctl.handed_over);
    (theirs.prod.behind.load(Ordering::Relaxed), has_left)
}

impl Hostile {
    pub fn new() -> Self {
        let network = Network::new(1, Faults::NONE);
        let (port, far_port) = (network.host(), network.host());
        let queue = port.queue(64, &port.channel().unwrap(), 0, 0).unwrap();
        let first = PacketNumber::new(0);
        let mut link = Link::new(&port, &queue, Sections::default(), SETTINGS, first).unwrap();
        let rings = Memory::new(2 * RING).unwrap();
        let both = Rings { memory: rings.clone(), outgoing: 0..RING, incoming: RING..2 * RING };
        let ring = link.open(&port, 0, LANE.generation, &both).unwrap();
        let far_queue = far_port.queue(64, &far_port.channel().unwrap(), 0, 0).unwrap();
        let capacity = Capacity { send: 32, receive: 32, pieces: 1 };
        let far = far_port.pair(&far_queue, capacity).unwrap();
        let far_memory = Memory::new(4096).unwrap();
        let far_region = far_port.register(&far_memory, 0..4096, Access::RemoteWrite).unwrap();
        far.initialize().unwrap();
        for id in 0..16 {
            let at = usize::try_from(id).unwrap() * 128;
            let piece = far_region.piece(at..at + 128).unwrap();
            far.post_receive(&ReceiveRequest { id, piece }).unwrap();
        }
        let described = PeerPair {
            gid: far_port.gid(),
            number: far.number(),
            first_packet: first,
            mtu: far_port.mtu(),
        };
        far.receive_from(&link.described()).unwrap();
        far.send_with(first, Patience::DEFAULT).unwrap();
        link.connect(&described).unwrap();
        let to = Remote { address: far_region.address() + 2048, ..far_region.as_remote() };
        assert!(link.attach(0, LANE.generation, to));
        Self { network, link, queue, rings, port, far, far_queue, far_memory, far_region, ring }
    }

    fn post(&self, operation: Operation, bytes: &[u8]) {
        self.far_memory.write(3072, bytes).unwrap();
        let pieces = [self.far_region.piece(3072..3072 + bytes.len()).unwrap()];
        let (signaled, solicited) = (false, false);
        let request = SendRequest { id: 0, operation, pieces: &pieces, signaled, solicited };
        self.far.post_send(&request).unwrap();
        self.network.settle(1000);
    }

    pub fn say(&mut self, number: u32, taken: u32, kind: Kind) {
        self.post(Operation::Send, &Message { number, taken, kind }.bytes());
        self.turn();
    }

    /// Another queue pair for the link.
    pub fn renew(&mut self) -> Result<(PeerPair, Vec<Position>), Refused> {
        self.link.renew(&self.port, &self.queue, PacketNumber::new(7))
    }

    /// The link's agent gets to run.
    pub fn turn(&mut self) {
        self.turn_at(START);
    }

    fn turn_at(&mut self, now: Duration) {
        self.network.settle(1000);
        let mut into = Completions::default();
        self.queue.poll(&mut into).unwrap();
        into.drain().for_each(|completion| self.link.complete(&completion, now));
        self.link.pump(now);
        self.network.settle(1000);
    }

    /// The messages that the far side got.
    fn heard(&self) -> Vec<Message> {
        let mut into = Completions::default();
        self.far_queue.poll(&mut into).unwrap();
        let received = into.drain().filter(|it| it.outcome == Ok(Done::Received(88)));
        received
            .map(|it| {
                let mut bytes = [0; LEN];
                self.far_memory.read(usize::try_from(it.id).unwrap() * 128, &mut bytes).unwrap();
                Message::parse(&bytes).unwrap()
            })
            .collect()
    }

    fn prod(&self) -> u64 {
        let theirs = self.link.mirror().section(0, Side::Server);
        theirs.prod.prod.load(Ordering::Relaxed)
    }
}

pub fn cursors(words: Words) -> Kind {
    Kind::Cursors(LANE, words)
}

pub const TEN: Words = Words {
    prod: 10,
    base: 0,
    cons: 0,
    mark_at: [0; 2],
    marks: 0,
    marks_passed: 0,
    fin: 0,
    closed: 0,
    handed_over: 0,
    window: 0,
    heard: 0,
    state: 0,
};

#[test]
fn a_message_is_acted_on() {
    let mut far = Hostile::new();
    far.post(Operation::Write(far.ring), b"ten bytes!");
    let second = Duration::from_secs(1);
    assert!(far.link.is_quiet(second, START));
    far.say(0, 0, cursors(TEN));
    assert_eq!((far.prod(), far.link.cause()), (10, None));
    assert!(!far.link.is_quiet(second, START) && far.link.is_quiet(second, START + second));
    assert_eq!(far.link.mirror().woken, [(0, News { bytes: true, room: false })]);
    let mut ring = [0; 11];
    far.rings.read(RING, &mut ring).unwrap();
    assert_eq!(&ring, b"ten bytes!\0");
}

#[test]
fn what_is_no_message_ends_the_link() {
    let good = Message { number: 0, taken: 0, kind: cursors(TEN) };
    let bytes = good.bytes();
    let with = |at: usize, byte| {
        let mut changed = bytes;
        changed[at] = byte;
        changed.to_vec()
    };
    let cases = [
        (bytes[..79].to_vec(), Cause::Malformed(Malformed::Length)),
        (vec![0; 128], Cause::Malformed(Malformed::Length)),
        (with(0, 9), Cause::Malformed(Malformed::Dialect)),
        (with(1, 9), Cause::Malformed(Malformed::Kind)),
        (with(1, 2), Cause::Malformed(Malformed::Unused)),
    ];
    for (bytes, cause) in cases {
        let mut far = Hostile::new();
        far.post(Operation::Send, &bytes);
        far.turn();
        assert_eq!((far.link.cause(), far.prod()), (Some(cause), 0));
    }
}

#[test]
fn what_cannot_be_ends_the_link() {
    let other = |slot, generation| Kind::Cursors(Lane { slot, generation }, TEN);
    let long = Words { prod: 257, ..TEN };
    let cases = [
        (1, 0, Kind::Acknowledge, Cause::Order),
        (u32::MAX, 0, Kind::Acknowledge, Cause::Order),
        // It has sent nothing.
        (0, 1, Kind::Acknowledge, Cause::Order),
        (0, u32::MAX, Kind::Acknowledge, Cause::Order),
        (0, 0, other(1, 3), Cause::NoConnection),
        (0, 0, other(2, 3), Cause::NoConnection),
        (0, 0, other(u16::MAX, 3), Cause::NoConnection),
        (0, 0, other(0, 2), Cause::NoConnection),
        (0, 0, Kind::Leave(Lane { slot: 0, generation: 4 }), Cause::NoConnection),
        (0, 0, cursors(long), Cause::Impossible(shunt_far::lane::Impossible::Producer)),
    ];
    for (number, taken, kind, cause) in cases {
        let mut far = Hostile::new();
        far.say(number, taken, kind);
        assert_eq!((far.link.cause(), far.prod()), (Some(cause), 0), "{kind:?}");
    }
}

#[test]
fn a_write_that_tells_ends_the_link() {
    let mut far = Hostile::new();
    far.post(Operation::WriteWithImmediate(far.ring, 1), b"x");
    far.turn();
    assert_eq!(far.link.cause(), Some(Cause::Order));
}

#[test]
fn only_the_own_ring_can_be_written() {
    // What is sent from lies in front of it.
    for (before, behind) in [(1, 0), (0, RING as u64)] {
        let mut far = Hostile::new();
        let to = Remote { address: far.ring.address - before + behind, ..far.ring };
        far.post(Operation::Write(to), b"x");
        far.turn();
        // The device refuses it, and with it the link.
        assert_eq!(far.link.cause(), Some(Cause::Request(Failure::Flushed)));
        let mut all = [1; 2 * RING];
        far.rings.read(0, &mut all).unwrap();
        assert_eq!(all, [0; 2 * RING]);
    }
}

#[test]
fn no_key_leads_to_what_is_sent_from() {
    for key in 0..40 {
        let mut far = Hostile::new();
        let to = Remote { address: far.ring.address - RING as u64, key: RemoteKey(key) };
        far.post(Operation::Write(to), b"x");
        far.turn();
        let mut outgoing = [1; RING];
        far.rings.read(0, &mut outgoing).unwrap();
        assert_eq!(outgoing, [0; RING], "by key {key}");
    }
}

#[test]
fn nothing_is_acted_on_after_a_failure() {
    let mut far = Hostile::new();
    far.link.fail(Cause::Told);
    far.say(0, 0, cursors(TEN));
    assert_eq!((far.prod(), far.link.cause()), (0, Some(Cause::Told)));
    let halts = far.link.halts();
    assert_eq!((halts.len(), halts[0].stand.received), (1, 0));
}

#[test]
fn a_completion_before_a_failure_counts_and_one_behind_does_not() {
    let mut far = Hostile::new();
    far.say(0, 0, cursors(TEN));
    let message = Message { number: 1, taken: 0, kind: cursors(Words { prod: 20, ..TEN }) };
    far.post(Operation::Send, &message.bytes());
    // Its completion is in the queue, and has not been polled.
    far.link.fail(Cause::Told);
    far.turn();
    assert_eq!(far.link.halts().first().map(|halt| halt.stand.received), Some(10));
    assert_eq!(far.prod(), 10);
}

#[test]
fn a_far_side_that_asks_is_answered() {
    let mut far = Hostile::new();
    far.say(0, 0, Kind::Test);
    assert_eq!(far.heard(), [Message { number: 0, taken: 1, kind: Kind::Acknowledge }]);
    // And half of the receives make an answer due.
    for number in 1..5 {
        far.say(number, 1, Kind::Acknowledge);
    }
    assert_eq!(far.heard(), [Message { number: 1, taken: 5, kind: Kind::Acknowledge }]);
}

#[test]
fn a_silent_far_side_is_asked_and_given_up() {
    let mut far = Hostile::new();
    far.link.mirror().section(0, Side::Client).ctl.window.store(5, Ordering::Relaxed);
    far.link.mark(0);
    far.turn();
    assert_eq!(far.heard().len(), 1);
    let half = SETTINGS.silence / 2;
    assert_eq!(far.link.deadline(), Some(START + half));
    far.link.tick(START + half - Duration::from_nanos(1));
    far.turn();
    assert_eq!(far.heard(), []);
    far.link.tick(START + half);
    far.turn();
    assert_eq!(far.heard(), [Message { number: 1, taken: 0, kind: Kind::Test }]);
    assert_eq!(far.link.deadline(), Some(START + SETTINGS.silence));
    far.link.tick(START + SETTINGS.silence);
    assert_eq!((far.link.cause(), far.link.deadline()), (Some(Cause::Silence), None));
}

/// As over a device that software emulates, on a machine that does other things.
#[test]
fn a_slow_link_is_waited_for_as_long_as_it_moves() {
    let mut far = Hostile::new();
    far.link.mirror().section(0, Side::Client).ctl.window.store(5, Ordering::Relaxed);
    far.link.mark(0);
    far.turn();
    let (half, almost) = (SETTINGS.silence / 2, SETTINGS.silence - Duration::from_millis(1));
    // The device has sent the message, and then the question.
    let mut now = START + half - Duration::from_millis(1);
    far.turn_at(now);
    assert_eq!(far.link.deadline(), Some(now + half));
    now += half;
    far.link.tick(now);
    far.turn_at(now);
    assert_eq!(far.link.deadline(), Some(now + SETTINGS.silence));
    // What the far side had posted before comes, of which its queue has no more than that.
    let says = |far: &mut Hostile, number: u16, now| {
        let (number, kind) = (number.into(), Kind::Acknowledge);
        far.post(Operation::Send, &Message { number, taken: 0, kind }.bytes());
        far.turn_at(now);
        // And this side's own acknowledgement is sent.
        far.turn_at(now);
    };
    for number in 0..SETTINGS.messages {
        now += almost;
        says(&mut far, number, now);
        assert_eq!(far.link.deadline(), Some(now + SETTINGS.silence));
    }
    says(&mut far, SETTINGS.messages, now + almost);
    assert_eq!(far.link.deadline(), Some(now + SETTINGS.silence));
    far.link.tick(now + SETTINGS.silence);
    assert_eq!(far.link.cause(), Some(Cause::Silence));
}

#[test]
fn what_came_in_time_counts_where_the_worker_did_not_run() {
    let network = Network::new(1, Faults::NONE);
    let first = PacketNumber::new(0);
    let mut ends = [0, 1].map(|_| {
        let port = network.host();
        let mut worker = Worker::new(&port, 0, 1, SETTINGS).unwrap();
        let described = worker.add(NAME, &port, Sections::default(), SETTINGS, first).unwrap();
        (worker, described)
    });
    let described = ends.each_ref().map(|(_, described)| *described);
    for (at, (worker, _)) in ends.iter_mut().enumerate() {
        worker.link(NAME).unwrap().connect(&described[1 - at]).unwrap();
    }
    let [(asking, _), (answering, _)] = &mut ends;
    asking.link(NAME).unwrap().ask(START);
    let asked = START + SETTINGS.silence / 2;
    asking.tick(asked);
    network.settle(1000);
    answering.turn(asked);
    network.settle(1000);
    asking.tick(asked + 9 * SETTINGS.silence);
    let link = asking.link(NAME).unwrap();
    assert_eq!((link.cause(), link.is_answered()), (None, true));
}

#[test]
fn an_answer_ends_the_waiting() {
    let mut far = Hostile::new();
    far.link.mirror().section(0, Side::Client).ctl.window.store(5, Ordering::Relaxed);
    far.link.mark(0);
    far.turn();
    far.say(0, 1, Kind::Acknowledge);
    assert_eq!((far.link.deadline(), far.link.cause()), (None, None));
}

#[test]
fn no_more_is_sent_than_the_far_side_has_room_for() {
    let mut far = Hostile::new();
    for window in 1..20 {
        far.link.mirror().section(0, Side::Client).ctl.window.store(window, Ordering::Relaxed);
        far.link.mark(0);
        far.turn();
    }
    // The last place is for acknowledgements.
    assert_eq!(far.heard().len(), 7);
    far.say(0, 0, Kind::Test);
    assert_eq!(far.heard().len(), 1);
    far.say(1, 0, Kind::Test);
    assert_eq!(far.heard().len(), 0);
    assert_eq!(far.link.cause(), None);
}

#[test]
fn a_broken_program_is_told_of_and_the_others_go_on() {
    let mut far = Hostile::new();
    let mine = far.link.mirror().section(0, Side::Client);
    mine.prod.prod.store(1000, Ordering::Relaxed);
    far.link.mark(0);
    far.turn();
    assert!(matches!(far.link.event(), Some(Event::Broken(0, _))));
    let words = Words { closed: RESET, ..Words::default() };
    assert_eq!(far.heard(), [Message { number: 0, taken: 0, kind: cursors(words) }]);
    assert_eq!(far.link.cause(), None);
}

#[test]
fn a_place_is_free_when_both_have_left() {
    let mut far = Hostile::new();
    far.link.leave(0);
    far.turn();
    assert_eq!(far.heard(), [Message { number: 0, taken: 0, kind: Kind::Leave(LANE) }]);
    far.turn();
    assert_eq!((far.link.event(), far.link.registered()), (None, 2 * RING));
    far.say(0, 1, Kind::Leave(LANE));
    assert_eq!((far.link.event(), far.link.registered()), (Some(Event::Free(0)), 0));
    // It is spoken of no more.
    far.say(1, 1, cursors(TEN));
    assert_eq!(far.link.cause(), Some(Cause::NoConnection));
}

#[test]
fn a_far_side_that_has_left_says_no_more() {
    let mut far = Hostile::new();
    far.say(0, 0, Kind::Leave(LANE));
    far.say(1, 0, cursors(TEN));
    assert_eq!((far.link.cause(), far.prod()), (Some(Cause::NoConnection), 0));
}

#[test]
fn a_place_is_opened_once_and_within_the_region() {
    let mut far = Hostile::new();
    let port = far.port.clone();
    let both = Rings { memory: far.rings.clone(), outgoing: 0..RING, incoming: RING..2 * RING };
    assert!(far.link.open(&port, 0, 9, &both).is_err());
    assert!(far.link.open(&port, 2, 9, &both).is_err());
    let short = Rings { incoming: RING..RING + 8, ..both.clone() };
    assert!(far.link.open(&port, 1, 9, &short).is_err());
    assert!(far.link.open(&port, 1, 9, &both).is_ok());
    assert!(!far.link.attach(1, 8, far.ring));
}

#[test]
fn memory_beyond_the_limit_is_a_reason() {
    let network = Network::new(1, Faults::NONE);
    // For the messages, and for one ring.
    let port = network.host_with_limit(8 * 128 * 2 + RING);
    let queue = port.queue(64, &port.channel().unwrap(), 0, 0).unwrap();
    let first = PacketNumber::new(0);
    let mut link = Link::new(&port, &queue, Sections::default(), SETTINGS, first).unwrap();
    let memory = Memory::new(2 * RING).unwrap();
    let rings = Rings { memory, outgoing: 0..RING, incoming: RING..2 * RING };
    let why = link.open(&port, 0, 1, &rings).unwrap_err().to_string();
    assert!(why.contains("RLIMIT_MEMLOCK"), "{why}");
    assert_eq!(link.registered(), 0);
}

#[test]
fn a_worker_takes_as_many_links_as_its_queue_has_room_for() {
    let network = Network::new(1, Faults::NONE);
    let port = network.host();
    let mut worker = Worker::new(&port, 3, 2, SETTINGS).unwrap();
    let first = PacketNumber::new(0);
    let add = |worker: &mut Worker<FakePort, Sections>, name| {
        worker.add(name, &port, Sections::default(), SETTINGS, first)
    };
    add(&mut worker, 1).unwrap();
    add(&mut worker, 2).unwrap();
    assert!(matches!(add(&mut worker, 3), Err(Refused::Full)));
    assert!(worker.remove(1, SETTINGS).is_some());
    assert!(worker.remove(1, SETTINGS).is_none());
    add(&mut worker, 3).unwrap();
    assert_eq!(worker.links().count(), 2);
    assert!(Worker::<_, Sections>::new(&port, 4, 2, SETTINGS).is_err(), "there are vectors 0 to 3");
}

#[test]
fn a_worker_lets_a_device_go_and_takes_up_another() {
    let network = Network::new(1, Faults::NONE);
    let (port, other, first) = (network.host(), network.host(), PacketNumber::new(0));
    let mut worker = Worker::new(&port, 0, 1, SETTINGS).unwrap();
    let old = worker.add(1, &port, Sections::default(), SETTINGS, first).unwrap();
    let rings = Memory::new(2 * RING).unwrap();
    let both = Rings { memory: rings, outgoing: 0..RING, incoming: RING..2 * RING };
    let ring = worker.link(1).unwrap().open(&port, 0, LANE.generation, &both).unwrap();
    assert!(worker.link(1).unwrap().attach(0, LANE.generation, ring));
    worker.let_go(Cause::Lost(Loss::PortDown));
    assert_eq!((port.objects(), worker.channel().is_none()), (0, true));
    // Its connections are still to be settled.
    let link = worker.link(1).unwrap();
    assert_eq!((link.cause(), link.registered()), (Some(Cause::Lost(Loss::PortDown)), 0));
    assert_eq!((link.halts().len(), link.connect(&old).is_err()), (1, true));
    let none = worker.add(2, &port, Sections::default(), SETTINGS, first);
    assert!(matches!(none, Err(Refused::State)));
    assert!(worker.may_sleep(START));
    worker.take_up(&other, 0).unwrap();
    // A queue pair of the other device may have a number of before.
    let new = worker.add(3, &other, Sections::default(), SETTINGS, first).unwrap();
    worker.fail(old.number, START);
    assert_eq!(worker.link(3).unwrap().cause(), None);
    worker.fail(new.number, START);
    assert_eq!(worker.link(3).unwrap().cause(), Some(Cause::Pair));
    assert!(worker.remove(1, SETTINGS).is_some());
    assert!(matches!(
        worker.add(4, &other, Sections::default(), SETTINGS, first),
        Err(Refused::Full)
    ));
}

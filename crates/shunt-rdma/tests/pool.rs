//! Two workers' threads over the device in the process: bytes of many connections, a queue pair that fails in the midst of them, and
//! how each stream goes on behind the last byte that was received.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::scope;
use std::time::{Duration, Instant};

use common::Running;
use shunt_far::link::{Position, Rings};
use shunt_far::{Cause, Halt, Mirror, News, Settings, kernel, worker};
use shunt_rdma::pool::{Pooled, Told};
use shunt_shm::region::{Section, Side, shape};
use shunt_shm::ring::{Content, RxCursor, Span, TxCursor, UNLIMITED};
use shunt_verbs::Memory;
use shunt_verbs::fake::{FakePort, Network};
use shunt_verbs::value::{PacketNumber, PairNumber, PeerPair, Remote};

const LANES: usize = 6;
const RING: usize = 4096;
const STREAM: u64 = 150_000;
const GENERATION: u32 = 9;
/// The worker's link.
const NAME: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(120);
/// Silence of a test's link is no failure, however slow the machine is.
const SETTINGS: Settings = Settings { messages: 16, burst: 1024, silence: PATIENCE };

/// A region, as both its agent and its programs have it.
#[derive(Clone, Debug)]
struct Region {
    side: Side,
    sections: Arc<Vec<[Section; 2]>>,
    memory: Memory,
}

impl Mirror for Region {
    fn side(&self, _: usize) -> Side {
        self.side
    }

    fn slots(&self) -> usize {
        LANES
    }

    fn ring(&self) -> u64 {
        RING as u64
    }

    fn section(&self, slot: usize, side: Side) -> &Section {
        &self.sections[slot][side as usize]
    }

    /// Its programs look again and again.
    fn wake(&mut self, _: usize, _: News) {}
}

impl Region {
    fn new(side: Side) -> Self {
        let sections = (0..LANES).map(|_| <[Section; 2]>::default()).collect();
        Self { side, sections: Arc::new(sections), memory: Memory::new(LANES * 2 * RING).unwrap() }
    }

    /// Where the ring of a receiver begins.
    const fn ring_at(lane: usize, receiver: Side) -> usize {
        (lane * 2 + receiver as usize) * RING
    }

    fn rings(&self, lane: usize) -> Rings {
        let of = |receiver| {
            let at = Self::ring_at(lane, receiver);
            at..at + RING
        };
        let (outgoing, incoming) = (of(self.side.other()), of(self.side));
        Rings { memory: self.memory.clone(), outgoing, incoming }
    }

    fn mine(&self, lane: usize) -> &Section {
        self.section(lane, self.side)
    }

    fn theirs(&self, lane: usize) -> &Section {
        self.section(lane, self.side.other())
    }

    fn bytes(&self, lane: usize, receiver: Side, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len()];
        let at = Self::ring_at(lane, receiver);
        let (head, tail) = bytes.split_at_mut(span.head.1);
        self.memory.read(at + span.head.0, head).unwrap();
        self.memory.read(at + span.tail.0, tail).unwrap();
        bytes
    }
}

/// The byte at a position of a direction.
fn byte(lane: usize, sender: Side, at: u64) -> u8 {
    let mixed = at.wrapping_mul(0x9e37_79b9).wrapping_add(lane as u64 * 71 + sender as u64 * 29);
    (mixed >> 9).to_le_bytes()[0]
}

/// A host: its worker's thread, with one link.
struct Host {
    port: FakePort,
    pool: Pooled<FakePort, Region>,
    region: Region,
    pair: PairNumber,
    failed: Mutex<Receiver<(worker::Name, Cause)>>,
}

/// Has a worker do something, and waits for what comes of it.
fn ask<T: Send + 'static>(
    pool: &Pooled<FakePort, Region>,
    work: impl FnOnce(&mut shunt_far::Worker<FakePort, Region>, Duration) -> T + Send + 'static,
) -> T {
    let (to, from) = channel();
    pool.hand(move |worker, now| to.send(work(worker, now)).unwrap());
    from.recv_timeout(PATIENCE).unwrap()
}

impl Host {
    fn new(network: &Network, side: Side) -> (Self, PeerPair) {
        let (port, region) = (network.host(), Region::new(side));
        let (tell, failed) = channel();
        let told = move |told| {
            if let Told::Failed(link, cause) = told {
                tell.send((link, cause)).unwrap();
            }
        };
        // A queue pair that takes the place of another one has room beside it.
        let pool = Pooled::start(&port, 1, 2, SETTINGS, told).unwrap();
        let (to, mirror) = (port.clone(), region.clone());
        let described = ask(&pool, move |worker, _| {
            worker.add(NAME, &to, mirror, SETTINGS, PacketNumber::new(5)).unwrap()
        });
        let failed = Mutex::new(failed);
        (Self { port, pool, region, pair: described.number, failed }, described)
    }

    fn connect(&self, far: PeerPair) {
        ask(&self.pool, move |worker, _| worker.link(NAME).unwrap().connect(&far).unwrap());
    }

    fn open(&self, lane: usize) -> Remote {
        let (port, rings) = (self.port.clone(), self.region.rings(lane));
        ask(&self.pool, move |worker, _| {
            worker.link(NAME).unwrap().open(&port, lane, GENERATION, &rings).unwrap()
        })
    }

    fn attach(&self, lane: usize, far: Remote) {
        let is_attached = ask(&self.pool, move |worker, _| {
            worker.link(NAME).unwrap().attach(lane, GENERATION, far)
        });
        assert!(is_attached);
    }

    fn failure(&self) -> Cause {
        let (link, cause) = self.failed.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        assert_eq!(link, NAME);
        cause
    }

    fn halts(&self) -> Vec<Halt> {
        ask(&self.pool, |worker, _| worker.link(NAME).unwrap().halts())
    }

    /// Gives the link up, and makes another queue pair.
    fn renew(&self) -> (PeerPair, Vec<Position>) {
        let port = self.port.clone();
        ask(&self.pool, move |worker, _| {
            worker.link(NAME).unwrap().fail(Cause::Told);
            worker.renew(NAME, &port, SETTINGS, PacketNumber::new(6)).unwrap()
        })
    }

    fn go_on(&self, (pair, far): (PeerPair, Vec<Position>), waits: bool) {
        ask(&self.pool, move |worker, now| {
            worker.link(NAME).unwrap().go_on((&pair, &far), waits, now).unwrap();
        });
    }

    fn mark(&self, lane: usize) {
        self.pool.hand(move |worker, _| {
            if let Some(link) = worker.link(NAME) {
                link.mark(lane);
            }
        });
    }
}

/// Two hosts with all lanes open.
fn hosts(network: &Network) -> [Host; 2] {
    let (one, first) = Host::new(network, Side::Client);
    let (two, second) = Host::new(network, Side::Server);
    one.connect(second);
    two.connect(first);
    for lane in 0..LANES {
        let (here, there) = (one.open(lane), two.open(lane));
        one.attach(lane, there);
        two.attach(lane, here);
    }
    [one, two]
}

/// A program's end of a connection: sends and takes until all is there, or the link has failed.
struct Program<'a> {
    host: &'a Host,
    lane: usize,
    tx: TxCursor,
    rx: RxCursor,
}

impl<'a> Program<'a> {
    fn new(host: &'a Host, lane: usize) -> Self {
        Self { host, lane, tx: TxCursor::default(), rx: RxCursor::default() }
    }

    fn send(&self) -> bool {
        let Region { side, memory, .. } = &self.host.region;
        let (lane, region) = (self.lane, &self.host.region);
        let want = 700.min(STREAM - self.tx.pos());
        let (ring, receiver) = (RING as u64, side.other());
        let wish = shape(receiver, ring);
        let cons = &region.theirs(lane).cons;
        let span = self.tx.reserve(cons, ring, wish, UNLIMITED, (want, Content::Put)).unwrap();
        if span.is_empty() {
            return false;
        }
        let (from, at) = (self.tx.pos(), Region::ring_at(lane, receiver));
        let bytes: Vec<u8> =
            (from..from + span.len() as u64).map(|pos| byte(lane, *side, pos)).collect();
        let (head, tail) = bytes.split_at(span.head.1);
        memory.write(at + span.head.0, head).unwrap();
        memory.write(at + span.tail.0, tail).unwrap();
        self.tx.publish(&region.mine(lane).prod, span.len() as u64);
        self.host.mark(lane);
        true
    }

    /// Takes what is there, and compares it.
    fn take(&self) -> bool {
        let (lane, region, ring) = (self.lane, &self.host.region, RING as u64);
        let theirs = &region.theirs(lane).prod;
        self.rx.refresh(theirs, ring).unwrap();
        let span = self.rx.readable(theirs, ring, u64::MAX).unwrap();
        if span.is_empty() {
            return false;
        }
        let (from, sender) = (self.rx.pos(), region.side.other());
        for (at, found) in region.bytes(lane, region.side, span).into_iter().enumerate() {
            assert_eq!(found, byte(lane, sender, from + at as u64), "lane {lane} at {from} + {at}");
        }
        let _ = self.rx.consume(&region.mine(lane).cons, ring, span.len() as u64);
        self.host.mark(lane);
        true
    }

    fn run(&self, must_end: &AtomicBool) {
        while (self.tx.pos() < STREAM || self.rx.pos() < STREAM)
            && !must_end.load(Ordering::Acquire)
        {
            if !(self.send() | self.take()) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

#[test]
fn streams_arrive_whole_over_two_threads() {
    let running = Running::new(1);
    let hosts = hosts(&running.network);
    let never = AtomicBool::new(false);
    scope(|scope| {
        for host in &hosts {
            for lane in 0..LANES {
                let never = &never;
                scope.spawn(move || Program::new(host, lane).run(never));
            }
        }
    });
    assert!(hosts.iter().all(|host| host.failed.lock().unwrap().try_recv().is_err()));
}

#[test]
fn streams_arrive_whole_over_queue_pairs_that_fail() {
    let running = Running::new(7);
    let hosts @ [one, two] = &hosts(&running.network);
    let never = AtomicBool::new(false);
    scope(|scope| {
        for host in hosts {
            for lane in 0..LANES {
                let never = &never;
                scope.spawn(move || Program::new(host, lane).run(never));
            }
        }
        let mut pair = one.pair;
        for part in 1..6 {
            let come = |host: &Host| host.region.theirs(0).prod.prod.load(Ordering::Acquire);
            while come(one) < STREAM * part / 6 {
                std::thread::sleep(Duration::from_micros(50));
            }
            running.network.break_pair(pair);
            assert!(!matches!(one.failure(), Cause::Told));
            // The other side hears of it on the control connection, and is ready first.
            let first = one.renew();
            pair = first.0.number;
            let second = two.renew();
            two.go_on(first, true);
            one.go_on(second, false);
        }
    });
    // Each queue pair was told of once; one that was given up and replaced at once maybe not at all.
    let left = hosts.each_ref().map(|host| host.failed.lock().unwrap().try_iter().count());
    assert!(left[0] == 0 && left[1] <= 5, "{left:?}");
}

#[test]
fn a_queue_pair_that_fails_loses_no_byte() {
    let running = Running::new(2);
    let [one, two] = hosts(&running.network);
    let (must_end, all) = (AtomicBool::new(false), Barrier::new(2 * LANES + 1));
    // Where each program stood: what it sent, took, and still has in its ring.
    let (to, ends) = channel();
    let failed = scope(|scope| {
        for host in [&one, &two] {
            for lane in 0..LANES {
                let (must_end, all, to) = (&must_end, &all, to.clone());
                scope.spawn(move || {
                    let program = Program::new(host, lane);
                    program.run(must_end);
                    all.wait();
                    // The agents have told each other; what lies in the ring is still to be read.
                    all.wait();
                    while program.take() {}
                    let (side, sent) = (host.region.side, program.tx.pos());
                    let unread = sent.min(RING as u64);
                    let bytes =
                        host.region.bytes(lane, side.other(), program.tx.last(unread, RING as u64));
                    to.send((side as usize, lane, sent, program.rx.pos(), bytes)).unwrap();
                });
            }
        }
        // Some have come far when it fails.
        let far = |host: &Host| host.region.theirs(0).prod.prod.load(Ordering::Acquire);
        while far(&one) < STREAM / 3 {
            std::thread::sleep(Duration::from_micros(50));
        }
        running.network.break_pair(one.pair);
        one.failure();
        let first = one.halts();
        // The other side hears of it on the control connection.
        two.pool.hand(move |worker, _| worker.link(NAME).unwrap().fail(Cause::Told));
        two.failure();
        let second = two.halts();
        must_end.store(true, Ordering::Release);
        all.wait();
        all.wait();
        [first, second]
    });
    drop(to);
    let resumed: Vec<Vec<u64>> = [(&one, &failed[1]), (&two, &failed[0])]
        .map(|(host, far)| {
            let halts = far.clone();
            ask(&host.pool, move |worker, _| {
                let link = worker.link(NAME).unwrap();
                halts.iter().map(|halt| link.resume(halt).unwrap()).collect()
            })
        })
        .into();
    let mut ended: Vec<_> = ends.iter().collect();
    ended.sort();
    assert_eq!(ended.len(), 2 * LANES);
    for (side, lane, sent, _, unread) in &ended {
        let (_, _, _, received, _) =
            ended.iter().find(|(other, at, ..)| other != side && at == lane).unwrap();
        // The sender goes on exactly where the receiver has stopped, with bytes that it still has.
        let from = resumed[*side][*lane];
        assert_eq!(from, *received, "a hole, or bytes twice");
        let still = usize::try_from(sent - from).unwrap();
        assert!(still <= unread.len());
        let sender = if *side == Side::Client as usize { Side::Client } else { Side::Server };
        for (found, at) in unread[unread.len() - still..].iter().zip(from..) {
            assert_eq!(*found, byte(*lane, sender, at));
        }
    }
}

#[test]
fn a_failure_is_told_once_and_a_worker_ends_with_its_links() {
    let running = Running::new(3);
    let [one, two] = hosts(&running.network);
    running.network.break_pair(one.pair);
    one.failure();
    assert_eq!(one.halts().len(), LANES);
    // It goes on working, and says nothing more of it.
    let links = ask(&one.pool, |worker, _| worker.links().count());
    assert_eq!(links, 1);
    assert!(one.failed.lock().unwrap().try_recv().is_err());
    let Host { pool, failed, .. } = two;
    drop(pool);
    // Its thread is gone: nobody is left who could tell.
    assert!(failed.into_inner().unwrap().recv().is_err());
}

#[test]
fn workers_with_nothing_to_do_sleep() {
    let running = Running::new(5);
    let [one, two] = hosts(&running.network);
    // Both have been woken by work, and by completions.
    one.mark(0);
    ask(&one.pool, move |worker, now| worker.link(NAME).unwrap().ask(now));
    let deadline = Instant::now() + PATIENCE;
    let polls = || running.network.polls();
    loop {
        let before = polls();
        std::thread::sleep(Duration::from_millis(50));
        if before == polls() {
            break;
        }
        assert!(Instant::now() < deadline, "they go on and on");
    }
    drop(two);
}

#[test]
fn both_ends_of_a_link_answer_when_asked() {
    let running = Running::new(4);
    let [one, two] = hosts(&running.network);
    ask(&one.pool, move |worker, now| worker.link(NAME).unwrap().ask(now));
    while !ask(&one.pool, move |worker, _| worker.link(NAME).unwrap().is_answered()) {
        std::thread::sleep(Duration::from_micros(100));
    }
    drop(two);
}

/// A region without a connection.
#[derive(Debug, Default)]
struct Vacant(Section);

impl Mirror for Vacant {
    fn side(&self, _: usize) -> Side {
        Side::Client
    }

    fn slots(&self) -> usize {
        1
    }

    fn ring(&self) -> u64 {
        1 << 18
    }

    fn section(&self, _: usize, _: Side) -> &Section {
        &self.0
    }

    fn wake(&mut self, _: usize, _: News) {}
}

#[test]
fn what_happens_on_a_link_to_a_kernel_is_told_once() {
    let running = Running::new(6);
    let (port, (tell, told)) = (running.network.host(), channel());
    let pool = Pooled::start(&port, 1, 4, SETTINGS, move |it| tell.send(it).unwrap()).unwrap();
    pool.hand(move |worker, _| {
        let (settings, first) = (kernel::Settings::default(), PacketNumber::new(5));
        worker.add_kernel(NAME, &port, Vacant::default(), settings, first).unwrap();
    });
    pool.hand(|worker, _| worker.kernel_link(NAME).unwrap().fail(Cause::Told));
    let down = told.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(down, Told::Kernel(NAME, kernel::Event::Down(Cause::Told))), "{down:?}");
    drop(pool);
    assert!(told.recv().is_err());
}

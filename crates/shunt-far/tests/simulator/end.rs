//! One host: its programs, its agent's worker, and the mirror between them.

use std::rc::Rc;
use std::time::Duration;

use shunt_far::link::{Event, Load, Position, Rings};
use shunt_far::{Cause, Link, Mirror, News, Settings, Worker};
use shunt_shm::region::{Section, Side, shape};
use shunt_shm::ring::{Content, RxCursor, Span, TxCursor, UNLIMITED};
use shunt_shm::sync::Ordering;
use shunt_verbs::Memory;
use shunt_verbs::fake::{FakePort, Network};
use shunt_verbs::value::{Loss, PacketNumber, PeerPair, Remote};

use crate::plan::Sizes;

/// The worker's link.
const NAME: u64 = 1;

/// Both sections of each connection, as they stand in the mirror.
type Sections = Rc<Vec<[Section; 2]>>;

#[derive(Debug)]
pub struct SimMirror {
    side: Side,
    ring: u64,
    sections: Sections,
    news: Vec<News>,
}

impl Mirror for SimMirror {
    fn side(&self, _: usize) -> Side {
        self.side
    }

    fn slots(&self) -> usize {
        self.sections.len()
    }

    fn ring(&self) -> u64 {
        self.ring
    }

    fn section(&self, slot: usize, side: Side) -> &Section {
        &self.sections[slot][side as usize]
    }

    fn wake(&mut self, slot: usize, news: News) {
        let all = &mut self.news[slot];
        (all.bytes, all.room) = (all.bytes || news.bytes, all.room || news.room);
    }
}

/// The byte at a position of a direction.
pub fn byte(lane: usize, sender: Side, at: u64) -> u8 {
    let mixed = at.wrapping_mul(0x9e37_79b9).wrapping_add(lane as u64 * 71 + sender as u64 * 29);
    (mixed >> 7) as u8 ^ (at as u8)
}

/// A program's end of a connection.
#[derive(Debug, Default)]
struct Program {
    tx: TxCursor,
    rx: RxCursor,
    /// It is about to end, and has looked whether its peer has left.
    is_ending: bool,
    has_ended: bool,
    saw_end: bool,
    /// Where it set switch points; how many of the peer's it has passed.
    marks: Vec<u64>,
    passed: u32,
}

pub struct End {
    pub side: Side,
    worker: Worker<FakePort, SimMirror>,
    port: FakePort,
    settings: Settings,
    sections: Sections,
    memory: Memory,
    ring: u64,
    programs: Vec<Program>,
    /// Programs take from the ring only where a switch point has led them there.
    stays: bool,
    is_asleep: bool,
    was_marked: bool,
    /// Where it may write to measure.
    pub far_scratch: Option<Remote>,
    /// Measurements that were begun, and that came to an end.
    pub measures: [usize; 2],
    pub now: Duration,
    pub free: usize,
}

/// What a program took.
pub struct Taken {
    pub from: u64,
    pub bytes: Vec<u8>,
}

impl End {
    pub fn new(port: FakePort, side: Side, sizes: Sizes, stays: bool) -> (Self, PeerPair) {
        let settings = settings(sizes);
        let ring = 1 << sizes.ring;
        let sections: Sections = Rc::new((0..sizes.lanes).map(|_| Default::default()).collect());
        let mirror = SimMirror {
            side,
            ring,
            sections: sections.clone(),
            news: vec![News::default(); sizes.lanes],
        };
        // A queue pair that takes the place of another one has room beside it.
        let mut worker = Worker::new(&port, 1, 2, settings).unwrap();
        let described = worker.add(NAME, &port, mirror, settings, PacketNumber::new(5)).unwrap();
        let memory = Memory::new(sizes.lanes * 2 * ring as usize).unwrap();
        let programs = (0..sizes.lanes).map(|_| Program::default()).collect();
        let end = Self {
            side,
            worker,
            port,
            settings,
            sections,
            memory,
            ring,
            programs,
            stays,
            is_asleep: false,
            was_marked: true,
            far_scratch: None,
            measures: [0; 2],
            now: Duration::ZERO,
            free: 0,
        };
        (end, described)
    }

    pub fn link(&mut self) -> &mut Link<FakePort, SimMirror> {
        self.worker.link(NAME).unwrap()
    }

    /// Where the ring of a receiver begins in the memory.
    fn ring_at(&self, lane: usize, receiver: Side) -> usize {
        (lane * 2 + receiver as usize) * self.ring as usize
    }

    pub fn open(&mut self, lane: usize) -> Remote {
        let len = self.ring as usize;
        let at = |receiver| self.ring_at(lane, receiver);
        let (outgoing, incoming) = (at(self.side.other()), at(self.side));
        let rings = Rings {
            memory: self.memory.clone(),
            outgoing: outgoing..outgoing + len,
            incoming: incoming..incoming + len,
        };
        let port = self.port.clone();
        self.link().open(&port, lane, 7, &rings).unwrap()
    }

    /// Memory for the other side to measure with.
    pub fn scratch(&mut self) -> Remote {
        let port = self.port.clone();
        self.link().scratch(&port).unwrap()
    }

    /// The agent measures the link, if it may now.
    pub fn measure(&mut self, load: Load) {
        let (far, now) = (self.far_scratch.unwrap(), self.now);
        self.was_marked = true;
        self.measures[0] += usize::from(self.link().measure(load, far, now).is_ok());
    }

    pub fn attach(&mut self, lane: usize, far: Remote) {
        assert!(self.link().attach(lane, 7, far));
    }

    fn mark(&mut self, lane: usize) {
        self.was_marked = true;
        self.link().mark(lane);
    }

    pub fn leave(&mut self, lane: usize) {
        self.was_marked = true;
        self.link().leave(lane);
    }

    fn sections(&self, lane: usize) -> (&Section, &Section) {
        let both = &self.sections[lane];
        (&both[self.side as usize], &both[self.side.other() as usize])
    }

    fn bytes(&self, lane: usize, receiver: Side, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len()];
        let at = self.ring_at(lane, receiver);
        let (head, tail) = bytes.split_at_mut(span.head.1);
        self.memory.read(at + span.head.0, head).unwrap();
        self.memory.read(at + span.tail.0, tail).unwrap();
        bytes
    }

    pub fn send(&mut self, lane: usize, len: usize) {
        let receiver = self.side.other();
        let (mine, theirs) = self.sections(lane);
        let program = &self.programs[lane];
        if program.has_ended {
            return;
        }
        let wish = shape(receiver, self.ring);
        let want = (len as u64, Content::Put);
        let span = program.tx.reserve(&theirs.cons, self.ring, wish, UNLIMITED, want).unwrap();
        let (from, at) = (program.tx.pos(), self.ring_at(lane, receiver));
        let bytes: Vec<u8> =
            (from..from + span.len() as u64).map(|pos| byte(lane, self.side, pos)).collect();
        let (head, tail) = bytes.split_at(span.head.1);
        self.memory.write(at + span.head.0, head).unwrap();
        self.memory.write(at + span.tail.0, tail).unwrap();
        program.tx.publish(&mine.prod, span.len() as u64);
        self.mark(lane);
    }

    /// Sets a switch point; where.
    pub fn set_mark(&mut self, lane: usize) {
        let (mine, theirs) = self.sections(lane);
        let at = self.programs[lane].tx.pos();
        if !self.programs[lane].has_ended && TxCursor::may_set_mark(&mine.prod, &theirs.cons) {
            TxCursor::set_mark(&mine.prod, at);
            self.programs[lane].marks.push(at);
            self.mark(lane);
        }
    }

    /// The program says that it is about to end, and looks whether its peer has left: it has not.
    pub fn begin_to_end(&mut self, lane: usize) {
        self.sections(lane).0.prod.ending.store(1, Ordering::Release);
        self.programs[lane].is_ending = true;
    }

    /// True between both.
    pub fn is_ending(&self, lane: usize) -> bool {
        self.programs[lane].is_ending && !self.programs[lane].has_ended
    }

    pub fn end(&mut self, lane: usize) {
        self.sections(lane).0.prod.fin.store(1, Ordering::Release);
        self.programs[lane].has_ended = true;
        self.mark(lane);
    }

    pub fn sent(&self, lane: usize) -> u64 {
        self.programs[lane].tx.pos()
    }

    /// Bytes of the peer's that the program was told of.
    pub fn heard(&self, lane: usize) -> u64 {
        self.sections(lane).1.prod.prod.load(Ordering::Acquire)
    }

    pub fn taken(&self, lane: usize) -> u64 {
        self.programs[lane].rx.pos()
    }

    pub fn passed(&self, lane: usize) -> u32 {
        self.programs[lane].passed
    }

    pub fn marks(&self, lane: usize) -> &[u64] {
        &self.programs[lane].marks
    }

    /// Where the agent says that the peer has stopped, after a failure.
    pub fn goes_on_at(&self, lane: usize) -> u64 {
        self.sections(lane).1.cons.cons.load(Ordering::Acquire)
    }

    pub fn has_ended(&self, lane: usize) -> bool {
        self.programs[lane].has_ended
    }

    pub fn saw_end(&self, lane: usize) -> bool {
        self.programs[lane].saw_end
    }

    /// Takes bytes; and whether the peer's end was seen, and the switch point that was passed.
    pub fn take(&mut self, lane: usize, len: usize) -> (Taken, Option<u64>, Option<u64>) {
        let (mine, theirs) = self.sections(lane);
        let program = &self.programs[lane];
        let fin = theirs.prod.fin.load(Ordering::Acquire) != 0;
        let mark = RxCursor::next_mark(&theirs.prod, program.passed).unwrap();
        let known = program.rx.refresh(&theirs.prod, self.ring).unwrap();
        let all = program.rx.pos() + known;
        let mark = mark.inspect(|at| assert!(*at <= all, "a switch point before its bytes"));
        let len = if self.stays && program.passed.is_multiple_of(2) { 0 } else { len as u64 };
        let span = program.rx.readable(&theirs.prod, self.ring, len).unwrap();
        let (from, bytes) = (program.rx.pos(), self.bytes(lane, self.side, span));
        let _ = program.rx.consume(&mine.cons, self.ring, span.len() as u64);
        let passed = mark.filter(|at| *at <= from + span.len() as u64);
        if passed.is_some() {
            mine.cons.marks_passed.store(program.passed + 1, Ordering::Release);
            self.programs[lane].passed += 1;
        }
        self.programs[lane].saw_end |= fin;
        // A program tells its agent of nothing else: an agent that forgets must not be reminded.
        if !bytes.is_empty() || passed.is_some() {
            self.mark(lane);
        }
        (Taken { from, bytes }, fin.then_some(all), passed)
    }

    /// Bytes from a position on, as they lie in the ring that the program sends from.
    pub fn unread(&self, lane: usize, from: u64) -> Vec<u8> {
        let sent = self.programs[lane].tx.pos();
        assert!(sent - from <= self.ring, "more than a ring");
        let span = self.programs[lane].tx.last(sent - from, self.ring);
        self.bytes(lane, self.side.other(), span)
    }

    /// The agent's thread gets to run: it sleeps until it is told or marked.
    pub fn work(&mut self, network: &Network) {
        let woken = self.worker.was_told() || self.was_marked;
        if self.is_asleep && !woken {
            return;
        }
        self.was_marked = false;
        let now = self.now;
        while self.worker.turn(now) > 0 {}
        // Completions may come just now.
        network.settle(3);
        self.is_asleep = self.worker.may_sleep(now);
        while let Some(event) = self.link().event() {
            match event {
                Event::Free(_) => self.free += 1,
                Event::Called(_) => {}
                Event::Measured(_) => self.measures[1] += 1,
                Event::Broken(lane, broken) => panic!("lane {lane}: {broken}"),
            }
        }
    }

    /// The device is lost: nothing of it may be left.
    pub fn lose(&mut self) {
        self.worker.let_go(Cause::Lost(Loss::Failed));
        assert_eq!(self.port.objects(), 0);
    }

    /// Another queue pair, for a link that has failed. On a device that was lost, it is found again.
    pub fn renew(&mut self) -> (PeerPair, Vec<Position>) {
        let (port, settings) = (self.port.clone(), self.settings);
        if self.worker.channel().is_none() {
            self.worker.take_up(&port, 1).unwrap();
        }
        self.was_marked = true;
        self.worker.renew(NAME, &port, settings, PacketNumber::new(77)).unwrap()
    }

    /// Goes on with it.
    pub fn go_on(&mut self, (pair, far): &(PeerPair, Vec<Position>), waits: bool) {
        self.was_marked = true;
        let now = self.now;
        assert_eq!(self.link().go_on((pair, far), waits, now), Ok(()));
    }

    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.worker.tick(now);
    }
}

pub fn settings(sizes: Sizes) -> Settings {
    Settings { messages: sizes.messages, burst: sizes.burst, ..Settings::DEFAULT }
}

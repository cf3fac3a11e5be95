//! The host: its programs, and the agent's worker with a link to the kernel.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use shunt_far::kernel::{Event, Settings};
use shunt_far::link::Rings;
use shunt_far::{KernelLink, Mirror, News, Worker};
use shunt_shm::handover;
use shunt_shm::region::{CLOSED, RESET, Section, Side, shape};
use shunt_shm::ring::{Content, RxCursor, Span, TxCursor, UNLIMITED};
use shunt_shm::sync::Ordering;
use shunt_verbs::Memory;
use shunt_verbs::fake::FakePort;
use shunt_verbs::value::PacketNumber;

use crate::{KERNEL, PROGRAM, byte};

/// The worker's link.
pub const NAME: u64 = 1;
/// Bytes that came over TCP before: the server's messages.
pub const OVER_TCP: u64 = 99;

/// Both sections of each connection.
pub type Sections = Rc<Vec<[Section; 2]>>;

#[derive(Debug)]
pub struct SimMirror {
    pub ring: u64,
    pub sections: Sections,
    pub published: Rc<RefCell<Vec<usize>>>,
    pub woken: Vec<News>,
}

impl SimMirror {
    pub fn new(ring: u64, slots: usize) -> Self {
        Self {
            ring,
            sections: Rc::new((0..slots).map(|_| Default::default()).collect()),
            published: Rc::default(),
            woken: vec![News::default(); slots],
        }
    }
}

impl Mirror for SimMirror {
    fn side(&self, _: usize) -> Side {
        Side::Client
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

    fn news(&mut self, each: &mut Vec<usize>) {
        each.append(&mut self.published.borrow_mut());
    }

    fn is_free(&mut self, slot: usize) {
        self.sections[slot][Side::Server as usize].setup.done.store(1, Ordering::Release);
    }

    fn wake(&mut self, slot: usize, news: News) {
        let all = &mut self.woken[slot];
        (all.bytes, all.room) = (all.bytes || news.bytes, all.room || news.room);
    }
}

/// A program's end of a connection.
#[derive(Debug, Default)]
pub struct Program {
    tx: TxCursor,
    rx: RxCursor,
    /// The kernel's token, by which bytes are made.
    pub label: u32,
    pub read: u64,
    passed: u32,
}

pub struct Host {
    pub worker: Worker<FakePort, SimMirror>,
    pub port: FakePort,
    sections: Sections,
    published: Rc<RefCell<Vec<usize>>>,
    memory: Memory,
    ring: u64,
    pub programs: Vec<Program>,
    pub events: Vec<Event>,
    pub now: Duration,
}

impl Host {
    pub fn new(port: FakePort, ring: u64, slots: usize, settings: Settings) -> Self {
        let mirror = SimMirror::new(ring, slots);
        let (sections, published) = (Rc::clone(&mirror.sections), Rc::clone(&mirror.published));
        let mut worker = Worker::new(&port, 1, 4, shunt_far::Settings::DEFAULT).unwrap();
        worker.add_kernel(NAME, &port, mirror, settings, PacketNumber::new(5)).unwrap();
        let memory = Memory::new(slots * 2 * usize::try_from(ring).unwrap()).unwrap();
        let programs = (0..slots).map(|_| Program::default()).collect();
        let (events, now) = (Vec::new(), Duration::from_secs(100));
        Self { worker, port, sections, published, memory, ring, programs, events, now }
    }

    pub fn link(&mut self) -> &mut KernelLink<FakePort, SimMirror> {
        self.worker.kernel_link(NAME).unwrap()
    }

    fn at(&self, slot: usize, receiver: Side) -> usize {
        (slot * 2 + receiver as usize) * usize::try_from(self.ring).unwrap()
    }

    pub fn rings(&self, slot: usize) -> Rings {
        let len = usize::try_from(self.ring).unwrap();
        let (out, into) = (self.at(slot, Side::Server), self.at(slot, Side::Client));
        Rings { memory: self.memory.clone(), outgoing: out..out + len, incoming: into..into + len }
    }

    /// A place is used anew.
    pub fn renew(&mut self, slot: usize, label: u32) {
        self.programs[slot] = Program { label, ..Program::default() };
        for section in &self.sections[slot] {
            section.reset();
        }
    }

    /// The program goes into the ring, where its agent has said that it sends there.
    pub fn enter(&self, slot: usize) {
        TxCursor::set_mark(&self.mine(slot).prod, 0);
        self.tell(slot);
    }

    pub fn mine(&self, slot: usize) -> &Section {
        &self.sections[slot][Side::Client as usize]
    }

    pub fn theirs(&self, slot: usize) -> &Section {
        &self.sections[slot][Side::Server as usize]
    }

    /// The program tells its agent.
    pub fn tell(&self, slot: usize) {
        self.published.borrow_mut().push(slot);
    }

    /// Sends up to so many bytes, as many as there is room for, and tells.
    pub fn send(&self, slot: usize, len: usize) -> usize {
        let (mine, theirs, program) = (self.mine(slot), self.theirs(slot), &self.programs[slot]);
        if self.is_reset(slot) || mine.prod.fin.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        let wish = shape(Side::Server, self.ring);
        let want = (len as u64, Content::Put);
        let span = program.tx.reserve(&theirs.cons, self.ring, wish, UNLIMITED, want).unwrap();
        let (from, at) = (program.tx.pos(), self.at(slot, Side::Server));
        let bytes: Vec<u8> = (from..from + span.len() as u64)
            .map(|place| byte(program.label, PROGRAM, place))
            .collect();
        let (head, tail) = bytes.split_at(span.head.1);
        self.memory.write(at + span.head.0, head).unwrap();
        self.memory.write(at + span.tail.0, tail).unwrap();
        program.tx.publish(&mine.prod, span.len() as u64);
        if !span.is_empty() {
            self.tell(slot);
        }
        span.len()
    }

    pub fn sent(&self, slot: usize) -> u64 {
        self.programs[slot].tx.pos()
    }

    /// Takes up to so many bytes, and compares them. It tells its agent where programs do.
    pub fn take(&mut self, slot: usize, most: u64) -> u64 {
        let (ring, at) = (self.ring, self.at(slot, Side::Client));
        let both = &self.sections[slot];
        let (mine, theirs) = (&both[Side::Client as usize], &both[Side::Server as usize]);
        let program = &mut self.programs[slot];
        let mark = RxCursor::next_mark(&theirs.prod, program.passed).unwrap();
        if let Some(over_tcp) = mark {
            assert_eq!((program.passed, over_tcp), (0, OVER_TCP));
            program.passed = 1;
            mine.cons.marks_passed.store(1, Ordering::Release);
        }
        if program.passed == 0 {
            return 0;
        }
        let span = program.rx.readable(&theirs.prod, ring, most).unwrap();
        let Span { head, tail } = span;
        for (from, len) in [head, tail] {
            let mut bytes = vec![0; len];
            self.memory.read(at + from, &mut bytes).unwrap();
            for got in bytes {
                let wanted = byte(program.label, KERNEL, program.read);
                assert_eq!(got, wanted, "byte {} of {}", program.read, program.label);
                program.read += 1;
            }
        }
        let looks = program.rx.consume(&mine.cons, ring, span.len() as u64);
        if mark.is_some() || looks {
            self.published.borrow_mut().push(slot);
        }
        span.len() as u64
    }

    /// Bytes that the program may take.
    pub fn readable(&self, slot: usize) -> u64 {
        self.theirs(slot).prod.prod.load(Ordering::Acquire) - self.programs[slot].rx.pos()
    }

    /// The same, of one that has taken so many.
    pub fn readable_from(&self, slot: usize, taken: u64) -> u64 {
        self.theirs(slot).prod.prod.load(Ordering::Acquire) - taken
    }

    pub fn finish(&self, slot: usize) {
        self.mine(slot).prod.fin.store(1, Ordering::Release);
        self.tell(slot);
    }

    /// The program closes: with bytes unread, it resets.
    pub fn close(&self, slot: usize) {
        let closed = if self.readable(slot) > 0 && !self.is_reset(slot) { RESET } else { CLOSED };
        self.close_as(slot, closed);
    }

    pub fn close_as(&self, slot: usize, closed: u32) {
        let mine = self.mine(slot);
        mine.prod.fin.store(1, Ordering::Release);
        mine.ctl.closed.store(closed, Ordering::Release);
        mine.setup.done.store(1, Ordering::Release);
        self.tell(slot);
    }

    /// The program does by which it would go on over TCP: it sets a switch point.
    pub fn set_mark(&self, slot: usize) {
        TxCursor::set_mark(&self.mine(slot).prod, self.sent(slot));
        self.tell(slot);
    }

    /// The program's own checks find that the connection is reset.
    pub fn is_reset(&self, slot: usize) -> bool {
        self.theirs(slot).prod.grants.load(Ordering::Acquire) != 0
    }

    /// The end of the kernel's direction is here, and what the kernel's TCP says of it counts.
    pub fn has_end(&self, slot: usize) -> bool {
        let prod = &self.theirs(slot).prod;
        let is_behind = prod.behind.load(Ordering::Acquire) != 0;
        assert!(is_behind || self.is_reset(slot) || prod.fin.load(Ordering::Acquire) != 0);
        prod.fin.load(Ordering::Acquire) != 0 && !is_behind
    }

    /// It was left to TCP.
    pub fn is_on_tcp(&self, slot: usize) -> bool {
        let theirs = self.theirs(slot);
        handover::has_left(&theirs.ctl.handed_over)
            && theirs.setup.done.load(Ordering::Acquire) == 1
    }

    /// The agent's thread runs. True if anything moved.
    pub fn turn(&mut self) -> bool {
        let now = self.now;
        self.worker.tick(now);
        let taken = self.worker.turn(now);
        let mut moved = taken > 0;
        while let Some(event) = self.link().event() {
            self.events.push(event);
            moved = true;
        }
        moved
    }
}

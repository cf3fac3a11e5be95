//! Models of what grants work on: two ends with one direction between them, the sender's process, and the receiver's.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;

use shunt_shm::arena::{Mode, Record};
use shunt_shm::grants::{Grants, Held};
use shunt_shm::region::{Section, Side};
use shunt_shm::ring::{Content, Shape, Span, TxCursor, UNLIMITED};
use shunt_shm::zerocopy::{Open, ZeroCopy};

use crate::conn::End;
use crate::conn::flags::NUMBERED;
use crate::conn::put;
use crate::handshake::Phase;
use crate::pinning::Pin;
use crate::zerocopy::choice::Hint;
use crate::zerocopy::granting::Put;
use crate::zerocopy::numbers::{Numbers, Outcome};
use crate::zerocopy::ports::{
    Borrower, Bytes, Clock, Collector, Lender, Lending, Memory, Piped, Registered, Restorer,
    Scratch, To,
};
use crate::zerocopy::received::Use;
use crate::zerocopy::sender::Granting;

/// A sender and a receiver, both in the ring.
pub struct Pair {
    pub records: [Record; 2],
    pub sections: [Section; 2],
    pub state: ZeroCopy,
    pub entries: Grants,
    pub ring: Vec<Cell<u8>>,
}

impl Default for Pair {
    fn default() -> Self {
        let pair = Self {
            records: Default::default(),
            sections: Default::default(),
            state: ZeroCopy::default(),
            entries: Grants::default(),
            ring: vec![Cell::new(0); usize::try_from(Self::RING).unwrap()],
        };
        let [sender, receiver] = &pair.records;
        receiver.id.side.store(Side::Server as u32, Relaxed);
        for record in [sender, receiver] {
            record.id.phase.store(Phase::Active as u32, Relaxed);
            record.id.mode.store(Mode::Attach as u32, Relaxed);
        }
        TxCursor::set_mark(&pair.sections[0].prod, 0);
        sender.tx.marks.store(1, Relaxed);
        receiver.rx.marks.store(1, Relaxed);
        put(sender, NUMBERED, true);
        pair
    }
}

impl Pair {
    pub const RING: u64 = 64 << 10;

    pub fn sender(&self) -> End<'_> {
        let ([record, _], [mine, theirs]) = (&self.records, &self.sections);
        End { record, mine, theirs, ring: Self::RING }
    }

    pub fn receiver(&self) -> End<'_> {
        let ([_, record], [theirs, mine]) = (&self.records, &self.sections);
        End { record, mine, theirs, ring: Self::RING }
    }

    pub fn granting(&self) -> Granting<'_> {
        Granting { end: self.sender(), state: &self.state }
    }

    pub fn numbers(&self) -> Numbers<'_> {
        Numbers { record: &self.records[0], end: Some(self.sender()), state: &self.state }
    }

    /// The receiver has mapped that.
    pub fn knows(&self, region: u64) {
        self.state.granted.offer(region);
        self.sections[1].ctl.accepted.store(region, Relaxed);
    }

    /// So many bytes that the receiver is to take next.
    pub fn next(&self, n: u64) -> Span {
        self.records[1].rx.cursor.readable(&self.sections[0].prod, Self::RING, n).unwrap()
    }

    fn places(span: Span) -> impl Iterator<Item = usize> {
        [span.head, span.tail].into_iter().flat_map(|(at, len)| at..at + len)
    }

    pub fn write(&self, span: Span, bytes: &[u8]) {
        assert_eq!(span.len(), bytes.len());
        Self::places(span).zip(bytes).for_each(|(at, byte)| self.ring[at].set(*byte));
    }

    pub fn read(&self, span: Span) -> Vec<u8> {
        Self::places(span).map(|at| self.ring[at].get()).collect()
    }
}

/// The sender's process: its memory, of which what lies below [`Process::PRIVATE`] is registered; and its pipes.
pub struct Process<'a> {
    pub pair: Option<&'a Pair>,
    pub memory: RefCell<Vec<u8>>,
    /// The name of the registered memory.
    pub name: Option<u64>,
    pub policy: Pin,
    pub pipes: [RefCell<VecDeque<u8>>; 2],
    /// The name of the pipes that it has.
    pub piped: Option<u64>,
    /// Most bytes that go into a pipe at once.
    pub most: usize,
    pub time: Cell<u32>,
    /// Those who wait look now and then.
    pub doubts: Cell<bool>,
    /// The registered memory is to be had.
    pub is_there: bool,
    /// What happens when it is asked for the time.
    pub meanwhile: RefCell<Option<Box<dyn Fn() + 'a>>>,
}

impl Default for Process<'_> {
    fn default() -> Self {
        Self {
            pair: None,
            memory: RefCell::new((0..Self::LEN).map(byte).collect()),
            name: Some(Self::REGION),
            policy: Pin::Never,
            pipes: Default::default(),
            piped: None,
            most: usize::MAX,
            time: Cell::new(1000),
            doubts: Cell::new(false),
            is_there: true,
            meanwhile: RefCell::default(),
        }
    }
}

/// What lies at this address at first.
pub fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).to_le_bytes()[0]
}

impl<'a> Process<'a> {
    /// Where its memory begins: no address is 0.
    pub const BASE: usize = 1 << 20;
    pub const REGION: u64 = 7;
    pub const PIPES: u64 = 8;
    pub const PRIVATE: usize = 1 << 17;
    pub const LEN: usize = 1 << 18;

    pub fn of(pair: &'a Pair) -> Self {
        Self { pair: Some(pair), ..Self::default() }
    }

    /// With pipes that the receiver has.
    pub fn with_pipes(pair: &'a Pair) -> Self {
        pair.state.pinned.name.store(Self::PIPES, Relaxed);
        pair.knows(Self::PIPES);
        Self { policy: Pin::From(1), piped: Some(Self::PIPES), ..Self::of(pair) }
    }

    fn pair(&self) -> &'a Pair {
        self.pair.unwrap()
    }

    pub fn at(&self, address: usize, len: usize) -> Vec<u8> {
        self.memory.borrow()[address..address + len].to_vec()
    }

    /// The program changes memory that is its own again.
    pub fn scribbles(&self, address: usize, len: usize) {
        self.memory.borrow_mut()[address..address + len].fill(0xee);
    }

    /// Puts bytes to their place as a call with `MSG_ZEROCOPY` does: how they went.
    pub fn puts(&self, address: usize, len: usize, outcome: &mut Outcome) -> (Put, usize) {
        let pair = self.pair();
        let granting = pair.granting();
        let piece = granting.piece(self, Hint::Auto, (Self::BASE + address, len));
        outcome.is_unknown |= piece.is_err();
        let piece = piece.ok().flatten();
        let len = piece.map_or(len, |piece| piece.len.min(len));
        let cursor = &pair.records[0].tx.cursor;
        let end = pair.sender();
        granting.withdraw();
        let content = if piece.is_some() { Content::Granted } else { Content::Put };
        let wish = Shape { cap: Pair::RING, late: false };
        let want = (len as u64, content);
        let place = cursor.reserve(&end.theirs.cons, Pair::RING, wish, UNLIMITED, want).unwrap();
        let put = piece.map_or(Put::Copied, |piece| granting.put(self, &piece, place.len()));
        let n = match put {
            Put::Granted(n) => n,
            Put::Refused | Put::Copied => {
                pair.write(place, &self.at(address, place.len()));
                place.len()
            }
        };
        outcome.notes(put, n, cursor.pos() + n as u64);
        (put, n)
    }

    /// The receiver can see them.
    pub fn publishes(&self, n: usize, is_private: bool) {
        let pair = self.pair();
        pair.records[0].tx.cursor.publish(&pair.sections[0].prod, n as u64);
        if is_private {
            pair.state.pinned.are_covered();
        }
    }

    /// A whole call: how its bytes went.
    pub fn sends(&self, address: usize, len: usize) -> (Put, usize) {
        let mut outcome = Outcome::default();
        let (put, n) = self.puts(address, len, &mut outcome);
        self.pair().numbers().number_before(&mut outcome, put);
        self.publishes(n, address >= Self::PRIVATE);
        (put, n)
    }
}

impl Memory for Process<'_> {
    fn registered(&self, address: usize, len: usize) -> Option<Registered> {
        let from = address - Self::BASE;
        let is_registered = from < Self::PRIVATE && from + len <= Self::PRIVATE;
        is_registered.then_some(Registered { name: self.name, from })
    }

    fn policy(&self) -> Pin {
        self.policy
    }

    fn pipes(&self) -> Option<u64> {
        self.piped
    }
}

impl Clock for Process<'_> {
    fn now(&self) -> u32 {
        self.time.get()
    }

    fn arise(&self) -> u32 {
        self.doubts.set(true);
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        self.time.get()
    }

    fn timeout(&self) -> u64 {
        10 << 10
    }
}

impl Lender for Process<'_> {
    fn entries(&self) -> &Grants {
        &self.pair().entries
    }

    fn pin(&self, lane: usize, address: usize, len: usize) -> Option<usize> {
        let n = len.min(self.most);
        self.pipes[lane].borrow_mut().extend(self.at(address - Self::BASE, n));
        (n > 0).then_some(n)
    }
}

/// What was read from a pipe.
pub struct Room<'p, 'a>(&'p Process<'a>, Vec<u8>);

impl Scratch for Room<'_, '_> {
    fn read(&mut self, lane: usize) -> usize {
        self.1 = self.0.pipes[lane].borrow_mut().drain(..).collect();
        self.1.len()
    }

    fn put(&self, from: usize, place: Span) {
        self.0.pair().write(place, &self.1[from..from + place.len()]);
    }
}

impl Restorer for Process<'_> {
    fn entries(&self) -> &Grants {
        &self.pair().entries
    }

    fn restore(&self, open: &Open, place: Span) -> bool {
        if self.is_there {
            let (from, len) = (usize::try_from(open.from).unwrap(), place.len());
            assert_eq!((open.region, open.len), (Self::REGION, len as u64));
            self.pair().write(place, &self.at(from, len));
        }
        self.is_there
    }

    fn pipes(&self) -> Option<impl Scratch> {
        self.piped.map(|_| Room(self, Vec::new()))
    }
}

impl Collector for Process<'_> {
    fn locked(&self, step: impl FnOnce()) {
        step();
    }
}

/// The receiver's process, and the program's places.
pub struct Reader<'p, 'a> {
    pub process: &'p Process<'a>,
    /// Names of what it has mapped.
    pub mapped: RefCell<Vec<u64>>,
    /// What it maps if it is offered.
    pub maps: bool,
    pub places: RefCell<Vec<u8>>,
    /// The program's places are none from here on.
    pub bad_from: usize,
    /// The sender takes everything back while granted bytes are copied, and the program scribbles.
    pub loses: Cell<bool>,
    /// The sender reads its pipes itself, and needs so many looks for that.
    pub takes: Cell<u32>,
    pub waited: Cell<u32>,
    pub interrupts: Cell<u32>,
}

impl<'p, 'a> Reader<'p, 'a> {
    pub fn of(process: &'p Process<'a>) -> Self {
        Self {
            process,
            mapped: RefCell::new(vec![Process::REGION, Process::PIPES]),
            maps: true,
            places: RefCell::default(),
            bad_from: usize::MAX,
            loses: Cell::new(false),
            takes: Cell::new(0),
            waited: Cell::new(0),
            interrupts: Cell::new(0),
        }
    }

    /// Takes (or does else) up to `n` bytes that are there.
    pub fn does(&self, what: Use, n: u64) -> Vec<u8> {
        let pair = self.process.pair();
        let span = pair.next(n);
        *self.places.borrow_mut() = vec![0; span.len()];
        let end = pair.receiver();
        end.record.rx.pipe_reads.begin().unwrap();
        let passed = end.take_granted(self, what, (span, true)).unwrap().unwrap();
        if what != Use::Seen {
            end.record.rx.grants.store(passed, Relaxed);
            let taken = span.len() as u64;
            let _ = end.record.rx.cursor.consume(&end.mine.cons, Pair::RING, taken);
        }
        end.record.rx.pipe_reads.end();
        self.places.take()
    }

    /// Where a copy ends up: the receiver's memory is the sender's.
    fn puts(&self, at: usize, bytes: &[u8]) {
        self.places.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Borrower for Reader<'_, '_> {
    type Mapped = usize;
    type Pipes = ();

    fn entries(&self) -> &Grants {
        &self.process.pair().entries
    }

    fn find(&self, region: u64, from: u64, len: u64) -> Option<Bytes<usize, ()>> {
        if !self.mapped.borrow().contains(&region) {
            return None;
        }
        match region {
            Process::PIPES => Some(Bytes::Piped(())),
            _ => {
                let from = usize::try_from(from).unwrap();
                let is_there = from + usize::try_from(len).unwrap() <= Process::PRIVATE;
                is_there.then_some(Bytes::Mapped(from))
            }
        }
    }

    fn take_up(&self, region: u64) -> bool {
        if self.maps {
            self.mapped.borrow_mut().push(region);
        }
        self.maps
    }

    fn copy_mapped(&self, at: usize, bytes: usize, len: usize) {
        if self.loses.take() {
            assert!(self.process.pair().granting().take_back(self.process));
            self.process.scribbles(0, Process::LEN);
        }
        self.puts(at, &self.process.at(bytes, len));
    }

    fn copy_ring(&self, at: usize, span: Span) {
        self.puts(at, &self.process.pair().read(span));
    }

    fn copy_pulled(&self, at: usize, span: Span) {
        self.copy_ring(at, span);
    }

    fn read_pipe(&self, ((), lane): ((), usize), to: To, len: usize) -> Piped {
        if self.interrupts.get() > 0 {
            self.interrupts.set(self.interrupts.get() - 1);
            return Piped::Interrupted;
        }
        let mut pipe = self.process.pipes[lane].borrow_mut();
        // The kernel may give fewer than there are.
        let mut n = len.min(pipe.len()).min(700);
        if let To::Program(at) = to {
            n = n.min(self.bad_from.saturating_sub(at));
            if n == 0 && !pipe.is_empty() {
                return Piped::BadPlace;
            }
        }
        if n == 0 {
            return Piped::Nothing;
        }
        let bytes: Vec<u8> = pipe.drain(..n).collect();
        match to {
            To::Ring(span) => self.process.pair().write(span.split(n).0, &bytes),
            To::Program(at) => self.puts(at, &bytes),
        }
        Piped::Bytes(n)
    }

    fn waits(&self, _: &mut Option<u64>) -> bool {
        self.waited.set(self.waited.get() + 1);
        if self.waited.get() == self.takes.get() {
            let (pair, held) = (self.process.pair(), |n| self.process.pair().entries.held(n));
            (0..64).filter(|n| held(*n) == Held::Taking).for_each(|n| pair.entries.take_back(n));
        }
        self.waited.get() <= self.takes.get()
    }

    fn uncancelled<T>(&self, what: impl FnOnce() -> T) -> T {
        what()
    }

    fn timed<T>(&self, _: usize, what: impl FnOnce() -> T) -> T {
        what()
    }
}

/// A list of places with room for so many.
pub struct Places(pub usize, pub Vec<(bool, usize, usize)>);

impl Lending for Places {
    type Mapped = usize;

    fn begin(&mut self) {
        self.1.clear();
    }

    fn tell_mapped(&mut self, bytes: usize, len: usize) -> bool {
        let fits = self.1.len() < self.0;
        self.1.extend(fits.then_some((true, bytes, len)));
        fits
    }

    fn tell_ring(&mut self, at: usize, len: usize) -> bool {
        let fits = len == 0 || self.1.len() < self.0;
        self.1.extend((fits && len > 0).then_some((false, at, len)));
        fits
    }
}

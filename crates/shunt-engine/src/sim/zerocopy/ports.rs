//! The program's memory, the other one's, and pipes, as the engine's ports.

use core::cell::RefCell;
use std::collections::VecDeque;

use shunt_shm::grants::{Grants, place_in};
use shunt_shm::ring::Span;
use shunt_shm::zerocopy::Open;

use super::buffers::{Lies, PRIVATE, REGISTERED};
use super::{Lends, PIPES, REGION};
use crate::call::Direction;
use crate::pinning::Pin;
use crate::sim::calls::{Lock, places};
use crate::sim::pace::{at_once, point};
use crate::sim::program::Doing;
use crate::sim::sleep::Asleep;
use crate::sim::{Op, World, other};
use crate::zerocopy::ports::{
    Borrower, Bytes, Clock, Collector, Lender, Memory, Piped, Registered, Restorer, Scratch, To,
};

/// How long a grant may stay unread, in nanoseconds.
const TIMEOUT: u64 = 100_000_000;
/// How long those who wait look now and then.
const FOR: u64 = 2_000_000_000;
/// Longest wait for a sender that reads its pipes itself, and one look.
const PATIENCE: u64 = 100_000_000;
const PAUSE: u64 = 50_000;

/// A pipe has the pages: what is read from it is what lies there by then.
pub type Pipe = VecDeque<usize>;

/// The process of a sender.
#[derive(Clone, Copy)]
pub struct Own<'w> {
    pub world: &'w World,
    pub who: usize,
    pub lends: &'w Lends,
}

impl Own<'_> {
    fn writes(&self, place: Span, bytes: &[u8]) {
        let ring = &self.world.procs[other(self.who)].rmb;
        let bytes: Vec<(usize, u8)> = places(place).zip(bytes.iter().copied()).collect();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        first.iter().for_each(|(at, byte)| ring[*at].set(*byte));
        point();
        second.iter().for_each(|(at, byte)| ring[*at].set(*byte));
    }
}

impl Memory for Own<'_> {
    fn registered(&self, address: usize, _: usize) -> Option<Registered> {
        let from = address.checked_sub(REGISTERED).filter(|_| address < PRIVATE)?;
        Some(Registered { name: Some(REGION), from })
    }

    fn policy(&self) -> Pin {
        Pin::From(1)
    }

    fn pipes(&self) -> Option<u64> {
        self.world.procs[self.who].sharing.has_pipes.get().then_some(PIPES)
    }
}

impl Clock for Own<'_> {
    #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
    fn now(&self) -> u32 {
        (self.world.now.get() >> 10) as u32 | 1
    }

    fn arise(&self) -> u32 {
        self.lends.doubts_until.set(self.world.now.get() + FOR);
        self.now()
    }

    fn timeout(&self) -> u64 {
        TIMEOUT
    }
}

impl Lender for Own<'_> {
    fn entries(&self) -> &Grants {
        self.world.entries(other(self.who))
    }

    fn pin(&self, lane: usize, address: usize, len: usize) -> Option<usize> {
        point();
        // A pipe has room for fewer bytes, or for none.
        let n = if self.world.choose(8) { len / 2 } else { len };
        let from = address - PRIVATE;
        self.lends.pipes[lane].borrow_mut().extend(from..from + n);
        point();
        (n > 0).then_some(n)
    }
}

/// What a sender has read from one of its pipes: where it lay, and what it was.
struct Room<'w> {
    own: Own<'w>,
    read: Vec<(usize, u8)>,
}

impl Scratch for Room<'_> {
    fn read(&mut self, lane: usize) -> usize {
        point();
        let memory = self.own.lends.private.borrow();
        let mut pipe = self.own.lends.pipes[lane].borrow_mut();
        self.read = pipe.drain(..).map(|at| (at, memory[at])).collect();
        self.read.len()
    }

    fn put(&self, from: usize, place: Span) {
        let read = &self.read[from..from + place.len()];
        let bytes: Vec<u8> = read.iter().map(|(_, byte)| *byte).collect();
        self.own.writes(place, &bytes);
        read.iter().for_each(|(at, _)| self.own.lends.is_restored(Lies::Private, *at));
    }
}

impl Restorer for Own<'_> {
    fn entries(&self) -> &Grants {
        self.world.entries(other(self.who))
    }

    fn restore(&self, open: &Open, place: Span) -> bool {
        point();
        let from = usize::try_from(open.from).unwrap();
        assert_eq!((open.region, open.len), (REGION, place.len() as u64));
        let bytes = self.lends.registered.borrow()[from..from + place.len()].to_vec();
        self.writes(place, &bytes);
        self.lends.is_restored(Lies::Registered, from);
        true
    }

    fn pipes(&self) -> Option<impl Scratch> {
        let has = self.world.procs[self.who].sharing.has_pipes.get();
        has.then(|| Room { own: *self, read: Vec::new() })
    }
}

impl Collector for Own<'_> {
    fn locked(&self, step: impl FnOnce()) {
        let lock = Lock::of(self.world, self.who, Direction::Sending);
        if !lock.is_nested() {
            step();
        }
    }
}

/// A receiver's look at granted bytes.
pub struct Look<'w> {
    pub world: &'w World,
    pub who: usize,
    /// No handler of a signal is to run above its copies.
    pub is_quiet: bool,
    /// The program's places.
    pub to: RefCell<Vec<u8>>,
}

impl Look<'_> {
    /// Some of the bytes may be in pipes.
    pub fn has_pipes(&self) -> bool {
        self.world.procs[self.who].sharing.has_pulled.get()
    }

    fn lends(&self) -> Option<&Lends> {
        self.world.lends(other(self.who))
    }

    fn puts(&self, at: usize, bytes: impl Iterator<Item = u8>) {
        let mut to = self.to.borrow_mut();
        to[at..].iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    }

    fn interrupt(&self) {
        point();
        if !self.is_quiet {
            self.world.interrupt(self.who);
        }
    }
}

impl Borrower for Look<'_> {
    type Mapped = usize;
    type Pipes = ();

    fn entries(&self) -> &Grants {
        self.world.entries(self.who)
    }

    fn find(&self, region: u64, from: u64, len: u64) -> Option<Bytes<usize, ()>> {
        let sharing = &self.world.procs[self.who].sharing;
        let room = self.lends()?.registered.borrow().len();
        match region {
            REGION if sharing.has_mapped.get() => place_in(room, from, len).map(Bytes::Mapped),
            PIPES if sharing.has_pulled.get() => Some(Bytes::Piped(())),
            _ => None,
        }
    }

    fn take_up(&self, region: u64) -> bool {
        point();
        let me = &self.world.procs[self.who];
        let (has, at) = match region {
            REGION => (&me.sharing.has_mapped, 0),
            PIPES => (&me.sharing.has_pulled, 1),
            _ => return false,
        };
        let has_accepted = &me.taste.has_accepted[at];
        let takes = self.lends().is_some() && (has_accepted.get() || !me.taste.refuses.get());
        if takes {
            has.set(true);
            has_accepted.set(true);
        }
        takes
    }

    fn copy_mapped(&self, at: usize, bytes: usize, len: usize) {
        let Some(lends) = self.lends() else { return };
        // The memory may have grown meanwhile: it is asked anew.
        let copy = |skip: usize, n: usize| {
            let memory = lends.registered.borrow();
            self.puts(at + skip, memory[bytes + skip..bytes + skip + n].iter().copied());
        };
        copy(0, len / 2);
        self.interrupt();
        copy(len / 2, len - len / 2);
    }

    fn copy_ring(&self, at: usize, span: Span) {
        self.interrupt();
        self.copy_pulled(at, span);
    }

    fn copy_pulled(&self, at: usize, span: Span) {
        let ring = &self.world.procs[self.who].rmb;
        self.puts(at, places(span).map(|at| ring[at].get()));
        point();
    }

    fn read_pipe(&self, ((), lane): ((), usize), to: To, len: usize) -> Piped {
        point();
        let Some(lends) = self.lends() else { return Piped::Nothing };
        let mut pipe = lends.pipes[lane].borrow_mut();
        // The kernel may give fewer than there are.
        let n = len.min(pipe.len());
        let n = if n > 1 && self.world.choose(4) { n / 2 } else { n };
        if n == 0 {
            return Piped::Nothing;
        }
        let memory = lends.private.borrow();
        let bytes = pipe.drain(..n).map(|at| memory[at]);
        match to {
            To::Program(at) => self.puts(at, bytes),
            To::Ring(span) => {
                let ring = &self.world.procs[self.who].rmb;
                places(span).zip(bytes).for_each(|(at, byte)| ring[at].set(byte));
            }
        }
        Piped::Bytes(n)
    }

    fn waits(&self, since: &mut Option<u64>) -> bool {
        let now = self.world.now.get();
        if now > *since.get_or_insert(now) + PATIENCE {
            return false;
        }
        self.world.pauses(self.who);
        true
    }

    fn uncancelled<T>(&self, what: impl FnOnce() -> T) -> T {
        what()
    }

    fn timed<T>(&self, _: usize, what: impl FnOnce() -> T) -> T {
        what()
    }
}

impl World {
    /// Waits for a moment.
    pub fn pauses(&self, who: usize) {
        let nothing = Asleep::nothing(Doing { op: Op::Sleep, moved: 0, is_plain: false });
        let looks_at = Some(self.now.get() + PAUSE);
        self.rests_until(who, Asleep { looks_at, ..nothing });
    }

    /// The entries of what an end receives.
    pub fn entries(&self, who: usize) -> &Grants {
        at_once(|| self.procs[who].entries.get_or_init(Box::default))
    }
}

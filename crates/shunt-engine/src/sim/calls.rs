//! The calls of the two programs, as the engine's ports. A program may stop before each thing that they do.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shunt_shm::Violation;
use shunt_shm::lock::{Owner, OwnerLock};
use shunt_shm::ring::{Content, Span};

use super::forks::{Moved, Which};
use super::leaving::Out;
use super::pace::{self, at_once, point};
use super::program::past_library;
use super::zerocopy::{Buffer, Look};
use super::{World, other};
use crate::call::{Errno, Kernel, Moment, Step};
use crate::conn::flags::KERNEL_HINT;
use crate::conn::recv::{Incoming, Looked};
use crate::conn::reset;
use crate::conn::send::Outgoing;
use crate::conn::{is_settled, put};
use crate::kernel::{self, KernelSocket, has_failed};
use crate::zerocopy::batch::Batch;
use crate::zerocopy::choice::Piece;
use crate::zerocopy::received::Use;

/// Where the bytes of a span are, one by one.
pub fn places(span: Span) -> impl Iterator<Item = usize> {
    [span.head, span.tail].into_iter().flat_map(|(at, len)| at..at + len)
}

/// The lock of a direction, or of the handshake, as a step has it.
pub struct Lock<'w> {
    lock: &'w OwnerLock,
    owner: Owner,
    is_nested: bool,
    is_released: Cell<bool>,
    /// The one that it was taken from, which was killed with it, where this one cannot bring to an end what that has left.
    heir_of: Option<Owner>,
}

impl<'w> Lock<'w> {
    /// Takes it, unless a step of the same program has it, above which this one runs.
    pub fn of(world: &'w World, who: usize, which: impl Into<Which>) -> Self {
        let guard = world.locks(who, which.into());
        let is_to_repair = || at_once(|| is_settled(&world.procs[who].record));
        let cannot = |_: &Owner| world.linked(who).is_none() && is_to_repair();
        let heir_of = guard.inherited_from().filter(cannot);
        let (lock, owner, is_nested) = guard.into_parts();
        Self { lock, owner, is_nested, is_released: Cell::new(is_nested), heir_of }
    }

    pub const fn is_nested(&self) -> bool {
        self.is_nested
    }

    fn release(&self) {
        if !self.is_released.replace(true) {
            pace::at_once(|| match self.heir_of {
                Some(dead) => self.lock.return_to(self.owner, dead),
                None => self.lock.unlock(self.owner),
            });
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// A call that sends.
pub struct Sending<'w> {
    pub world: &'w World,
    pub who: usize,
    pub total: usize,
    pub sent: usize,
    pub lock: &'w Lock<'w>,
    /// What it sends without copies, and what of that comes next.
    pub buffer: Option<Rc<Buffer>>,
    pub piece: Option<Piece>,
    /// The same of several pieces that go together, instead.
    pub batch: Option<Batch>,
}

impl Sending<'_> {
    fn advance(&mut self, n: usize) {
        let proc = &self.world.procs[self.who];
        self.sent += n;
        proc.sent.set(proc.sent.get() + n as u64);
    }

    /// What comes next.
    pub fn rest(&self) -> impl Iterator<Item = u8> + use<'_> {
        let from = self.world.procs[self.who].sent.get();
        (from..).map(|at| self.world.byte(self.who, at))
    }

    /// Copies it to this place, after so many bytes, and is not interrupted.
    pub fn puts(&self, skip: usize, place: Span) {
        let ring = &self.world.procs[other(self.who)].rmb;
        places(place).zip(self.rest().skip(skip)).for_each(|(at, byte)| ring[at].set(byte));
    }
}

impl Outgoing for Sending<'_> {
    fn socket(&self) -> impl KernelSocket {
        self.world.socket(self.who)
    }

    fn sent(&self) -> usize {
        self.sent
    }

    fn next_piece(&mut self) -> Result<(usize, Content), Errno> {
        point();
        if let Some(buffer) = self.buffer.clone().filter(|buffer| buffer.is_in_parts) {
            return Ok(self.world.gathers(self, &buffer));
        }
        let buffer = self.buffer.as_deref();
        self.piece = buffer.and_then(|buffer| self.world.piece(self.who, buffer, self.sent));
        Ok(match &self.piece {
            Some(piece) => (piece.len, Content::Granted),
            None => (self.total - self.sent, Content::Put),
        })
    }

    fn longest_ring(&mut self) -> u64 {
        self.world.withdraws(self.who);
        World::RING as u64
    }

    fn copy(&mut self, place: Span) {
        // What is granted is nearly always granted.
        if self.piece.is_some() {
            return;
        }
        let ring = &self.world.procs[other(self.who)].rmb;
        let is_copied = |at: usize| {
            let mut copied = self.batch.iter().flat_map(|batch| batch.copied(place.len()));
            self.batch.is_none() || copied.any(|(from, _, n)| (from..from + n).contains(&at))
        };
        let bytes = places(place).zip(self.rest()).enumerate();
        let bytes = bytes.filter(|(at, _)| is_copied(*at));
        let bytes: Vec<(usize, u8)> = bytes.map(|(_, byte)| byte).collect();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        first.iter().for_each(|(at, byte)| ring[*at].set(*byte));
        point();
        // What a handler sends comes first, so these bytes are others than those that are next now.
        let calls = &self.world.procs[self.who].record.tx.copying.calls;
        let handlers = || pace::at_once(|| calls.load(Relaxed));
        let before = handlers();
        if !self.lock.is_nested() {
            self.world.interrupt(self.who);
        }
        let mask = if handlers() == before { 0 } else { 0xff };
        second.iter().for_each(|(at, byte)| ring[*at].set(*byte ^ mask));
    }

    fn complete(&mut self, place: Span) -> usize {
        let world = self.world;
        let placed = match self.buffer.clone() {
            Some(buffer) => world.places(self, &buffer, place),
            None => place.len(),
        };
        let (me, n) = (&world.procs[self.who], placed as u64);
        me.placed.set(Moved { at: pace::at_once(|| me.record.tx.cursor.pos()), n });
        self.advance(placed);
        me.unseen.set(me.unseen.get() + n);
        placed
    }

    fn run_dry(&self) -> Option<Step> {
        None
    }

    fn goes_far(&self) {}

    fn is_published(&self) {
        let me = &self.world.procs[self.who];
        me.placed.take();
        me.unseen.set(0);
        self.world.covers(self.who, self.piece.as_ref());
    }

    fn unlock(&mut self) {
        self.lock.release();
        point();
    }

    fn tell(&mut self) -> bool {
        self.world.tells_receiver(self.who);
        false
    }

    fn over_kernel(&mut self) -> Kernel {
        point();
        let (record, socket) = (&self.world.procs[self.who].record, self.world.socket(self.who));
        // The kernel tells an error once. This call returns what it has sent, so that is the next one's to hear.
        if self.sent > 0 && has_failed(&socket) {
            return Kernel::Failed(Errno::CONNRESET);
        }
        if self.sent > 0 {
            point();
        }
        let result = socket.sends(self.total - self.sent, self.rest());
        match result {
            Kernel::Moved(n) => self.advance(n),
            Kernel::Failed(Errno::CONNRESET) if self.sent > 0 => reset::tell_later(record),
            _ => {}
        }
        result
    }

    fn repeat(&mut self) -> bool {
        self.world.end(self.who).repeat(&Out::new(self.world, self.who, self.lock.is_nested()))
    }

    fn take_back(&mut self) -> bool {
        self.world.takes_back(self.who)
    }

    fn leave_ring(&mut self, untaken: u64) {
        let (world, who) = (self.world, self.who);
        let marked = || {
            // Of a handler's send nothing comes once more.
            world.leaves_behind(who, |_| self.lock.is_nested());
            point();
        };
        pace::uninterrupted(|| world.end(who).leave_ring(untaken, marked));
    }

    fn is_promoted(&self, is_unused: bool) {
        if is_unused {
            self.world.procs[self.who].mind.uses_accepted.set(true);
        }
        point();
    }

    fn can_tell(&self) -> bool {
        self.world.procs[self.who].can_tell.get()
    }

    fn is_orphaned(&self) -> bool {
        self.world.is_orphaned(self.who)
    }

    fn now(&self) -> u64 {
        self.world.now.get()
    }

    fn reaches(&self, _: Moment) {
        point();
    }
}

/// A call that receives.
pub struct Receiving<'w> {
    pub world: &'w World,
    pub who: usize,
    pub total: usize,
    pub enough: usize,
    pub got: usize,
    pub only_looks: bool,
    /// It passes bytes over.
    pub drops: bool,
    /// It has begun to read from pipes, which is not over yet.
    pub reads_pipes: Cell<bool>,
    /// In a handler above a call that copies.
    pub is_nested: bool,
    /// What was copied last.
    pub copied: Vec<u8>,
}

impl Receiving<'_> {
    /// The program sees these bytes now.
    fn sees(&self, bytes: &[u8]) {
        let at = self.world.procs[self.who].received.get();
        let at = if self.only_looks { at + self.got as u64 } else { at };
        self.world.checks(self.who, at, bytes);
    }

    fn takes(&self, n: usize) {
        let received = &self.world.procs[self.who].received;
        if !self.only_looks {
            received.set(received.get() + n as u64);
        }
    }
}

impl Receiving<'_> {
    /// A call that the library leaves to the kernel.
    pub fn past_library(&mut self) -> Step {
        point();
        // The kernel keeps an error for the next call where this one has something to return. Its call is a single one.
        if self.got > 0 && self.world.socket(self.who).would_fail() {
            return Step::Done;
        }
        match pace::at_once(|| self.read_kernel(usize::MAX)) {
            Kernel::Moved(0) => Step::Done,
            Kernel::Moved(_) if self.got >= self.enough => Step::Done,
            done => past_library(done),
        }
    }
}

impl Incoming for Receiving<'_> {
    fn socket(&self) -> impl KernelSocket {
        self.world.socket(self.who)
    }

    fn got(&self) -> usize {
        self.got
    }

    fn receives(&mut self, n: usize) {
        if self.only_looks {
            self.sees(&self.copied[..n]);
        }
        self.got += n;
    }

    fn begins_anew(&mut self) {
        self.got = 0;
    }

    fn total(&self) -> usize {
        self.total
    }

    fn enough(&self) -> usize {
        self.enough
    }

    fn only_looks(&self) -> bool {
        self.only_looks
    }

    fn want(&self) -> usize {
        self.total - self.got
    }

    fn is_bad(&self) -> bool {
        false
    }

    fn read_kernel(&mut self, most: usize) -> Kernel {
        point();
        let socket = self.world.socket(self.who);
        match socket.receives(most.min(self.total - self.got), self.only_looks) {
            Ok(bytes) => {
                self.sees(&bytes);
                self.takes(bytes.len());
                self.got += bytes.len();
                Kernel::Moved(bytes.len())
            }
            Err(Kernel::Failed(Errno::CONNRESET)) if self.got > 0 => {
                reset::tell_later(&self.world.procs[self.who].record);
                Kernel::Failed(Errno::CONNRESET)
            }
            Err(nothing) => nothing,
        }
    }

    fn look_behind(&mut self, repeated: u64) {
        point();
        let unread = self.world.pipes[other(self.who)].unread.borrow();
        let behind = unread.iter().copied().skip(usize::try_from(repeated).unwrap());
        let bytes: Vec<u8> = behind.take(self.total - self.got).collect();
        drop(unread);
        self.sees(&bytes);
        self.got += bytes.len();
    }

    fn can_look_behind(&self) -> bool {
        true
    }

    fn takes_otherwise(&mut self, _: Span) -> Option<Looked> {
        point();
        None
    }

    fn copy(&mut self, place: Span) {
        let ring = &self.world.procs[self.who].rmb;
        let mut places = places(place);
        self.copied = places.by_ref().take(place.len() / 2).map(|at| ring[at].get()).collect();
        point();
        if !self.is_nested && !self.only_looks {
            self.world.interrupt(self.who);
        }
        self.copied.extend(places.map(|at| ring[at].get()));
    }

    fn copy_granted(&mut self, place: Span) -> Result<Option<u32>, Violation> {
        let what = match (self.drops, self.only_looks) {
            (true, _) => Use::Dropped,
            (_, true) => Use::Seen,
            _ => Use::Copied,
        };
        let to = RefCell::new(vec![0; place.len()]);
        let is_quiet = self.is_nested || self.only_looks;
        let look = Look { world: self.world, who: self.who, is_quiet, to };
        let end = self.world.end(self.who);
        let passed = end.looking(look.has_pipes(), &self.reads_pipes, |reads_pipes| {
            end.take_granted(&look, what, (place, reads_pipes))
        });
        self.copied = look.to.into_inner();
        passed
    }

    fn has_copied(&self) {
        if self.reads_pipes.take() {
            let end = self.world.end(self.who);
            end.record.rx.pipe_reads.end();
            end.tell_costs();
        }
    }

    fn claims(&mut self, n: usize) -> bool {
        if !self.drops {
            self.sees(&self.copied[..n]);
        }
        self.takes(n);
        let (me, n) = (&self.world.procs[self.who], n as u64);
        me.claimed.set(Moved { at: pace::at_once(|| me.record.rx.cursor.pos()), n });
        me.untaken.set(me.untaken.get() + n);
        true
    }

    fn tell(&self) {
        self.world.tells_sender(self.who);
    }

    fn drop_repeated(&mut self) -> bool {
        self.world.end(self.who).drop_repeated(&self.world.socket(self.who))
    }

    fn settle(&self) {
        self.world.settles_locked(self.who);
    }

    fn stay(&self) -> bool {
        let me = &self.world.procs[self.who];
        let was_in_step = me.in_step.replace(true);
        let stays = pace::uninterrupted(|| self.world.end(self.who).stay());
        me.in_step.set(was_in_step);
        stays
    }

    fn is_leftover(&self) -> bool {
        false
    }

    fn is_unmarked_for_long(&self) -> bool {
        const UNMARKED_FOR: u32 = 1_000_000;
        assert!(!self.world.is_honest(), "bytes that no mark explains");
        let record = &self.world.procs[self.who].record;
        #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
        let now = (self.now() >> 10) as u32 | 1;
        match record.rx.unmarked.compare_exchange(0, now, Relaxed, Relaxed) {
            Ok(_) => {
                put(record, KERNEL_HINT, true);
                false
            }
            Err(since) => now.wrapping_sub(since) > UNMARKED_FOR,
        }
    }

    fn await_end(&self) -> kernel::Look {
        kernel::look_for_end(&self.socket())
    }

    fn has_passed(&self, is_late: bool) {
        point();
        // A client that has nothing more to send learns of the answer here.
        self.world.polls_handshake(self.who);
        if is_late {
            // As the library has its watches look again.
            self.world.procs[self.who].is_queued.set(true);
        }
    }

    fn now(&self) -> u64 {
        self.world.now.get()
    }

    fn reaches(&self, moment: Moment) {
        if moment == Moment::Taken {
            let me = &self.world.procs[self.who];
            me.claimed.take();
            me.untaken.set(0);
        }
        point();
    }
}

impl World {
    /// Of a peer that has ended its direction: nobody holds its socket any more, as the kernel says who is asked now and then.
    pub fn is_orphaned(&self, who: usize) -> bool {
        const LOOK: u64 = 100_000_000;
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        if self.end(who).theirs.prod.fin.load(Relaxed) == 0 {
            return false;
        }
        if me.is_orphaned.get() {
            return true;
        }
        let (now, since) = (self.now.get(), me.doubts_since.get());
        if since != 0 && now - since < LOOK {
            return false;
        }
        me.doubts_since.set(now);
        me.is_orphaned.set(since != 0 && peer.socket.is_closed.get());
        me.is_orphaned.get()
    }
}

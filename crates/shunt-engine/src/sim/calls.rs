//! The calls of the two programs, as the engine's ports. Each asks the scheduler before it does anything.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::Violation;
use shunt_shm::ring::{Content, Span};

use super::tcp::Socket;
use super::{World, byte};
use crate::call::{Errno, Kernel, Moment, Step};
use crate::conn::recv::{Incoming, Looked};
use crate::conn::send::Outgoing;
use crate::kernel::{KernelSocket, Look, look};
use crate::stretch::Path;

/// Where the bytes of a span are, one by one.
pub fn places(span: Span) -> impl Iterator<Item = usize> {
    [span.head, span.tail].into_iter().flat_map(|(at, len)| at..at + len)
}

/// A call that sends.
pub struct Sending<'w> {
    pub world: &'w World,
    pub who: usize,
    pub total: usize,
    pub sent: usize,
    /// In a handler above a call that copies.
    pub is_nested: bool,
}

impl Sending<'_> {
    fn advance(&mut self, n: usize) {
        let proc = &self.world.procs[self.who];
        self.sent += n;
        proc.sent.set(proc.sent.get() + n as u64);
    }

    fn rest(&self) -> impl Iterator<Item = u8> + use<> {
        let (from, who) = (self.world.procs[self.who].sent.get(), self.who);
        (from..).map(move |at| byte(who, at))
    }
}

impl Outgoing for Sending<'_> {
    fn socket(&self) -> impl KernelSocket {
        Socket { world: self.world, who: self.who }
    }

    fn sent(&self) -> usize {
        self.sent
    }

    fn next_piece(&mut self) -> Result<(usize, Content), Errno> {
        self.world.pause(self.who);
        Ok((self.total - self.sent, Content::Put))
    }

    fn longest_ring(&mut self) -> u64 {
        World::RING as u64
    }

    fn copy(&mut self, place: Span) {
        let ring = &self.world.procs[1 - self.who].rmb;
        let bytes: Vec<(usize, u8)> = places(place).zip(self.rest()).collect();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        first.iter().for_each(|(at, byte)| ring[*at].set(*byte));
        self.world.pause(self.who);
        // What a handler sends comes first, so these bytes are others than those that are next now.
        let other = !self.is_nested && self.world.interrupt(self.who);
        let mask = if other { 0xff } else { 0 };
        second.iter().for_each(|(at, byte)| ring[*at].set(*byte ^ mask));
    }

    fn complete(&mut self, place: Span) -> usize {
        self.advance(place.len());
        place.len()
    }

    fn run_dry(&self) -> Option<Step> {
        None
    }

    fn goes_far(&self) {}

    fn is_published(&self) {
        self.world.pause(self.who);
    }

    fn unlock(&mut self) {
        self.world.pause(self.who);
    }

    fn tell(&mut self) -> bool {
        self.world.pause(self.who);
        false
    }

    fn over_kernel(&mut self) -> Kernel {
        self.world.pause(self.who);
        let me = &self.world.procs[self.who];
        let pipe = &self.world.pipes[self.who];
        if pipe.fin.get() || me.is_reset.get() {
            return Kernel::Failed(Errno::PIPE);
        }
        let n = pipe.room().min(self.total - self.sent);
        if n == 0 && self.total > self.sent {
            return Kernel::Nothing;
        }
        if self.world.procs[1 - self.who].is_dead.get() {
            me.is_reset.set(true);
        } else {
            pipe.write(self.rest().take(n));
        }
        self.advance(n);
        Kernel::Moved(n)
    }

    fn repeat(&mut self) -> bool {
        self.world.repeat(self.who)
    }

    fn take_back(&mut self) -> bool {
        true
    }

    fn leave_ring(&mut self, untaken: u64) {
        let world = self.world;
        world.end(self.who).leave_ring(untaken, || world.pause(self.who));
    }

    fn is_promoted(&self, _is_unused: bool) {
        self.world.pause(self.who);
    }

    fn can_tell(&self) -> bool {
        self.world.procs[self.who].can_tell.get()
    }

    fn is_orphaned(&self) -> bool {
        false
    }

    fn now(&self) -> u64 {
        self.world.now.get()
    }

    fn reaches(&self, _: Moment) {
        self.world.pause(self.who);
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

impl Incoming for Receiving<'_> {
    fn socket(&self) -> impl KernelSocket {
        Socket { world: self.world, who: self.who }
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
        self.world.pause(self.who);
        let me = &self.world.procs[self.who];
        let pipe = &self.world.pipes[1 - self.who];
        let there = pipe.unread.borrow().len();
        let n = most.min(self.total - self.got).min(there);
        if there == 0 && me.is_reset.get() && !me.is_told.replace(true) {
            return Kernel::Failed(Errno::CONNRESET);
        }
        if there == 0 && !pipe.fin.get() && !me.is_reset.get() {
            return Kernel::Nothing;
        }
        let bytes = if self.only_looks {
            pipe.unread.borrow().iter().copied().take(n).collect()
        } else {
            pipe.read(n)
        };
        self.sees(&bytes);
        self.takes(n);
        self.got += n;
        Kernel::Moved(n)
    }

    fn look_behind(&mut self, repeated: u64) {
        self.world.pause(self.who);
        let unread = self.world.pipes[1 - self.who].unread.borrow();
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
        self.world.pause(self.who);
        None
    }

    fn copy(&mut self, place: Span) {
        let ring = &self.world.procs[self.who].rmb;
        let mut places = places(place);
        self.copied = places.by_ref().take(place.len() / 2).map(|at| ring[at].get()).collect();
        self.world.pause(self.who);
        if !self.is_nested && !self.only_looks {
            self.world.interrupt(self.who);
        }
        self.copied.extend(places.map(|at| ring[at].get()));
    }

    fn copy_granted(&mut self, _: Span) -> Result<Option<u32>, Violation> {
        unreachable!("nothing is granted")
    }

    fn has_copied(&self) {}

    fn claims(&mut self, n: usize) -> bool {
        self.sees(&self.copied[..n]);
        self.takes(n);
        true
    }

    fn tell(&self) {
        self.world.pause(self.who);
    }

    fn drop_repeated(&mut self) -> bool {
        let world = self.world;
        world.end(self.who).drop_repeated(&Socket { world, who: self.who })
    }

    fn settle(&self) {
        let (world, who) = (self.world, self.who);
        let end = world.end(who);
        if end.pass_end_of_ring() == Path::Tcp {
            end.drop_repeated(&Socket { world, who });
        }
    }

    fn stay(&self) -> bool {
        unreachable!("nobody leaves for good")
    }

    fn is_leftover(&self) -> bool {
        false
    }

    fn is_unmarked_for_long(&self) -> bool {
        let unmarked = &self.world.procs[self.who].record.rx.unmarked;
        assert_eq!(unmarked.load(Relaxed), 0);
        false
    }

    fn await_end(&self) -> Look {
        look(&self.socket())
    }

    fn has_passed(&self, _: bool) {
        self.world.pause(self.who);
    }

    fn now(&self) -> u64 {
        self.world.now.get()
    }

    fn reaches(&self, _: Moment) {
        self.world.pause(self.who);
    }
}

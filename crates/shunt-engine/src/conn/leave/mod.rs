//! Leaving the ring, both directions at once: the descriptor goes to a program that may know of no ring, or the program asks for
//! what only the kernel can do.
//!
//! The side that leaves takes nothing from the ring any more ([`End::freeze`]), marks the end of its own direction
//! ([`End::leave`]), and says so. The peer [follows](End::follow) when it next looks at the connection: it sends what was not taken
//! once more, over TCP, before anything else. From then on the kernel socket has it all, in order.
//!
//! A program that keeps the descriptor reads on in the ring until the peer comes to repeat what is there ([`End::stay`]).

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::Violation;
use shunt_shm::handover;
use shunt_wire::reason::Reason;

use crate::call::{Errno, enter};
use crate::conn::End;
use crate::conn::flags::{FROZEN, HAD_ROOM, HOSTED, WANT_TCP};
use crate::conn::repeated::{are_awaited, are_pending};
use crate::handshake::Phase;
use crate::kernel::{KernelSocket, has_failed};
use crate::stretch::{Path, path};

/// What sends bytes of the ring once more, over the kernel socket.
pub trait Repeating {
    /// The kernel socket.
    fn socket(&self) -> impl KernelSocket;

    /// Sends up to `len` bytes, which lie at this offset in the ring, without waiting, and has `note` told how many.
    ///
    /// # Errors
    /// Those of send(2).
    fn send_again(&self, at: usize, len: usize, note: &mut dyn FnMut(u64)) -> Result<(), Errno>;

    /// The process of a peer that has ended its direction has ended, though nobody tells of it.
    fn is_orphaned(&self) -> bool;

    /// The kernel has told of a reset, which it does once: the program is still to hear of it.
    fn was_reset(&self);

    /// Runs a step such that no handler of a signal runs on this thread meanwhile.
    fn uninterrupted(&self, step: impl FnOnce());
}

/// What an end that leaves, or follows, has beside the ring.
pub trait Leaving: Repeating {
    /// Puts granted bytes that were not read into the ring. False: they cannot be.
    fn take_back(&self) -> bool;

    /// Bytes for which the kernel socket has room now.
    fn room(&self) -> u64;

    /// The connection is out of the ring, for the first time.
    fn has_left(&self);

    /// Tells the peer's receiver that a mark was set: it may read on in the ring, and sleep on a futex.
    fn tell(&self);

    /// A test may come in here.
    #[inline(always)]
    fn reaches(&self, _: Moment) {}
}

/// Moments at which tests stop, interrupt and end threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The mark is set, and this end does not know it yet.
    Marked,
    /// One that follows has the lock.
    Follows,
    /// It has noted what is to be sent once more.
    Noted,
}

/// What is under way in the same direction, in this thread: a handler of a signal that leaves has interrupted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// No step.
    Nothing,
    /// A step that goes on afterwards.
    GoesOn,
    /// One that does not: the program is about to become another one.
    IsOver,
}

/// How an attempt to take nothing from the ring any more comes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frozen {
    /// Nothing is taken from now on.
    Now,
    /// That was so before.
    Before,
    /// Not now: the step below is in the middle of taking something.
    Later,
    /// It is not known what was taken: somebody was killed in the middle of reading. The connection is broken.
    InDoubt,
}

/// The receiving direction, with its lock held.
impl End<'_> {
    /// Takes nothing from the ring from now on, and says so; of an end that was reset the peer hears that alone. `between` is called
    /// where the peer does not know yet.
    pub fn freeze(&self, below: Below, between: impl FnOnce()) -> Frozen {
        let rx = &self.record.rx;
        // Another program may take the room that there was.
        if self.has(HAD_ROOM) {
            self.put(HAD_ROOM, false);
        }
        if self.has(FROZEN) || self.phase() == Phase::Broken {
            return Frozen::Before;
        }
        let entered = enter(below != Below::Nothing, &rx.copying);
        if entered.is_none() && below == Below::GoesOn {
            return Frozen::Later;
        }
        // Bytes that the peer would send once more were read by somebody who was killed.
        if rx.pipe_reads.are_open() {
            return Frozen::InDoubt;
        }
        self.put(FROZEN, true);
        between();
        self.say_left();
        Frozen::Now
    }

    /// Says that this end takes nothing from the ring any more.
    pub(super) fn say_left(&self) {
        handover::leave(&self.mine.ctl.handed_over, || {
            if let Some(had) = self.had_at_mark(true) {
                self.pass_into_tcp(had);
            }
            self.record.rx.marks.load(Relaxed)
        });
    }

    /// This side has left, and reads on in the ring although the peer is to leave it: it has the descriptor still, and the peer
    /// may not look at the connection for long. False when the peer has left meanwhile.
    #[cold]
    #[must_use]
    pub fn stay(&self) -> bool {
        let marks = self.record.rx.marks.load(Relaxed);
        let is_marked = || self.theirs.prod.marks.load(Acquire) != marks;
        let stays = handover::stay(&self.mine.ctl.handed_over, is_marked);
        if stays {
            self.put(FROZEN, false);
        }
        stays
    }
}

impl End<'_> {
    /// This side has left, and the kernel's calls alone may go on with it: they would send in front of bytes that are to come once
    /// more, take twice what comes so, or read beside one that has [come back](Self::stay).
    #[must_use]
    pub fn is_the_kernels(&self) -> bool {
        !are_pending(self.record) && !are_awaited(self.record) && !self.has_come_back()
    }

    /// This side has left, and has come back to read on ([`Self::stay`]).
    #[must_use]
    pub fn has_come_back(&self) -> bool {
        self.phase() == Phase::Active && handover::stays(&self.mine.ctl.handed_over)
    }
}

/// The sending direction, with its lock held. `is_nested`, `below`: in a handler of a signal above a call that has it.
impl End<'_> {
    /// This side leaves. What the peer, which stays, has not taken is sent once more if the kernel socket has room for it now.
    /// Otherwise it is left in the ring, as this side can wait for nothing. False: not now, as the step below is in the middle of
    /// putting something there.
    ///
    /// # Errors
    /// The peer broke the protocol, or what the ring does not have cannot be put there: the connection is broken.
    pub fn leave(&self, below: Below, port: &impl Leaving) -> Result<bool, Violation> {
        let tx = &self.record.tx;
        // It was reset, which is what the peer is to hear: marks would be a breach behind a step that is half done.
        if self.phase() == Phase::Broken {
            return Ok(true);
        }
        self.put(WANT_TCP, true);
        let is_nested = below != Below::Nothing;
        let entered = enter(is_nested, &tx.copying);
        if entered.is_none() && below == Below::GoesOn {
            return Ok(false);
        }
        // In a handler above a call that grants something just now, that stays as it is.
        let is_whole = entered.is_some() && port.take_back();
        // The door is open again for those who follow.
        drop(entered);
        if self.is_to_follow() {
            // The peer has left first, and takes nothing of what it has not taken by then.
            self.follow(is_nested, port).map(drop)?;
        } else {
            if self.is_to_leave() {
                let untaken = if is_whole { self.untaken_with(port.room()) } else { 0 };
                self.mark_end(untaken, port);
            }
        }
        Ok(true)
    }

    /// True when the bytes of this side go through the ring still: it has to [leave](Self::leave).
    #[must_use]
    pub fn is_to_leave(&self) -> bool {
        path(self.record.tx.marks.load(Relaxed)) == Path::Ring && self.can_repeat()
    }

    /// What the peer has not taken, where there is room for that.
    fn untaken_with(&self, room: u64) -> u64 {
        let untaken = self.record.tx.cursor.refresh(&self.theirs.cons).unwrap_or(0);
        // To another host the link may fail before the bytes are there: they wait for room, then.
        if untaken <= room || self.is_linked() { untaken } else { 0 }
    }

    /// Unless a handler above this step has had the connection reset.
    fn mark_end(&self, untaken: u64, port: &impl Leaving) {
        port.uninterrupted(|| {
            if self.phase() != Phase::Broken {
                self.leave_ring(untaken, || port.reaches(Moment::Marked));
            }
        });
    }

    /// Follows a peer that has left: what it did not take is to be sent once more, and is sent as far as there is room. False in
    /// a handler that has to leave that to the call which it interrupted.
    ///
    /// # Errors
    /// As for [`Self::leave`].
    #[cold]
    pub fn follow(&self, is_nested: bool, port: &impl Leaving) -> Result<bool, Violation> {
        let tx = &self.record.tx;
        if self.phase() == Phase::Broken {
            return Ok(true);
        }
        let Some(_entered) = enter(is_nested, &tx.copying) else { return Ok(false) };
        port.reaches(Moment::Follows);
        self.put(WANT_TCP, true);
        // What cannot be put into the ring cannot be sent once more.
        if !port.take_back() {
            return Err(Violation::Grants);
        }
        if path(tx.marks.load(Relaxed)) == Path::Ring && self.can_repeat() {
            self.mark_end(tx.cursor.refresh(&self.theirs.cons)?, port);
            port.reaches(Moment::Noted);
            self.notes_left(self.why_followed(), port);
            port.tell();
        } else if self.is_let_go() {
            self.notes_left(self.why_followed(), port);
        }
        self.repeat(port);
        Ok(true)
    }

    /// Of another host the agents say that it has left also where the link has failed.
    fn why_followed(&self) -> Reason {
        if self.has(HOSTED) && !self.is_linked() { Reason::PeerGone } else { Reason::HandedOver }
    }

    /// Notes that the connection is out of the ring, and why: the first reason counts.
    pub fn notes_left(&self, why: Reason, port: &impl Leaving) {
        let id = &self.record.id;
        if id.mode.swap(0, Relaxed) != 0 {
            id.reason.store(why as u32, Relaxed);
            port.has_left();
        }
    }

    /// Sends bytes once more, as far as that goes without waiting. True when none is left.
    ///
    /// A handler of a signal may do so above a call that does: it would wait for room that is there, and that only the call
    /// below could use. So each piece is looked up, sent and noted with no handler in between.
    pub fn repeat(&self, port: &impl Repeating) -> bool {
        while are_pending(self.record) {
            let mut goes_on = false;
            port.uninterrupted(|| goes_on = self.repeat_piece(port));
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// False when it has to wait.
    fn repeat_piece(&self, port: &impl Repeating) -> bool {
        let replay = &self.record.tx.replay;
        let Some(left) = self.to_repeat() else {
            // Whoever was killed as it was about to say where it stops will not say so: what is sent from now on has the
            // kernel tell.
            let is_gone = self.is_peer_gone_in(&port.socket()) || port.is_orphaned();
            if is_gone {
                replay.store(0, Relaxed);
            }
            return is_gone;
        };
        if left == 0 {
            return true;
        }
        if self.has_unheard_marks() {
            return false;
        }
        // The program is to hear of a reset, which the kernel tells once.
        if has_failed(&port.socket()) {
            replay.store(0, Relaxed);
            return true;
        }
        let (at, len) = self.record.tx.cursor.last(left, self.ring).head;
        let repeated = &self.record.tx.repeated;
        let mut note = |n: u64| {
            replay.store(left.saturating_sub(n), Relaxed);
            repeated.store(repeated.load(Relaxed).wrapping_add(n), Relaxed);
        };
        match port.send_again(at, len, &mut note) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            // The connection is over, and the kernel will say so; or has just said it.
            Err(error) => {
                if error == Errno::CONNRESET {
                    port.was_reset();
                }
                replay.store(0, Relaxed);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;

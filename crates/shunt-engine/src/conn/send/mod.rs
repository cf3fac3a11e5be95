//! Sending: where the next bytes of a direction go, and how they come there.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::Violation;
use shunt_shm::arena::Record;
use shunt_shm::region::{Side, shape};
use shunt_shm::ring::{Content, Span, TxCursor};
use shunt_shm::sync::store_load_fence;

use crate::call::{Errno, Kernel, Moment, Step, Until, interruptible};
use crate::conn::flags::{
    FILLS_KERNEL, HAD_ROOM, HOSTED, KERNEL_HINT, RESET_DUE, SHUT_WR, UNREAD, WANT_TCP,
};
use crate::conn::overflow::Full;
use crate::conn::repeated::are_pending;
use crate::conn::{End, has, is_settled, put, reset};
use crate::handshake::Phase;
use crate::kernel::KernelSocket;
use crate::stretch::{Path, Send, Sender, path};
use crate::wait::look_on_queue;

/// Sends between two looks whether the peer's process is there.
const NOW_AND_THEN: u64 = 64;

/// A call that sends: its bytes, and what they need on their way. With the lock of the direction held.
pub trait Outgoing {
    /// The kernel socket.
    fn socket(&self) -> impl KernelSocket;

    /// Bytes that the call has sent.
    fn sent(&self) -> usize;

    /// What is to go next: how many bytes, and whether they are put into the ring or granted.
    ///
    /// # Errors
    /// The program's memory cannot be read.
    fn next_piece(&mut self) -> Result<(usize, Content), Errno>;

    /// Most bytes of the ring that this sender uses.
    fn longest_ring(&mut self) -> u64;

    /// Copies the piece to its place: unless that can be done only once, as a handler of a signal that sends meanwhile makes it
    /// be done again.
    fn copy(&mut self, place: Span);

    /// Sees to it that the piece is in its place. How many bytes of it are; they count as sent from now on.
    fn complete(&mut self, place: Span) -> usize;

    /// The step of a call whose source has no more bytes; `None`: it has buffers, and needs none.
    fn run_dry(&self) -> Option<Step>;

    /// What was put to the place lies further on in the ring than is kept of an idle one.
    fn goes_far(&self);

    /// The receiver can see the piece.
    fn is_published(&self);

    /// Gives the direction's lock back.
    fn unlock(&mut self);

    /// Tells the receiver. True when that took a system call.
    fn tell(&mut self) -> bool;

    /// Has the kernel socket send what is left of the call, as far as it goes without waiting. They count as sent from now on.
    fn over_kernel(&mut self) -> Kernel;

    /// Sends bytes once more that lay in the ring when this end left it. True when none is left.
    fn repeat(&mut self) -> bool;

    /// Puts granted bytes that were not read into the ring. False: they cannot be.
    fn take_back(&mut self) -> bool;

    /// Leaves the ring by [`End::leave_ring`], such that no handler of a signal comes in between.
    fn leave_ring(&mut self, untaken: u64);

    /// The direction goes into the ring. `is_unused`: no byte of it went over the kernel socket, at the acceptor's end.
    fn is_promoted(&self, is_unused: bool);

    /// The peer can be told by its doorbells.
    fn can_tell(&self) -> bool;

    /// The peer's process has ended, though nobody tells of it.
    fn is_orphaned(&self) -> bool;

    /// The agent that brings what comes from another host is gone.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// The time, in nanoseconds.
    fn now(&self) -> u64;

    /// A test may come in here.
    #[inline(always)]
    fn reaches(&self, _: Moment) {}
}

/// Where the next bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    Kernel,
    /// To the kernel, behind what lies in the ring.
    Behind,
    Ring,
    /// Where the peer has gone, which has left the ring.
    AfterPeer,
}

impl End<'_> {
    /// One step of a call that sends. `is_nested`: in a signal handler above a call that copies.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    #[inline(always)]
    pub fn send(
        &self,
        call: &mut impl Outgoing,
        is_nested: bool,
        blocking: bool,
    ) -> Result<Step, Violation> {
        // Behind a step in which the library has panicked while this call waited for the lock nothing may come.
        if self.phase() == Phase::Broken {
            return Ok(Step::Again);
        }
        match self.route(call, is_nested) {
            Route::Kernel if self.has_unheard_marks() && call.is_cut_off() => {
                return Err(Violation::Marks);
            }
            Route::Kernel => return Ok(over_kernel(self.record, Some(*self), call)),
            Route::Behind => return self.send_behind(call, is_nested),
            Route::AfterPeer => return Ok(Step::Follow),
            Route::Ring => {}
        }
        let (want, content) = match call.next_piece() {
            Ok(piece) => piece,
            Err(error) => return Ok(Step::Failed(error)),
        };
        let place = self.reserve(call, (want, content), blocking)?;
        call.reaches(Moment::Reserved);
        let is_full = place.is_empty() && want > 0;
        let (is_gone, alone) = interruptible(&self.record.tx.copying, || {
            let is_gone = self.is_peer_gone(call, is_full);
            if !is_gone && !is_full {
                call.copy(place);
            }
            is_gone
        });
        if !alone {
            return Ok(Step::Again);
        }
        if is_gone {
            // Only now: what ended without a word is a program that it was handed over to.
            if self.is_to_follow() {
                return Ok(Step::Follow);
            }
            return Ok(self.send_after_all(call));
        }
        if is_full {
            return self.without_room(call, is_nested);
        }
        self.notes_room_found();
        let n = call.complete(place);
        if n == 0
            && let Some(step) = call.run_dry()
        {
            return Ok(step);
        }
        call.reaches(Moment::Copied);
        self.publish(call, n);
        Ok(Step::Again)
    }

    /// Where the next bytes go. Sets the mark, if they are the first ones in the ring.
    #[inline(always)]
    fn route(&self, call: &impl Outgoing, is_nested: bool) -> Route {
        let Self { record, mine, theirs, .. } = self;
        let marks = record.tx.marks.load(Relaxed);
        // A peer that has closed answers bytes with RST, and that only the kernel can do.
        if theirs.ctl.closed.load(Relaxed) != 0 || self.has(SHUT_WR) {
            return Route::Kernel;
        }
        let decision = Sender {
            marks,
            settled: path(marks) == Path::Ring || TxCursor::marks_settled(&mine.prod, &theirs.cons),
            active: call.can_tell()
                && !are_pending(record)
                && (path(marks) == Path::Ring || self.may_enter(marks)),
            // The place in the ring is that of the call which the handler interrupted.
            // A peer that has left takes nothing from the ring any more.
            want_tcp: is_nested
                || self.has(WANT_TCP)
                || (path(marks) == Path::Tcp && theirs.ctl.handed_over.load(Acquire) != 0),
        }
        .decide();
        match decision {
            Send::Ring => Route::Ring,
            Send::Tcp => Route::Kernel,
            // In a signal handler it must: a receiver that has not come into the ring yet finds two marks.
            Send::Demote if is_nested || TxCursor::marks_settled(&mine.prod, &theirs.cons) => {
                Route::Behind
            }
            Send::Demote => Route::Ring,
            Send::Promote => self.enter(call, marks),
        }
    }

    #[cold]
    fn enter(&self, call: &impl Outgoing, marks: u32) -> Route {
        if self.has(HOSTED) && call.is_cut_off() {
            return Route::Kernel;
        }
        match call.socket().info() {
            // To a peer that has gone the ring leads nowhere, and only the kernel can say so.
            Some(info) if info.is_established() || self.theirs.prod.fin.load(Acquire) != 0 => {
                let written = info.written();
                call.is_promoted(self.side() == Side::Server && written == 0);
                self.set_mark(call, marks, written);
                // SYNC POINT handover: a peer that left before the mark was there has woken those who wait on this side, and they
                // found nothing to follow.
                store_load_fence();
                if self.is_to_follow() { Route::AfterPeer } else { Route::Ring }
            }
            _ => Route::Kernel,
        }
    }

    fn set_mark(&self, call: &impl Outgoing, marks: u32, at: u64) {
        TxCursor::set_mark(&self.mine.prod, at);
        call.reaches(Moment::MarkSet);
        self.record.tx.marks.store(marks.wrapping_add(1), Relaxed);
    }

    /// A place for up to so many bytes; empty when the ring is full.
    #[inline(always)]
    fn reserve(
        &self,
        call: &mut impl Outgoing,
        piece: (usize, Content),
        blocking: bool,
    ) -> Result<Span, Violation> {
        let place = self.find(call, piece)?;
        if !place.is_empty() || piece.0 == 0 {
            return Ok(place);
        }
        if !blocking {
            // Whoever waits for room in epoll is told through the queue.
            let place = look_on_queue(&self.mine.ctl.tx_arm, || self.find(call, piece))?;
            if !place.is_empty() {
                return Ok(place);
            }
        }
        let full = &self.record.tx.full;
        full.store(full.load(Relaxed).wrapping_add(1), Relaxed);
        Ok(Span::default())
    }

    #[inline(always)]
    fn find(
        &self,
        call: &mut impl Outgoing,
        (want, content): (usize, Content),
    ) -> Result<Span, Violation> {
        let wish = shape(self.side().other(), call.longest_ring());
        let what = (want as u64, content);
        self.record.tx.cursor.reserve(&self.theirs.cons, self.ring, wish, self.limit(), what)
    }

    /// True when the peer's process has died: nobody takes bytes from the ring any more, and what the
    /// kernel answers to them is the truth. Asked when the ring is full, and now and then.
    #[inline(always)]
    fn is_peer_gone(&self, call: &impl Outgoing, is_full: bool) -> bool {
        let sends = self.record.tx.messages.load(Relaxed);
        // An acceptor that promotes takes the client's word for it that it is there, until it shows itself: for one message, as TCP
        // takes one for a peer that was killed.
        let second =
            sends == 1 && self.side() == Side::Server && self.theirs.prod.prod.load(Relaxed) == 0;
        let due = second || sends % NOW_AND_THEN == NOW_AND_THEN - 1;
        // Sends without copies wait for the peer to read, so 64 of them may take a minute.
        let unread = self.has(UNREAD);
        let ask = is_full || due || unread || self.has(KERNEL_HINT);
        if unread {
            self.put(UNREAD, false);
        }
        (ask && self.is_peer_gone_in(&call.socket())) || (is_full && call.is_orphaned())
    }

    /// To a peer that is gone.
    #[cold]
    fn send_after_all(&self, call: &mut impl Outgoing) -> Step {
        if call.sent() == 0 && reset::fails(self.record, Some(*self), &call.socket()) {
            return Step::Failed(Errno::CONNRESET);
        }
        let tx = &self.record.tx;
        // Leaves a ring that was entered in accept(2), and into which nothing was put.
        if tx.marks.load(Relaxed) == 1 && tx.cursor.pos() == 0 {
            self.put(WANT_TCP, true);
            self.set_mark(call, 1, 0);
        }
        over_kernel(self.record, Some(*self), call)
    }

    #[cold]
    fn without_room(&self, call: &mut impl Outgoing, is_nested: bool) -> Result<Step, Violation> {
        if self.is_linked() && call.is_cut_off() {
            return Err(Violation::Consumer);
        }
        let overflows = || self.notes_no_room(call.now()) == Full::Overflows;
        let leaves = !self.can_be_rung() || overflows();
        if leaves { self.send_behind(call, is_nested) } else { Ok(Step::Wait(Until::Ring)) }
    }

    /// Goes on over TCP, behind what lies in the ring. What the receiver has not taken comes once more, in case that it leaves,
    /// too: but not what was granted and cannot be put into the ring. In a signal handler nothing does: the direction comes back
    /// to the ring with the next send.
    #[cold]
    fn send_behind(&self, call: &mut impl Outgoing, is_nested: bool) -> Result<Step, Violation> {
        let untaken = match is_nested {
            true => 0,
            false => {
                let untaken = self.record.tx.cursor.refresh(&self.theirs.cons)?;
                if call.take_back() { untaken } else { 0 }
            }
        };
        call.leave_ring(untaken);
        call.tell();
        Ok(over_kernel(self.record, Some(*self), call))
    }

    /// Hands `n` bytes over that are in the reserved place, and tells the receiver.
    #[inline(always)]
    fn publish(&self, call: &mut impl Outgoing, n: usize) {
        let tx = &self.record.tx;
        if tx.cursor.goes_far(n) {
            call.goes_far();
        }
        tx.cursor.publish(&self.mine.prod, n as u64);
        call.is_published();
        tx.bytes.store(tx.bytes.load(Relaxed) + n as u64, Relaxed);
        call.reaches(Moment::Published);
        call.unlock();
        let which = if call.tell() { &tx.rung } else { &tx.saved };
        which.store(which.load(Relaxed).wrapping_add(1), Relaxed);
        call.reaches(Moment::Told);
    }
}

/// Sends over the kernel socket, without waiting: the lock is held, so that no byte of another thread
/// can come after a mark that this one does not know of.
pub fn over_kernel(record: &Record, end: Option<End<'_>>, call: &mut impl Outgoing) -> Step {
    if end.is_none() && is_settled(record) {
        return Step::Again;
    }
    if has(record, RESET_DUE) && call.sent() == 0 && reset::fails(record, end, &call.socket()) {
        return Step::Failed(Errno::CONNRESET);
    }
    // What comes before these bytes first.
    if are_pending(record) && end.is_some() && !call.repeat() {
        return Step::Wait(Until::Both);
    }
    if end.is_some_and(|end| end.has_unheard_marks()) {
        return Step::Wait(Until::Both);
    }
    if has(record, HAD_ROOM) {
        put(record, HAD_ROOM, false);
    }
    if !has(record, FILLS_KERNEL) {
        put(record, FILLS_KERNEL, true);
    }
    let mut done = interruptible(&record.tx.copying, || call.over_kernel()).0;
    if let Kernel::Failed(error) = done
        && reset::was_told(record, error, call.sent())
    {
        done = call.over_kernel();
    }
    match done {
        Kernel::Moved(0) => call.run_dry().unwrap_or(Step::Again),
        Kernel::Moved(_) => {
            call.reaches(Moment::Written);
            Step::Again
        }
        Kernel::Nothing => Step::Wait(Until::Both),
        Kernel::Failed(error) => Step::Failed(error),
    }
}

#[cfg(test)]
mod tests;

//! Bytes that come twice. A sender that goes on over TCP while bytes lie unread in the ring sends these once
//! more, in front of the others: so a program that takes over the receiver's end, and knows of no ring,
//! finds the whole stream in the kernel socket. A receiver that stays reads the ring to its end, and then drops
//! from the kernel socket what it has had.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shunt_shm::arena::{Record, UNDECIDED};
use shunt_shm::handover::{self, Repeats};
use shunt_shm::region::{DEAF, RESET};
use shunt_shm::ring::{RxCursor, TxCursor};

use crate::conn::End;
use crate::conn::flags::{FROZEN, HOSTED, SHUT_WR};
use crate::kernel::{KernelSocket, Look, look};
use crate::stretch::{Path, had, path};

/// True while bytes are to come over TCP that were taken from the ring already.
#[inline]
#[must_use]
pub fn are_awaited(record: &Record) -> bool {
    record.rx.again.load(Relaxed) != 0
}

/// True while ring bytes wait to be sent once more: the kernel's room for them is news.
#[inline]
#[must_use]
pub fn are_pending(record: &Record) -> bool {
    record.tx.replay.load(Relaxed) != 0
}

/// True where they can be sent: the kernel's room is what they wait for. Else the receiver is about to say how many they are.
#[inline]
#[must_use]
pub fn are_known(record: &Record) -> bool {
    let replay = record.tx.replay.load(Relaxed);
    replay != 0 && replay & UNDECIDED == 0
}

/// The receiving direction. What changes it is called with its lock held.
impl End<'_> {
    /// How many bytes of those that come next over TCP this receiver has had, if it is at the even mark that ends
    /// the ring. `is_done`: it takes nothing from it any more, and so stands there wherever it is.
    #[must_use]
    pub fn had_at_mark(&self, is_done: bool) -> Option<u64> {
        let rx = &self.record.rx;
        let marks = rx.marks.load(Relaxed);
        if path(marks) == Path::Tcp {
            return None;
        }
        let at = RxCursor::next_mark(&self.theirs.prod, marks).ok().flatten()?;
        let pos = rx.cursor.pos();
        // The mark is set behind all that was put into the ring.
        let is_done = is_done || self.theirs.prod.prod.load(Acquire) == pos;
        had(at, pos, self.ring).filter(|_| is_done)
    }

    /// Passes an even mark. `had`: bytes behind it that were taken from the ring.
    pub fn pass_into_tcp(&self, had: u64) {
        let rx = &self.record.rx;
        let next = rx.marks.load(Relaxed).wrapping_add(1);
        rx.again.store(u32::try_from(had).unwrap_or(u32::MAX), Relaxed);
        rx.marks.store(next, Relaxed);
        self.mine.cons.marks_passed.store(next, Release);
    }

    /// True when there may be a mark to pass, or something to drop, before the kernel is asked what there is to read.
    #[inline]
    #[must_use]
    pub fn may_settle(&self) -> bool {
        let marks = self.record.rx.marks.load(Relaxed);
        are_awaited(self.record)
            || (path(marks) == Path::Ring && self.theirs.prod.marks.load(Relaxed) != marks)
    }

    /// Passes the mark that ends the ring, if this end is there. Where the next bytes are then.
    pub fn pass_end_of_ring(&self) -> Path {
        let is_frozen = self.has(FROZEN);
        if let Some(had) = self.had_at_mark(is_frozen) {
            // To one who has left everything is sent from where it has stopped.
            self.pass_into_tcp(if is_frozen { 0 } else { had });
        }
        path(self.record.rx.marks.load(Relaxed))
    }

    /// Drops what has come a second time. True when no more of it is to come.
    pub fn drop_repeated(&self, socket: &impl KernelSocket) -> bool {
        let again = &self.record.rx.again;
        loop {
            let left = again.load(Relaxed);
            if left == 0 {
                return true;
            }
            match look(socket) {
                Look::Silent | Look::OwnEnd => return false,
                // The sender had to end before all was sent once more: nothing comes behind it.
                Look::Eof | Look::Error => again.store(0, Relaxed),
                Look::Bytes(there) => {
                    let most = there.min(left.into());
                    let is_dropped = socket.discard(most, &mut |n| {
                        let n = u32::try_from(n).unwrap_or(u32::MAX);
                        again.store(left.saturating_sub(n), Relaxed);
                    });
                    if !is_dropped {
                        return false;
                    }
                }
            }
        }
    }

    /// Of so many bytes that wait in the kernel socket, those that the program has not had, nor finds in the ring, as far as
    /// is known.
    #[must_use]
    pub fn not_repeated(&self, waiting: u64) -> u64 {
        let rx = &self.record.rx;
        let to_come = match RxCursor::ring_end(&self.theirs.prod, rx.marks.load(Relaxed)) {
            Ok(Some(at)) if self.has(FROZEN) => rx.cursor.pos().saturating_sub(at),
            Ok(Some(at)) => self.theirs.prod.prod.load(Acquire).saturating_sub(at),
            _ => rx.again.load(Relaxed).into(),
        };
        waiting.saturating_sub(to_come)
    }
}

/// The sending direction. What changes it is called with its lock held.
impl End<'_> {
    /// Leaves the ring: the last `untaken` bytes in it are to be sent once more over TCP. `between` is called where the mark
    /// is set and this end does not know it yet.
    pub fn leave_ring(&self, untaken: u64, between: impl FnOnce()) {
        let tx = &self.record.tx;
        // Before the mark: relatives of one that is killed here know by that whether it counts ([`super::inherit`]).
        if untaken > 0 {
            tx.replay.store(untaken | UNDECIDED, Relaxed);
        }
        TxCursor::set_mark(&self.mine.prod, tx.cursor.pos() - untaken);
        between();
        tx.marks.store(tx.marks.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// How many bytes are to be sent once more, which a receiver may change that was leaving when the mark was
    /// set. `None`: it is about to say.
    pub fn to_repeat(&self) -> Option<u64> {
        let tx = &self.record.tx;
        let replay = tx.replay.load(Relaxed);
        if replay & UNDECIDED == 0 {
            return Some(replay);
        }
        let left = replay & !UNDECIDED;
        let left = match handover::repeats(&self.theirs.ctl.handed_over, tx.marks.load(Relaxed)) {
            Repeats::FromMark => left,
            // One that says something else breaks the protocol, and loses what is its own.
            Repeats::FromRest => tx.cursor.refresh(&self.theirs.cons).unwrap_or(0).min(left),
            Repeats::Unknown => return None,
        };
        tx.replay.store(left, Relaxed);
        Some(left)
    }

    /// True when the peer has left and this side has not followed yet.
    #[inline]
    #[must_use]
    pub fn is_to_follow(&self) -> bool {
        handover::has_left(&self.theirs.ctl.handed_over)
            && path(self.record.tx.marks.load(Relaxed)) == Path::Ring
            && self.can_repeat()
    }

    /// True when the peer, on another host, has left a ring that this side never entered, which is not noted yet: the link has failed
    /// before it carried a byte. There is nothing to be sent once more.
    #[inline]
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.has(HOSTED)
            && handover::has_left(&self.theirs.ctl.handed_over)
            && self.record.tx.marks.load(Relaxed) == 0
            && self.record.id.mode.load(Relaxed) != 0
    }

    /// True where what lies unread in the ring could be sent once more. After its end this side can send nothing. Where the peer
    /// has shut both directions its kernel answers bytes with RST (`tcp_rcv_state_process` in net/ipv4/tcp_input.c), those that
    /// it knew from the ring, too. A peer that has left, too, reads on in the ring then. One that resets the connection may have shut both
    /// before, and throws away what comes in any case.
    pub(super) fn can_repeat(&self) -> bool {
        !self.has(SHUT_WR) && !matches!(self.theirs.ctl.closed.load(Acquire), DEAF | RESET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arrival, Memory, Socket};

    fn settle(end: End<'_>, socket: &Socket) {
        if end.pass_end_of_ring() == Path::Tcp {
            end.drop_repeated(socket);
        }
    }

    /// In the ring: the peer has put 10 bytes there, of which this end has taken so many, and has left behind all but the first
    /// four.
    fn left_by_the_peer(taken: u64) -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory.receive(10);
        memory.take(taken);
        TxCursor::set_mark(&memory.end().theirs.prod, 4);
        memory
    }

    #[test]
    fn a_receiver_reads_the_ring_to_its_end_and_drops_what_comes_again() {
        let (memory, socket) = (left_by_the_peer(9), Socket::default());
        let end = memory.end();
        assert!(end.may_settle());
        settle(end, &socket);
        assert_eq!(end.source().path, Path::Ring, "one byte is in the ring");
        memory.take(1);
        assert_eq!(end.had_at_mark(false), Some(6));
        settle(end, &socket);
        assert_eq!(end.source().path, Path::Tcp);
        assert!(are_awaited(end.record));
        // They come in parts, and new ones right behind them.
        socket.arrive(Arrival::Bytes(5));
        assert!(!end.drop_repeated(&socket));
        socket.arrive(Arrival::Bytes(3));
        assert!(end.drop_repeated(&socket));
        assert_eq!(socket.waiting(), 2);
        assert!(!are_awaited(end.record) && !end.may_settle());
    }

    #[test]
    fn one_that_has_left_gets_all_from_where_it_stopped() {
        let (memory, socket) = (left_by_the_peer(4), Socket::default());
        let end = memory.end();
        end.put(FROZEN, true);
        socket.arrive(Arrival::Bytes(6));
        settle(end, &socket);
        assert_eq!((end.source().path, socket.waiting()), (Path::Tcp, 6));
    }

    #[test]
    fn also_where_the_peer_left_in_front_of_that() {
        let (memory, socket) = (left_by_the_peer(6), Socket::default());
        let end = memory.end();
        end.put(FROZEN, true);
        socket.arrive(Arrival::Bytes(4));
        settle(end, &socket);
        assert_eq!(
            (end.source().path, socket.waiting()),
            (Path::Tcp, 4),
            "the sender has skipped two"
        );
        assert!(!are_awaited(end.record));
    }

    #[test]
    fn a_sender_that_ends_in_the_middle_leaves_nobody_waiting() {
        for end_of in [Arrival::Fin, Arrival::Reset] {
            let (memory, socket) = (left_by_the_peer(10), Socket::default());
            socket.arrive(Arrival::Bytes(2));
            socket.arrive(end_of);
            settle(memory.end(), &socket);
            assert!(!are_awaited(memory.end().record));
        }
    }

    #[test]
    fn bytes_that_come_at_any_moment_are_dropped_once() {
        for first in 0..8 {
            for gap in 0..8 {
                let (memory, socket) = (left_by_the_peer(10), Socket::default());
                socket.arrive_at(first, Arrival::Bytes(4));
                socket.arrive_at(first + gap, Arrival::Bytes(7));
                settle(memory.end(), &socket);
                socket.settle();
                settle(memory.end(), &socket);
                assert_eq!(socket.waiting(), 5, "{first} {gap}");
            }
        }
    }

    #[test]
    fn what_comes_twice_is_not_counted_twice() {
        let memory = left_by_the_peer(2);
        // 8 in the ring; 6 of them, and 3 others, in the kernel socket.
        assert_eq!(memory.end().in_ring(), 8);
        assert_eq!(memory.end().not_repeated(9), 3);
        assert_eq!(memory.end().not_repeated(2), 0, "on their way");
        memory.take(8);
        settle(memory.end(), &Socket::default());
        assert_eq!(memory.end().not_repeated(9), 3);
    }

    #[test]
    fn a_mark_that_cannot_be_passed_is_not() {
        for at in [11, u64::MAX] {
            let memory = Memory::default();
            memory.enter_ring();
            memory.receive(10);
            memory.take(10);
            TxCursor::set_mark(&memory.end().theirs.prod, at);
            settle(memory.end(), &Socket::default());
            assert_eq!(memory.end().record.rx.marks.load(Relaxed), 1, "{at}");
        }
    }

    #[test]
    fn a_sender_repeats_what_the_receiver_that_leaves_has_not_taken() {
        let memory = Memory::default();
        memory.enter_ring();
        memory.send(10);
        let end = memory.end();
        end.leave_ring(10, || {});
        assert!(are_pending(end.record));
        // The peer was just leaving, and then says that it has taken three, and had seen one mark.
        handover::leave(&end.theirs.ctl.handed_over, || {
            assert_eq!(end.to_repeat(), None);
            end.theirs.cons.cons.store(3, Relaxed);
            1
        });
        assert_eq!(end.to_repeat(), Some(7));
        assert!(!end.is_to_follow(), "it is out of the ring");
    }

    #[test]
    fn a_peer_that_takes_back_what_it_has_taken_loses_it() {
        let memory = Memory::default();
        memory.enter_ring();
        memory.send(10);
        let end = memory.end();
        end.leave_ring(4, || {});
        handover::leave(&end.theirs.ctl.handed_over, || 1);
        for cons in [u64::MAX, 11] {
            end.record.tx.replay.store(4 | UNDECIDED, Relaxed);
            end.theirs.cons.cons.store(cons, Relaxed);
            assert_eq!(end.to_repeat(), Some(0), "{cons}");
        }
    }
}

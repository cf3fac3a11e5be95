//! Resets that the kernel does not tell the next call of.
//!
//! **Peers that are killed.** Over TCP, bytes that nobody has read then are answered with RST, of which every call hears. Of those in
//! a ring the kernel knows nothing: it sends FIN, and that only those hear who ask for it. So it is asked for on behalf of the
//! others, too, and a FIN that the peer has not announced counts as RST where bytes of ours lie unread.
//!
//! **A reset that was told already**, to a step of a call that returns the bytes which it has moved before. The next call hears
//! of it.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Record;

use crate::call::Errno;
use crate::conn::flags::{CUT_OFF, KERNEL_HINT, RESET_DUE, RESET_TOLD, SHUT_RD, SHUT_WR};
use crate::conn::{End, has, put};
use crate::events;
use crate::kernel::KernelSocket;
use crate::stretch::{Path, path};

/// Time after which the kernel is asked on behalf of who never sleeps, in units of 1024 ns: about a millisecond.
const VISIT_AFTER: u32 = 1000;

/// The kernel has told its reset to a call that returns something else.
#[cold]
pub fn tell_later(record: &Record) {
    put(record, RESET_DUE | CUT_OFF | KERNEL_HINT, true);
}

/// The kernel has told an error to a call that has moved so many bytes, and so returns them or fails. True when that is a reset
/// which a call has failed with before, as the end had found it by itself: then the kernel is to be asked once more, and says
/// what it says after a reset.
#[cold]
pub fn was_told(record: &Record, error: Errno, moved: usize) -> bool {
    if error != Errno::CONNRESET || moved > 0 {
        return false;
    }
    !is_first_to_tell(record)
}

/// One call alone is told, though another one, of the other direction or in a handler above this one, may find the reset just
/// then, too.
fn is_first_to_tell(record: &Record) -> bool {
    record.id.flags.fetch_or(RESET_TOLD.bits(), Relaxed) & RESET_TOLD.bits() == 0
}

/// True when the connection was reset, and no call has failed with that yet. `end`: what the connection has of shared memory.
fn is_untold(record: &Record, end: Option<End<'_>>) -> bool {
    !has(record, RESET_TOLD)
        && (has(record, RESET_DUE) || end.is_some_and(|end| end.notes_whether_reset()))
}

/// What poll(2) would say besides, of a connection of whose end the kernel has told.
#[cold]
#[must_use]
pub fn readiness(record: &Record, end: Option<End<'_>>) -> u32 {
    // Once the error was told the kernel socket is what it is after a reset.
    if is_untold(record, end) { events::ERR | events::HUP } else { 0 }
}

/// True when a call that is to hear of the reset is the first one, which fails with `ECONNRESET`. The next ones find what the
/// kernel gives after a reset. With a direction's lock held.
pub fn fails(record: &Record, end: Option<End<'_>>, socket: &impl KernelSocket) -> bool {
    let fails = is_untold(record, end) && is_first_to_tell(record);
    if fails {
        put(record, SHUT_WR, true);
        socket.shut();
    }
    fails
}

impl End<'_> {
    /// True when the peer ended without a word while bytes of ours lay unread in its ring. Of an end that it announces it says so
    /// before the kernel does: so this is asked once the kernel has told of one.
    fn notes_whether_reset(&self) -> bool {
        let was_reset = self.may_be_reset() && self.has_unread();
        if was_reset && !self.has(CUT_OFF) {
            self.put(CUT_OFF, true);
        }
        was_reset
    }

    /// True when a FIN that came now would be unannounced, and not be this side's own doing.
    fn may_be_reset(&self) -> bool {
        self.theirs.prod.fin.load(Acquire) == 0
            && self.theirs.ctl.handed_over.load(Relaxed) == 0
            && path(self.record.tx.marks.load(Relaxed)) == Path::Ring
            && !self.has(SHUT_RD)
    }

    /// True when bytes of this end lie unread in the peer's ring.
    fn has_unread(&self) -> bool {
        self.record.tx.cursor.pos() > self.theirs.cons.cons.load(Relaxed)
    }

    /// True when a FIN is to wake who sleeps in poll(2) and has not asked for it. One that was heard is not asked for again, but
    /// for bytes that were sent since.
    #[must_use]
    pub fn is_woken_by_fin(&self) -> bool {
        self.may_be_reset() && (!self.has(KERNEL_HINT) || self.has_unread())
    }

    /// True when the kernel was not asked about the connection for long, and is not asked at each look anyhow; it is, then.
    /// `now` in nanoseconds.
    pub fn notes_visit(&self, now: u64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
        let now = (now >> 10) as u32;
        let visited = &self.record.rx.visited;
        let is_due = now.wrapping_sub(visited.load(Relaxed)) >= VISIT_AFTER
            && self.theirs.prod.fin.load(Relaxed) == 0
            && !self.has(KERNEL_HINT);
        if is_due {
            visited.store(now, Relaxed);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Memory, Socket};

    /// In the ring, with bytes that the peer has not read.
    fn with_unread_bytes() -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory.send(10);
        memory
    }

    #[test]
    fn a_killed_peer_that_left_bytes_unread_is_a_reset_once() {
        let (memory, socket) = (with_unread_bytes(), Socket::default());
        let end = memory.end();
        assert_eq!(readiness(end.record, Some(end)), events::ERR | events::HUP);
        assert!(end.has(CUT_OFF));
        assert!(fails(end.record, Some(end), &socket));
        assert!(socket.is_shut());
        assert!(!fails(end.record, Some(end), &socket));
        assert_eq!(readiness(end.record, Some(end)), 0);
    }

    #[test]
    fn it_is_none_where_all_was_read_or_the_end_was_announced_or_is_our_own() {
        type Change = fn(&Memory);
        let changes: [Change; 5] = [
            |memory| memory.end().theirs.cons.cons.store(10, Relaxed),
            |memory| memory.end().theirs.prod.fin.store(1, Relaxed),
            |memory| memory.end().theirs.ctl.handed_over.store(2, Relaxed),
            |memory| memory.end().put(SHUT_RD, true),
            |memory| memory.end().record.tx.marks.store(2, Relaxed),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let (memory, socket) = (with_unread_bytes(), Socket::default());
            change(&memory);
            let end = memory.end();
            assert!(!fails(end.record, Some(end), &socket), "{n}");
            assert!(!socket.is_shut() && !end.has(RESET_TOLD), "{n}");
        }
    }

    #[test]
    fn a_reset_that_ended_a_call_with_bytes_is_the_next_calls() {
        let (memory, socket) = (Memory::default(), Socket::default());
        let record = memory.end().record;
        assert!(!fails(record, None, &socket));
        tell_later(record);
        assert!(fails(record, None, &socket), "also without shared memory");
        assert!(!fails(record, None, &socket));
    }

    #[test]
    fn one_that_the_kernel_has_told_is_not_found_once_more() {
        let memory = with_unread_bytes();
        let end = memory.end();
        assert!(!was_told(end.record, Errno::CONNRESET, 5), "the call returns five bytes");
        assert!(!was_told(end.record, Errno::PIPE, 0));
        assert!(!end.has(RESET_TOLD));
        assert!(!was_told(end.record, Errno::CONNRESET, 0), "the first one");
        assert!(!fails(end.record, Some(end), &Socket::default()));
        assert_eq!(readiness(end.record, Some(end)), 0);
    }

    #[test]
    fn one_that_was_found_is_not_told_once_more_by_the_kernel() {
        let (memory, socket) = (with_unread_bytes(), Socket::default());
        let end = memory.end();
        assert!(fails(end.record, Some(end), &socket));
        assert!(was_told(end.record, Errno::CONNRESET, 0));
    }

    #[test]
    fn a_fin_that_was_heard_wakes_again_for_bytes_sent_since() {
        let memory = Memory::default();
        memory.enter_ring();
        let end = memory.end();
        assert!(end.is_woken_by_fin());
        end.put(KERNEL_HINT, true);
        assert!(!end.is_woken_by_fin());
        memory.send(1);
        assert!(end.is_woken_by_fin());
    }

    #[test]
    fn the_kernel_is_visited_once_a_millisecond() {
        let memory = Memory::default();
        let end = memory.end();
        assert!(end.notes_visit(1 << 31));
        assert!(!end.notes_visit((1 << 31) + 500_000));
        assert!(end.notes_visit((1 << 31) + 1_100_000));
        end.put(KERNEL_HINT, true);
        assert!(!end.notes_visit(1 << 33));
    }
}

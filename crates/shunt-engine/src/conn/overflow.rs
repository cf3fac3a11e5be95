//! A ring that stays full. Kernel TCP takes megabytes while nobody reads; programs whose two ends write
//! before they read rely on it. So a sender that finds no room for a while, though the receiver takes
//! nothing, goes on over TCP, behind what lies in the ring, and comes back when the receiver has caught
//! up.
//!
//! A receiver that takes something, however slowly, is waited for: the way over TCP and back costs more
//! than the wait. Where the program has set the size of its buffers (`SO_SNDBUF`), these are the bound,
//! as they are over TCP.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Record;
use shunt_shm::doorbell::AWAKE;
use shunt_shm::ring::{TxCursor, UNLIMITED};

use crate::conn::flags::STAYS;
use crate::conn::{End, has};

/// Time without progress after which a sender goes on over TCP, in units of 1024 ns: about 30 ms.
const PATIENCE: u32 = 30_000;
/// The same where the peer waits for room, too: about 2 ms. Each may be waiting for the other.
const BOTH_WAIT: u32 = 2_000;

#[allow(clippy::cast_possible_truncation, reason = "the low half, never 0")]
const fn moment(now: u64) -> u32 {
    (now >> 10) as u32 | 1
}

/// Room of which poll(2) does not tell: less than a third, as `sk_stream_is_writeable` has it.
pub(super) const fn is_too_little((free, of): (u64, u64)) -> bool {
    free * 3 < of
}

/// What a sender does that finds no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// Goes on over TCP: a mark may be set.
    Overflows,
    /// Waits, and looks again when the rest of its patience is over, in units of 1024 ns.
    WaitsFor(u32),
    /// Waits for as long as it takes: the program's own limit is reached, or there is no way over TCP.
    Waits,
}

impl End<'_> {
    /// There is no room in the ring at the time `now`, in nanoseconds.
    pub fn notes_no_room(&self, now: u64) -> Full {
        let tx = &self.record.tx;
        if has(self.record, STAYS) {
            return Full::Waits;
        }
        // What the program has set may be more than a ring holds.
        let limit = self.limit();
        if limit != UNLIMITED && tx.cursor.in_flight() >= limit {
            return Full::Waits;
        }
        let (now, taken) = (moment(now), self.theirs.cons.cons.load(Acquire));
        let since = tx.full_since.load(Relaxed);
        if since == 0 || tx.full_at.load(Relaxed) != taken {
            tx.full_at.store(taken, Relaxed);
            tx.full_since.store(now, Relaxed);
            return Full::WaitsFor(PATIENCE);
        }
        let patience = if self.peer_waits_for_room() { BOTH_WAIT } else { PATIENCE };
        match patience.saturating_sub(now.wrapping_sub(since)) {
            0 if TxCursor::may_set_mark(&self.mine.prod, &self.theirs.cons) => Full::Overflows,
            // A receiver that has not come to the marks that are open takes its time for that, too.
            0 => Full::WaitsFor(PATIENCE / 3),
            left => Full::WaitsFor(left),
        }
    }

    /// One that polls for room waits for as long as it takes: should its peer be killed, only a look would find that.
    pub(super) fn notes_unheard(&self, now: u64) {
        let tx = &self.record.tx;
        if tx.full_since.load(Relaxed) == 0 {
            tx.full_at.store(self.theirs.cons.cons.load(Acquire), Relaxed);
            tx.full_since.store(moment(now), Relaxed);
        }
    }

    /// When a sender that waits for room is to look again, in nanoseconds from `now`.
    pub fn next_look_for_room(&self, now: u64) -> Option<u64> {
        // The peer may come to wait, too, while this side sleeps.
        let longest = if self.peer_waits_for_room() { BOTH_WAIT } else { PATIENCE / 3 };
        let left = match self.notes_no_room(now) {
            Full::Waits => return None,
            Full::WaitsFor(left) => left.min(longest),
            Full::Overflows => 0,
        };
        Some(u64::from(left.max(1)) << 10)
    }

    /// A sender has found room. Where that is little, another one that asks for more (in poll, in another thread or program) waits
    /// still.
    #[inline]
    pub fn notes_room_found(&self) {
        let full_since = &self.record.tx.full_since;
        if full_since.load(Relaxed) != 0 && !is_too_little(self.room()) {
            full_since.store(0, Relaxed);
        }
    }

    fn peer_waits_for_room(&self) -> bool {
        // The agent of another host's peer always waits for room.
        !self.is_linked() && self.theirs.ctl.tx_arm.load(Relaxed) != AWAKE
    }
}

/// True while a ring was found full: waiters have to look for themselves.
#[must_use]
pub fn is_watched(record: &Record) -> bool {
    record.tx.full_since.load(Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::put;
    use crate::model::Memory;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_receiver_that_takes_nothing_is_waited_for_some_tens_of_milliseconds() {
        let memory = Memory::default();
        let end = memory.end();
        assert_eq!(end.notes_no_room(5 * MS), Full::WaitsFor(PATIENCE));
        assert!(is_watched(end.record));
        assert!(matches!(end.notes_no_room(25 * MS), Full::WaitsFor(1..)));
        assert_eq!(end.notes_no_room(36 * MS), Full::Overflows);
        end.notes_room_found();
        assert!(!is_watched(end.record));
        assert_eq!(end.notes_no_room(500 * MS), Full::WaitsFor(PATIENCE));
    }

    #[test]
    fn a_small_send_that_finds_room_ends_no_wait_for_more() {
        let memory = Memory::default();
        memory.enter_ring();
        memory.send(Memory::RING - 5);
        let end = memory.end();
        assert_eq!(end.notes_no_room(5 * MS), Full::WaitsFor(PATIENCE));
        end.notes_room_found();
        assert!(is_watched(end.record));
        assert_eq!(end.notes_no_room(36 * MS), Full::Overflows, "nothing was taken");
    }

    #[test]
    fn one_that_takes_something_is_waited_for() {
        let memory = Memory::default();
        let end = memory.end();
        for step in 0..100 {
            end.theirs.cons.cons.store(step, Relaxed);
            assert_eq!(end.notes_no_room((1 + step) * 29 * MS), Full::WaitsFor(PATIENCE));
        }
    }

    #[test]
    fn two_that_wait_for_each_other_wait_shortly() {
        let memory = Memory::default();
        let end = memory.end();
        assert_eq!(end.notes_no_room(MS), Full::WaitsFor(PATIENCE));
        end.theirs.ctl.tx_arm.store(1, Relaxed);
        assert!(matches!(end.notes_no_room(2 * MS), Full::WaitsFor(1..=BOTH_WAIT)));
        assert_eq!(end.notes_no_room(4 * MS), Full::Overflows);
    }

    #[test]
    fn the_programs_own_limit_stays_one() {
        let memory = Memory::default();
        let end = memory.end();
        end.record.tx.buffer.store(4096, Relaxed);
        end.theirs.ctl.window.store(4096, Relaxed);
        assert_eq!(end.limit(), 8192);
        memory.send(8191);
        assert!(matches!(end.notes_no_room(MS), Full::WaitsFor(_)));
        memory.send(1);
        assert_eq!(end.notes_no_room(500 * MS), Full::Waits);
        assert_eq!(end.next_look_for_room(500 * MS), None);
    }

    #[test]
    fn one_without_a_way_back_waits() {
        let memory = Memory::default();
        let end = memory.end();
        put(end.record, STAYS, true);
        for at in [5, 500, 50_000] {
            assert_eq!(end.notes_no_room(at * MS), Full::Waits);
            assert_eq!(end.next_look_for_room(at * MS), None);
        }
    }

    #[test]
    fn looks_come_in_time_for_a_peer_that_comes_to_wait() {
        let memory = Memory::default();
        let end = memory.end();
        assert_eq!(end.next_look_for_room(MS), Some(u64::from(PATIENCE / 3) << 10));
        end.theirs.ctl.tx_arm.store(1, Relaxed);
        assert!(end.next_look_for_room(2 * MS).unwrap() <= u64::from(BOTH_WAIT) << 10);
        assert_eq!(end.next_look_for_room(100 * MS), Some(1 << 10), "it is due");
    }

    #[test]
    fn a_ring_that_cannot_be_left_yet_is_not_looked_at_all_the_time() {
        let memory = Memory::default();
        let end = memory.end();
        end.mine.prod.marks.store(3, Relaxed);
        end.theirs.cons.marks_passed.store(1, Relaxed);
        assert_eq!(end.notes_no_room(MS), Full::WaitsFor(PATIENCE));
        assert_eq!(end.next_look_for_room(100 * MS), Some(u64::from(PATIENCE / 3) << 10));
        end.theirs.cons.marks_passed.store(2, Relaxed);
        assert_eq!(end.next_look_for_room(100 * MS), Some(1 << 10), "it leaves");
    }

    /// Whatever the peer writes, a sender that is not at its own limit overflows in the end, or is given room.
    #[test]
    fn the_low_half_of_the_clock_may_wrap() {
        let memory = Memory::default();
        let end = memory.end();
        let wraps = (1_u64 << 42) - 10 * MS;
        assert_eq!(end.notes_no_room(wraps), Full::WaitsFor(PATIENCE));
        assert_eq!(end.notes_no_room(wraps + 40 * MS), Full::Overflows);
    }
}

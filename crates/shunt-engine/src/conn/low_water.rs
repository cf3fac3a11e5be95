//! Readiness where the program has set `SO_RCVLOWAT`: as many bytes, wherever they lie, or a sender that can
//! send no more before some are taken (`tcp_epollin_ready` in include/net/tcp.h: the window is closed).

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::doorbell::AWAKE;
use shunt_shm::ring::RxCursor;

use crate::conn::flags::SHORT;
use crate::conn::{End, Source};
use crate::stretch::Path;

/// What `in_ring` readable bytes count for: at least `low_water` where that is to be told of. `waiting`: how many there are in the
/// kernel socket. `doubts`: those who wait are to look again for a while.
#[cold]
pub fn count(
    end: &End<'_>,
    (in_ring, source): (u64, Source),
    low_water: u64,
    waiting: impl FnOnce() -> u64,
    doubts: impl FnOnce(),
) -> u64 {
    // Bytes on both sides of a mark count together.
    let is_split = source.path == Path::Tcp || source.has_mark;
    let in_kernel = if is_split { end.not_repeated(waiting()) } else { 0 };
    let all = in_ring.saturating_add(in_kernel);
    let filled = RxCursor::is_filled(&end.theirs.prod, end.ring, in_ring);
    let is_stuck = match filled {
        Some(true) => true,
        Some(false) => end.theirs.ctl.tx_arm.load(Relaxed) != AWAKE,
        None => false,
    };
    let is_enough = all >= low_water || (is_stuck && in_ring > 0);
    // The sender does not tell that it waits, nor the kernel of less than the mark in its own socket.
    let is_short = !is_enough && in_ring > 0 && (filled.is_some() || is_split);
    if is_short {
        doubts();
    }
    if is_short != end.has(SHORT) {
        end.put(SHORT, is_short);
    }
    if is_enough { all.max(low_water) } else { all }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::model::Memory;

    const RING: Source = Source { path: Path::Ring, has_mark: false };

    /// What they count for, and whether those who wait look again.
    fn counted(memory: &Memory, in_ring: u64, source: Source, in_kernel: u64) -> (u64, bool) {
        let doubts = Cell::new(false);
        let counted =
            count(&memory.end(), (in_ring, source), 100, || in_kernel, || doubts.set(true));
        assert_eq!(memory.end().has(SHORT), doubts.get());
        (counted, doubts.get())
    }

    fn in_ring() -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory
    }

    #[test]
    fn fewer_than_the_mark_wait_for_more_to_come() {
        // The sender tells of each.
        assert_eq!(counted(&in_ring(), 99, RING, 0), (99, false));
        assert_eq!(counted(&in_ring(), 100, RING, 0), (100, false));
    }

    #[test]
    fn bytes_on_both_sides_of_a_mark_count_together() {
        let split = Source { path: Path::Ring, has_mark: true };
        assert_eq!(counted(&in_ring(), 60, split, 39), (99, true), "the kernel tells of none");
        assert_eq!(counted(&in_ring(), 60, split, 40), (100, false));
        assert_eq!(counted(&in_ring(), 60, RING, 40), (60, false), "the kernel is not asked");
    }

    #[test]
    fn a_sender_that_has_no_room_is_heard() {
        let memory = in_ring();
        let mark = Memory::RING * 2;
        let told = |in_ring| count(&memory.end(), (in_ring, RING), mark, || 0, || {});
        assert_eq!(told(Memory::RING), mark);
        assert_eq!(told(Memory::RING - 1), Memory::RING - 1, "it may have room");
        memory.end().theirs.ctl.tx_arm.store(1, Relaxed);
        assert_eq!(told(Memory::RING - 1), mark, "it waits");
        assert_eq!(told(1), 1, "for something else");
    }

    #[test]
    fn one_that_may_be_full_is_looked_at_again() {
        let memory = in_ring();
        let doubts = Cell::new(0);
        let told = |in_ring| {
            let doubt = || doubts.set(doubts.get() + 1);
            count(&memory.end(), (in_ring, RING), Memory::RING * 2, || 0, doubt)
        };
        assert_eq!(told(Memory::RING - 1), Memory::RING - 1);
        assert_eq!(doubts.get(), 1);
        assert!(memory.end().has(SHORT));
        assert_eq!(told(1), 1);
        assert_eq!(doubts.get(), 1);
        assert!(!memory.end().has(SHORT));
    }
}

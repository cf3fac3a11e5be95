//! Places for connections in a link group, as its client gives them out and gets them back.
//!
//! A place is memory that connections have one after the other. It is given out again when both ends are done with it, or when
//! nobody has taken the proposal up for which it was taken: never while an end may still write there. Of the connection before
//! nothing is left there but the bytes in its rings, which no cursor of the next one leads to.

use shunt_shm::region::{Section, Side};
use shunt_shm::sync::{AtomicU32, Ordering};

/// The link group in which the places are.
pub trait LinkGroup {
    /// What one side writes for the other.
    fn section(&self, slot: usize, side: Side) -> &Section;
    /// The rings of the place are mapped.
    fn is_open(&self, slot: usize) -> bool;
    /// Has them mapped. False: they cannot be.
    fn open(&self, slot: usize) -> bool;
    /// The place is another connection's from now on: whoever watched the one before does not watch this one.
    fn begins(&self, slot: usize);
}

/// Which of them are given out.
#[derive(Debug)]
pub struct Slots {
    /// Where the next look begins.
    next: AtomicU32,
    /// The place + 1 of the connection that ended last here; 0: it is used again.
    ended: AtomicU32,
    /// Per place: 0 free, else given out.
    given: Box<[AtomicU32]>,
}

impl Slots {
    /// So many, all of them free.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let given = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { next: AtomicU32::new(0), ended: AtomicU32::new(0), given }
    }

    /// Gives one of the first `limit` out, with cleared sections. One thread at a time. `None`: all are in use, or no memory is
    /// left.
    #[allow(clippy::cast_possible_truncation, reason = "places are few")]
    pub fn take(&self, limit: usize, group: &impl LinkGroup) -> Option<usize> {
        let limit = limit.min(self.given.len());
        let start = self.next.load(Ordering::Relaxed) as usize;
        // What was used a moment ago is in the processor's caches.
        let ended = self.ended.swap(0, Ordering::Relaxed) as usize;
        let warm = ended.checked_sub(1).filter(|slot| *slot < limit);
        let all = || (0..limit).map(|i| (start + i) % limit);
        // Where rings are mapped already.
        let open = all().filter(|slot| group.is_open(*slot));
        let closed = (0..limit).filter(|slot| !group.is_open(*slot));
        for slot in warm.into_iter().chain(open).chain(closed) {
            if self.is_given(slot, group) {
                continue;
            }
            if !group.open(slot) {
                return None;
            }
            self.given[slot].store(1, Ordering::Release);
            if warm != Some(slot) {
                self.next.store(((slot + 1) % limit) as u32, Ordering::Relaxed);
            }
            group.begins(slot);
            for side in [Side::Client, Side::Server] {
                group.section(slot, side).reset();
            }
            return Some(slot);
        }
        None
    }

    /// An end may still write there.
    #[must_use]
    pub fn is_given(&self, slot: usize, group: &impl LinkGroup) -> bool {
        self.given[slot].load(Ordering::Acquire) != 0 && !both_are_done(slot, group)
    }

    /// Gives a place back whose proposal was never taken up. The child of a fork has a copy of these words only: its parent sees
    /// that both sides are done.
    pub fn free(&self, slot: usize, group: &impl LinkGroup) {
        for side in [Side::Client, Side::Server] {
            group.section(slot, side).setup.done.store(1, Ordering::Release);
        }
        self.given[slot].store(0, Ordering::Release);
    }

    /// The connection there has ended on this side.
    #[allow(clippy::cast_possible_truncation, reason = "places are few")]
    pub fn has_ended(&self, slot: usize) {
        self.ended.store(slot as u32 + 1, Ordering::Relaxed);
    }

    /// True where no connection is left on this side, and an acceptor has not said that it is done with its own.
    #[must_use]
    pub fn are_lost(&self, count: usize, group: &impl LinkGroup) -> bool {
        (0..count.min(self.given.len())).any(|slot| self.is_given(slot, group))
    }
}

fn both_are_done(slot: usize, group: &impl LinkGroup) -> bool {
    let is_done = |side| group.section(slot, side).setup.done.load(Ordering::Acquire) != 0;
    is_done(Side::Client) && is_done(Side::Server)
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    const COUNT: usize = 3;

    #[derive(Default)]
    struct Group {
        sections: [[Section; 2]; COUNT],
        open: [Cell<bool>; COUNT],
        is_short: Cell<bool>,
        began: Cell<usize>,
    }

    impl LinkGroup for Group {
        fn section(&self, slot: usize, side: Side) -> &Section {
            &self.sections[slot][side as usize]
        }

        fn is_open(&self, slot: usize) -> bool {
            self.open[slot].get()
        }

        fn open(&self, slot: usize) -> bool {
            if !self.is_short.get() {
                self.open[slot].set(true);
            }
            self.open[slot].get()
        }

        fn begins(&self, _: usize) {
            self.began.set(self.began.get() + 1);
        }
    }

    impl Group {
        fn is_done(&self, slot: usize, side: Side) {
            self.section(slot, side).setup.done.store(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_given_out_once() {
        let (slots, group) = (Slots::new(COUNT), Group::default());
        let taken: Vec<_> = (0..4).map(|_| slots.take(COUNT, &group)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), None]);
        assert_eq!(group.began.get(), 3);
        assert_eq!(Slots::new(COUNT).take(0, &group), None, "none may be");
    }

    #[test]
    fn a_place_comes_back_when_both_ends_are_done() {
        for first in [Side::Client, Side::Server] {
            let (slots, group) = (Slots::new(1), Group::default());
            assert_eq!(slots.take(1, &group), Some(0));
            assert!(slots.are_lost(1, &group));
            group.is_done(0, first);
            assert_eq!(slots.take(1, &group), None, "{first:?} alone");
            group.is_done(0, first.other());
            assert!(!slots.are_lost(1, &group));
            let old = &group.section(0, Side::Server).prod.prod;
            old.store(77, Ordering::Relaxed);
            assert_eq!(slots.take(1, &group), Some(0));
            assert_eq!(old.load(Ordering::Relaxed), 0, "nothing is left");
            assert!(slots.is_given(0, &group));
        }
    }

    #[test]
    fn one_that_nobody_took_up_comes_back_at_once() {
        let (slots, group) = (Slots::new(1), Group::default());
        assert_eq!(slots.take(1, &group), Some(0));
        slots.free(0, &group);
        assert!(!slots.is_given(0, &group));
        assert!(both_are_done(0, &group), "as a parent sees that has no word of it");
        assert_eq!(slots.take(1, &group), Some(0));
    }

    #[test]
    fn the_one_that_was_used_last_comes_first_and_open_ones_before_others() {
        let (slots, group) = (Slots::new(COUNT), Group::default());
        assert_eq!([slots.take(2, &group), slots.take(2, &group)], [Some(0), Some(1)]);
        for slot in [0, 1] {
            for side in [Side::Client, Side::Server] {
                group.is_done(slot, side);
            }
        }
        slots.has_ended(1);
        assert_eq!(slots.take(COUNT, &group), Some(1), "it is warm");
        assert_eq!(slots.take(COUNT, &group), Some(0), "its rings are mapped");
        assert_eq!(slots.take(COUNT, &group), Some(2));
        // One that was given out meanwhile is not warm any more.
        slots.has_ended(0);
        assert_eq!(slots.take(COUNT, &group), None);
    }

    #[test]
    fn without_memory_none_is_given_out() {
        let (slots, group) = (Slots::new(COUNT), Group::default());
        group.is_short.set(true);
        assert_eq!(slots.take(COUNT, &group), None);
        assert!(!slots.is_given(0, &group));
        group.is_short.set(false);
        assert_eq!(slots.take(COUNT, &group), Some(0));
    }
}

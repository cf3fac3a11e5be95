//! Threads that sleep in a set of connections which they share (an epoll instance).
//!
//! A thread arms the queues of the vectors that the set has when it comes to sleep. A vector that the set gets later is *missed* by
//! those who sleep by then: one of them is woken, and arms its queues, but while that one is busy with a first message nobody would
//! be told of a second. So the queues of a missed vector are at rest ([`looks`](super::looks)), armed for good, until a thread
//! comes to sleep while no other one does: it looks at all, and so do those that come after it.

use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence_after_rmw};

/// Who sleeps in a set, and what they look at.
#[derive(Debug)]
pub struct Sharers {
    /// Vectors of the set (a bit each).
    vectors: AtomicU64,
    /// Threads that sleep in it, or for it.
    asleep: AtomicU32,
    /// Vectors at which some of them may not look.
    missed: AtomicU64,
}

impl Default for Sharers {
    fn default() -> Self {
        Self { vectors: AtomicU64::new(0), asleep: AtomicU32::new(0), missed: AtomicU64::new(0) }
    }
}

impl Sharers {
    /// The vectors (a bit each) by which connections of the set are told of.
    #[inline]
    pub fn vectors(&self) -> u64 {
        self.vectors.load(Ordering::Relaxed)
    }

    /// True when a thread sleeps in it, or for it.
    #[inline]
    pub fn are_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire) > 0
    }

    /// A thread is about to sleep in the set: the vectors whose queues it has to arm. `alone` locks the set; `no_more` is told of
    /// vectors that nobody misses any more.
    pub fn comes_to_sleep<L>(&self, alone: impl FnOnce() -> L, no_more: impl FnOnce(u64)) -> u64 {
        let others = self.asleep.fetch_add(1, Ordering::AcqRel);
        // SYNC POINT vectors-asleep: counted before it looks at the vectors; in `adds` it is the other way round.
        store_load_fence_after_rmw();
        if others == 0 && self.missed.load(Ordering::Relaxed) != 0 {
            let _alone = alone();
            // Whoever comes after this sees what whoever has added a vector did under the lock.
            if self.asleep.fetch_add(0, Ordering::AcqRel) == 1 {
                no_more(self.missed.swap(0, Ordering::AcqRel));
            }
        }
        self.vectors()
    }

    /// A thread is about to sleep elsewhere for the set, and has its queues armed for good.
    pub fn is_awaited(&self) {
        self.asleep.fetch_add(1, Ordering::AcqRel);
    }

    /// It sleeps no more. True when others still do.
    pub fn wakes_up(&self) -> bool {
        self.asleep.fetch_sub(1, Ordering::AcqRel) > 1
    }

    /// A vector tells of a connection of the set: under its lock. True where threads sleep that may not look at it. `misses` is told
    /// of it at first.
    pub fn adds(&self, vector: usize, misses: impl FnOnce()) -> bool {
        let bit = 1 << vector;
        let looked = self.vectors.fetch_or(bit, Ordering::AcqRel);
        // SYNC POINT vectors-asleep.
        store_load_fence_after_rmw();
        let missed = self.missed.load(Ordering::Relaxed);
        let is_missed = self.are_asleep() && (looked & bit == 0 || missed & bit != 0);
        if is_missed && missed & bit == 0 {
            self.missed.store(missed | bit, Ordering::Release);
            misses();
        }
        is_missed
    }

    /// The set is another one from now on, or gone. The vectors that somebody missed.
    pub fn clear(&self) -> u64 {
        self.vectors.store(0, Ordering::Relaxed);
        self.asleep.store(0, Ordering::Relaxed);
        self.missed.swap(0, Ordering::AcqRel)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn adds(set: &Sharers, vector: usize) -> (bool, bool) {
        let mut is_new = false;
        (set.adds(vector, || is_new = true), is_new)
    }

    fn comes(set: &Sharers) -> (u64, Option<u64>) {
        let mut no_more = None;
        (set.comes_to_sleep(|| (), |vectors| no_more = Some(vectors)), no_more)
    }

    #[test]
    fn a_vector_is_missed_that_is_new_while_threads_sleep() {
        let set = Sharers::default();
        assert_eq!(adds(&set, 3), (false, false), "nobody sleeps");
        assert_eq!(comes(&set), (1 << 3, None));
        assert_eq!(adds(&set, 3), (false, false), "it looks there");
        assert_eq!(adds(&set, 5), (true, true));
        assert_eq!(adds(&set, 5), (true, false));
        assert_eq!(set.vectors(), 1 << 3 | 1 << 5);
    }

    #[test]
    fn it_is_missed_until_one_comes_to_sleep_alone() {
        let set = Sharers::default();
        comes(&set);
        comes(&set);
        assert_eq!(adds(&set, 5), (true, true));
        assert!(set.wakes_up());
        assert_eq!(comes(&set), (1 << 5, None), "the other one sleeps still");
        assert_eq!(adds(&set, 5), (true, false));
        assert!(set.wakes_up());
        assert!(!set.wakes_up());
        assert_eq!(adds(&set, 5), (false, false), "nobody sleeps");
        assert_eq!(comes(&set), (1 << 5, Some(1 << 5)));
        assert_eq!(comes(&set), (1 << 5, None));
        assert_eq!(adds(&set, 5), (false, false));
    }

    #[test]
    fn one_that_comes_meanwhile_leaves_it_missed() {
        let set = Sharers::default();
        comes(&set);
        assert_eq!(adds(&set, 5), (true, true));
        assert!(!set.wakes_up());
        let mut no_more = None;
        set.comes_to_sleep(|| set.is_awaited(), |vectors| no_more = Some(vectors));
        assert_eq!(no_more, None);
        assert_eq!(set.clear(), 1 << 5);
        assert!(!set.are_asleep() && set.vectors() == 0);
    }
}

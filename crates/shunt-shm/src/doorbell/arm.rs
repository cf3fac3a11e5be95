//! Arm words: who waits, and how to wake them.

use crate::sync::{AtomicU32, Ordering};

/// An arm word: nobody waits.
pub const AWAKE: u32 = 0;
/// Bit of an arm word: a thread sleeps (or is about to) in futex(2) on the word itself.
pub const ON_FUTEX: u32 = 1;
/// Of `tx_arm`: push to the completion queue when there is room.
pub const ON_QUEUE: u32 = 2;

/// Bit of an arm word: a thread sleeps (or is about to) on the doorbell of completion vector
/// `vector` (below 8).
#[must_use]
pub const fn on_bell(vector: usize) -> u32 {
    1 << (8 + (vector & 7))
}

/// The vectors that an arm word, as [`take`] returned it, asks to ring.
pub fn bells(word: u32) -> impl Iterator<Item = usize> {
    (0..8).filter(move |v| word & on_bell(*v) != 0)
}

/// Arms a word: the peer's next look at it finds `how`. The caller issues
/// [`crate::sync::store_load_fence_after_rmw`] (SYNC POINT word-arm) after it, looks again, and then sleeps. Returns the
/// word as it is now. It is not disarmed after waking: the bits are shared by all threads that wait,
/// and a stale one costs the peer one needless wake-up.
#[inline]
pub fn arm(word: &AtomicU32, how: u32) -> u32 {
    word.fetch_or(how, Ordering::AcqRel) | how
}

/// Takes all sleepers' requests for a wake-up, if there are any. The caller has stored its cursor
/// and issued [`crate::sync::store_load_fence`] (SYNC POINT word-arm) before.
#[inline]
pub fn take(word: &AtomicU32) -> u32 {
    if word.load(Ordering::Relaxed) == AWAKE {
        return AWAKE;
    }
    word.swap(AWAKE, Ordering::AcqRel)
}

/// [`take`] for the sleepers on the futex alone: those who hear of it in another way stay armed for what
/// they wait for. True when there are any.
#[inline]
pub fn take_futex(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) & ON_FUTEX != 0
        && word.fetch_and(!ON_FUTEX, Ordering::AcqRel) & ON_FUTEX != 0
}

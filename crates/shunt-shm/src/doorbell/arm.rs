//! Arm words: who waits, and how to wake them.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// An arm word: nobody waits.
pub const AWAKE: u32 = 0;
/// Bit of an arm word: a thread sleeps (or is about to) in futex(2) on the word itself.
pub const ON_FUTEX: u32 = 1;
/// Of `tx_arm`: push to the completion queue when there is room.
pub const ON_QUEUE: u32 = 2;

/// Bit of an arm word: threads sleep (or are about to) on the doorbells that stand beside it ([`arm_bell`]).
pub const ON_BELL: u32 = 4;

/// Arms a word: the peer's next look at it finds `how`. The caller issues
/// [`crate::sync::store_load_fence_after_rmw`] (SYNC POINT word-arm) after it, looks again, and then sleeps. Returns the
/// word as it is now. It is not disarmed after waking: the bits are shared by all threads that wait,
/// and a stale one costs the peer one needless wake-up.
#[inline]
pub fn arm(word: &AtomicU32, how: u32) -> u32 {
    word.fetch_or(how, Ordering::AcqRel) | how
}

/// [`arm`] for the doorbell of a completion vector, which is noted in `bells`, beside the word. The word itself says only
/// that there are some: it is a futex, and has no room for the names of all.
#[inline]
pub fn arm_bell(word: &AtomicU32, bells: &AtomicU64, vector: usize) -> u32 {
    // SYNC POINT bell-names: before the word, which is taken first.
    bells.fetch_or(1 << (vector % 64), Ordering::AcqRel);
    arm(word, ON_BELL)
}

/// The vectors whose doorbells a word, as [`take`] returned it, asks to ring, a bit each. Where somebody arms it meanwhile, its
/// doorbell may be rung for this, and the word stays armed in vain: a needless wake-up, and one that wakes nobody.
#[inline]
pub fn take_bells(taken: u32, bells: &AtomicU64) -> u64 {
    if taken & ON_BELL == 0 {
        return 0;
    }
    // SYNC POINT bell-names.
    bells.swap(0, Ordering::AcqRel)
}

/// The vectors of a mask.
pub fn vectors(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        (mask != 0).then(|| {
            let vector = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            vector
        })
    })
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

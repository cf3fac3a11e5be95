//! Completion queues: which connections of a link group have something to look at.
//!
//! A queue of at most 255 connection numbers of which each may be in it once is a bitmap: it cannot
//! overflow, any pattern a hostile peer writes is a valid queue, and "already queued" costs nothing
//! extra. The order in which it is popped rotates, so no connection starves another.
//!
//! Each side of a link group has one queue per completion vector. The peer pushes, the owner pops
//! ("completes"). The owner arms the vector before it sleeps; only then the peer rings the doorbell:
//! arm, fence, look again, sleep.

use crate::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence, store_load_fence_after_rmw};

/// Words of a queue.
pub const WORDS: usize = 4;

/// Connection numbers that fit: one more than a link group's most connections (255).
pub const ENTRIES: usize = WORDS * 64;

/// The queue proper: pushed by the peer, popped by the owner.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CqLine {
    bits: [AtomicU64; WORDS],
}

/// Whether the owner sleeps (or is about to): written by the owner, read by the peer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ArmLine {
    sleepers: AtomicU32,
}

/// What a push found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Push {
    /// The owner sleeps: ring its doorbell.
    Ring,
    /// The owner is awake, or the number was queued already: nothing to do.
    Saved,
}

impl CqLine {
    /// Queues connection `conn` (below [`ENTRIES`]; larger numbers are ignored).
    #[inline]
    pub fn push(&self, arm: &ArmLine, conn: usize) -> Push {
        let Some(word) = self.bits.get(conn / 64) else { return Push::Saved };
        let bit = 1_u64 << (conn % 64);
        // SYNC POINT cq-bit: releases what the caller wrote (cursors) to the owner's swap in pop.
        // Unconditional, even when the bit is set: only a read-modify-write orders us with the swap.
        let before = word.fetch_or(bit, Ordering::AcqRel);
        // SYNC POINT cq-arm: bit before arm here, arm before bits in the owner (arm + is_empty).
        store_load_fence_after_rmw();
        if before & bit == 0 && arm.sleepers.load(Ordering::Relaxed) != 0 {
            Push::Ring
        } else {
            Push::Saved
        }
    }

    /// True when nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|w| w.load(Ordering::Relaxed) == 0)
    }

    /// Takes everything out and hands each number to `each`, starting at word `first` (rotate it for
    /// fairness).
    #[inline]
    pub fn pop_all(&self, first: usize, mut each: impl FnMut(usize)) {
        for i in 0..WORDS {
            let index = (first + i) % WORDS;
            let word = &self.bits[index];
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // SYNC POINT cq-bit: acquires what each pusher wrote before its push.
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

impl ArmLine {
    /// Says that one more thread is about to sleep. Look at the queues again after it.
    #[inline]
    pub fn arm(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        // SYNC POINT cq-arm.
        store_load_fence();
    }

    /// Takes [`Self::arm`] back.
    #[inline]
    pub fn disarm(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }
}

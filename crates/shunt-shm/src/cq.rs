//! Completion queues: which connections of a link group have something to look at.
//!
//! A queue of at most 255 connection numbers of which each may be in it once is a bitmap: it cannot
//! overflow, any pattern a hostile peer writes is a valid queue, and "already queued" costs nothing
//! extra. What a bitmap does not know is who came first: each pusher leaves that beside its connection's
//! cursor, and the owner sorts what it pops by it, as the kernel's list of the ready is in order.
//!
//! Each side of a link group has one queue per completion vector. The peer pushes, the owner pops
//! ("completes"). The owner arms the vector before it sleeps; only then the peer rings the doorbell:
//! arm, fence, look again, sleep.

use crate::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence_after_rmw};

/// Words of a queue.
pub const WORDS: usize = 4;

/// Connection numbers that fit: one more than a link group's most connections (255).
pub const ENTRIES: usize = WORDS * 64;

/// The queue proper: pushed by the peer, popped by the owner.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CqLine {
    bits: [AtomicU64; WORDS],
    /// Places given so far.
    places: AtomicU32,
}

/// Whether the owner sleeps (or is about to): written by the owner, read by the peer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ArmLine {
    sleepers: AtomicU32,
    /// When the peer last began to ring, and on which processor ([`Waker`](crate::waker::Waker)).
    pub rang: AtomicU64,
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
        self.push_if(arm, conn, true)
    }

    /// The same where it may be queued already by one that was to ring, and has not done so yet.
    #[cold]
    pub fn push_again(&self, arm: &ArmLine, conn: usize) -> Push {
        self.push_if(arm, conn, false)
    }

    #[inline(always)]
    fn push_if(&self, arm: &ArmLine, conn: usize, is_new: bool) -> Push {
        let Some(word) = self.bits.get(conn / 64) else { return Push::Saved };
        let bit = 1_u64 << (conn % 64);
        // SYNC POINT cq-bit: releases what the caller wrote (cursors) to the owner's swap in pop.
        // Unconditional, even when the bit is set: only a read-modify-write orders us with the swap.
        let before = word.fetch_or(bit, Ordering::AcqRel);
        // SYNC POINT cq-arm: bit before arm here, arm before bits in the owner (`ArmLine::arm`,
        // fence, `is_empty`).
        store_load_fence_after_rmw();
        if (before & bit == 0 || !is_new) && arm.sleepers.load(Ordering::Relaxed) != 0 {
            Push::Ring
        } else {
            Push::Saved
        }
    }

    /// The place of connection `conn`, which is about to be pushed, behind all that are queued; `None`
    /// when it is queued already and keeps its place.
    ///
    /// Two that push at the same time may get the same one: nobody can say who came first.
    #[inline]
    pub fn next_place(&self, conn: usize) -> Option<u32> {
        let word = self.bits.get(conn / 64)?;
        if word.load(Ordering::Relaxed) & 1_u64 << (conn % 64) != 0 {
            return None;
        }
        let place = self.places.load(Ordering::Relaxed).wrapping_add(1);
        self.places.store(place, Ordering::Relaxed);
        Some(place)
    }

    /// True when nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|w| w.load(Ordering::Relaxed) == 0)
    }

    /// Takes everything out.
    #[inline]
    fn take(&self) -> [u64; WORDS] {
        core::array::from_fn(|i| {
            if self.bits[i].load(Ordering::Relaxed) == 0 {
                return 0;
            }
            // SYNC POINT cq-bit: acquires what each pusher wrote before its push.
            self.bits[i].swap(0, Ordering::AcqRel)
        })
    }

    /// Takes everything out and hands each number to `each`, by the places that the pushers were given
    /// and left where `place_of` finds them. Any places are fine: they only make an order.
    #[inline]
    pub fn pop_all(&self, place_of: impl Fn(usize) -> u32, mut each: impl FnMut(usize)) {
        let words = self.take();
        if words.iter().map(|word| word.count_ones()).sum::<u32>() <= 1 {
            numbers(words).for_each(each);
            return;
        }
        let newest = self.places.load(Ordering::Relaxed);
        // One word each, the number below its place: there may be many to sort.
        let mut found = [0_u64; ENTRIES];
        let mut len = 0;
        for (entry, conn) in found.iter_mut().zip(numbers(words)) {
            // Places wrap, so what counts is how far each one lies back.
            let place = u32::MAX - newest.wrapping_sub(place_of(conn));
            *entry = u64::from(place) << 32 | conn as u64;
            len += 1;
        }
        let found = &mut found[..len];
        found.sort_unstable();
        #[allow(clippy::cast_possible_truncation, reason = "below ENTRIES")]
        found.iter().for_each(|entry| each((entry % ENTRIES as u64) as usize));
    }
}

/// The numbers of the bits that are set.
fn numbers(words: [u64; WORDS]) -> impl Iterator<Item = usize> {
    words.into_iter().enumerate().flat_map(|(index, mut bits)| {
        core::iter::from_fn(move || {
            (bits != 0).then(|| {
                let conn = index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                conn
            })
        })
    })
}

impl ArmLine {
    /// Says that one more thread is about to sleep. The caller issues [`store_load_fence_after_rmw`] (SYNC POINT cq-arm)
    /// after it, and looks at the queues again.
    #[inline]
    pub fn arm(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes [`Self::arm`] back.
    #[inline]
    pub fn disarm(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }
}

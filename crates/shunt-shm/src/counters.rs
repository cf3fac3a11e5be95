//! Totals of a process or of a run, in shared memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use shunt_wire::counter::{COUNTER_SLOTS, Counter};
use shunt_wire::reason::{REASON_SLOTS, Reason};

use crate::memfd::{self, Map};
use crate::sync::{AtomicU64, Ordering};

/// Parts of [`Counters`]: threads that count at the same time mostly have one each.
const SHARDS: usize = 8;

/// Counters and, by reason, the connection ends that are not shunted and the listeners that are not
/// registered.
#[repr(C)]
#[derive(Debug)]
pub struct Counters {
    shards: [Shard; SHARDS],
}

/// What some of the threads have counted.
#[repr(C, align(128))] // two lines: processors fetch them in pairs
#[derive(Debug)]
pub struct Shard {
    counters: [AtomicU64; FIRST],
    declined: [AtomicU64; REASON_SLOTS],
    unregistered: [AtomicU64; LISTENERS],
    /// Counters that version 7 has not, where it has room for reasons.
    more: [AtomicU64; COUNTER_SLOTS - FIRST],
}

/// Counters of version 7, and reasons for which listeners are not registered: those that are later are about connections alone.
const FIRST: usize = 32;
const LISTENERS: usize = FIRST + REASON_SLOTS - COUNTER_SLOTS;
const _: () = assert!((Reason::Bypassed as usize) < LISTENERS);

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Shard {
    const fn new() -> Self {
        Self {
            counters: [const { AtomicU64::new(0) }; FIRST],
            declined: [const { AtomicU64::new(0) }; REASON_SLOTS],
            unregistered: [const { AtomicU64::new(0) }; LISTENERS],
            more: [const { AtomicU64::new(0) }; COUNTER_SLOTS - FIRST],
        }
    }

    /// Adds to a counter.
    pub fn add(&self, which: Counter, n: u64) {
        self.counter(which as usize).fetch_add(n, Ordering::Relaxed);
    }

    const fn counter(&self, which: usize) -> &AtomicU64 {
        if which < FIRST { &self.counters[which] } else { &self.more[which - FIRST] }
    }

    /// Counts a connection end that stays on, or goes back to, TCP.
    pub fn decline(&self, why: Reason) {
        self.declined[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a listener that the agent does not know.
    pub fn leave_unregistered(&self, why: Reason) {
        if let Some(reason) = self.unregistered.get(why as usize) {
            reason.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { shards: [const { Shard::new() }; SHARDS] }
    }

    /// Where the thread of this id counts.
    #[must_use]
    pub const fn of(&self, thread: u32) -> &Shard {
        &self.shards[thread as usize % SHARDS]
    }

    /// The counters, in order of [`Counter::ALL`].
    #[must_use]
    pub fn counters(&self) -> [u64; COUNTER_SLOTS] {
        core::array::from_fn(|i| self.sum(|shard| shard.counter(i)))
    }

    /// Declined connection ends, by the reason's code.
    #[must_use]
    pub fn declined(&self) -> [u64; REASON_SLOTS] {
        core::array::from_fn(|i| self.sum(|shard| &shard.declined[i]))
    }

    /// Listeners that were not registered, by the reason's code.
    #[must_use]
    pub fn unregistered(&self) -> [u64; REASON_SLOTS] {
        core::array::from_fn(|i| {
            if i < LISTENERS { self.sum(|shard| &shard.unregistered[i]) } else { 0 }
        })
    }

    fn sum(&self, word: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards
            .iter()
            .map(|shard| word(shard).load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

/// The page on which the programs of one `shunt run --summary` add up.
#[derive(Debug)]
pub struct RunPage {
    map: Map,
}

impl RunPage {
    /// Makes a page.
    ///
    /// # Errors
    /// Those of [`memfd::create_sealed`] and [`Map::new`].
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd::create_sealed("shunt-run", size_of::<Counters>())?;
        Ok((Self::map(&fd)?, fd))
    }

    /// Maps a page.
    ///
    /// # Errors
    /// Those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self { map: Map::new(fd, size_of::<Counters>(), true)? })
    }

    /// Its counters.
    #[must_use]
    pub const fn get(&self) -> &Counters {
        // SAFETY: the map is as long as Counters, which consists of atomics.
        unsafe { self.map.base().cast().as_ref() }
    }
}

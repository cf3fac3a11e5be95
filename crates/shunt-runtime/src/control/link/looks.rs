//! The completion queues that this process looks at: the engine's rules ([`shunt_engine::wait::looks`]) for the link groups in the
//! table.

use core::sync::atomic::Ordering;

use shunt_engine::wait::looks::{self, Looks};
use shunt_shm::cq::{ArmLine, CqLine};
use shunt_shm::region::Vector;
use shunt_shm::sync::AtomicU32;
use shunt_wire::agent::MAX_VECTORS;

use crate::control::link::{LINKS, Link, TABLE};
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::mutex::{Guard, Mutex};

/// Words of bits for all places.
const WORDS: usize = LINKS / 64;
const _: () = assert!(WORDS == 64 && MAX_VECTORS == 64);

static LOOKS: Looks<MAX_VECTORS, WORDS> = Looks::new();

/// Serializes changes of it.
static CHANGES: &Mutex<()> = &ACROSS_FORKS.looks;

/// The lock, to be held across fork.
pub(super) fn lock_for_fork() -> Guard<'static, ()> {
    CHANGES.lock()
}

/// In a forked child: who slept is not here.
pub(super) fn forget_in_child() {
    LOOKS.nobody_sleeps();
}

/// A completion queue of this process.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The link group.
    pub link: &'static Link,
    /// The vector.
    vector: usize,
}

impl Queue {
    #[inline]
    fn at((place, vector): (usize, usize)) -> Option<Self> {
        // SAFETY: as in `all`.
        let link = unsafe { TABLE[place].load(Ordering::Acquire).as_ref() };
        link.map(|link| Self { link, vector })
    }
}

/// Those that are looked at in each look, of these vectors (a bit each).
pub fn awake(vectors: u64) -> impl Iterator<Item = Queue> {
    LOOKS.awake(vectors).filter_map(Queue::at)
}

/// Those that are looked at when the doorbell of their vector was heard.
pub fn at_rest(vectors: u64) -> impl Iterator<Item = Queue> {
    LOOKS.at_rest(vectors).filter_map(Queue::at)
}

/// How many there are of a vector.
#[must_use]
pub fn count(vector: usize) -> usize {
    LOOKS.count(vector)
}

/// One more sleep of who looks at these vectors, which is about to arm the queues that are awake ([`Looks::comes_to_sleep`]).
pub fn comes_to_sleep(vectors: u64) {
    LOOKS.comes_to_sleep(vectors, Queue::at);
}

/// Threads sleep that miss this vector, until [`wakes_up`] ([`Looks::is_missed`]).
pub fn is_missed(vector: usize) {
    LOOKS.is_missed(vector);
}

/// It sleeps no more.
pub fn wakes_up(vectors: u64) {
    LOOKS.wakes_up(vectors);
}

impl Link {
    /// Connections come to have their completions told of by this vector ([`Looks::begins`]). `is_missed`: threads sleep that may
    /// not look at it. True when its doorbell is to be rung, for what is in the queue already.
    pub fn begins(&'static self, vector: usize, is_missed: bool) -> bool {
        let _changes = CHANGES.lock();
        let queue = Queue { link: self, vector };
        if self.told.fetch_or(1 << vector, Ordering::SeqCst) & 1 << vector == 0 {
            LOOKS.begins(&queue, is_missed);
            return false;
        }
        is_missed && LOOKS.rests_for_sleepers(&queue)
    }

    /// True when this vector tells of connections in it.
    pub fn is_told_of_by(&self, vector: usize) -> bool {
        self.told.load(Ordering::SeqCst) & 1 << vector != 0
    }
}

impl Queue {
    /// In the region. `None` in a forked child, of what is its parent's.
    #[must_use]
    pub fn vector(self) -> Option<&'static Vector> {
        Some(self.link.view().lane(self.link.lane()?).vector(self.vector))
    }

    /// True when something is in it.
    #[must_use]
    pub fn has_news(self) -> bool {
        self.vector().is_some_and(|vector| !vector.queue.is_empty())
    }

    /// Something was found in it.
    pub fn is_used(self) {
        LOOKS.is_used(&self);
    }
}

impl looks::Queue for Queue {
    fn place(&self) -> usize {
        self.link.place.load(Ordering::Relaxed) as usize
    }

    fn vector(&self) -> usize {
        self.vector
    }

    fn found(&self) -> &AtomicU32 {
        &self.link.found[self.vector]
    }

    fn lines(&self) -> Option<(&CqLine, &ArmLine)> {
        Self::vector(*self).map(|vector| (&vector.queue, &vector.arm))
    }

    fn is_told_of(&self) -> bool {
        self.link.is_told_of_by(self.vector)
    }

    fn alone(&self, change: impl FnOnce()) {
        let _changes = CHANGES.lock();
        change();
    }
}

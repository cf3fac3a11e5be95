//! The completion queues that a process looks at. A server may have thousands of client processes, each with a link group of its
//! own.
//!
//! A queue (of a link group, for a completion vector) is *awake* or *at rest*. Each look covers the queues that are awake, and each
//! sleep arms them before. A queue that was empty at many sleeps in a row comes to rest: it is armed for good, so the peer rings for
//! each message. Only a thread that has heard that vector's doorbell looks at it. A queue at rest wakes up when messages come twice
//! between fewer sleeps. So the cost of a look follows the queues in use, however many link groups a process has.
//!
//! Changes happen one at a time, and looks take no lock. A queue is always in one of the two lists. A thread that has heard a
//! doorbell looks at the queues at rest first, as one that wakes up meanwhile is among the others then. A queue wakes up only while
//! no thread sleeps on its vector: a sleeper has armed the queues that were awake when it came to sleep, and the peer would not ring
//! for this one once the thread that has found something in it is busy elsewhere. For the same reason a queue that is new while
//! threads sleep begins at rest.

use shunt_shm::cq::{ArmLine, CqLine};
use shunt_shm::doorbell;
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence_after_rmw};

/// Queues that stay awake, whatever is in them: to look at them costs less than to ring for them.
const FEW: usize = 32;
/// A queue comes to rest when it was empty at so many sleeps in a row: by then it has cost more than a ring does, some microseconds
/// of a sender whose caches are cold.
const IN_VAIN: u32 = 64;

/// A completion queue, as its process has it.
pub trait Queue {
    /// The place of its link group in the process.
    fn place(&self) -> usize;
    /// Its vector.
    fn vector(&self) -> usize;
    /// Sleeps before something was last found in it.
    fn found(&self) -> &AtomicU32;
    /// What the peer puts there, and rings by; `None` in a forked child, of what is its parent's.
    fn lines(&self) -> Option<(&CqLine, &ArmLine)>;
    /// True while its vector tells of connections in it.
    fn is_told_of(&self) -> bool;
    /// Makes a change while nobody makes another one.
    fn alone(&self, change: impl FnOnce());
}

/// A bit for each place of a link group, for each vector.
#[derive(Debug)]
struct Places<const VECTORS: usize, const WORDS: usize> {
    /// Which words of a vector are not 0: so a look passes over those that are.
    used: [AtomicU64; VECTORS],
    words: [[AtomicU64; WORDS]; VECTORS],
}

impl<const VECTORS: usize, const WORDS: usize> Places<VECTORS, WORDS> {
    #[cfg(not(loom))]
    const fn none() -> Self {
        Self {
            used: [const { AtomicU64::new(0) }; VECTORS],
            words: [const { [const { AtomicU64::new(0) }; WORDS] }; VECTORS],
        }
    }

    #[cfg(loom)]
    fn none() -> Self {
        use core::array::from_fn;
        Self {
            used: from_fn(|_| AtomicU64::new(0)),
            words: from_fn(|_| from_fn(|_| AtomicU64::new(0))),
        }
    }

    fn has(&self, place: usize, vector: usize) -> bool {
        self.words[vector][place / 64].load(Ordering::SeqCst) & 1 << (place % 64) != 0
    }

    /// Alone.
    fn set(&self, place: usize, vector: usize) {
        self.words[vector][place / 64].fetch_or(1 << (place % 64), Ordering::SeqCst);
        self.used[vector].fetch_or(1 << (place / 64), Ordering::SeqCst);
    }

    /// Alone.
    fn clear(&self, place: usize, vector: usize) {
        let (word, bit) = (&self.words[vector][place / 64], 1 << (place % 64));
        if word.fetch_and(!bit, Ordering::SeqCst) & !bit == 0 {
            self.used[vector].fetch_and(!(1 << (place / 64)), Ordering::SeqCst);
        }
    }

    /// The words of a vector that are not 0, by their numbers.
    #[inline]
    fn words(&self, vector: usize) -> impl Iterator<Item = (usize, u64)> {
        doorbell::vectors(self.used[vector].load(Ordering::SeqCst))
            .map(move |at| (at, self.words[vector][at].load(Ordering::SeqCst)))
    }

    /// The queues of these vectors (a bit each), as place and vector.
    #[inline]
    fn of(&self, vectors: u64) -> impl Iterator<Item = (usize, usize)> {
        doorbell::vectors(vectors).flat_map(move |vector| {
            self.words(vector).flat_map(move |(at, word)| {
                doorbell::vectors(word).map(move |bit| (at * 64 + bit, vector))
            })
        })
    }
}

/// The queues of a process, for up to 64 vectors and `WORDS` times 64 link groups.
#[derive(Debug)]
pub struct Looks<const VECTORS: usize, const WORDS: usize> {
    awake: Places<VECTORS, WORDS>,
    at_rest: Places<VECTORS, WORDS>,
    /// Sleeps so far of those who look at a vector.
    sleeps: [AtomicU32; VECTORS],
    /// How many of them sleep, or are about to.
    asleep: [AtomicU32; VECTORS],
}

#[cfg(loom)]
impl<const VECTORS: usize, const WORDS: usize> Default for Looks<VECTORS, WORDS> {
    fn default() -> Self {
        use core::array::from_fn;
        Self {
            awake: Places::none(),
            at_rest: Places::none(),
            sleeps: from_fn(|_| AtomicU32::new(0)),
            asleep: from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl<const VECTORS: usize, const WORDS: usize> Looks<VECTORS, WORDS> {
    /// There are none.
    #[cfg(not(loom))]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self {
            awake: Places::none(),
            at_rest: Places::none(),
            sleeps: [const { AtomicU32::new(0) }; VECTORS],
            asleep: [const { AtomicU32::new(0) }; VECTORS],
        }
    }

    /// Those that are looked at in each look, of these vectors (a bit each): place of the link group, and vector.
    #[inline]
    pub fn awake(&self, vectors: u64) -> impl Iterator<Item = (usize, usize)> {
        self.awake.of(vectors)
    }

    /// Those that are looked at when the doorbell of their vector was heard.
    #[inline]
    pub fn at_rest(&self, vectors: u64) -> impl Iterator<Item = (usize, usize)> {
        self.at_rest.of(vectors)
    }

    /// How many there are of a vector.
    #[must_use]
    pub fn count(&self, vector: usize) -> usize {
        let ones = |(_, word): (usize, u64)| word.count_ones() as usize;
        [&self.awake, &self.at_rest].iter().flat_map(|places| places.words(vector)).map(ones).sum()
    }

    /// One more sleep of who looks at these vectors: before it arms the queues that are [awake](Self::awake), and looks at them.
    /// Until [`Self::wakes_up`]. Brings those to rest that are empty again and again, where there are more than a few; `queue` says
    /// which one is at a place, if it is still there.
    pub fn comes_to_sleep<Q: Queue>(
        &self,
        vectors: u64,
        queue: impl Fn((usize, usize)) -> Option<Q>,
    ) {
        for vector in doorbell::vectors(vectors) {
            self.sleeps[vector].fetch_add(1, Ordering::Relaxed);
            self.asleep[vector].fetch_add(1, Ordering::AcqRel);
        }
        // SYNC POINT looks-asleep: counted before it looks at what is awake; in `begins` and `wake` it is the other way round.
        store_load_fence_after_rmw();
        if self.awake(vectors).nth(FEW).is_some() {
            let long_empty = |queue: &Q| self.sleeps_since(queue) > IN_VAIN;
            self.awake(vectors)
                .filter_map(queue)
                .filter(long_empty)
                .for_each(|queue| self.rest(&queue));
        }
    }

    /// It sleeps no more. A forked child that comes back from a handler to a sleep of its parent's is not counted.
    pub fn wakes_up(&self, vectors: u64) {
        for vector in doorbell::vectors(vectors) {
            let fewer = |asleep: u32| asleep.checked_sub(1);
            let _ = self.asleep[vector].fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        }
    }

    /// Threads sleep that look at this vector only once they were woken ([`Sharers`](super::sharers::Sharers)): until they do
    /// ([`Self::wakes_up`]) none of its queues wakes up.
    pub fn is_missed(&self, vector: usize) {
        self.asleep[vector].fetch_add(1, Ordering::AcqRel);
    }

    /// In a forked child: those who slept are not here.
    pub fn nobody_sleeps(&self) {
        self.asleep.iter().for_each(|asleep| asleep.store(0, Ordering::Relaxed));
    }

    /// Connections come to have their completions told of by a queue: it is looked at. Alone. At rest, while threads sleep: they
    /// have armed the queues that there were, and the one that arms this one first may soon be busy elsewhere. `is_missed`: others
    /// sleep, too, that look at its vector from now on.
    pub fn begins(&self, queue: &impl Queue, is_missed: bool) {
        let (place, vector) = (queue.place(), queue.vector());
        let now = self.sleeps[vector].load(Ordering::Relaxed);
        queue.found().store(now, Ordering::Relaxed);
        // It may be that of another link group, which had the place before.
        self.at_rest.clear(place, vector);
        self.awake.set(place, vector);
        // SYNC POINT looks-asleep.
        store_load_fence_after_rmw();
        if !is_missed && self.asleep[vector].load(Ordering::Acquire) == 0 {
            return;
        }
        let Some((_, arm)) = queue.lines() else { return };
        self.at_rest.set(place, vector);
        arm.arm();
        self.awake.clear(place, vector);
    }

    /// Brings one at rest that threads look at already, for others that sleep and miss its vector. Alone. True where it was not:
    /// the doorbell of its vector is to be rung after it, as something may be in it by now.
    pub fn rests_for_sleepers(&self, queue: &impl Queue) -> bool {
        let (place, vector) = (queue.place(), queue.vector());
        let Some((_, arm)) = queue.lines().filter(|_| !self.at_rest.has(place, vector)) else {
            return false;
        };
        self.at_rest.set(place, vector);
        arm.arm();
        self.awake.clear(place, vector);
        true
    }

    /// Sleeps since something was found in it.
    fn sleeps_since(&self, queue: &impl Queue) -> u32 {
        let found = queue.found().load(Ordering::Relaxed);
        self.sleeps[queue.vector()].load(Ordering::Relaxed).wrapping_sub(found)
    }

    /// Something was found in it, and is about to be taken out.
    pub fn is_used(&self, queue: &impl Queue) {
        let (place, vector, sleeps) = (queue.place(), queue.vector(), self.sleeps_since(queue));
        let found = self.sleeps[vector].load(Ordering::Relaxed);
        queue.found().store(found, Ordering::Relaxed);
        if sleeps <= IN_VAIN && self.at_rest.has(place, vector) {
            self.wake(queue);
        }
    }

    /// Brings it to rest, unless something has come.
    pub fn rest(&self, queue: &impl Queue) {
        let (place, vector) = (queue.place(), queue.vector());
        let Some((line, arm)) = queue.lines() else { return };
        queue.alone(|| {
            if !queue.is_told_of() || self.at_rest.has(place, vector) {
                return;
            }
            self.at_rest.set(place, vector);
            arm.arm();
            // SYNC POINT cq-arm: armed before the look at the queue, and in both lists meanwhile.
            store_load_fence_after_rmw();
            if line.is_empty() {
                self.awake.clear(place, vector);
            } else {
                self.at_rest.clear(place, vector);
                arm.disarm();
            }
        });
    }

    fn wake(&self, queue: &impl Queue) {
        let (place, vector) = (queue.place(), queue.vector());
        queue.alone(|| {
            if !queue.is_told_of() || !self.at_rest.has(place, vector) {
                return;
            }
            self.awake.set(place, vector);
            // SYNC POINT looks-asleep.
            store_load_fence_after_rmw();
            if self.asleep[vector].load(Ordering::Acquire) > 0 {
                self.awake.clear(place, vector);
                return;
            }
            self.at_rest.clear(place, vector);
            queue.lines().into_iter().for_each(|(_, arm)| arm.disarm());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell;

    use super::*;

    const WORDS: usize = 64;
    type All = Looks<64, WORDS>;

    static ALL: All = Looks::new();

    #[test]
    fn words_that_are_empty_are_passed_over() {
        let places = &ALL.awake;
        let all = |vector| places.words(vector).collect::<Vec<_>>();
        let last = 64 * WORDS - 1;
        [3, 5, 64, last].iter().for_each(|place| places.set(*place, 7));
        assert_eq!(all(7), [(0, 0b10_1000), (1, 1), (WORDS - 1, 1 << 63)]);
        assert!(all(6).is_empty());
        assert!(places.has(last, 7) && !places.has(4, 7) && !places.has(3, 6));
        places.clear(3, 7);
        places.clear(64, 7);
        places.clear(64, 7);
        assert_eq!(all(7), [(0, 0b10_0000), (WORDS - 1, 1 << 63)]);
        places.clear(last, 7);
        places.clear(5, 7);
        assert!(all(7).is_empty());
    }

    /// One of several queues of a vector.
    #[derive(Default)]
    struct Told {
        place: usize,
        found: AtomicU32,
        line: CqLine,
        arm: ArmLine,
        changes: Cell<u32>,
    }

    impl Queue for &Told {
        fn place(&self) -> usize {
            self.place
        }
        fn vector(&self) -> usize {
            1
        }
        fn found(&self) -> &AtomicU32 {
            &self.found
        }
        fn lines(&self) -> Option<(&CqLine, &ArmLine)> {
            Some((&self.line, &self.arm))
        }
        fn is_told_of(&self) -> bool {
            true
        }
        fn alone(&self, change: impl FnOnce()) {
            self.changes.set(self.changes.get() + 1);
            change();
        }
    }

    fn queues(looks: &Looks<2, 1>, many: usize) -> Vec<Told> {
        let queues: Vec<Told> = (0..many).map(|place| Told { place, ..Told::default() }).collect();
        queues.iter().for_each(|queue| looks.begins(&queue, false));
        queues
    }

    fn sleeps(looks: &Looks<2, 1>, queues: &[Told], times: u32) {
        for _ in 0..times {
            looks.comes_to_sleep(2, |(place, _)| queues.get(place));
            looks.wakes_up(2);
        }
    }

    fn rings(queue: &Told) -> bool {
        let rings = queue.line.push(&queue.arm, 3) == shunt_shm::cq::Push::Ring;
        queue.line.pop_all(|_| 0, |_| {});
        rings
    }

    #[test]
    fn of_more_than_a_few_those_that_are_long_empty_come_to_rest_and_are_rung_for() {
        let looks = Looks::new();
        let few = queues(&looks, FEW);
        sleeps(&looks, &few, 2 * IN_VAIN);
        assert_eq!((looks.at_rest(2).count(), looks.awake(2).count()), (0, FEW));
        let looks = Looks::new();
        let many = queues(&looks, FEW + 1);
        sleeps(&looks, &many, IN_VAIN);
        looks.is_used(&&many[7]);
        // What has come meanwhile keeps one awake.
        let _ = many[9].line.push(&many[9].arm, 3);
        sleeps(&looks, &many, 1);
        let awake: Vec<usize> = looks.awake(2).map(|(place, _)| place).collect();
        assert_eq!((awake, looks.at_rest(2).count()), (vec![7, 9], FEW - 1));
        assert_eq!(looks.count(1), FEW + 1);
        assert!(rings(&many[8]) && !rings(&many[7]) && !rings(&many[9]));
        assert_eq!(looks.at_rest(1).count(), 0);
    }

    #[test]
    fn a_queue_that_is_new_while_a_thread_sleeps_begins_at_rest() {
        let looks = Looks::new();
        let first = &queues(&looks, 1)[0];
        assert_eq!((looks.awake(2).count(), looks.at_rest(2).count()), (1, 0));
        assert!(!rings(first), "whoever makes it looks at it, and arms it");
        looks.comes_to_sleep(2, |_| None::<&Told>);
        let second = &Told { place: 1, ..Told::default() };
        looks.begins(&second, false);
        assert_eq!((looks.awake(2).count(), looks.at_rest(2).count()), (1, 1));
        assert!(rings(second), "the sleeper has not armed it");
        looks.wakes_up(2);
        looks.is_used(&second);
        assert_eq!((looks.awake(2).count(), looks.at_rest(2).count()), (2, 0));
        assert!(!rings(second));
        let third = &Told { place: 2, ..Told::default() };
        looks.begins(&third, true);
        assert!(rings(third), "nor has one that did not look at that vector");
    }

    #[test]
    fn a_queue_of_a_vector_that_sleepers_miss_is_rung_for_until_they_do_not() {
        let looks = Looks::new();
        let queue = &queues(&looks, 1)[0];
        assert!(!rings(queue));
        looks.is_missed(1);
        assert!(looks.rests_for_sleepers(&queue) && rings(queue));
        assert!(!looks.rests_for_sleepers(&queue), "it is");
        looks.comes_to_sleep(2, |_| None::<&Told>);
        looks.wakes_up(2);
        looks.is_used(&queue);
        assert!(rings(queue), "who misses it sleeps still");
        looks.wakes_up(2);
        looks.is_used(&queue);
        assert!(!rings(queue));
        assert_eq!((looks.awake(2).count(), looks.at_rest(2).count()), (1, 0));
    }

    #[test]
    fn one_at_rest_in_which_something_comes_twice_wakes_up_while_nobody_sleeps() {
        let looks = Looks::new();
        let queue = &queues(&looks, 1)[0];
        looks.rest(&queue);
        sleeps(&looks, &[], IN_VAIN + 1);
        looks.is_used(&queue);
        assert_eq!(looks.awake(2).count(), 0, "once in so many sleeps");
        looks.comes_to_sleep(2, |_| None::<&Told>);
        looks.is_used(&queue);
        assert!(looks.awake(2).count() == 0 && rings(queue), "the sleeper has not armed it");
        looks.wakes_up(2);
        looks.is_used(&queue);
        assert_eq!((looks.awake(2).count(), looks.at_rest(2).count()), (1, 0));
        assert!(!rings(queue));
        let changes = queue.changes.get();
        looks.is_used(&queue);
        assert_eq!(queue.changes.get(), changes, "a look takes no lock");
        looks.comes_to_sleep(2, |_| None::<&Told>);
        looks.nobody_sleeps();
        looks.wakes_up(2);
        looks.rest(&queue);
        looks.is_used(&queue);
        assert_eq!(looks.awake(2).count(), 1, "those who slept are the parent's");
    }
}

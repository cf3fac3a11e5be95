//! How long the calls of an endpoint wait, counted by those who have waited, for the agent to read.
//!
//! A call that waits for one connection alone counts for that, with loads and stores, as its spins are counted: what two threads
//! count of one connection at the same moment may be lost. One that waits for several (poll, epoll) counts for the endpoint. When a
//! connection ends its waits are added to the endpoint's.

use shunt_wire::waits::{BUCKETS, Histogram, PARTS, Part, Waits, bucket};

use crate::reset::resets;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Parts of [`AllWaits`]: threads that count at the same time mostly have one each.
const SHARDS: usize = 8;

/// Waits of an endpoint, without those of its open connections.
#[repr(C)]
#[derive(Debug)]
pub struct AllWaits {
    shards: [Shard; SHARDS],
}

/// What some of the threads have counted.
#[repr(C, align(128))] // two lines: processors fetch them in pairs
#[derive(Debug)]
struct Shard {
    sums: [AtomicU64; PARTS],
    counts: [[AtomicU64; BUCKETS]; PARTS],
}

impl AllWaits {
    /// Counts a wait of a thread's, and notes the shard as `used`. Safe in signal handlers.
    pub(crate) fn count(&self, (thread, used): (u32, &AtomicU32), part: Part, nanos: u64) {
        let shard = self.of(thread, used);
        let times = part.stands_for();
        shard.counts[part as usize][bucket(nanos)].fetch_add(times, Ordering::Relaxed);
        shard.sums[part as usize].fetch_add(nanos.wrapping_mul(times), Ordering::Relaxed);
    }

    /// Adds those of a connection that has ended.
    pub(crate) fn add(&self, (thread, used): (u32, &AtomicU32), waits: &Waits) {
        let shard = self.of(thread, used);
        let add = |word: &AtomicU64, n: u64| {
            if n > 0 {
                word.fetch_add(n, Ordering::Relaxed);
            }
        };
        for part in Part::ALL {
            let Histogram { counts, sum } = waits.of(part);
            add(&shard.sums[part as usize], *sum);
            for (word, n) in shard.counts[part as usize].iter().zip(counts) {
                add(word, *n);
            }
        }
    }

    fn of(&self, thread: u32, used: &AtomicU32) -> &Shard {
        let place = thread as usize % SHARDS;
        if used.load(Ordering::Relaxed) & 1 << place == 0 {
            used.fetch_or(1 << place, Ordering::Relaxed);
        }
        &self.shards[place]
    }

    /// All that was counted.
    pub(crate) fn read(&self, used: &AtomicU32) -> Waits {
        let mut all = Waits::default();
        let used = used.load(Ordering::Relaxed);
        for (_, shard) in self.shards.iter().enumerate().filter(|(i, _)| used & 1 << i != 0) {
            for part in Part::ALL {
                let counts = &shard.counts[part as usize];
                all.of_mut(part).add(&Histogram {
                    counts: core::array::from_fn(|i| counts[i].load(Ordering::Relaxed)),
                    sum: shard.sums[part as usize].load(Ordering::Relaxed),
                });
            }
        }
        all
    }
}

/// Waits for one connection alone.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ConnWaits {
    sums: [AtomicU64; PARTS],
    counts: [[AtomicU32; BUCKETS]; PARTS],
}

resets! { ConnWaits { sums, counts } }

/// A word that has come so far is added to the endpoint's, long before it would begin anew.
const FULL: u32 = 1 << 31;

impl ConnWaits {
    /// Counts one. True: it is time to [`take`](Self::take) what is here.
    #[inline]
    pub fn count(&self, part: Part, nanos: u64) -> bool {
        let times = part.stands_for();
        let sum = &self.sums[part as usize];
        let added = nanos.wrapping_mul(times);
        sum.store(sum.load(Ordering::Relaxed).wrapping_add(added), Ordering::Relaxed);
        let word = &self.counts[part as usize][bucket(nanos)];
        #[allow(clippy::cast_possible_truncation, reason = "a small number")]
        let n = word.load(Ordering::Relaxed).wrapping_add(times as u32);
        word.store(n, Ordering::Relaxed);
        n >= FULL
    }

    /// What was counted.
    #[must_use]
    pub fn read(&self) -> Waits {
        self.each(|count| count.load(Ordering::Relaxed), |sum| sum.load(Ordering::Relaxed))
    }

    /// The same, and it begins anew.
    #[must_use]
    pub fn take(&self) -> Waits {
        self.each(|count| count.swap(0, Ordering::Relaxed), |sum| sum.swap(0, Ordering::Relaxed))
    }

    fn each(&self, count: impl Fn(&AtomicU32) -> u32, sum: impl Fn(&AtomicU64) -> u64) -> Waits {
        let mut all = Waits::default();
        for part in Part::ALL {
            let counts = &self.counts[part as usize];
            *all.of_mut(part) = Histogram {
                counts: core::array::from_fn(|i| count(&counts[i]).into()),
                sum: sum(&self.sums[part as usize]),
            };
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{self, Arena, ArenaView, Record, WAITED};

    fn arena() -> (Arena, ArenaView) {
        let fd = arena::create().unwrap();
        (Arena::map(&fd).unwrap(), ArenaView::map(&fd).unwrap())
    }

    #[test]
    fn a_look_gives_no_memory_to_what_has_not_waited() {
        let fd = arena::create().unwrap();
        let (arena, view) = (Arena::map(&fd).unwrap(), ArenaView::map(&fd).unwrap());
        let record = arena.allocate(arena::tests::member(), &mut 0).unwrap();
        let taken = || rustix::fs::fstat(&fd).unwrap().st_blocks;
        let before = taken();
        arena.settle_waits(record, 0);
        assert!(view.waits().is_empty());
        assert_eq!(taken(), before);
        arena.count_wait_for_several(0, Part::Slept, 1);
        let after = taken();
        assert!(after > before && view.waits().whole().count() == 1);
        assert_eq!(taken(), after);
    }

    /// A connection that has carried enough to have waits of its own.
    fn busy(arena: &Arena, at: usize) -> &Record {
        let record = arena.allocate(arena::tests::member(), &mut { at }).unwrap();
        record.rx.messages.store(arena::MESSAGES / 2, Ordering::Relaxed);
        record.tx.messages.store(arena::MESSAGES / 2, Ordering::Relaxed);
        record
    }

    #[test]
    fn what_has_carried_little_counts_for_the_endpoint_and_takes_no_memory() {
        let fd = arena::create().unwrap();
        let (arena, view) = (Arena::map(&fd).unwrap(), ArenaView::map(&fd).unwrap());
        let record = arena.allocate(arena::tests::member(), &mut 0).unwrap();
        record.tx.messages.store(arena::MESSAGES - 1, Ordering::Relaxed);
        arena.count_wait_for_several(0, Part::Slept, 1);
        let before = rustix::fs::fstat(&fd).unwrap().st_blocks;
        arena.count_wait(record, Part::Slept, 1000);
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, before);
        assert!(
            counts(&view.waits()) == [0, 0, 2, 0] && view.connections().all(|c| c.waits.is_none())
        );
        record.rx.messages.store(1, Ordering::Relaxed);
        arena.count_wait(record, Part::Slept, 1000);
        assert!(rustix::fs::fstat(&fd).unwrap().st_blocks > before);
        assert_eq!(counts(&view.connections().next().unwrap().waits.unwrap()), [0, 0, 1, 0]);
    }

    fn counts(waits: &Waits) -> [u64; PARTS] {
        Part::ALL.map(|part| waits.of(part).count())
    }

    #[test]
    fn waits_of_a_connection_become_the_endpoints_when_it_ends() {
        let (arena, view) = arena();
        let record = busy(&arena, 0);
        assert!(view.waits().is_empty() && view.connections().all(|c| c.waits.is_none()));
        arena.count_wait(record, Part::Slept, 1000);
        arena.count_wait(record, Part::Slept, 9000);
        arena.count_wait(record, Part::WakeUp, 700);
        arena.count_wait_for_several(11, Part::GaveWay, 300);
        let own = view.connections().next().unwrap().waits.unwrap();
        assert_eq!((counts(&own), own.of(Part::Slept).sum), ([0, 0, 2, 1], 10_000));
        assert_eq!(own.of(Part::Slept).counts[bucket(9000)], 1);
        // With the open connections'.
        assert_eq!(counts(&view.waits()), [0, 1, 2, 1]);
        arena.settle_waits(record, 3);
        assert_eq!(counts(&view.connections().next().unwrap().waits.unwrap()), [0; PARTS]);
        assert_eq!(counts(&view.waits()), [0, 1, 2, 1]);
        assert_eq!(view.waits().whole().sum, 10_300);
    }

    #[test]
    fn what_is_counted_stands_for_as_many_as_it_is_said_to() {
        let (arena, view) = arena();
        let record = busy(&arena, 0);
        arena.count_wait(record, Part::Spun, 100);
        arena.count_wait_for_several(1, Part::Spun, 1000);
        let waits = view.waits();
        assert_eq!((counts(&waits), waits.of(Part::Spun).sum), ([32, 0, 0, 0], 17_600));
    }

    #[test]
    fn connections_that_have_no_place_count_for_the_endpoint() {
        let (arena, view) = arena();
        let [last, beyond] = [arena::CONN_WAITS - 1, arena::RECORDS - 1].map(|at| busy(&arena, at));
        assert_eq!(arena.index_of(beyond), arena::RECORDS - 1);
        for record in [last, beyond] {
            arena.count_wait(record, Part::Slept, 5_000);
            arena.settle_waits(record, 0);
            arena.count_wait(record, Part::Slept, 5_000);
        }
        assert_eq!(counts(&view.waits()), [0, 0, 4, 0]);
        let own = view.connections().map(|c| c.waits.map(|waits| counts(&waits)));
        assert!(own.eq([Some([0, 0, 1, 0]), None]));
    }

    #[test]
    fn a_record_that_is_used_again_has_not_waited() {
        let (arena, view) = arena();
        let record = busy(&arena, 0);
        arena.count_wait(record, Part::Spun, 1);
        record.id.live.store(0, Ordering::Relaxed);
        let again = busy(&arena, 0);
        assert!(core::ptr::eq(record, again));
        assert_eq!(again.id.flags.load(Ordering::Relaxed) & WAITED, 0);
        assert!(view.waits().is_empty());
        arena.count_wait(again, Part::GaveWay, 1);
        assert_eq!(counts(&view.waits()), [0, 1, 0, 0], "what the first one has counted is gone");
    }

    #[test]
    fn a_word_that_is_nearly_full_is_added_to_the_endpoints() {
        let (arena, view) = arena();
        let record = busy(&arena, 0);
        arena.count_wait(record, Part::Spun, 100);
        let waits = arena.conn_waits(record).unwrap();
        waits.counts[Part::Spun as usize][0].store(FULL - 17, Ordering::Relaxed);
        arena.count_wait(record, Part::Spun, 100);
        assert_eq!(counts(&waits.read()), [u64::from(FULL) - 1, 0, 0, 0]);
        arena.count_wait(record, Part::Spun, 100);
        assert!(waits.read().is_empty());
        assert_eq!(counts(&view.waits()), [u64::from(FULL) + 15, 0, 0, 0]);
    }

    #[test]
    fn threads_of_a_set_lose_nothing() {
        let (arena, view) = arena();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let arena = &arena;
                // Two of them have one part.
                scope.spawn(move || {
                    (0..5000)
                        .for_each(|n| arena.count_wait_for_several(thread / 2, Part::Slept, n));
                });
            }
        });
        assert_eq!((view.waits().whole().count(), view.waits().whole().sum), (20_000, 49_990_000));
    }

    #[test]
    fn arenas_of_older_agents_count_none() {
        let short = arena::tests::older(arena::LEN_8);
        let arena = Arena::map(&short).unwrap();
        let record = arena.allocate(arena::tests::member(), &mut 0).unwrap();
        arena.count_wait(record, Part::Slept, 1);
        arena.count_wait_for_several(1, Part::Slept, 1);
        arena.settle_waits(record, 1);
        assert!(arena.decisions().is_some());
        let view = ArenaView::map(&short).unwrap();
        assert!(view.waits().is_empty() && view.connections().all(|c| c.waits.is_none()));
    }
}

//! How long calls wait: what is told apart, each once, here, and the buckets in which waits are counted.
//!
//! The buckets are log-linear, as those of HDR histograms: [`PER_OCTAVE`] to each doubling, so that a quantile is off by an eighth
//! at the most. They lie in shared memory as plain arrays of words, which no crate's histogram does: those grow on the heap.

macro_rules! parts {
    ($(#[doc = $doc:literal] $name:ident = $code:literal, $text:literal;)+) => {
        /// How a wait ended, or a part of it.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Part {
            $(#[doc = $doc] $name = $code,)+
        }

        impl Part {
            /// Every one, in order of its code.
            pub const ALL: [Self; PARTS] = [$(Self::$name,)+];

            /// The stable name that tools print.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// One sentence for people.
            #[must_use]
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => $doc,)+ }
            }
        }
    };
}

/// How many [`Part`]s there are.
pub const PARTS: usize = 4;

parts! {
    /// Waits that a spin ended, from its beginning. One in 16 is counted, for all 16.
    Spun = 0, "spun";
    /// Waits that ended while the processor was given to other threads, with the spin before that.
    GaveWay = 1, "gave_way";
    /// Waits that a wake-up ended, with the spin before the sleep.
    Slept = 2, "slept";
    /// The last part of those that slept: from when the peer began to wake the waiter until the waiter ran.
    WakeUp = 3, "wake_up";
}

impl Part {
    /// How many waits one that is counted stands for. A wait that a spin ends may be over in a hundred nanoseconds: there,
    /// counting each would cost as much as a hundredth of it.
    #[must_use]
    pub const fn stands_for(self) -> u64 {
        match self {
            Self::Spun => 16,
            Self::GaveWay | Self::Slept | Self::WakeUp => 1,
        }
    }

    /// Those that are whole waits.
    pub const WHOLE: [Self; 3] = [Self::Spun, Self::GaveWay, Self::Slept];
}

/// Buckets to each doubling.
pub const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
const PER_OCTAVE_BITS: u32 = 2;
/// The first bucket ends at 256 ns.
const FIRST: u32 = 8;
/// The last one begins at 8.6 s.
const LAST: u32 = 33;

/// Buckets of a histogram: the first, those of the octaves, the last.
pub const BUCKETS: usize = (LAST - FIRST) as usize * PER_OCTAVE + 2;

/// The bucket of a wait of so many nanoseconds.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "two bits of it")]
pub const fn bucket(nanos: u64) -> usize {
    if nanos < 1 << FIRST {
        return 0;
    }
    let octave = nanos.ilog2();
    if octave >= LAST {
        return BUCKETS - 1;
    }
    let part = (nanos >> (octave - PER_OCTAVE_BITS)) as usize % PER_OCTAVE;
    (octave - FIRST) as usize * PER_OCTAVE + part + 1
}

/// Where a bucket ends, in nanoseconds: waits in it are shorter. `None`: the last one, which has no end.
#[must_use]
pub const fn end(bucket: usize) -> Option<u64> {
    if bucket + 1 >= BUCKETS {
        return None;
    }
    let octave = FIRST as usize + bucket / PER_OCTAVE;
    Some((PER_OCTAVE + bucket % PER_OCTAVE) as u64 * (1 << octave) / PER_OCTAVE as u64)
}

/// Where a bucket begins.
#[must_use]
pub fn begin(bucket: usize) -> u64 {
    bucket.checked_sub(1).and_then(end).unwrap_or(0)
}

/// The bucket that ends there, if one does.
#[must_use]
pub fn ending(nanos: u64) -> Option<usize> {
    let found = bucket(nanos.checked_sub(1)?);
    (end(found) == Some(nanos)).then_some(found)
}

/// A number of waits by their length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// By bucket.
    pub counts: [u64; BUCKETS],
    /// All of them together, in nanoseconds.
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// What has come since `before`, an earlier look at the same one.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: core::array::from_fn(|i| self.counts[i].saturating_sub(before.counts[i])),
            sum: self.sum.saturating_sub(before.sum),
        }
    }

    /// How long so many of 1000 waits take at the most, in nanoseconds; where that is in the last bucket, its beginning. `None`: there
    /// was no wait.
    #[must_use]
    pub fn quantile(&self, of_1000: u16) -> Option<u64> {
        let count = u128::from(self.count());
        // The wait of this number, by length, is at least 1.
        let mut rank = (count * u128::from(of_1000.min(1000))).div_ceil(1000).max(1);
        for (i, n) in self.counts.iter().enumerate() {
            let n = u128::from(*n);
            if rank > n {
                rank -= n;
                continue;
            }
            let first = begin(i);
            let width = end(i).map_or(0, |end| u128::from(end - first));
            return Some(first + u64::try_from(width * rank / n).unwrap_or(0));
        }
        None
    }
}

/// A histogram of each [`Part`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits([Histogram; PARTS]);

impl Waits {
    /// Of one part.
    #[must_use]
    pub const fn of(&self, part: Part) -> &Histogram {
        &self.0[part as usize]
    }

    /// The same, to change.
    pub const fn of_mut(&mut self, part: Part) -> &mut Histogram {
        &mut self.0[part as usize]
    }

    /// All waits, however they ended.
    #[must_use]
    pub fn whole(&self) -> Histogram {
        let mut sum = Histogram::default();
        Part::WHOLE.iter().for_each(|part| sum.add(self.of(*part)));
        sum
    }

    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        Part::ALL.iter().for_each(|part| self.of_mut(*part).add(other.of(*part)));
    }

    /// What has come since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i].since(&before.0[i])))
    }

    /// True where nothing has waited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|histogram| histogram.counts.iter().all(|n| *n == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert_eq!((bucket(0), bucket(255), bucket(256), bucket(u64::MAX)), (0, 0, 1, BUCKETS - 1));
        assert_eq!((end(0), end(1), end(BUCKETS - 1)), (Some(256), Some(320), None));
        assert_eq!(begin(BUCKETS - 1), 1 << LAST);
        for i in 0..BUCKETS {
            assert_eq!(bucket(begin(i)), i);
            let Some(end) = end(i) else { continue };
            assert_eq!((bucket(end - 1), bucket(end), ending(end)), (i, i + 1, Some(i)));
            // Four to a doubling.
            assert!(i == 0 || (end - begin(i)) * 4 <= begin(i), "{i}");
        }
        assert_eq!((ending(0), ending(257), ending(u64::MAX)), (None, None, None));
    }

    #[test]
    fn codes_are_places() {
        for (i, part) in Part::ALL.iter().enumerate() {
            assert_eq!(*part as usize, i);
        }
        assert!(!Part::WHOLE.contains(&Part::WakeUp));
    }

    fn of(waits: impl IntoIterator<Item = u64>) -> Histogram {
        let mut all = Histogram::default();
        for nanos in waits {
            all.counts[bucket(nanos)] += 1;
            all.sum += nanos;
        }
        all
    }

    #[test]
    fn quantiles_are_off_by_an_eighth_at_the_most() {
        assert_eq!(Histogram::default().quantile(500), None);
        let all = of((1..=1000).map(|n| n * 1000));
        assert_eq!((all.count(), all.sum), (1000, 500_500_000));
        for of_1000 in [1, 10, 500, 900, 990, 999, 1000] {
            let (right, found) = (u64::from(of_1000) * 1000, all.quantile(of_1000).unwrap());
            assert!(found.abs_diff(right) <= right / 8, "{of_1000}: {found}");
        }
        // A single wait is in its bucket, and what is beyond the last one is not made up.
        let one = of([1000]).quantile(500).unwrap();
        assert_eq!(bucket(one - 1), bucket(1000));
        assert_eq!(of([u64::MAX / 2]).quantile(999), Some(1 << LAST));
        assert_eq!(of([300]).quantile(u16::MAX), Some(320));
    }

    #[test]
    fn sums_and_differences_do_not_overflow() {
        let mut most = Histogram { counts: [u64::MAX; BUCKETS], sum: u64::MAX };
        let one = of([1]);
        most.add(&one);
        assert_eq!((most.count(), most.sum), (u64::MAX, u64::MAX));
        assert!(most.quantile(500).is_some());
        assert_eq!(one.since(&most), Histogram::default(), "the agent was started anew");
        let mut two = of([1, 5000]);
        assert_eq!(two.since(&one), of([5000]).since(&of([])));
        two.add(&one);
        assert_eq!(two.count(), 3);
    }

    #[test]
    fn whole_waits_leave_out_their_last_part() {
        let mut waits = Waits::default();
        assert!(waits.is_empty());
        for (i, part) in Part::ALL.into_iter().enumerate() {
            *waits.of_mut(part) = of([1 << (10 + i)]);
        }
        assert_eq!(waits.whole().count(), 3);
        assert!(!waits.is_empty() && waits.since(&waits).is_empty());
        let mut twice = waits;
        twice.add(&waits);
        assert_eq!(twice.since(&waits), waits);
    }
}

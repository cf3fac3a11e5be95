//! Whether private memory of a sender's is pinned, for the receiver to copy from, or copied to the ring and out of it.
//!
//! Neither is the faster one everywhere. Pinning takes time per page on both sides, and copying through a ring takes the
//! lines of the ring from core to core twice, which is a matter of where the host has placed the two. So both are timed
//! where they are used, and what takes less time of both processes together is done.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::sync::AtomicU32;

/// Bytes of a call below which it was not measured to pay.
const LEAST: usize = 64 * 1024;

/// Most bytes that are pinned at once: the receiver copies them while the next ones are pinned.
pub const PIECE: usize = 128 * 1024;

/// With less of a piece left, or less room for it, a copy is cheaper.
pub const REST: usize = 16 * 1024;

/// `SHUNT_PIN`: which private memory is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pin {
    /// Large pieces, where it pays.
    #[default]
    Auto,
    /// None.
    Never,
    /// Pieces of so many bytes or more.
    From(usize),
}

impl Pin {
    /// Fewer bytes of a call are not pinned; `None`: no bytes are.
    #[must_use]
    pub fn least(self) -> Option<usize> {
        match self {
            Self::Never => None,
            Self::Auto => Some(LEAST),
            Self::From(least) => Some(least.max(1)),
        }
    }

    /// Fewer bytes are not pinned, of a buffer that is.
    #[must_use]
    pub fn rest(self) -> usize {
        match self {
            Self::From(least) => least.min(REST),
            Self::Auto | Self::Never => REST,
        }
    }
}

/// Pieces after which what is done otherwise is tried again.
const PERIOD: u32 = 4096;
/// Pieces of such a trial.
const TRIAL: u32 = 16;
/// Of so many others one is timed: to look at the clock takes a fiftieth of a copy.
const SAMPLE: u32 = 8;

/// How much longer than known something may seem to take: more is the scheduler's doing, not the copy's.
const LONGEST: u64 = 4;
/// The share of the latest time in what is known.
const WEIGHT: u64 = 8;

/// What something takes, in nanoseconds per MiB; 0: not known.
pub type Cost = u32;

/// What is known once `bytes` have taken so many nanoseconds.
#[must_use]
pub fn learnt(known: Cost, nanos: u64, bytes: u64) -> Cost {
    let seen = nanos.saturating_mul(1 << 20) / bytes.max(1);
    let known = u64::from(known);
    let next = match known {
        0 => seen,
        _ => (known * (WEIGHT - 1) + seen.min(known * LONGEST)) / WEIGHT,
    };
    Cost::try_from(next).unwrap_or(Cost::MAX).max(1)
}

/// Whether it is looked at the clock for the `turn`th piece, of whose way this is known.
#[must_use]
pub const fn is_timed(turn: u32, known: Cost) -> bool {
    known == 0 || turn % PERIOD < TRIAL || turn.is_multiple_of(SAMPLE)
}

/// Something was done with so many bytes in so many nanoseconds: notes what it takes. Small pieces say little.
pub fn learn(cost: &AtomicU32, nanos: u64, bytes: usize) {
    if bytes >= REST {
        cost.store(learnt(cost.load(Relaxed), nanos, bytes as u64), Relaxed);
    }
}

/// What one end has seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Costs {
    /// Of a copy to the ring, or out of it.
    pub copied: Cost,
    /// Of pinning, or of a copy of what is pinned.
    pub pinned: Cost,
}

impl Costs {
    /// What is known of both.
    #[must_use]
    pub fn known([copied, pinned]: &[AtomicU32; 2]) -> Self {
        Self { copied: copied.load(Relaxed), pinned: pinned.load(Relaxed) }
    }

    /// True when the other end, which was told of these, is to be told of others: by a sixteenth.
    #[must_use]
    pub const fn differ(self, now: Self) -> bool {
        const fn differ(told: Cost, now: Cost) -> bool {
            told.abs_diff(now) > told / 16
        }
        differ(self.copied, now.copied) || differ(self.pinned, now.pinned)
    }

    /// As a word for the other end.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        (self.copied as u64) << 32 | self.pinned as u64
    }

    /// The word of the other end, which can say what it likes.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "two halves of a word")]
    pub const fn from_word(word: u64) -> Self {
        Self { copied: (word >> 32) as u32, pinned: word as u32 }
    }
}

/// Whether the next piece is pinned, which is the `turn`th. By a tenth it has to be the better way. As long as something is
/// not known, every second one is.
#[must_use]
pub fn is_pinned(turn: u32, sender: Costs, receiver: Costs) -> bool {
    let all = [sender.copied, sender.pinned, receiver.copied, receiver.pinned];
    if all.contains(&0) {
        return turn.is_multiple_of(2);
    }
    let [copied, pinned] = [[sender.copied, receiver.copied], [sender.pinned, receiver.pinned]]
        .map(|ends| ends.map(u64::from).iter().sum::<u64>());
    let is_better = pinned * 10 < copied * 9;
    is_better != (turn % PERIOD < TRIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn costs(copied: Cost, pinned: Cost) -> Costs {
        Costs { copied, pinned }
    }

    #[test]
    fn a_cost_follows_what_is_seen_but_not_a_moment_off_the_processor() {
        let first = learnt(0, 1000, 1 << 20);
        assert_eq!(first, 1000);
        assert_eq!(learnt(first, 1800, 1 << 20), 1100);
        assert_eq!(learnt(first, 4_000_000, 1 << 20), (7 * 1000 + 4000) / 8);
        let slower = (0..40).fold(first, |known, _| learnt(known, 2500, 1 << 19));
        assert!((4900..=5000).contains(&slower), "{slower}");
        assert_eq!(learnt(0, 0, 1 << 20), 1, "is known, however little");
        assert_eq!(learnt(0, u64::MAX, 0), Cost::MAX);
    }

    #[test]
    fn small_pieces_are_neither_pinned_nor_teach_anything() {
        let cost = AtomicU32::new(0);
        learn(&cost, 1000, REST - 1);
        assert_eq!(cost.load(Relaxed), 0);
        learn(&cost, 1000, 1 << 20);
        assert_eq!(Costs::known(&[cost, AtomicU32::new(7)]), costs(1000, 7));
        assert_eq!((Pin::Never.least(), Pin::Auto.least()), (None, Some(LEAST)));
        assert_eq!((Pin::From(0).least(), Pin::From(9).least()), (Some(1), Some(9)));
        let rests = [Pin::Never, Pin::Auto, Pin::From(1 << 20), Pin::From(9)].map(Pin::rest);
        assert_eq!(rests, [REST, REST, REST, 9]);
    }

    #[test]
    fn what_is_known_is_timed_now_and_then_and_in_trials() {
        assert!((0..100).all(|turn| is_timed(turn, 0)));
        let timed = (0..PERIOD).filter(|turn| is_timed(*turn, 5)).count();
        assert_eq!(timed, (TRIAL + (PERIOD - TRIAL) / SAMPLE) as usize);
    }

    #[test]
    fn both_ways_are_tried_until_both_ends_know_both() {
        for (sender, receiver) in [
            (costs(0, 0), costs(0, 0)),
            (costs(5, 5), costs(5, 0)),
            (costs(5, 5), costs(0, 5)),
            (costs(0, 5), costs(5, 5)),
        ] {
            let pinned = (0..100).filter(|turn| is_pinned(*turn, sender, receiver)).count();
            assert_eq!(pinned, 50);
        }
    }

    #[test]
    fn the_cheaper_way_for_both_together_is_taken_and_the_other_one_tried_now_and_then() {
        let pinned = |sender, receiver| {
            (0..PERIOD).filter(|turn| is_pinned(*turn, sender, receiver)).count()
        };
        let (most, few) = ((PERIOD - TRIAL) as usize, TRIAL as usize);
        assert_eq!(pinned(costs(100, 10), costs(20, 50)), most);
        assert_eq!(pinned(costs(20, 10), costs(20, 50)), few);
        assert_eq!(pinned(costs(50, 42), costs(50, 50)), few, "not by a tenth");
        assert_eq!(pinned(costs(u32::MAX, 1), costs(u32::MAX, u32::MAX)), most);
    }

    #[test]
    fn small_differences_are_no_news() {
        assert!(costs(0, 0).differ(costs(0, 1)));
        assert!(!costs(1600, 7).differ(costs(1700, 7)) && !costs(1600, 7).differ(costs(1500, 7)));
        assert!(costs(1600, 7).differ(costs(1701, 7)) && costs(1600, 7).differ(costs(1600, 8)));
    }

    #[test]
    fn words_say_what_was_meant() {
        for both in [costs(0, 0), costs(7, u32::MAX), costs(u32::MAX, 9)] {
            assert_eq!(Costs::from_word(both.to_word()), both);
        }
    }
}

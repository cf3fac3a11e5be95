//! Whether others want processors.

use super::Nanos;
use super::yielding::KEPT;

/// What came of offers of the processor (`sched_yield`), by which a thread that spins finds out whether others want it. Where
/// somebody has taken it, processors are taken to be wanted for some time. None is offered then, as a scheduler gives one back
/// later to a thread that has offered it than to one that has slept. Where it came back only after a slice, that time is long,
/// and longer each time.
///
/// Until when they are wanted, in nanoseconds, and in the lowest bits how often that was doubled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offers(pub u64);

impl Offers {
    /// What an offer takes at least that a thread has taken: a tick of the kernel's clock takes less.
    pub const TAKEN: Nanos = 10_000;
    /// They are wanted for so long after one was taken.
    const WANTED_FOR: Nanos = 2_000_000;
    /// The same after one that was kept.
    const KEPT_FOR: Nanos = 25_000_000;
    const MOST_DOUBLED: u64 = 4;
    const DOUBLED: u64 = 7;

    /// Whether processors are wanted.
    #[must_use]
    pub const fn are_wanted(self, now: Nanos) -> bool {
        now < self.0 & !Self::DOUBLED
    }

    /// Learns from an offer after which the processor was `back` after so long.
    #[must_use]
    pub const fn end(self, back: Nanos, took: Nanos) -> Self {
        if took < Self::TAKEN {
            return Self(0);
        }
        if took <= KEPT {
            return Self((back + Self::WANTED_FOR) & !Self::DOUBLED);
        }
        let doubled = self.0 & Self::DOUBLED;
        let next = if doubled < Self::MOST_DOUBLED { doubled + 1 } else { doubled };
        Self((back + (Self::KEPT_FOR << doubled)) & !Self::DOUBLED | next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_wanted_for_a_while_after_an_offer_that_was_taken() {
        const AT: Nanos = 1_000_000_000;
        // For how long, in milliseconds.
        let wanted = |offers: Offers| {
            (0..1000).find(|ms| !offers.are_wanted(AT + ms * 1_000_000)).expect("not for ever")
        };
        let nobody = Offers::default().end(AT, Offers::TAKEN - 1);
        assert!(nobody == Offers::default() && wanted(nobody) == 0);
        let taken = nobody.end(AT, KEPT);
        assert_eq!(wanted(taken), 2);
        let kept = core::iter::successors(Some(taken), |offers| Some(offers.end(AT, KEPT + 1)));
        let lasted: Vec<_> = kept.skip(1).take(7).map(wanted).collect();
        assert_eq!(lasted, [25, 50, 100, 200, 400, 400, 400]);
        // One that nobody took ends it.
        assert_eq!(wanted(taken.end(AT, KEPT + 1).end(AT, 1_000)), 0);
    }
}

//! Whether giving the processor away pays.

use super::Nanos;

/// Whether giving the processor away pays, before a sleep: where all who run are waiting for each other,
/// each is soon given it back, and nobody has to be woken. Where somebody else wants to compute, it comes
/// back a slice later, which is a thousand times what a wake-up costs; so after that it is left out for
/// long, and for longer each time.
///
/// Two who give one processor to each other may do so for long while another one idles: a scheduler that balances moves
/// nobody who ran a moment ago. It looks for an idle processor for whoever wakes up, though. So now and then such a wait
/// is left out.
///
/// The low half of the word: waits to leave out; then how long the next time, as a power of two; above those two how
/// many paid since, in turns and beyond them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Yielding(pub u32);

/// How giving the processor away went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// Work came, and nobody else wanted the processor.
    Paid,
    /// Work came, and somebody else had the processor for a moment.
    Traded,
    /// Nothing came, though it was given back soon.
    Unpaid,
    /// Somebody kept it.
    Kept,
}

/// What a yield takes when somebody else wants to compute, in nanoseconds: less than the shortest slice
/// (`base_slice_ns` in `kernel/sched/fair.c`), more than a round of those who only wait.
pub const KEPT: Nanos = 500_000;

/// A yield that takes less has found nobody.
pub const NOBODY: Nanos = 2_000;

impl Yielding {
    /// The longest pause is 2¹⁶ waits.
    const LONGEST: u32 = 16;
    const SHORTEST: u32 = 6;
    /// Waits before the first.
    const FIRST: u32 = 255;
    /// After so many that paid a turn is over, and if the last one was traded a wait is left out.
    const TURN: u32 = 32;
    /// So many turns are a long time without trouble.
    const TURNS: u32 = 8;

    const fn new(pause: u32, power: u32, turns: u32, paid: u32) -> Self {
        Self(pause | power << 16 | turns << 21 | paid << 24)
    }

    const fn most(power: u32) -> u32 {
        if power > Self::LONGEST { Self::LONGEST } else { power }
    }

    /// Whether to do it now, and what to remember about it.
    #[must_use]
    pub const fn begin(self) -> (bool, Self) {
        match (self.0, self.0 & 0xffff) {
            // A program that waits a few times only does not try it out.
            (0, _) => (false, Self::new(Self::FIRST, Self::SHORTEST, 0, 0)),
            (_, 0) => (true, self),
            _ => (false, Self(self.0 - 1)),
        }
    }

    /// Learns from how it went.
    #[must_use]
    pub const fn end(self, given: Given) -> Self {
        let power = match self.0 >> 16 & 0x1f {
            power @ Self::SHORTEST..=Self::LONGEST => power,
            _ => Self::SHORTEST,
        };
        let (turns, paid) = (self.0 >> 21 & 0x7, (self.0 >> 24) + 1);
        let (pause, next) = match given {
            Given::Paid | Given::Traded => {
                let pause = matches!(given, Given::Traded) as u32;
                return match (paid < Self::TURN, turns + 1 < Self::TURNS) {
                    (true, _) => Self::new(0, power, turns, paid),
                    (false, true) => Self::new(pause, power, turns + 1, 0),
                    (false, false) if power > Self::SHORTEST => Self::new(pause, power - 1, 0, 0),
                    (false, false) => Self::new(pause, power, 0, 0),
                };
            }
            Given::Unpaid => (power, power),
            Given::Kept => (power + 2, power + 2),
        };
        Self::new((1 << Self::most(pause)) - 1, Self::most(next), 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::times;
    use super::*;

    fn yields(rounds: u32, given: impl Fn(u32) -> Given) -> u32 {
        times(rounds, Yielding::begin, |yielding, round| yielding.end(given(round)))
    }

    #[test]
    fn yields_that_pay_are_kept_up() {
        assert_eq!(yields(200, |_| Given::Paid), 0);
        assert!(yields(1000, |_| Given::Paid) > 700);
        let rarely_in_vain = |round| if round % 100 == 0 { Given::Unpaid } else { Given::Paid };
        assert!(yields(10_000, rarely_in_vain) > 3000);
    }

    #[test]
    fn those_who_trade_a_processor_sleep_now_and_then() {
        let traded = yields(3_300 + 256, |_| Given::Traded);
        assert!((3_190..=3_210).contains(&traded), "{traded}");
        assert_eq!(yields(3_300 + 256, |_| Given::Paid), 3_300);
    }

    #[test]
    fn who_loses_the_processor_by_it_rarely_tries_again() {
        let kept = yields(1_000_000, |_| Given::Kept);
        assert!((10..40).contains(&kept), "{kept}");
        let unpaid = yields(64_000, |_| Given::Unpaid);
        assert!((900..1100).contains(&unpaid), "{unpaid}");
        // And comes back to it when the other one is gone.
        let gone = |round| if round < 1000 { Given::Kept } else { Given::Paid };
        assert!(yields(100_000, gone) > 90_000);
    }
}

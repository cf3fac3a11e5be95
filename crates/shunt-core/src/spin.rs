//! How long to spin before going to sleep.
//!
//! A spin pays when the answer comes sooner than a sleep and a wake-up would take. Each receiver
//! learns it: a spin that ended with work keeps the budget at what such spins took, one that ended in
//! vain halves it, and from time to time a short spin is tried again. Where the machine is
//! oversubscribed (the spinner was preempted while it spun) spinning only takes the processor away
//! from the one who is to answer.

/// Nanoseconds.
pub type Nanos = u64;

/// Longest spin of the automatic mode: a few times what a sleep and a wake-up cost.
pub const MAX_AUTO: Nanos = 50_000;
/// Spin to begin with.
pub const FIRST: Nanos = 20_000;
/// A budget that shrank below this is none.
const FLOOR: Nanos = 1_000;
/// After so many sleeps without a spin, one is tried again.
const RETRY_AFTER: u32 = 64;
/// A gap between two looks at the clock that only a preemption explains.
pub const PREEMPTED: Nanos = 100_000;

/// `SHUNT_SPIN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Learn.
    #[default]
    Auto,
    /// Never spin.
    Never,
    /// Spin for so long, always.
    Fixed(Nanos),
}

/// What one receiver (a connection's direction or a completion vector) has learnt. Packed in one
/// word so that it can lie in shared memory: the budget in nanoseconds, and in the top byte the
/// number of waits without a spin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Learnt(pub u32);

/// How a spin ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Work came after so many nanoseconds.
    Paid(Nanos),
    /// Nothing came.
    Unpaid,
    /// The processor was taken away in between.
    Preempted,
}

const BUDGET_BITS: u32 = 24;
const BUDGET_MASK: u32 = (1 << BUDGET_BITS) - 1;

impl Learnt {
    fn budget(self) -> Nanos {
        Nanos::from(self.0 & BUDGET_MASK)
    }

    fn skipped(self) -> u32 {
        self.0 >> BUDGET_BITS
    }

    fn new(budget: Nanos, skipped: u32) -> Self {
        let budget = u32::try_from(budget).unwrap_or(BUDGET_MASK).min(BUDGET_MASK);
        Self(budget | skipped.min(0xff) << BUDGET_BITS)
    }

    /// How long to spin now, and what to remember about it. A word of 0 is one that has learnt
    /// nothing yet.
    #[must_use]
    pub fn begin(self, mode: Mode) -> (Nanos, Self) {
        match mode {
            Mode::Never => (0, self),
            Mode::Fixed(n) => (n, self),
            Mode::Auto if self.0 == 0 => (FIRST, Self::new(FIRST, 0)),
            Mode::Auto if self.budget() >= FLOOR => (self.budget(), self),
            Mode::Auto if self.skipped() + 1 >= RETRY_AFTER => (FIRST / 2, Self::new(FLOOR, 0)),
            Mode::Auto => (0, Self::new(self.budget().max(1), self.skipped() + 1)),
        }
    }

    /// Learns from how the spin ended.
    #[must_use]
    pub fn end(self, outcome: Outcome) -> Self {
        let budget = self.budget().max(1);
        match outcome {
            // Twice what it took leaves room for the usual spread; slow to shrink, quick to grow.
            Outcome::Paid(took) => {
                let wanted = (took * 4).clamp(FLOOR * 4, MAX_AUTO);
                Self::new((budget * 3 + wanted).div_ceil(4).max(wanted.min(budget)), 0)
            }
            Outcome::Unpaid => Self::new(budget * 3 / 4, 0),
            Outcome::Preempted => Self::new(1, 0),
        }
    }
}

/// Whether a wait of a fixed length pays, for what comes after about as long each time, or not at all. In
/// the low half the share of such waits that paid, of [`Habit::ALL`]; in the upper half how many were
/// left out since the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Habit(pub u32);

impl Habit {
    const ALL: u32 = 1 << 12;
    /// The least share at which it pays.
    const PAYS: u32 = Self::ALL / 2;

    /// Whether to wait now, and what to remember about it. A word of 0 has learnt nothing yet.
    #[must_use]
    pub const fn begin(self) -> (bool, Self) {
        let (share, left_out) = (self.0 & 0xffff, self.0 >> 16);
        match share {
            0 => (true, Self(Self::ALL / 4 * 3)),
            Self::PAYS.. => (true, self),
            _ if left_out + 1 >= RETRY_AFTER => (true, Self(share)),
            _ => (false, Self(share | (left_out + 1) << 16)),
        }
    }

    /// Learns from how it went. One that paid, after it was left out, makes it worth a few more.
    #[must_use]
    pub const fn end(self, paid: bool) -> Self {
        let share = self.0 & 0xffff;
        let kept = share - share / 8;
        let new = if paid { kept + Self::ALL / 8 } else { kept };
        let new = if paid && new < Self::PAYS { Self::PAYS + Self::ALL / 8 } else { new };
        Self(if new == 0 { 1 } else { new })
    }
}

/// Whether giving the processor away pays, before a sleep: where all who run are waiting for each other,
/// each is soon given it back, and nobody has to be woken. Where somebody else wants to compute, it comes
/// back a slice later, which is a thousand times what a wake-up costs; so after that it is left out for
/// long, and for longer each time.
///
/// The low half of the word: waits to leave out; then how long the next time, as a power of two; in
/// the top byte: those that paid since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Yielding(pub u32);

/// How giving the processor away went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// Work came.
    Paid,
    /// Nothing came, though it was given back soon.
    Unpaid,
    /// Somebody kept it.
    Kept,
}

/// What a yield takes when somebody else wants to compute, in nanoseconds: less than the shortest slice
/// (`base_slice_ns` in `kernel/sched/fair.c`), more than a round of those who only wait.
pub const KEPT: Nanos = 500_000;

impl Yielding {
    /// The longest pause is 2¹⁶ waits.
    const LONGEST: u32 = 16;
    const SHORTEST: u32 = 6;
    /// Waits before the first.
    const FIRST: u32 = 255;

    const fn new(pause: u32, power: u32, paid: u32) -> Self {
        Self(pause | power << 16 | paid << 24)
    }

    const fn most(power: u32) -> u32 {
        if power > Self::LONGEST { Self::LONGEST } else { power }
    }

    /// Whether to do it now, and what to remember about it.
    #[must_use]
    pub const fn begin(self) -> (bool, Self) {
        match (self.0, self.0 & 0xffff) {
            // A program that waits a few times only does not try it out.
            (0, _) => (false, Self::new(Self::FIRST, Self::SHORTEST, 0)),
            (_, 0) => (true, self),
            _ => (false, Self(self.0 - 1)),
        }
    }

    /// Learns from how it went.
    #[must_use]
    pub const fn end(self, given: Given) -> Self {
        let power = match self.0 >> 16 & 0xff {
            power @ Self::SHORTEST..=Self::LONGEST => power,
            _ => Self::SHORTEST,
        };
        let (pause, next) = match given {
            Given::Paid => {
                let paid = self.0 >> 24;
                return match paid {
                    // A long time without trouble.
                    0xff => Self::new(0, if power > Self::SHORTEST { power - 1 } else { power }, 0),
                    _ => Self::new(0, power, paid + 1),
                };
            }
            Given::Unpaid => (power, power),
            Given::Kept => (power + 2, power + 2),
        };
        Self::new((1 << Self::most(pause)) - 1, Self::most(next), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it is done in so many rounds, where `begin` says whether and `end` learns from it.
    fn times<L: Default>(
        rounds: u32,
        begin: impl Fn(L) -> (bool, L),
        end: impl Fn(L, u32) -> L,
    ) -> u32 {
        let mut learnt = L::default();
        let mut times = 0;
        for round in 0..rounds {
            let (go, next) = begin(learnt);
            times += u32::from(go);
            learnt = if go { end(next, round) } else { next };
        }
        times
    }

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
    fn who_loses_the_processor_by_it_rarely_tries_again() {
        let kept = yields(1_000_000, |_| Given::Kept);
        assert!((10..40).contains(&kept), "{kept}");
        let unpaid = yields(64_000, |_| Given::Unpaid);
        assert!((900..1100).contains(&unpaid), "{unpaid}");
        // And comes back to it when the other one is gone.
        let gone = |round| if round < 1000 { Given::Kept } else { Given::Paid };
        assert!(yields(100_000, gone) > 90_000);
    }

    fn waits(paid: impl Fn(u32) -> bool) -> u32 {
        times(1000, Habit::begin, |habit, round| habit.end(paid(round)))
    }

    #[test]
    fn a_habit_that_pays_is_kept() {
        assert_eq!(waits(|_| true), 1000);
        assert!(waits(|round| round % 4 != 0) > 900);
    }

    #[test]
    fn a_habit_that_does_not_pay_is_left_and_tried_again_rarely() {
        let never = waits(|_| false);
        assert!((10..40).contains(&never), "{never}");
        assert!(waits(|round| round % 8 == 0) < 200);
        // What pays from some time on is taken up.
        assert!(waits(|round| round > 200) > 700);
    }

    #[test]
    fn never_and_fixed_do_not_learn() {
        let l = Learnt::default();
        assert_eq!(l.begin(Mode::Never), (0, l));
        assert_eq!(l.begin(Mode::Fixed(7)).0, 7);
    }

    #[test]
    fn spins_that_pay_keep_spinning() {
        let mut l = Learnt::default().begin(Mode::Auto).1;
        for _ in 0..1000 {
            let (n, next) = l.begin(Mode::Auto);
            assert!(n >= 2_000, "{n}");
            l = next.end(Outcome::Paid(500));
        }
    }

    #[test]
    fn spins_in_vain_end_and_are_tried_again_rarely() {
        let mut l = Learnt::default().begin(Mode::Auto).1;
        let mut spun = 0;
        for _ in 0..1000 {
            let (n, next) = l.begin(Mode::Auto);
            l = next;
            if n > 0 {
                spun += 1;
                l = l.end(Outcome::Unpaid);
            }
        }
        assert!((10..60).contains(&spun), "{spun}");
    }

    #[test]
    fn a_preempted_spinner_stops_at_once() {
        let l = Learnt::default().begin(Mode::Auto).1.end(Outcome::Preempted);
        assert_eq!(l.begin(Mode::Auto).0, 0);
    }
}

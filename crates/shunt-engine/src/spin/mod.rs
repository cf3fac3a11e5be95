//! How long to spin before going to sleep.
//!
//! A spin pays when the answer comes sooner than a sleep and a wake-up would take. Each receiver
//! learns it: a spin that ended with work keeps the budget at what such spins took, one that ended in
//! vain halves it, and from time to time a short spin is tried again. Where the machine is
//! oversubscribed (the spinner was preempted while it spun) spinning only takes the processor away
//! from the one who is to answer.

mod habit;
mod learnt;
mod offers;
mod yielding;

pub use habit::Habit;
pub use learnt::{Learnt, Outcome};
pub use offers::Offers;
pub use yielding::{Given, KEPT, NOBODY, Yielding};

/// Nanoseconds.
pub type Nanos = u64;

/// How long the spins of the automatic mode are, which is a matter of what they spare: a sleep and a wake-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// The first spin.
    pub first: Nanos,
    /// One that is tried after sleeps.
    pub retry: Nanos,
    /// The longest: a few times what it spares.
    pub most: Nanos,
    /// A budget that shrank below this is none.
    pub floor: Nanos,
    /// A gap between two looks at the clock that only a preemption explains.
    pub preempted: Nanos,
}

impl Lengths {
    /// On one machine, where it takes `wake` from a wake-up to the moment when the one who slept runs.
    ///
    /// A spin that is tried must outlast two wake-ups and the answer between them: where both sides sleep, neither would
    /// ever find out that spinning pays if it gave up before the other one had been woken.
    #[must_use]
    pub fn near(wake: Nanos) -> Self {
        let (first, retry, most) = (wake * 4, wake * 5, wake * 10);
        Self { first, retry, most, floor: wake / 2, preempted: (wake * 14).max(100_000) }
    }

    /// What a sleep and a wake-up take.
    #[must_use]
    pub const fn spared(&self) -> Nanos {
        self.floor * 2
    }

    /// See [`Self::far`]: two wake-ups of a machine on metal.
    const SHORTEST_ANSWER: Nanos = 10_000;
    /// Two wake-ups of emulated machines.
    const LONGEST_ANSWER: Nanos = 400_000;

    /// Where an answer takes `answer` to come to one who sleeps, while the one that answers sleeps, too.
    ///
    /// A spin that is tried must outlast such an answer: both sides sleep then, and neither would ever find that it
    /// pays if it gave up before the other one had been woken. How much of `answer` was the other one's work is not
    /// to be known from here, so what is longer than wake-ups take counts as `LONGEST_ANSWER`.
    #[must_use]
    pub fn far(answer: Nanos) -> Self {
        let answer = answer.clamp(Self::SHORTEST_ANSWER, Self::LONGEST_ANSWER);
        let (first, retry, most) = (answer * 2, answer * 2, answer * 4);
        Self { first, retry, most, floor: answer / 10, preempted: 1_600_000 }
    }
}

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

/// What it takes from a wake-up to the moment when the one who slept runs, in nanoseconds, as those who were woken have
/// measured it: 2 to 5 microseconds on metal, ten times as much in a virtual machine. 0: nobody has yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WakeUp(pub u32);

impl WakeUp {
    /// Before it was measured.
    const GUESS: Nanos = 8_000;
    const LEAST: Nanos = 2_000;
    const MOST: Nanos = 100_000;
    /// What takes longer was no wake-up alone.
    const NONE: Nanos = 2_000_000;

    /// What it takes.
    #[must_use]
    pub fn nanos(self) -> Nanos {
        if self.0 == 0 { Self::GUESS } else { self.0.into() }
    }

    /// Learns from one. A quarter of all take less than what is learnt: the longer ones may have waited for a
    /// processor, for which no spin is to be longer.
    #[must_use]
    pub fn learn(self, took: Nanos) -> Self {
        if took > Self::NONE {
            return self;
        }
        let known = self.nanos();
        let learnt = match took > known {
            _ if self.0 == 0 => took,
            true => took.min(known + known / 32 + 1),
            false => took.max(known - known * 3 / 32 - 1),
        };
        Self(u32::try_from(learnt.clamp(Self::LEAST, Self::MOST)).unwrap_or(0))
    }
}

/// How often it is done in so many rounds, where `begin` says whether and `end` learns from it.
#[cfg(test)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_is_learnt_from_the_shorter_ones() {
        let mut wake = WakeUp::default();
        assert_eq!(wake.nanos(), WakeUp::GUESS);
        wake = wake.learn(40_000);
        assert_eq!(wake.nanos(), 40_000);
        // One in three waits for a processor.
        for round in 0..1_000 {
            wake = wake.learn(if round % 3 == 0 { 1_500_000 } else { 30_000 });
        }
        assert!((29_000..36_000).contains(&wake.nanos()), "{wake:?}");
        // As little as nothing, and as much as nobody would spin for, is not believed.
        assert_eq!((0..1_000).fold(wake, |wake, _| wake.learn(0)).nanos(), WakeUp::LEAST);
        assert_eq!((0..1_000).fold(wake, |wake, _| wake.learn(1_999_999)).nanos(), WakeUp::MOST);
        assert_eq!(wake.learn(u64::MAX), wake);
    }
}

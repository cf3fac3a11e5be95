//! How long to spin before going to sleep.
//!
//! A spin pays when the answer comes sooner than a sleep and a wake-up would take. Each receiver
//! learns it: a spin that ended with work keeps the budget at what such spins took, one that ended in
//! vain halves it, and from time to time a short spin is tried again. Where the machine is
//! oversubscribed (the spinner was preempted while it spun) spinning only takes the processor away
//! from the one who is to answer.

/// Nanoseconds.
pub type Nanos = u64;

/// After so many sleeps without a spin, one is tried again; after twice as many each time that this one was in vain, too.
const RETRY_AFTER: u32 = 64;
/// So often.
const MOST_DOUBLED: u32 = 4;

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

/// What one receiver (a connection's direction or a completion vector) has learnt. Packed in one
/// word so that it can lie in shared memory: the budget in nanoseconds, and above it the number of waits without a spin.
/// A budget of a few nanoseconds says how often the latter was doubled.
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

const BUDGET_BITS: u32 = 21;
const BUDGET_MASK: u32 = (1 << BUDGET_BITS) - 1;
const _: () = assert!((RETRY_AFTER << MOST_DOUBLED) < 1 << (32 - BUDGET_BITS));

impl Learnt {
    fn budget(self) -> Nanos {
        Nanos::from(self.0 & BUDGET_MASK)
    }

    fn skipped(self) -> u32 {
        self.0 >> BUDGET_BITS
    }

    fn new(budget: Nanos, skipped: u32) -> Self {
        let budget = u32::try_from(budget).unwrap_or(BUDGET_MASK).min(BUDGET_MASK);
        Self(budget | skipped << BUDGET_BITS)
    }

    /// Without spins: for [`RETRY_AFTER`] waits, doubled so often.
    fn off(doubled: u32, skipped: u32) -> Self {
        let budget = Nanos::from(doubled.min(MOST_DOUBLED));
        // 0 is the word that has learnt nothing.
        if budget == 0 && skipped == 0 { Self::new(0, 1) } else { Self::new(budget, skipped) }
    }

    /// What one that begins is to take over: whether spins pay, and for how long; but it tries them as soon as any other.
    #[must_use]
    pub fn inherited(self) -> Self {
        let is_off = self.0 != 0 && self.budget() <= MOST_DOUBLED.into();
        if is_off { Self::off(0, 0) } else { Self::new(self.budget(), 0) }
    }

    /// What has shrunk to so much.
    fn shrunk(budget: Nanos, lengths: &Lengths) -> Self {
        if budget < lengths.floor { Self::off(0, 0) } else { Self::new(budget, 0) }
    }

    /// How long to spin now, and what to remember about it. A word of 0 is one that has learnt
    /// nothing yet.
    #[must_use]
    pub fn begin(self, mode: Mode, lengths: &Lengths) -> (Nanos, Self) {
        let Lengths { first, retry, floor, .. } = *lengths;
        // A budget may have come below the floor as that rose.
        let doubled = Some(self.0 & BUDGET_MASK).filter(|doubled| *doubled <= MOST_DOUBLED);
        let doubled = doubled.unwrap_or(0);
        match mode {
            Mode::Never => (0, self),
            Mode::Fixed(n) => (n, self),
            Mode::Auto if self.0 == 0 => (first, Self::new(first, 0)),
            Mode::Auto if self.budget() >= floor => (self.budget(), self),
            Mode::Auto if self.skipped() + 1 >= RETRY_AFTER << doubled => {
                (retry, Self::off(doubled + 1, 0))
            }
            Mode::Auto => (0, Self::off(doubled, self.skipped() + 1)),
        }
    }

    /// Learns from how the spin ended.
    #[must_use]
    pub fn end(self, outcome: Outcome, lengths: &Lengths) -> Self {
        let budget = self.budget();
        let Lengths { floor, most, .. } = *lengths;
        match outcome {
            // A few times what it took leaves room for the usual spread; slow to shrink, quick to grow.
            Outcome::Paid(took) => {
                let wanted = (took * 4).clamp(floor * 4, most);
                let enough = (took * 2).min(most);
                Self::new((budget * 3 + wanted).div_ceil(4).max(wanted.min(budget)).max(enough), 0)
            }
            // One that was tried: for how long it is not tried again is known already.
            Outcome::Unpaid | Outcome::Preempted if budget < floor => self,
            Outcome::Unpaid => Self::shrunk(budget * 3 / 4, lengths),
            Outcome::Preempted => Self::shrunk(budget / 4, lengths),
        }
    }
}

/// Whether a wait of a fixed length pays, for what comes after about as long each time, or not at all. In
/// the low half the share of such waits that paid, of `Habit::ALL`; in the upper half how many were
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

/// How a thread that always finds what it waits for lets others have its processor now and then: it offers it
/// (`sched_yield`), which costs next to nothing where nobody wants it. A scheduler may give it back much later than to one
/// that sleeps, though. Where it did, threads sleep instead for some time, and that is longer each time.
///
/// In the low half how many sleeps are left, in the upper half how often they were doubled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offers(pub u32);

impl Offers {
    /// Sleeps after an offer that cost much.
    const SLEEPS: u32 = 256;
    const MOST_DOUBLED: u32 = 4;

    /// Whether to offer it now, else to sleep; and what to remember about it.
    #[must_use]
    pub const fn begin(self) -> (bool, Self) {
        if self.0 & 0xffff == 0 { (true, self) } else { (false, Self(self.0 - 1)) }
    }

    /// Learns from an offer: the processor was back after so long.
    #[must_use]
    pub const fn end(self, took: Nanos) -> Self {
        if took <= KEPT {
            return Self(0);
        }
        let doubled = self.0 >> 16;
        let next = if doubled < Self::MOST_DOUBLED { doubled + 1 } else { doubled };
        Self(Self::SLEEPS << doubled | next << 16)
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

    #[test]
    fn who_gets_its_processor_back_late_sleeps_instead_for_a_while() {
        let offers = |took: fn(u32) -> Nanos| {
            times(16_000, Offers::begin, |offers, round| offers.end(took(round)))
        };
        assert_eq!(offers(|_| 1_000), 16_000);
        assert_eq!(offers(|_| KEPT), 16_000, "others had it for a moment");
        // After 256 sleeps, 512, 1,024, 2,048, and then 4,096 each time.
        assert_eq!(offers(|_| KEPT + 1), 7);
        assert!(offers(|round| if round == 0 { KEPT + 1 } else { 1_000 }) > 15_700);
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

    const HERE: Lengths =
        Lengths { first: 20_000, retry: 25_000, most: 50_000, floor: 2_500, preempted: 100_000 };

    #[test]
    fn never_and_fixed_do_not_learn() {
        let l = Learnt::default();
        assert_eq!(l.begin(Mode::Never, &HERE), (0, l));
        assert_eq!(l.begin(Mode::Fixed(7), &HERE).0, 7);
    }

    #[test]
    fn spins_that_pay_keep_spinning() {
        let mut l = Learnt::default().begin(Mode::Auto, &HERE).1;
        for _ in 0..1000 {
            let (n, next) = l.begin(Mode::Auto, &HERE);
            assert!(n >= 2_000, "{n}");
            l = next.end(Outcome::Paid(500), &HERE);
        }
    }

    #[test]
    fn spins_in_vain_end_and_are_tried_again_rarely() {
        let mut l = Learnt::default().begin(Mode::Auto, &HERE).1;
        let mut spun = 0;
        for _ in 0..1000 {
            let (n, next) = l.begin(Mode::Auto, &HERE);
            l = next;
            if n > 0 {
                spun += 1;
                l = l.end(Outcome::Unpaid, &HERE);
            }
        }
        assert!((10..60).contains(&spun), "{spun}");
    }

    #[test]
    fn what_is_tried_in_vain_is_tried_ever_more_seldom() {
        let mut l = Learnt::off(0, 0);
        let mut tried = Vec::new();
        for wait in 0_u32..8_000 {
            let (n, next) = l.begin(Mode::Auto, &HERE);
            l = next;
            if n > 0 {
                assert_eq!(n, HERE.retry);
                tried.push(wait);
                l = l.end(Outcome::Unpaid, &HERE);
            }
        }
        let gaps: Vec<_> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[..5], [128, 256, 512, 1024, 1024]);
        // One that pays is enough, and what ends later is tried again as soon as ever.
        l = l.end(Outcome::Paid(1_000), &HERE);
        assert!(l.begin(Mode::Auto, &HERE).0 > 0);
        while l.begin(Mode::Auto, &HERE).0 > 0 {
            l = l.end(Outcome::Unpaid, &HERE);
        }
        let waits = (0..200).take_while(|_| {
            let (n, next) = l.begin(Mode::Auto, &HERE);
            l = next;
            n == 0
        });
        assert_eq!(waits.count(), RETRY_AFTER as usize - 2);
    }

    #[test]
    fn who_begins_takes_over_what_others_know_but_not_their_patience() {
        assert_eq!(Learnt::default().inherited(), Learnt::default());
        assert_eq!(Learnt::new(30_000, 0).inherited(), Learnt::new(30_000, 0));
        for off in [Learnt::off(0, 0), Learnt::off(4, 900)] {
            let tried = (0..).scan(off.inherited(), |l, _| {
                let (n, next) = l.begin(Mode::Auto, &HERE);
                *l = next;
                Some(n)
            });
            let waits = u32::try_from(tried.take_while(|n| *n == 0).count());
            assert!(waits.is_ok_and(|waits| (RETRY_AFTER - 2..RETRY_AFTER).contains(&waits)));
        }
    }

    #[test]
    fn a_spinner_that_is_preempted_again_and_again_stops_soon() {
        let mut l = Learnt::default().begin(Mode::Auto, &HERE).1;
        l = l.end(Outcome::Preempted, &HERE);
        assert!(l.begin(Mode::Auto, &HERE).0 > 0, "once means nothing");
        l = l.end(Outcome::Preempted, &HERE);
        assert_eq!(l.begin(Mode::Auto, &HERE).0, 0);
    }

    #[test]
    fn a_floor_that_rises_turns_a_budget_off_for_no_longer_than_others() {
        let higher = Lengths::near(30_000);
        let mut l = Learnt::new(HERE.floor * 2, 0);
        let waits = (0..200).take_while(|_| {
            let (n, next) = l.begin(Mode::Auto, &higher);
            l = next;
            n == 0
        });
        assert!(waits.count() < RETRY_AFTER as usize);
    }

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

    /// Two on one machine: each tries for itself, and a try outlasts two wake-ups.
    #[test]
    fn two_who_sleep_come_to_spin_where_a_wake_up_takes_long() {
        for wake in [3_000, 30_000, 100_000] {
            let near = Lengths::near(wake);
            let mut sides = [Learnt::off(0, 0), Learnt::off(0, 20)];
            let mut spins = [false; 2];
            for round in 0..500 {
                let me = round % 2;
                let (budget, next) = sides[me].begin(Mode::Auto, &near);
                let took = if spins[1 - me] { 1_000 } else { 2 * wake + 1_000 };
                spins[me] = budget > took;
                let outcome = if spins[me] { Outcome::Paid(took) } else { Outcome::Unpaid };
                sides[me] = if budget > 0 { next.end(outcome, &near) } else { next };
            }
            assert_eq!(spins, [true; 2], "{wake}");
        }
    }

    /// Two machines that answer each other. Who sleeps is woken after `WAKE`, who spins hears at once.
    #[test]
    fn two_who_sleep_come_to_spin_whoever_tries_first() {
        const WAKE: Nanos = 175_000;
        let far = Lengths::far(2 * WAKE);
        let asleep = |skipped| Learnt::new(1, skipped);
        for ahead in 0..RETRY_AFTER {
            let mut sides = [asleep(0), asleep(ahead)];
            let mut spins = [false; 2];
            for round in 0..500 {
                let me = round % 2;
                let (budget, next) = sides[me].begin(Mode::Auto, &far);
                // The other one is woken, if it has to be, before it answers.
                let took = if spins[1 - me] { 1_000 } else { WAKE };
                let found = budget > took;
                let outcome = if found { Outcome::Paid(took) } else { Outcome::Unpaid };
                sides[me] = if budget > 0 { next.end(outcome, &far) } else { next };
                spins[me] = found;
            }
            assert_eq!(spins, [true; 2], "one was {ahead} waits ahead of the other");
        }
    }
}

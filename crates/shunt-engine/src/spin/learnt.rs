//! Whether spins pay for one receiver, and for how long.

use super::{Lengths, Mode, Nanos};

/// After so many sleeps without a spin, one is tried again at the soonest. How often that is doubled is a matter of how many spins
/// were in vain, and how many paid ([`Learnt`]).
const RETRY_AFTER: u32 = 4;
/// Most often.
const MOST_DOUBLED: u32 = 8;
/// Where nothing is known.
const DOUBLED_AT_FIRST: u32 = 3;
/// Spins that pay, for it to be doubled once less.
const PAID_FOR_LESS: u32 = 16;

/// What one receiver (a connection's direction or a completion vector) has learnt. Packed in one word so that it can lie in shared
/// memory.
///
/// Where spins pay: the budget in nanoseconds; then for how long spins will be left out, should they be in vain (as a power of two,
/// `doubled`), how many paid since that changed, and in how many, in a row, the processor was lost. Where they do not: `doubled` in
/// place of the budget, and above it the number of waits without a spin.
///
/// One receiver who has had answers at once a thousand times, and goes to sleep since the other side was interrupted, tries again
/// soon. Another one, whose spins are mostly in vain, does so seldom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Learnt(pub u32);

/// How a spin ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Work came after so many nanoseconds.
    Paid(Nanos),
    /// Nothing came.
    Unpaid,
    /// The processor was taken away in between: it says nothing of what was waited for, but may be wanted again soon.
    Preempted,
    /// It was offered, and taken: others want it.
    Taken,
}

/// Spins in a row in which the processor was taken away, after which there are none for a while. Each may be a moment of another
/// program, or of another machine on the same host; and the other side, which has gone to sleep meanwhile, has to be waited for
/// in the next one.
const PREEMPTED_AT_MOST: u32 = 3;

const BUDGET_BITS: u32 = 21;
const BUDGET_MASK: u32 = (1 << BUDGET_BITS) - 1;
const DOUBLED_BITS: u32 = 4;
const PAID_BITS: u32 = 5;
const _: () = assert!((RETRY_AFTER << MOST_DOUBLED) < 1 << (32 - BUDGET_BITS));
const _: () = assert!(MOST_DOUBLED < 1 << DOUBLED_BITS && PAID_FOR_LESS <= 1 << PAID_BITS);
const _: () = assert!(PREEMPTED_AT_MOST <= 1 << (32 - BUDGET_BITS - DOUBLED_BITS - PAID_BITS));

/// [`Learnt`] in its parts.
#[derive(Clone, Copy, Debug)]
enum Parts {
    /// Spins pay.
    On { budget: Nanos, doubled: u32, paid: u32, preempted: u32 },
    /// They do not.
    Off { doubled: u32, skipped: u32 },
}

impl Learnt {
    fn parts(self) -> Parts {
        let (budget, above) = (self.0 & BUDGET_MASK, self.0 >> BUDGET_BITS);
        if budget <= MOST_DOUBLED {
            return Parts::Off { doubled: budget, skipped: above };
        }
        let (doubled, above) = (above & ((1 << DOUBLED_BITS) - 1), above >> DOUBLED_BITS);
        let (paid, preempted) = (above & ((1 << PAID_BITS) - 1), above >> PAID_BITS);
        Parts::On { budget: budget.into(), doubled: doubled.min(MOST_DOUBLED), paid, preempted }
    }

    fn on(budget: Nanos, doubled: u32, paid: u32, preempted: u32) -> Self {
        let budget = u32::try_from(budget).unwrap_or(BUDGET_MASK);
        let budget = budget.clamp(MOST_DOUBLED + 1, BUDGET_MASK);
        Self(budget | (doubled | (paid | preempted << PAID_BITS) << DOUBLED_BITS) << BUDGET_BITS)
    }

    fn off(doubled: u32, skipped: u32) -> Self {
        let doubled = doubled.min(MOST_DOUBLED);
        // 0 is the word that has learnt nothing.
        Self(doubled | if doubled == 0 { skipped.max(1) } else { skipped } << BUDGET_BITS)
    }

    /// What one that begins is to take over: whether spins pay, and for how long; but it tries them as soon as any other.
    #[must_use]
    pub fn inherited(self) -> Self {
        match self.parts() {
            _ if self.0 == 0 => self,
            Parts::On { budget, .. } => Self::on(budget, DOUBLED_AT_FIRST, 0, 0),
            Parts::Off { doubled, .. } => Self::off(doubled.min(DOUBLED_AT_FIRST + 1), 0),
        }
    }

    /// How long to spin now, and what to remember about it. A word of 0 is one that has learnt
    /// nothing yet.
    #[must_use]
    pub fn begin(self, mode: Mode, lengths: &Lengths) -> (Nanos, Self) {
        let Lengths { first, retry, floor, .. } = *lengths;
        match (mode, self.parts()) {
            (Mode::Never, _) => (0, self),
            (Mode::Fixed(n), _) => (n, self),
            (Mode::Auto, _) if self.0 == 0 => (first, Self::on(first, DOUBLED_AT_FIRST, 0, 0)),
            (Mode::Auto, Parts::On { budget, .. }) if budget >= floor => (budget, self),
            // It has come below the floor as that rose.
            (Mode::Auto, Parts::On { doubled, .. }) => (0, Self::off(doubled, 1)),
            (Mode::Auto, Parts::Off { doubled, skipped }) => {
                if skipped + 1 >= RETRY_AFTER << doubled {
                    (retry, Self::off(doubled + 1, 0))
                } else {
                    (0, Self::off(doubled, skipped + 1))
                }
            }
        }
    }

    /// Learns from how the spin ended.
    #[must_use]
    pub fn end(self, outcome: Outcome, lengths: &Lengths) -> Self {
        let Lengths { floor, most, .. } = *lengths;
        let (budget, doubled, paid, preempted) = match self.parts() {
            Parts::On { budget, doubled, paid, preempted } => (budget, doubled, paid, preempted),
            // One that was tried, for which it was doubled.
            Parts::Off { doubled, .. } => (0, doubled.saturating_sub(1), 0, 0),
        };
        let shrunk = |budget| {
            if budget < floor {
                Self::off(doubled + 1, 0)
            } else {
                Self::on(budget, doubled, paid, preempted)
            }
        };
        match outcome {
            // A few times what it took leaves room for the usual spread; slow to shrink, quick to grow.
            Outcome::Paid(took) => {
                let wanted = (took * 4).clamp(floor * 4, most);
                let enough = (took * 2).min(most);
                let budget = (budget * 3 + wanted).div_ceil(4).max(wanted.min(budget)).max(enough);
                let (doubled, paid) = if paid + 1 < PAID_FOR_LESS {
                    (doubled, paid + 1)
                } else {
                    (doubled.saturating_sub(1), 0)
                };
                Self::on(budget, doubled, paid, 0)
            }
            // For how long it is not tried again is known already.
            _ if budget == 0 => self,
            Outcome::Unpaid => shrunk(budget * 3 / 4),
            Outcome::Taken => shrunk(budget / 4),
            Outcome::Preempted if preempted + 1 >= PREEMPTED_AT_MOST => shrunk(0),
            Outcome::Preempted => Self::on(budget, doubled, paid, preempted + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Waits until a spin is tried.
    fn left_out(mut l: Learnt) -> u32 {
        let waits = (0..5_000).take_while(|_| {
            let (n, next) = l.begin(Mode::Auto, &HERE);
            l = next;
            n == 0
        });
        u32::try_from(waits.count()).expect("a few")
    }

    /// It spins in vain until it does not any more.
    fn in_vain(mut l: Learnt) -> Learnt {
        while let (1.., next) = l.begin(Mode::Auto, &HERE) {
            l = next.end(Outcome::Unpaid, &HERE);
        }
        l
    }

    #[test]
    fn what_is_tried_in_vain_is_tried_ever_more_seldom() {
        let mut l = in_vain(Learnt::default());
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
        assert_eq!((tried[0], &gaps[..5]), (63, &[128, 256, 512, 1024, 1024][..]));
        // One that pays is enough for others to follow, but not to be tried much sooner when those are in vain.
        l = l.end(Outcome::Paid(1_000), &HERE);
        assert!(l.begin(Mode::Auto, &HERE).0 > 0);
        assert_eq!(left_out(in_vain(l)), 1023);
    }

    #[test]
    fn what_has_paid_often_is_tried_again_soon() {
        let often = |times| {
            (0..times).fold(Learnt::default(), |l: Learnt, _| {
                l.begin(Mode::Auto, &HERE).1.end(Outcome::Paid(500), &HERE)
            })
        };
        let waits = [8, 16, 32, 48, 1_000].map(|times| left_out(in_vain(often(times))));
        assert_eq!(waits, [63, 31, 15, 7, 7]);
        // Those that are interrupted or in vain now and then do not count against it.
        let mut l = often(1_000);
        for _ in 0..100 {
            l = l.end(Outcome::Unpaid, &HERE).end(Outcome::Preempted, &HERE);
            l = (0..5).fold(l, |l, _| l.end(Outcome::Paid(500), &HERE));
        }
        assert_eq!(left_out(in_vain(l)), 7);
    }

    #[test]
    fn who_begins_takes_over_what_others_know_but_not_their_patience() {
        let inherited = Learnt::default().begin(Mode::Auto, &HERE).1;
        assert_eq!(Learnt::default().inherited(), Learnt::default());
        assert_eq!(Learnt::on(HERE.first, 0, 7, 2).inherited(), inherited);
        assert_eq!(Learnt::on(HERE.first, MOST_DOUBLED, 7, 2).inherited(), inherited);
        let off = |doubled| left_out(Learnt::off(doubled, 900).inherited());
        assert_eq!([0, 1, 4, 8].map(off), [2, 7, 63, 63]);
    }

    #[test]
    fn a_spinner_that_is_preempted_again_and_again_stops_soon() {
        let began = Learnt::default().begin(Mode::Auto, &HERE).1;
        let budget = |l: Learnt| l.begin(Mode::Auto, &HERE).0;
        let lost = |l: Learnt| l.end(Outcome::Preempted, &HERE);
        let (once, twice) = (lost(began), lost(lost(began)));
        assert_eq!((budget(once), budget(twice)), (HERE.first, HERE.first), "twice means nothing");
        assert_eq!(budget(lost(twice)), 0);
        // Also where others were in vain between them; but one that paid ends the row.
        assert_eq!(budget(lost(twice.end(Outcome::Unpaid, &HERE))), 0);
        let paid = twice.end(Outcome::Paid(500), &HERE);
        assert!(budget(lost(lost(paid))) > 0 && budget(lost(lost(lost(paid)))) == 0);
    }

    #[test]
    fn a_spinner_whose_processor_others_take_stops_soon() {
        let began = Learnt::default().begin(Mode::Auto, &HERE).1;
        let once = began.end(Outcome::Taken, &HERE);
        assert!((1..=HERE.first / 4).contains(&once.begin(Mode::Auto, &HERE).0));
        assert_eq!(once.end(Outcome::Taken, &HERE).begin(Mode::Auto, &HERE).0, 0);
    }

    /// Two who answer each other at once, and lose a processor now and then: who waits for the other's answer meanwhile goes to
    /// sleep, so the one who was interrupted has to outlast a wake-up in its next spin.
    #[test]
    fn two_who_spin_go_on_when_one_of_them_is_interrupted() {
        let near = Lengths::near(40_000);
        for how_often in [50, 500] {
            let mut sides = [Learnt::default(); 2];
            let (mut is_asleep, mut slept) = (false, 0);
            for round in 0..10_000 {
                let me = round % 2;
                let (budget, next) = sides[me].begin(Mode::Auto, &near);
                let took = if is_asleep { 60_000 } else { 1_000 };
                let is_lost = round % how_often == 7 && budget > 0;
                let outcome = match budget > took {
                    _ if is_lost => Outcome::Preempted,
                    true => Outcome::Paid(took),
                    false => Outcome::Unpaid,
                };
                sides[me] = if budget > 0 { next.end(outcome, &near) } else { next };
                // The other one does not wait for so long.
                is_asleep = is_lost || budget <= took;
                slept += u32::from(is_asleep);
            }
            assert!(
                slept <= 10_000 / u32::try_from(how_often).expect("small") * 3,
                "{how_often}: {slept}"
            );
        }
    }

    #[test]
    fn a_floor_that_rises_turns_a_budget_off_for_no_longer_than_others() {
        let higher = Lengths::near(30_000);
        let mut l = Learnt::on(HERE.floor * 2, DOUBLED_AT_FIRST, 0, 0);
        let waits = (0..200).take_while(|_| {
            let (n, next) = l.begin(Mode::Auto, &higher);
            l = next;
            n == 0
        });
        assert!(waits.count() < (RETRY_AFTER << DOUBLED_AT_FIRST) as usize);
    }

    /// Two on one machine: each tries for itself, and a try outlasts two wake-ups.
    #[test]
    fn two_who_sleep_come_to_spin_where_a_wake_up_takes_long() {
        for wake in [3_000, 30_000, 100_000] {
            let near = Lengths::near(wake);
            let mut sides = [Learnt::off(4, 0), Learnt::off(4, 20)];
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
        let asleep = |skipped| Learnt::off(4, skipped);
        for ahead in 0..RETRY_AFTER << 4 {
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

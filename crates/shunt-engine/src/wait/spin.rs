//! The loops in which a thread spins, or gives the processor away.

use shunt_shm::sync::{AtomicU32, Ordering};

use crate::spin::{
    Given, Habit, KEPT, Learnt, Lengths, Mode, NOBODY, Nanos, Offers, Outcome, WakeUp, Yielding,
};
use crate::wait::crowd::{self, Place};
use crate::wait::ports::{Spared, Spinner, Spun, Way};
use crate::wait::stopwatch::Spell;

/// Looks between two looks at the clock.
const LOOKS: u32 = 16;

/// [`Spinner::far_answer`] before it was measured.
const FAR_GUESS: u32 = 200_000;
/// What takes longer was no answer, or one for which nobody spins.
const FAR_MOST: Nanos = 2_000_000;

/// This process has a link group with another machine: from now on longer spins pay.
pub fn far_guess(answer: &AtomicU32) {
    let _ = answer.compare_exchange(0, FAR_GUESS, Ordering::Relaxed, Ordering::Relaxed);
}

/// A wait that began at `since` has come to something after a sleep: what spins are worth is learnt from it.
pub fn learn(host: &impl Spinner, since: Nanos) {
    let known = host.far_answer().load(Ordering::Relaxed);
    if known == 0 {
        return;
    }
    let took = host.now().saturating_sub(since);
    if took <= FAR_MOST {
        let known = u64::from(known);
        // Rather what the longer ones take: sleeps end for other reasons, too, and a trial that is too short is for nothing.
        let learnt = if took > known {
            known + (took - known).div_ceil(4)
        } else {
            known - (known - took) / 16
        };
        let learnt = u32::try_from(learnt).unwrap_or(FAR_GUESS);
        host.far_answer().store(learnt, Ordering::Relaxed);
    }
}

/// A thread of this process runs, so long after somebody began to wake it.
pub fn learn_wake_up(host: &impl Spinner, way: Way, took: Nanos) {
    let known = WakeUp(host.wake_up(way).load(Ordering::Relaxed));
    let learnt = known.learn(took);
    if learnt != known {
        host.wake_up(way).store(learnt.0, Ordering::Relaxed);
    }
}

/// How long spins are that spare a sleep of this kind.
fn lengths(host: &impl Spinner, way: Way) -> Lengths {
    match host.far_answer().load(Ordering::Relaxed) {
        0 => Lengths::near(WakeUp(host.wake_up(way).load(Ordering::Relaxed)).nanos()),
        answer => Lengths::far(answer.into()),
    }
}

/// True when spins may be longer than the precision of a timeout, so that they have to heed it.
pub fn is_long(host: &impl Spinner) -> bool {
    matches!(host.mode(), Mode::Fixed(n) if n >= 1_000_000)
}

/// The least spin of a thread beside which others sleep in the same set. A message wakes one of those, also where the spinner
/// takes it, and that one is in the way of whoever is to answer: so it outlasts this, too.
const SHARED_LEAST: Nanos = 20_000;

/// Spins until `found`, for as long as it pays as `learnt` knows it, and not beyond the deadline.
#[inline]
pub fn spin(
    host: &impl Spinner,
    spared: impl Into<Spared>,
    learnt: &AtomicU32,
    deadline: Option<Nanos>,
    mut found: impl FnMut() -> bool,
) -> Spun {
    let Spared { way, is_shared } = spared.into();
    let is_shared = is_shared
        && host.mode() == Mode::Auto
        && !host.has_one_processor()
        // Spins for other machines are too long to offer nothing meanwhile.
        && host.far_answer().load(Ordering::Relaxed) == 0
        && !are_wanted(host, host.now());
    let lengths = lengths(host, way);
    if rest(host, if is_shared { TURN } else { RESTS_AFTER }) {
        return Spun::Not;
    }
    let (budget, after) = Learnt(learnt.load(Ordering::Relaxed)).begin(host.mode(), &lengths);
    if budget == 0 {
        learnt.store(after.0, Ordering::Relaxed);
        return Spun::Not;
    }
    let (spun, outcome) = if is_shared {
        // Those who take the processor are mostly the others: that says nothing of who else wants it.
        run(host, budget.max(SHARED_LEAST), &lengths, None, deadline, &mut found)
    } else {
        run(host, budget, &lengths, first_offer(host, &lengths), deadline, &mut found)
    };
    learnt.store(after.end(outcome, &lengths).0, Ordering::Relaxed);
    spun
}

/// Spins until `found`, for as long as `patience`, where that is what mostly pays.
pub fn spin_patiently(
    host: &impl Spinner,
    habit: &AtomicU32,
    patience: Nanos,
    mut found: impl FnMut() -> bool,
) -> Spun {
    let patience = match host.mode() {
        Mode::Auto => patience,
        Mode::Never => 0,
        Mode::Fixed(n) => patience.min(n),
    };
    let (wait, after) = Habit(habit.load(Ordering::Relaxed)).begin();
    if patience == 0 || !wait {
        habit.store(after.0, Ordering::Relaxed);
        return Spun::Not;
    }
    let lengths = lengths(host, Way::Futex);
    let offer_after = first_offer(host, &lengths);
    let (spun, outcome) = run(host, patience, &lengths, offer_after, None, &mut found);
    habit.store(after.end(matches!(outcome, Outcome::Paid(_))).0, Ordering::Relaxed);
    spun
}

/// Longest time of giving the processor away while nobody wants it.
const ALONE_FOR: Nanos = 30_000;
/// Longest time of giving it away altogether.
const YIELD_FOR: Nanos = 200_000;

/// Gives the processor away, and looks whenever it is given back, as long as that pays in this process.
/// Only without an own choice of the user's about spinning, and not where there is one processor: a sleep gives it to whoever is to answer as
/// well, and costs no wait for an interrupt, while a scheduler lets those who yield wait for longer. Returns when it had been given back with something found.
pub fn give_way(host: &impl Spinner, mut found: impl FnMut() -> bool) -> Option<Nanos> {
    if host.mode() != Mode::Auto || host.has_one_processor() {
        return None;
    }
    let learnt = host.yields();
    let (go, after) = Yielding(learnt.load(Ordering::Relaxed)).begin();
    if !go {
        learnt.store(after.0, Ordering::Relaxed);
        return None;
    }
    let began = host.now();
    let (mut last, mut alone) = (began, 0);
    let (mut is_found, mut is_traded) = (false, false);
    let (given, ended) = loop {
        host.give_way();
        is_found |= found();
        let now = host.now();
        let took = now - last;
        if took < NOBODY {
            alone += took;
        } else {
            is_traded = true;
        }
        if took > KEPT {
            break (Given::Kept, now);
        }
        if is_found {
            break (if is_traded { Given::Traded } else { Given::Paid }, now);
        }
        if alone > ALONE_FOR || now - began > YIELD_FOR {
            break (Given::Unpaid, now);
        }
        last = now;
    };
    learnt.store(after.end(given).0, Ordering::Relaxed);
    is_found.then_some(ended)
}

/// A thread that always finds something lets others have its processor so often.
const RESTS_AFTER: Nanos = 600_000;
/// The same while others want processors.
const TURN: Nanos = 150_000;

/// Whether others want processors of late ([`Offers`]).
fn are_wanted(host: &impl Spinner, now: Nanos) -> bool {
    Offers(host.offers().load(Ordering::Relaxed)).are_wanted(now)
}

/// Two who answer each other at once need not ever sleep, and so keep their processors for a slice of some milliseconds each
/// time, while others wait. So they offer them each time they have held them for `most`, or sleep where they are wanted. True when
/// it is to sleep.
#[inline]
fn rest(host: &impl Spinner, most: Nanos) -> bool {
    let now = host.now();
    let held = now.saturating_sub(host.rested());
    if held < TURN || host.mode() != Mode::Auto {
        return false;
    }
    let are_wanted = are_wanted(host, now);
    if are_wanted {
        host.rests(now);
    } else if held >= most {
        offer(host, now);
    }
    are_wanted
}

/// Offers the processor to others; when it was back.
pub(super) fn offer(host: &impl Spinner, now: Nanos) -> Nanos {
    host.give_way();
    let back = host.now();
    host.rests(back);
    let word = host.offers();
    let known = Offers(word.load(Ordering::Relaxed));
    let learnt = known.end(back, back - now);
    if learnt != known {
        word.store(learnt.0, Ordering::Relaxed);
    }
    back
}

/// A spin that lasts longer than this takes one of the [places](Spinner::spinners). One that lasts longer than the sleep that it
/// spares, too, offers the processor now and then: the one that is to answer may be waiting for it, or somebody else.
const LONG: Nanos = 10_000;

/// When a spin offers the processor for the first time, in nanoseconds from its beginning.
fn first_offer(host: &impl Spinner, lengths: &Lengths) -> Option<Nanos> {
    (host.mode() == Mode::Auto).then(|| LONG.max(lengths.spared()))
}

/// The loop: how it went, and what is to be learnt from it.
fn run(
    host: &impl Spinner,
    budget: Nanos,
    lengths: &Lengths,
    offer_after: Option<Nanos>,
    deadline: Option<Nanos>,
    found: &mut impl FnMut() -> bool,
) -> (Spun, Outcome) {
    let began = host.now();
    let mut last = began;
    let mut is_found = false;
    let mut place: Option<Place<'_>> = None;
    let mut next_offer = offer_after.map(|after| began + after);
    let (outcome, to) = loop {
        for _ in 0..LOOKS {
            if found() {
                is_found = true;
                break;
            }
            core::hint::spin_loop();
        }
        let now = host.now();
        if now - last > lengths.preempted {
            break (Outcome::Preempted, now);
        }
        if is_found {
            break (Outcome::Paid(now - began), now);
        }
        if now - began > budget || deadline.is_some_and(|d| now >= d) {
            break (Outcome::Unpaid, now);
        }
        if let Some(place) = &place {
            place.renew(now);
        } else if now - began > LONG {
            place = crowd::enter(host.spinners(), now);
            if place.is_none() {
                break (Outcome::Unpaid, now);
            }
        }
        last = now;
        if next_offer.is_some_and(|at| now >= at) {
            if are_wanted(host, now) {
                break (Outcome::Taken, now);
            }
            last = offer(host, now);
            if last - now >= NOBODY {
                is_found = found();
                break (Outcome::Taken, last);
            }
            // The longer it waits the rarer: where nobody wants it, it costs some time each time.
            next_offer = Some(last + (last - began));
        }
    };
    let spell = Spell { from: began, to };
    (if is_found { Spun::Found(spell) } else { Spun::Vain(spell) }, outcome)
}

//! The one spin loop: of blocking calls, poll and epoll.

use shunt_engine::spin::{Given, Habit, KEPT, Learnt, Lengths, Mode, Outcome, Yielding};

use shunt_shm::sync::{AtomicU32, Ordering};
use shunt_wire::counter::Counter;

use crate::control::endpoint;
use crate::knobs::{self, Spin};
use crate::system::clock;

/// Looks between two looks at the clock.
const LOOKS: u32 = 16;

/// How a spin ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// There was none: it does not pay here.
    Not,
    /// Work came.
    Found,
    /// Nothing came.
    Vain,
}

impl Spun {
    /// Counts it among the endpoint's spins.
    pub fn count(self) {
        match self {
            Self::Not => {}
            Self::Found => endpoint::count(Counter::SpinsPaid, 1),
            Self::Vain => endpoint::count(Counter::SpinsUnpaid, 1),
        }
    }
}

/// How long an answer from another machine takes to come to one who sleeps, in nanoseconds, as this process has measured
/// it: an interrupt of a virtual machine, and the host's scheduler, either way. 0 before it has a link group with another machine.
static FAR_ANSWER: AtomicU32 = AtomicU32::new(0);
/// Before it was measured.
const FAR_GUESS: u32 = 200_000;
/// What takes longer was no answer, or one for which nobody spins.
const FAR_MOST: u64 = 2_000_000;

/// This process has a link group with another machine: from now on longer spins pay.
pub fn reaches_far() {
    let _ = FAR_ANSWER.compare_exchange(0, FAR_GUESS, Ordering::Relaxed, Ordering::Relaxed);
}

/// A wait that began at `since` has come to something after a sleep: what spins are worth is learnt from it.
pub fn slept(since: u64) {
    let known = FAR_ANSWER.load(Ordering::Relaxed);
    if known == 0 {
        return;
    }
    let took = clock::now().saturating_sub(since);
    if took <= FAR_MOST {
        let known = u64::from(known);
        // Rather what the longer ones take: sleeps end for other reasons, too, and a trial that is too short is for nothing.
        let learnt = if took > known {
            known + (took - known).div_ceil(4)
        } else {
            known - (known - took) / 16
        };
        FAR_ANSWER.store(u32::try_from(learnt).unwrap_or(FAR_GUESS), Ordering::Relaxed);
    }
}

fn lengths() -> Lengths {
    match FAR_ANSWER.load(Ordering::Relaxed) {
        0 => Lengths::LOCAL,
        answer => Lengths::far(answer.into()),
    }
}

/// The knob as the core knows it.
fn mode() -> Mode {
    match knobs::get().spin {
        Spin::Auto => Mode::Auto,
        Spin::Never | Spin::Micros(0) => Mode::Never,
        Spin::Micros(n) => Mode::Fixed(u64::from(n) * 1000),
    }
}

/// True when spins may be longer than the precision of a timeout, so that they have to heed it.
pub fn is_long() -> bool {
    matches!(mode(), Mode::Fixed(n) if n >= 1_000_000)
}

/// Spins until `found`, for as long as it pays as `learnt` knows it, and not beyond the deadline.
#[inline]
pub fn spin(learnt: &AtomicU32, deadline: Option<u64>, mut found: impl FnMut() -> bool) -> Spun {
    let lengths = lengths();
    let (budget, after) = Learnt(learnt.load(Ordering::Relaxed)).begin(mode(), &lengths);
    if budget == 0 {
        learnt.store(after.0, Ordering::Relaxed);
        return Spun::Not;
    }
    let (is_found, outcome) = run(budget, &lengths, deadline, &mut found);
    learnt.store(after.end(outcome, &lengths).0, Ordering::Relaxed);
    if is_found { Spun::Found } else { Spun::Vain }
}

/// Spins until `found`, for as long as `patience` (nanoseconds), where that is what mostly pays.
pub fn spin_patiently(habit: &AtomicU32, patience: u64, mut found: impl FnMut() -> bool) -> Spun {
    let patience = match mode() {
        Mode::Auto => patience,
        Mode::Never => 0,
        Mode::Fixed(n) => patience.min(n),
    };
    let (wait, after) = Habit(habit.load(Ordering::Relaxed)).begin();
    if patience == 0 || !wait {
        habit.store(after.0, Ordering::Relaxed);
        return Spun::Not;
    }
    let (is_found, outcome) = run(patience, &lengths(), None, &mut found);
    habit.store(after.end(matches!(outcome, Outcome::Paid(_))).0, Ordering::Relaxed);
    if is_found { Spun::Found } else { Spun::Vain }
}

/// Longest time, in nanoseconds, of giving the processor away while nobody wants it.
const ALONE_FOR: u64 = 30_000;
/// A yield that takes less has found nobody.
const NOBODY: u64 = 2_000;
/// Longest time of giving it away altogether.
const YIELD_FOR: u64 = 200_000;

/// Gives the processor away, and looks whenever it is given back, as long as that pays in this process.
/// Only without an own choice of the user's about spinning.
pub fn yield_until(mut found: impl FnMut() -> bool) -> bool {
    static LEARNT: AtomicU32 = AtomicU32::new(0);
    if mode() != Mode::Auto {
        return false;
    }
    let (go, after) = Yielding(LEARNT.load(Ordering::Relaxed)).begin();
    if !go {
        LEARNT.store(after.0, Ordering::Relaxed);
        return false;
    }
    let began = clock::now();
    let (mut last, mut alone) = (began, 0);
    let (mut is_found, mut is_traded) = (false, false);
    let given = loop {
        rustix::thread::sched_yield();
        is_found |= found();
        let now = clock::now();
        let took = now - last;
        if took < NOBODY {
            alone += took;
        } else {
            is_traded = true;
        }
        if took > KEPT {
            break Given::Kept;
        }
        if is_found {
            break if is_traded { Given::Traded } else { Given::Paid };
        }
        if alone > ALONE_FOR || now - began > YIELD_FOR {
            break Given::Unpaid;
        }
        last = now;
    };
    LEARNT.store(after.end(given).0, Ordering::Relaxed);
    is_found
}

/// The loop: whether it was found, and what is to be learnt from it.
fn run(
    budget: u64,
    lengths: &Lengths,
    deadline: Option<u64>,
    found: &mut impl FnMut() -> bool,
) -> (bool, Outcome) {
    let began = clock::now();
    let mut last = began;
    let mut is_found = false;
    let outcome = loop {
        for _ in 0..LOOKS {
            if found() {
                is_found = true;
                break;
            }
            core::hint::spin_loop();
        }
        let now = clock::now();
        if now - last > lengths.preempted {
            break Outcome::Preempted;
        }
        if is_found {
            break Outcome::Paid(now - began);
        }
        if now - began > budget || deadline.is_some_and(|d| now >= d) {
            break Outcome::Unpaid;
        }
        last = now;
    };
    (is_found, outcome)
}

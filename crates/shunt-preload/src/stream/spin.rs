//! The one spin loop: of blocking calls, poll and epoll.

use core::sync::atomic::AtomicBool;
use shunt_core::spin::{Given, Habit, KEPT, Learnt, Mode, Outcome, PREEMPTED, Yielding};

use shunt_shm::sync::{AtomicU32, Ordering};
use shunt_wire::counter::Counter;

use crate::clock;
use crate::endpoint;
use crate::knobs::{self, Spin};

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

/// True once this process has a link group with another machine.
static FAR: AtomicBool = AtomicBool::new(false);

/// How much longer a sleep and a wake-up take there, as a power of two: the ring goes through two agents, an interrupt of
/// a virtual machine, and the host's scheduler. Not more, where machines have to share processors: who spins takes one from
/// the machine that is to answer.
const FAR_SHIFT: u32 = 4;

/// This process has a link group with another machine: from now on longer spins pay.
pub fn reaches_far() {
    FAR.store(true, Ordering::Relaxed);
}

fn shift() -> u32 {
    if FAR.load(Ordering::Relaxed) { FAR_SHIFT } else { 0 }
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
    let (budget, after) = Learnt(learnt.load(Ordering::Relaxed)).begin(mode());
    if budget == 0 {
        learnt.store(after.0, Ordering::Relaxed);
        return Spun::Not;
    }
    let shift = if mode() == Mode::Auto { shift() } else { 0 };
    let (is_found, outcome) = run(budget << shift, deadline, &mut found);
    let outcome = match outcome {
        Outcome::Paid(took) => Outcome::Paid(took >> shift),
        other => other,
    };
    learnt.store(after.end(outcome).0, Ordering::Relaxed);
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
    let (is_found, outcome) = run(patience, None, &mut found);
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
    let mut is_found = false;
    let given = loop {
        rustix::thread::sched_yield();
        is_found |= found();
        let now = clock::now();
        let took = now - last;
        if took < NOBODY {
            alone += took;
        }
        if took > KEPT {
            break Given::Kept;
        }
        if is_found {
            break Given::Paid;
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
fn run(budget: u64, deadline: Option<u64>, found: &mut impl FnMut() -> bool) -> (bool, Outcome) {
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
        if now - last > PREEMPTED << shift() {
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

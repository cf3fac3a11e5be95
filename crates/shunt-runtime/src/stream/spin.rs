//! The spins of this process's threads, in blocking calls, poll and epoll; the loops are the
//! engine's.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use shunt_engine::spin::{Mode, WakeUp};
use shunt_engine::wait::{self, Spared, Spinner, Way};
use shunt_shm::sync::{AtomicU32, AtomicU64};
use shunt_wire::counter::Counter;

pub use shunt_engine::wait::Spun;

use crate::control::endpoint::{self, Endpoint};
use crate::knobs::{self, Spin};
use crate::system::clock;
use crate::system::cores;

/// This process, as one that waits knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThisProcess;

impl Spinner for ThisProcess {
    #[inline]
    fn now(&self) -> u64 {
        clock::now()
    }

    fn mode(&self) -> Mode {
        match knobs::get().spin {
            Spin::Auto => Mode::Auto,
            Spin::Never | Spin::Micros(0) => Mode::Never,
            Spin::Micros(n) => Mode::Fixed(u64::from(n) * 1000),
        }
    }

    fn far_answer(&self) -> &AtomicU32 {
        static FAR_ANSWER: AtomicU32 = AtomicU32::new(0);
        &FAR_ANSWER
    }

    fn wake_up(&self, way: Way) -> &AtomicU32 {
        static TAKES: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
        let which = usize::from(way == Way::Kernel);
        let known = &TAKES[which];
        if known.load(Relaxed) == 0
            && let Some(endpoint) = Endpoint::current()
            && let nanos @ 1.. = endpoint.registry.wake_ups()[which]
        {
            known.store(WakeUp::default().learn(nanos.into()).0, Relaxed);
        }
        known
    }

    fn spinners(&self) -> &[AtomicU64] {
        static PLACES: [AtomicU64; MOST_SPINNERS] = [const { AtomicU64::new(0) }; MOST_SPINNERS];
        // Those at the other end of the connections need processors, too.
        let most = (cores::known() / 2).clamp(1, MOST_SPINNERS);
        &PLACES[..most]
    }

    fn rested(&self) -> u64 {
        RESTED.get()
    }

    fn rests(&self, now: u64) {
        RESTED.set(now);
    }

    fn offers(&self) -> &AtomicU64 {
        static LEARNT: AtomicU64 = AtomicU64::new(0);
        &LEARNT
    }

    fn yields(&self) -> &AtomicU32 {
        static LEARNT: AtomicU32 = AtomicU32::new(0);
        &LEARNT
    }

    fn has_one_processor(&self) -> bool {
        cores::known() == 1
    }

    fn give_way(&self) {
        rustix::thread::sched_yield();
    }
}

thread_local! {
    /// When this thread last slept, or offered its processor.
    static RESTED: Cell<u64> = const { Cell::new(0) };
}

/// Most threads that spin for longer than a moment at a time, on a machine with as many processors as one likes.
const MOST_SPINNERS: usize = 64;

/// Counts a spin among the endpoint's.
pub fn count(spun: Spun) {
    match spun {
        Spun::Not => {}
        Spun::Found(_) => endpoint::count(Counter::SpinsPaid, 1),
        Spun::Vain(_) => endpoint::count(Counter::SpinsUnpaid, 1),
    }
}

/// This process has a link group with another machine: from now on longer spins pay.
pub fn reaches_far() {
    wait::far_guess(ThisProcess.far_answer());
}

/// Spins until `found`, for as long as it pays as `learnt` knows it, and not beyond the deadline.
#[inline]
pub fn spin(
    spared: impl Into<Spared>,
    learnt: &AtomicU32,
    deadline: Option<u64>,
    found: impl FnMut() -> bool,
) -> Spun {
    wait::spin(&ThisProcess, spared, learnt, deadline, found)
}

/// Spins until `found`, for as long as `patience` (nanoseconds), where that is what mostly pays.
pub fn spin_patiently(habit: &AtomicU32, patience: u64, found: impl FnMut() -> bool) -> Spun {
    wait::spin_patiently(&ThisProcess, habit, patience, found)
}

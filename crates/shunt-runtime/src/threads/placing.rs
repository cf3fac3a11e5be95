//! On which processor a thread runs: where those who wake it run, if that is nearly always one other (the engine's
//! [`Placing`] says when).
//!
//! There is no call for that but sched_setaffinity(2). So the thread allows itself the one processor, which takes it there, and right after that every
//! processor again; no handler of the program's runs in between, so nothing that a handler starts inherits the one. A thread whose
//! processors somebody has chosen, by taskset(1) or by a cpuset, stays where it is: only one that may run on all of the machine's
//! goes, and what it is given back is all that there will ever be.

use core::cell::Cell;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use shunt_engine::wait::Placing;
use shunt_shm::region::Side;
use shunt_shm::waker::Waker;
use shunt_sys::scheduling::is_fair;
use shunt_wire::counter::Counter;

use crate::conn::Sock;
use crate::control::endpoint;
use crate::knobs;
use crate::system::clock;
use crate::system::cores;
use crate::system::filter;
use crate::threads::sections;

thread_local! {
    static LEARNT: Cell<Placing> = const { Cell::new(Placing::NEW) };
    /// How often this thread has begun to wake others, and whether it may be followed.
    static WOKE: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// This thread, as one that begins to wake others.
pub fn waker() -> Waker {
    Waker { at: clock::now(), cpu: may_be_followed().then(here) }
}

/// Where a thread of real time runs others may have to wait for as long as that likes, so nobody follows one.
fn may_be_followed() -> bool {
    /// Its policy may change, and is asked for once in so many times.
    const OFTEN: u32 = 1024;
    let (times, known) = WOKE.get();
    let may = if times % OFTEN == 0 { !filter::is_there() && is_fair() } else { known };
    WOKE.set((times.wrapping_add(1), may));
    may
}

/// Whether a thread that waits for this connection alone follows those who wake it. Acceptors do. Connectors do not: a busy server
/// would draw all of its clients to the one processor that it needs itself.
pub fn follows(sock: &Sock) -> bool {
    sock.record().side() == Side::Server
}

/// The processor on which this thread runs.
pub fn here() -> u32 {
    // There are not as many as that.
    u32::try_from(sched_getcpu()).unwrap_or(u32::MAX)
}

/// What this thread has learnt.
#[inline]
pub fn learnt() -> Placing {
    LEARNT.get()
}

/// It has learnt that.
pub fn learn(learnt: Placing) {
    LEARNT.set(learnt);
}

/// It goes to that processor, if it may.
#[cold]
pub fn go_to(processor: u32) {
    if !knobs::get().stay && !filter::is_there() && goes_to(processor as usize) {
        endpoint::count(Counter::ThreadsPlaced, 1);
    }
}

/// Whether this thread has gone there.
fn goes_to(cpu: usize) -> bool {
    let are_all = |set: CpuSet| Some(set.count()) == cores::online();
    if cpu >= CpuSet::MAX_CPU || !is_fair() || !sched_getaffinity(None).is_ok_and(are_all) {
        return false;
    }
    let mut there = CpuSet::new();
    there.set(cpu);
    sections::begin();
    let has_gone = sched_setaffinity(None, &there).is_ok();
    if has_gone {
        // Also those that will be there one day. It cannot fail: the one on which it runs is among them.
        let _ = sched_setaffinity(None, &all());
    }
    sections::end();
    has_gone
}

/// As many processors as there can be.
fn all() -> CpuSet {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    /// Two processors on which this thread may run; `None`: there are no two.
    fn two() -> Option<[usize; 2]> {
        let mine = sched_getaffinity(None).ok()?;
        let mut places = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu));
        Some([places.next()?, places.next()?])
    }

    fn only(cpu: usize) -> CpuSet {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    }

    #[test]
    fn a_thread_that_has_gone_may_run_everywhere_still() {
        let Some(places) = two() else { return };
        assert!(in_child(|| {
            cores::ask();
            let before = sched_getaffinity(None);
            let may_go = before.as_ref().is_ok_and(|set| Some(set.count()) == cores::online());
            // Where others want the processor, it may be taken away again before it looks.
            (0..1000).any(|round| {
                let from = places[round % 2];
                let has_gone = goes_to(from);
                let is_there = sched_getcpu() == from;
                assert_eq!((has_gone, sched_getaffinity(None)), (may_go, before));
                is_there || !may_go
            })
        }));
    }

    #[test]
    fn a_thread_that_was_given_its_processors_stays() {
        let Some([first, second]) = two() else { return };
        assert!(in_child(|| {
            cores::ask();
            let given = only(first);
            sched_setaffinity(None, &given).is_ok()
                && !goes_to(second)
                && sched_getaffinity(None) == Ok(given)
        }));
    }

    #[test]
    fn nobody_follows_a_thread_of_real_time() {
        let Some([first, _]) = two() else { return };
        assert!(in_child(|| {
            cores::ask();
            let is_followed = waker().cpu.is_some();
            WOKE.set((0, false));
            let param = libc::sched_param { sched_priority: 1 };
            // SAFETY: this thread's alone; the parameters are live.
            let is_set =
                unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } == 0;
            // Not without privileges.
            let is_left = || waker().cpu.is_none() && !goes_to(first);
            is_followed != filter::is_there() && (!is_set || is_left())
        }));
    }

    #[test]
    fn where_it_is_not_known_how_many_there_are_nobody_goes() {
        let Some([first, second]) = two() else { return };
        assert!(in_child(|| !goes_to(first) && !goes_to(second) && !goes_to(CpuSet::MAX_CPU)));
    }
}

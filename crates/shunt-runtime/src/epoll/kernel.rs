//! What the kernel has to say to an instance: looks at it, and sleeps in it.

use core::sync::atomic::Ordering;

use shunt_engine::conn::SendPath;
use shunt_engine::conn::poll::KernelReadiness;
use shunt_engine::conn::repeated::are_known;
use shunt_engine::events;

use crate::conn::KERNEL_HINT;
use crate::epoll::instance::{Instance, kernel_event, kernel_event_of_inner};
use crate::epoll::out::{Limits, Out};
use crate::epoll::state::{State, Watch, is_asked_for};
use crate::epoll::{Ours, untag};
use crate::point;
use crate::stream::{tcp, trim};
use crate::system::abi::{c_int, epoll_event, sigset_t};
use crate::system::{clock, errno, next};
use crate::threads::handlers;

/// Longest time that the kernel is not asked while completions keep coming, or while a thread spins for them.
pub const VISIT_AFTER: u64 = 20_000;
/// After so many looks in a row at which the kernel had nothing to tell, a wait does not begin with one.
const SILENT_AFTER: u32 = 16;
/// Looks of one who spins between two looks at the clock.
const LOOKS: u32 = 16;
/// Events that are taken from the kernel at once.
pub const KERNEL_EVENTS: usize = 128;

/// Asks the kernel. Its events of the program go to `out`, those of shunted connections to the ready
/// list. Returns what epoll_pwait2 returned.
pub fn visit(instance: &Instance, out: &mut Out, now: u64, mask: *const sigset_t) -> c_int {
    instance.visited.store(now, Ordering::Relaxed);
    trim::look(now);
    let room = (out.max - out.len).min(KERNEL_EVENTS);
    if room == 0 {
        return 0;
    }
    let mut buffer = [const { epoll_event { events: 0, u64: 0 } }; KERNEL_EVENTS];
    let max = c_int::try_from(room).unwrap_or(1);
    // SAFETY: the buffer has room for `max` events.
    let n = unsafe { next::epoll_pwait(instance.raw(), buffer.as_mut_ptr(), max, 0, mask) };
    point!(epoll_woken);
    if n == 0 {
        let silent = instance.silent.load(Ordering::Relaxed);
        instance.silent.store(silent.saturating_add(1), Ordering::Relaxed);
    }
    take_in(instance, out, &buffer, n);
    n
}

/// True when the kernel was last asked long ago.
pub fn is_due(instance: &Instance, now: u64) -> bool {
    now.saturating_sub(instance.visited.load(Ordering::Relaxed)) >= VISIT_AFTER
}

/// True when all that it watches comes by completions, of late: the kernel's news may wait until it [is asked](is_due).
pub fn is_silent(instance: &Instance) -> bool {
    instance.silent.load(Ordering::Relaxed) >= SILENT_AFTER
}

/// Takes up what it has told.
pub fn take_in(
    instance: &Instance,
    out: &mut Out,
    buffer: &[epoll_event; KERNEL_EVENTS],
    n: c_int,
) {
    let mut locked = None;
    for event in buffer.iter().take(usize::try_from(n).unwrap_or(0)) {
        let (bits, data) = (event.events, event.u64);
        match untag(data) {
            None => {
                instance.silent.store(0, Ordering::Relaxed);
                out.push(*event);
            }
            Some(Ours::Bell(vector)) => instance.was_rung(vector),
            Some(Ours::Agent) => locked.get_or_insert_with(|| instance.lock()).have_lost_agent(),
            Some(Ours::Watch(index)) => {
                let state: &mut State = locked.get_or_insert_with(|| instance.lock());
                take_in_conn(instance, state, index, bits);
            }
        }
    }
}

/// The kernel has news of a shunted connection. Its end is remembered also for one that is parked: it is
/// told once. Bytes are not: where they matter the kernel is asked anyhow.
pub fn take_in_conn(instance: &Instance, state: &mut State, index: usize, bits: u32) {
    let look = state.look;
    if let Some(watch) = state.get(index)
        && bits & !events::OUT != 0
    {
        watch.kernel = KernelReadiness::Told(bits & !events::OUT, look);
        if let Some(conn) = watch.conn.filter(|_| bits & !(events::OUT | events::IN) != 0) {
            conn.conn.put(KERNEL_HINT, true);
        }
    }
    if !instance.is_only_parked(state, index) {
        state.list(index);
    }
}

/// Sleeps so many nanoseconds at the most. What the kernel returned; `None`: there was no sleep.
pub fn sleep(
    epfd: c_int,
    buffer: &mut [epoll_event; KERNEL_EVENTS],
    max: c_int,
    nanos: Option<u64>,
    limits: Limits,
) -> Option<c_int> {
    let at = buffer.as_mut_ptr();
    handlers::sleep(limits.seen, nanos, |time| {
        // SAFETY: the buffer has room for `max` events; the time is memory of this thread.
        let n = unsafe { next::epoll_pwait2(epfd, at, max, time, limits.mask) };
        if n >= 0 || errno::get() != libc::ENOSYS {
            return n;
        }
        // Before Linux 5.11: whole milliseconds, rounded up so that no timeout comes early. The time of a signal handler
        // that has just run is not looked at.
        let millis = |n: u64| c_int::try_from(n.div_ceil(1_000_000)).unwrap_or(c_int::MAX);
        // SAFETY: the buffer has room for `max` events; the mask is null, or the program's.
        unsafe { next::epoll_pwait(epfd, at, max, nanos.map_or(-1, millis), limits.mask) }
    })
}

/// For who spins: true when the kernel has something to tell. It is asked as often as while completions keep coming. `looks`: those
/// before this one.
pub fn has_news(instance: &Instance, looks: &mut u32) -> bool {
    *looks += 1;
    if !looks.is_multiple_of(LOOKS) {
        return false;
    }
    let now = clock::now();
    if !is_due(instance, now) {
        return false;
    }
    let has_news = tcp::readiness(instance.raw(), events::IN) & events::IN != 0;
    // What it has to tell it is asked in the look that follows.
    instance.visited.store(if has_news { 0 } else { now }, Ordering::Relaxed);
    has_news
}

/// Has the kernel tell when there is room in the socket of a connection that was looked at. `before`: which way it sent before
/// that look, where the program waits for room, and there is none.
pub fn await_room(epfd: c_int, (index, watch): (usize, &Watch), before: Option<SendPath>) {
    let waits_for_room = watch.conn.is_some_and(|watched| {
        let conn = watched.conn;
        // One that sends another way by now is looked at again when the kernel tells, which has room for it as a rule.
        before.is_some_and(|path| path.is_tcp() || path != conn.sends()) || are_known(conn.record())
    });
    if waits_for_room {
        let mut event = kernel_event(index, true);
        // SAFETY: the event is valid.
        unsafe { next::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, watch.fd, &raw mut event) };
    }
}

/// Tells the kernel that another instance, of which has just been told, is asked for no more
/// (`EPOLLONESHOT`). `before`: what was asked until then.
pub fn was_told_once(epfd: c_int, (index, watch): (usize, &Watch), before: u32) {
    if watch.inner.is_some() && is_asked_for(before) && !is_asked_for(watch.interest) {
        let mut event = kernel_event_of_inner(index, watch.interest);
        // SAFETY: the event is valid.
        unsafe { next::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, watch.fd, &raw mut event) };
    }
}

//! The epoll family.

use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

use crate::next;
use crate::ops::epoll::instance::Instance;
use shunt_engine::events;
use shunt_runtime::activity;
use shunt_runtime::conn::Conn;
use shunt_runtime::contain::contain_uncancelled;
use shunt_runtime::epoll::held;
use shunt_runtime::epoll::instance::{flags_are_valid, kernel_event};
use shunt_runtime::epoll::state::Watch;
use shunt_runtime::epoll::wait::{Limits, Out, Waiting, wait, wait_in_kernel};
use shunt_runtime::epoll::{self, instance};
use shunt_runtime::fds::fd_table::{self, Kind};
use shunt_runtime::fds::owner::may_mutate;
use shunt_runtime::point;
use shunt_runtime::stream::hand_over;
use shunt_runtime::stream::promote;
use shunt_runtime::system::abi::{c_int, epoll_event, sigset_t, timespec};
use shunt_runtime::system::clock;
use shunt_runtime::system::errno::{self, KeepErrno};
use shunt_runtime::threads::handlers::Seen;

/// # Safety
/// As the C function.
pub unsafe fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    created(unsafe { next::epoll_create(size) })
}

/// # Safety
/// As the C function.
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    created(unsafe { next::epoll_create1(flags) })
}

fn created(fd: c_int) -> c_int {
    if fd >= 0 && activity::active() && may_mutate() {
        let _keep = KeepErrno::new();
        contain_uncancelled(|| {
            point!(epoll_created);
            if let Some(instance) = epoll::table::create(fd)
                && !fd_table::set(fd, instance.entry())
            {
                instance.release(fd);
            }
        });
    }
    fd
}

/// # Safety
/// As the C function.
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |event| unsafe { next::epoll_ctl(epfd, op, fd, event) };
    let Some(instance) = Instance::of(fd_table::lookup(epfd)) else {
        return unseen(op, fd, kernel(event));
    };
    if held::is_above() {
        // In a signal handler; the one answer of the kernel's that says: not now.
        return errno::fail(libc::ENOMEM);
    }
    let entry = fd_table::lookup(fd);
    let conn = Conn::of(fd, entry).filter(|_| entry.kind() == Kind::Stream);
    if op == EPOLL_CTL_DEL {
        return match conn {
            Some(conn) => unwatch(instance, &conn, fd, || kernel(event)),
            None => forget(instance, fd, || kernel(event)),
        };
    }
    if event.is_null() || !matches!(op, EPOLL_CTL_ADD | EPOLL_CTL_MOD) {
        return kernel(event);
    }
    // SAFETY: not null, and valid by the C function's contract.
    let mut asked = unsafe { event.read_unaligned() };
    // As do_epoll_ctl (fs/eventpoll.c) does: who asks for nothing still hears of these.
    asked.events |= events::ALWAYS;
    if let Some(conn) = conn {
        let _keep = KeepErrno::new();
        promote::advance(conn);
    }
    // It may just have been declined.
    let conn = conn.filter(|_| fd_table::lookup(fd).kind() == Kind::Stream);
    let change = Change { op, fd, asked };
    // The kernel refuses instances that are to be watched exclusively.
    let inner = Instance::of(entry).filter(|_| asked.events & events::EXCLUSIVE == 0);
    match (conn, inner) {
        (Some(conn), _) => watch(instance, conn, &change, kernel),
        (None, Some(inner)) => watch_inner(instance, inner, &change, kernel),
        (None, None) => pass_on(instance, &change, || kernel(event)),
    }
}

/// An addition to an instance, or a modification there.
struct Change {
    op: c_int,
    fd: c_int,
    asked: epoll_event,
}

/// What the kernel makes of a change is remembered: the descriptor may become a shunted connection.
fn pass_on(instance: &Instance, change: &Change, kernel: impl FnOnce() -> c_int) -> c_int {
    let Change { op, fd, asked } = *change;
    let mut state = instance.lock();
    point!(epoll_ctl_locked);
    let result = kernel();
    if result != 0 {
        return result;
    }
    let _keep = KeepErrno::new();
    point!(epoll_ctl_done);
    if op == EPOLL_CTL_ADD {
        // The number was closed, if it is known, and is used again.
        instance.forget(&mut state, fd);
    }
    let Some(index) = state.find(fd).or_else(|| state.reserve()) else { return result };
    match state.get(index).filter(|watch| watch.fd == fd) {
        Some(watch) => (watch.interest, watch.data) = (asked.events, asked.u64),
        None => state.insert(index, Watch::new(fd, asked.events, asked.u64)),
    }
    result
}

/// Adds a shunted connection, or changes what is asked of it. Only the first addition is the kernel's
/// business.
fn watch(
    instance: &'static Instance,
    conn: Conn,
    change: &Change,
    kernel: impl FnOnce(*mut epoll_event) -> c_int,
) -> c_int {
    let Change { op, fd, asked } = *change;
    let mut state = instance.lock();
    point!(epoll_ctl_locked);
    let same = |watch: &&mut Watch| watch.conn.is_some_and(|c| c.is(&conn));
    let known = state.find(fd);
    let entered = known.and_then(|index| state.get(index)).filter(same);
    let parked = entered.as_ref().is_some_and(|watch| watch.parked.is_some());
    let exists = entered.is_some() && !parked;
    let before = entered.filter(|_| exists).map(|watch| watch.interest);
    if !flags_are_valid(op, asked.events, before) {
        // As the kernel orders its checks: an unknown or known descriptor comes first.
        return errno::fail(match (op, exists) {
            (EPOLL_CTL_ADD, true) => libc::EEXIST,
            (EPOLL_CTL_MOD, false) if asked.events & events::EXCLUSIVE == 0 => libc::ENOENT,
            _ => libc::EINVAL,
        });
    }
    let _keep = match (known, op) {
        (Some(_), EPOLL_CTL_MOD) if parked => return errno::fail(libc::ENOENT),
        (Some(index), _) if parked || (exists && op == EPOLL_CTL_MOD) => {
            let keep = KeepErrno::new();
            if let Some(watch) = state.get(index) {
                (watch.interest, watch.data, watch.parked) = (asked.events, asked.u64, None);
            }
            state.list(index);
            keep
        }
        _ => {
            let Some(index) = known.or_else(|| state.reserve()) else {
                return errno::fail(libc::ENOSPC);
            };
            let mut ours = kernel_event(index, false);
            let result = kernel(&raw mut ours);
            if result != 0 {
                return result;
            }
            let keep = KeepErrno::new();
            point!(epoll_ctl_done);
            // The number was closed, if it is known, and is used again.
            instance.forget(&mut state, fd);
            state.insert(index, Watch::new(fd, asked.events, asked.u64));
            instance.register(&mut state, index, conn);
            keep
        }
    };
    point!(epoll_ctl_entered);
    instance.ring_if_awaited(&state);
    0
}

/// The same for another epoll instance.
fn watch_inner(
    instance: &Instance,
    inner: &'static Instance,
    change: &Change,
    kernel: impl FnOnce(*mut epoll_event) -> c_int,
) -> c_int {
    let Change { op, fd, asked } = *change;
    {
        let mut state = instance.lock();
        let Some(index) = state.find(fd).or_else(|| state.reserve()) else {
            return errno::fail(libc::ENOSPC);
        };
        let mut ours = kernel_event(index, false);
        point!(epoll_ctl_locked);
        let result = kernel(&raw mut ours);
        if result != 0 {
            return result;
        }
        let _keep = KeepErrno::new();
        point!(epoll_ctl_done);
        let same = |watch: &&mut Watch| watch.inner.is_some_and(|i| i.instance == inner.index());
        match state.get(index).filter(same) {
            Some(watch) if op == EPOLL_CTL_MOD => {
                (watch.interest, watch.data) = (asked.events, asked.u64);
                instance.look_anew(&mut state, index);
            }
            _ => {
                // The number was closed, if it is known, and is used again.
                instance.forget(&mut state, fd);
                state.insert(index, Watch::new(fd, asked.events, asked.u64));
                instance.watch_inner(&mut state, index, inner);
            }
        }
        instance.ring_if_awaited(&state);
    }
    let _keep = KeepErrno::new();
    inner.arm_for_others();
    0
}

/// Takes a shunted connection out.
fn unwatch(instance: &Instance, conn: &Conn, fd: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let mut state = instance.lock();
    let same = |watch: &&mut Watch| watch.conn.is_some_and(|c| c.is(conn));
    let entered = state.find(fd).filter(|index| state.get(*index).filter(same).is_some());
    match entered {
        Some(index) if state.is_parked(index) => errno::fail(libc::ENOENT),
        Some(index) if instance.park(&mut state, index) => 0,
        _ => {
            drop(state);
            forget(instance, fd, kernel)
        }
    }
}

/// Takes out what is the kernel's.
fn forget(instance: &Instance, fd: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let result = kernel();
    if result == 0 {
        let _keep = KeepErrno::new();
        point!(epoll_ctl_done);
        instance.forget(&mut instance.lock(), fd);
    }
    result
}

/// After epoll_ctl(2) on an epoll instance that the library does not see (passed by another process,
/// made by a raw system call): it reports what the kernel knows of, so the bytes have to go there.
fn unseen(op: c_int, fd: c_int, result: c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    if result == 0 && op != EPOLL_CTL_DEL && entry.kind() == Kind::Stream {
        let _keep = KeepErrno::new();
        hand_over::hand_over(fd, entry);
    }
    result
}

/// One wait, whichever function it came by.
struct Wait {
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    deadline: Option<u64>,
    mask: *const sigset_t,
}

impl Wait {
    /// # Safety
    /// `events` points to room for `max` events; the mask is null or valid.
    unsafe fn run(self, kernel: impl FnOnce() -> c_int) -> c_int {
        let entry = fd_table::lookup(self.epfd);
        let Some(instance) = Instance::of(entry) else { return kernel() };
        let Ok(room @ 1..) = usize::try_from(self.max) else { return kernel() };
        if held::is_above() {
            // A wait that its caller takes for one that a signal has ended.
            return errno::fail(libc::EINTR);
        }
        if self.events.is_null() {
            return kernel();
        }
        // Another thread may have closed it just now: the kernel says what the number stands for.
        let Some(_waiting) = Waiting::begin(instance, entry) else { return kernel() };
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(self.events, room) };
        let limits = Limits { deadline: self.deadline, mask: self.mask, seen: Seen::now() };
        if instance.active.load(Ordering::Acquire) > 0 {
            wait(instance, out, limits)
        } else {
            wait_in_kernel(instance, out, limits, kernel)
        }
    }
}

fn deadline_of(millis: c_int) -> Option<u64> {
    let millis = u64::try_from(millis).ok()?;
    Some(clock::now().saturating_add(millis * 1_000_000))
}

/// # Safety
/// As the C function.
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    let mask = core::ptr::null();
    let wait = Wait { epfd, events, max, deadline: deadline_of(timeout), mask };
    // SAFETY: the caller keeps the C function's contract.
    unsafe { wait.run(|| next::epoll_wait(epfd, events, max, timeout)) }
}

/// # Safety
/// As the C function.
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let wait = Wait { epfd, events, max, deadline: deadline_of(timeout), mask };
    // SAFETY: the caller keeps the C function's contract.
    unsafe { wait.run(|| next::epoll_pwait(epfd, events, max, timeout, mask)) }
}

/// # Safety
/// As the C function.
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = || unsafe { next::epoll_pwait2(epfd, events, max, timeout, mask) };
    // SAFETY: null, or valid by the C function's contract.
    let time = unsafe { timeout.as_ref() };
    if time.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec)) {
        return kernel();
    }
    let deadline = time.map(|t| {
        let nanos = t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec);
        clock::now().saturating_add(nanos.cast_unsigned())
    });
    // SAFETY: as above.
    unsafe { Wait { epfd, events, max, deadline, mask }.run(kernel) }
}

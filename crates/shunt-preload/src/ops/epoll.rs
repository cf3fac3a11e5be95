//! The epoll family.

use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

use crate::abi::{c_int, epoll_event, sigset_t, timespec};
use crate::conn::Sock;
use crate::epoll::instance::{Watch, flags_are_valid, kernel_event};
use crate::epoll::wait::{Limits, Out, wait, wait_in_kernel};
use crate::epoll::{self, instance};
use crate::errno::{self, KeepErrno};
use crate::fd_table::{self, Kind};
use crate::ops::process::may_mutate;
use crate::stream::promote;
use crate::{clock, init, next};
use shunt_core::events;

pub use crate::epoll::{forget_in_child, lock_for_fork};
pub use instance::Instance;

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
    if fd >= 0 && init::active() && may_mutate() {
        let _keep = KeepErrno::new();
        if let Some(instance) = epoll::create(fd)
            && !fd_table::set(fd, instance.entry())
        {
            instance.release();
        }
    }
    fd
}

/// # Safety
/// As the C function.
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |event| unsafe { next::epoll_ctl(epfd, op, fd, event) };
    let Some(instance) = Instance::of(fd_table::lookup(epfd)) else { return kernel(event) };
    if op == EPOLL_CTL_DEL {
        let result = kernel(event);
        if result == 0 {
            let _keep = KeepErrno::new();
            instance.forget(&mut instance.lock(), fd);
        }
        return result;
    }
    if event.is_null() || !matches!(op, EPOLL_CTL_ADD | EPOLL_CTL_MOD) {
        return kernel(event);
    }
    // SAFETY: not null, and valid by the C function's contract.
    let asked = unsafe { event.read_unaligned() };
    let entry = fd_table::lookup(fd);
    let sock = Sock::of(entry).filter(|_| entry.kind() == Kind::Stream);
    if let Some(sock) = sock {
        let _keep = KeepErrno::new();
        promote::advance(sock, fd);
    }
    // It may just have been declined.
    let sock = sock.filter(|_| fd_table::lookup(fd).kind() == Kind::Stream);
    let mut state = instance.lock();
    let known = state.find(fd);
    let Some(index) = known.or_else(|| state.reserve()) else { return kernel(event) };
    let before = state.get(index).filter(|w| w.fd == fd).map(|w| w.interest);
    if sock.is_some() && !flags_are_valid(op, asked.events, before.filter(|_| known.is_some())) {
        // As the kernel orders its checks: an unknown or known descriptor comes first.
        let exists = known.is_some();
        return errno::fail(match (op, exists) {
            (EPOLL_CTL_ADD, true) => libc::EEXIST,
            (EPOLL_CTL_MOD, false) if asked.events & events::EXCLUSIVE == 0 => libc::ENOENT,
            _ => libc::EINVAL,
        });
    }
    let mut ours = kernel_event(index, false);
    let result = match sock {
        Some(_) => kernel(&raw mut ours),
        None => kernel(event),
    };
    if result != 0 {
        return result;
    }
    let _keep = KeepErrno::new();
    if op == EPOLL_CTL_ADD && known.is_some() {
        // The number was closed and is used again.
        instance.forget(&mut state, fd);
    }
    let watched = state.get(index).filter(|w| w.fd == fd).is_some_and(|w| w.conn.is_some());
    match state.get(index).filter(|_| watched) {
        Some(watch) => {
            watch.interest = asked.events;
            watch.data = asked.u64;
            state.list_unless_told(index);
        }
        None => {
            let watch =
                Watch { fd, interest: asked.events, data: asked.u64, conn: None, listed: false };
            state.insert(index, watch);
            if let Some(sock) = sock {
                instance.register(&mut state, index, sock);
            }
        }
    }
    if sock.is_some() && instance.sleepers.load(Ordering::Relaxed) > 0 {
        instance.ring_own(&state);
    }
    drop(state);
    // The kernel took it, so it is another one.
    if let Some(inner) = Instance::of(entry) {
        inner.arm_for_others();
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
        let Some(instance) = Instance::of(fd_table::lookup(self.epfd)) else { return kernel() };
        let Ok(room @ 1..) = usize::try_from(self.max) else { return kernel() };
        if self.events.is_null() {
            return kernel();
        }
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(self.events, room) };
        let limits = Limits { deadline: self.deadline, mask: self.mask };
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

/// A descriptor that may be registered already has become a shunted connection.
pub fn on_connected(sock: &'static Sock, fd: c_int) {
    epoll::all().for_each(|instance| instance.convert(fd, Some(sock)));
}

/// A sender found no room in the kernel socket: whoever watches the descriptor is told by the kernel
/// when there is some.
pub fn wants_room(fd: c_int) {
    let _keep = KeepErrno::new();
    epoll::all().for_each(|instance| instance.ask_for_room(fd));
}

/// A connection is back on TCP for good.
pub fn on_declined(fd: c_int) {
    epoll::all().for_each(|instance| instance.convert(fd, None));
}

/// The descriptor goes. The kernel forgets its registrations when it is the connection's last.
pub fn before_close(sock: &'static Sock, fd: c_int) {
    let mut other = None;
    for (index, instance) in epoll::all().enumerate() {
        if index == 0 {
            other = sock.other_descriptor(fd);
        }
        instance.descriptor_closed(fd, other, sock);
    }
}

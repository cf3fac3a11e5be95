//! The epoll family.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

use crate::abi::{c_int, epoll_event, sigset_t, timespec};
use crate::conn::Sock;
use crate::epoll::instance::{Watch, kernel_event};
use crate::epoll::wait::{Limits, Out, wait};
use crate::epoll::{self, instance};
use crate::errno::KeepErrno;
use crate::fd_table::{self, Kind};
use crate::ops::process::may_mutate;
use crate::stream::promote;
use crate::{clock, init, next};

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
    let mut ours = kernel_event(index);
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
            state.list(index);
        }
        None => {
            let watch = Watch {
                fd,
                interest: asked.events,
                data: asked.u64,
                conn: None,
                listed: false,
            };
            state.insert(index, watch);
            if let Some(sock) = sock {
                instance.register(&mut state, index, sock);
            }
        }
    }
    if sock.is_some() && instance.sleepers.load(core::sync::atomic::Ordering::Relaxed) > 0 {
        instance.ring_own(&state);
    }
    result
}

/// The instance, when it watches shunted connections.
#[inline]
fn watching(epfd: c_int) -> Option<&'static Instance> {
    Instance::of(fd_table::lookup(epfd))
        .filter(|i| i.active.load(core::sync::atomic::Ordering::Acquire) > 0)
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
    match (watching(epfd), usize::try_from(max)) {
        (Some(instance), Ok(room @ 1..)) if !events.is_null() => {
            let limits = Limits { deadline: deadline_of(timeout), mask: core::ptr::null() };
            // SAFETY: the program has room for `max` events.
            wait(instance, unsafe { Out::new(events, room) }, limits)
        }
        // SAFETY: the caller keeps the C function's contract.
        _ => unsafe { next::epoll_wait(epfd, events, max, timeout) },
    }
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
    match (watching(epfd), usize::try_from(max)) {
        (Some(instance), Ok(room @ 1..)) if !events.is_null() => {
            let limits = Limits { deadline: deadline_of(timeout), mask };
            // SAFETY: the program has room for `max` events.
            wait(instance, unsafe { Out::new(events, room) }, limits)
        }
        // SAFETY: the caller keeps the C function's contract.
        _ => unsafe { next::epoll_pwait(epfd, events, max, timeout, mask) },
    }
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
    // SAFETY: null, or valid by the C function's contract.
    let time = unsafe { timeout.as_ref() }.copied();
    let valid = time.is_none_or(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec));
    match (watching(epfd), usize::try_from(max)) {
        (Some(instance), Ok(room @ 1..)) if !events.is_null() && valid => {
            let deadline = time.map(|t| {
                let nanos = t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec);
                clock::now().saturating_add(nanos.cast_unsigned())
            });
            // SAFETY: the program has room for `max` events.
            wait(instance, unsafe { Out::new(events, room) }, Limits { deadline, mask })
        }
        // SAFETY: the caller keeps the C function's contract.
        _ => unsafe { next::epoll_pwait2(epfd, events, max, timeout, mask) },
    }
}

/// A descriptor that may be registered already has become a shunted connection.
pub fn on_connected(sock: &'static Sock, fd: c_int) {
    epoll::all().for_each(|instance| instance.convert(fd, Some(sock)));
}

/// A connection is back on TCP for good.
pub fn on_declined(fd: c_int) {
    epoll::all().for_each(|instance| instance.convert(fd, None));
}

/// The descriptor goes; the kernel forgets its registrations by itself.
pub fn before_close(_sock: &'static Sock, fd: c_int) {
    epoll::all().for_each(|instance| instance.forget(&mut instance.lock(), fd));
}

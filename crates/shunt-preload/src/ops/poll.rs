//! poll and select.

use core::cell::Cell;

use crate::next;
use shunt_runtime::panics;
use shunt_runtime::poll_set;
use shunt_runtime::select::{self as sets, Select, Set, least_count};
use shunt_runtime::system::abi::{
    c_int, c_uint, fd_set, nfds_t, pid_t, pollfd, rlimit, sigset_t, size_t, timespec, timeval,
};
use shunt_runtime::system::kernel_poll;
use shunt_runtime::system::timeout::{deadline, deadline_of, is_valid, nanos_of_timeval, of_nanos};
use shunt_runtime::system::{clock, errno};

/// # Safety
/// As the C function.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    match unsafe { shunted(fds, count) } {
        Some(fds) => poll_set::wait(fds, deadline_of(timeout), core::ptr::null()).found,
        // SAFETY: as above.
        None => unsafe { next::poll(fds, count, timeout) },
    }
}

/// # Safety
/// As the C function.
pub unsafe fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
    unsafe {
        if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
            return next::__poll_chk(fds, count, timeout, room);
        }
        poll(fds, count, timeout)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let (found, time) = unsafe { (shunted(fds, count), timeout.as_ref()) };
    match found.filter(|_| is_valid(time)) {
        Some(fds) => poll_set::wait(fds, time.map(deadline), mask).found,
        // SAFETY: as above.
        None => unsafe { next::ppoll(fds, count, timeout, mask) },
    }
}

/// # Safety
/// As the C function.
pub unsafe fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
    unsafe {
        if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
            return next::__ppoll_chk(fds, count, timeout, mask, room);
        }
        ppoll(fds, count, timeout, mask)
    }
}

/// After a panic in poll(2), before libc does it.
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn after_panic(fds: *const pollfd, count: nfds_t) {
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        panics::after_wait_for(unsafe { (*fds.add(i)).fd });
    }
}

/// The same in select(2).
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn after_panic_in_select(count: c_int, sets: [*mut fd_set; 3]) {
    let count = least_count(count);
    // SAFETY: the caller's promise.
    let sets = unsafe { words(count, sets) };
    sets::asked(count, sets).for_each(|asked| panics::after_wait_for(asked.fd));
}

/// The array, if a shunted connection is in it.
///
/// # Safety
/// `fds` points to `count` entries.
unsafe fn shunted<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok()?;
    if fds.is_null() || count == 0 || kernel_poll::refuses(count) {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    poll_set::concerns(fds).then_some(fds)
}

/// # Safety
/// As the C function.
pub unsafe fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::setrlimit(resource, limit) };
    kernel_poll::note_limit();
    result
}

/// # Safety
/// As the C function.
pub unsafe fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::prlimit(pid, resource, new, old) };
    kernel_poll::note_limit();
    result
}

/// # Safety
/// As the C function.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let count = least_count(count);
    // SAFETY: the caller keeps the C function's contract.
    let sets = unsafe { words(count, [read, write, except]) };
    let Some(mut sets) = Select::shunted(count, sets) else {
        // SAFETY: as above.
        return unsafe { next::select(count, read, write, except, timeout) };
    };
    // SAFETY: null or valid by the C function's contract.
    let time = unsafe { timeout.as_mut() };
    if time.as_ref().is_some_and(|t| t.tv_sec < 0 || t.tv_usec < 0) {
        return errno::fail(libc::EINVAL);
    }
    let until = time.as_ref().map(|t| clock::now().saturating_add(nanos_of_timeval(t)));
    let result = sets.wait(until, core::ptr::null());
    if let (Some(time), Some(until)) = (time, until) {
        // Linux tells how much was left.
        let left = of_nanos(until.saturating_sub(clock::now()));
        (time.tv_sec, time.tv_usec) = (left.tv_sec, left.tv_nsec / 1000);
    }
    result
}

/// # Safety
/// As the C function.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let count = least_count(count);
    // SAFETY: the caller keeps the C function's contract.
    let (sets, time) = unsafe { (words(count, [read, write, except]), timeout.as_ref()) };
    match (Select::shunted(count, sets), time) {
        (Some(mut sets), time) if is_valid(time) => sets.wait(time.map(deadline), mask),
        // SAFETY: as above.
        _ => unsafe { next::pselect(count, read, write, except, timeout, mask) },
    }
}

/// # Safety
/// Each set is null or has room for `count` descriptors, in whole words.
unsafe fn words<'a>(count: c_int, sets: [*mut fd_set; 3]) -> [Set<'a>; 3] {
    let len = usize::try_from(count).unwrap_or(0).div_ceil(64);
    sets.map(|set| {
        let words = set.cast::<Cell<u64>>();
        // SAFETY: the caller's promise. A cell is laid out as its word, and may stand in several sets; the kernel, too,
        // takes whole words.
        (!set.is_null()).then(|| unsafe { core::slice::from_raw_parts(words, len) })
    })
}

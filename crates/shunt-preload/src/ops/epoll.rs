//! The epoll family, where the list of hooks does not say all.

use core::ptr;

use crate::next;
use shunt_runtime::epoll::call::Wait;
use shunt_runtime::epoll::control::control;
use shunt_runtime::system::abi::{c_int, epoll_event, sigset_t, timespec};
use shunt_runtime::system::timeout::{deadline, is_valid};

/// # Safety
/// As the C function.
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: null, or valid by the C function's contract.
    let asked = || (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let kernel = |other: Option<&mut epoll_event>| {
        let event = other.map_or(event, ptr::from_mut);
        // SAFETY: the caller keeps the C function's contract; another event is as valid.
        unsafe { next::epoll_ctl(epfd, op, fd, event) }
    };
    control(epfd, op, fd, asked, kernel)
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
    if !is_valid(time) {
        return kernel();
    }
    let deadline = time.map(deadline);
    // SAFETY: `events` has room for `max` entries, and the mask is null or valid, by the contract of epoll_pwait2(2).
    unsafe { Wait { epfd, events, max, deadline, mask }.run(kernel) }
}

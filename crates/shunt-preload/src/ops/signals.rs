//! Handlers of signals: what installs them, and what tells of them.

use core::mem::MaybeUninit;

use libc::{sigaction as Action, sighandler_t};

use crate::next;
use shunt_runtime::fds::owner::may_mutate;
use shunt_runtime::system::abi::c_int;
use shunt_runtime::system::errno;
use shunt_runtime::threads::handlers::{self, Handler};

/// The signal's handler so far, where this process is to know of it.
fn known(signal: c_int) -> Option<Handler> {
    Handler::known(signal).filter(|_| may_mutate())
}

/// # Safety
/// As the C function.
pub unsafe fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let Some(known) = known(signal) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::sigaction(signal, new, old) };
    };
    // SAFETY: null or an action, which libc would read just so. A copy, as `old` may be the same memory.
    let mut covered = unsafe { new.as_ref() }.copied();
    if let Some(action) = &mut covered {
        handlers::cover(signal, action);
    }
    let at = covered.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the caller's pointer, and one to a copy.
    let result = unsafe { next::sigaction(signal, at, old) };
    if result != 0 {
        handlers::uncover(signal, known);
    // SAFETY: null, or just written by libc.
    } else if let Some(old) = unsafe { old.as_mut() } {
        known.show(old);
    }
    result
}

/// The older functions, by libc itself, and the handler covered after it.
fn by_libc(signal: c_int, libc: impl FnOnce() -> sighandler_t) -> sighandler_t {
    let known = known(signal);
    let old = libc();
    let Some(known) = known.filter(|_| old != libc::SIG_ERR) else { return old };
    cover_again(signal);
    known.shown(old)
}

fn cover_again(signal: c_int) {
    let _keep = errno::KeepErrno::new();
    let mut action = MaybeUninit::<Action>::zeroed();
    // SAFETY: only asks; `action` is room for the answer.
    if unsafe { next::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) } == 0 {
        // SAFETY: valid when zeroed, and the answer.
        let mut action = unsafe { action.assume_init() };
        let was_covered = handlers::is_covered(&action);
        handlers::cover(signal, &mut action);
        if handlers::is_covered(&action) && !was_covered {
            // SAFETY: the program's action, whose handler is called by the one that covers it.
            unsafe { next::sigaction(signal, &raw const action, core::ptr::null_mut()) };
        }
    }
}

/// # Safety
/// As the C function.
pub unsafe fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller keeps the C function's contract.
    by_libc(signal, || unsafe { next::signal(signal, handler) })
}

/// # Safety
/// As the C function.
pub unsafe fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller keeps the C function's contract.
    by_libc(signal, || unsafe { next::sysv_signal(signal, handler) })
}

/// # Safety
/// As the C function.
pub unsafe fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller keeps the C function's contract.
    by_libc(signal, || unsafe { next::sigset(signal, handler) })
}

/// # Safety
/// As the C function.
pub unsafe fn siginterrupt(signal: c_int, ends: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::siginterrupt(signal, ends) };
    if known(signal).is_some() {
        cover_again(signal);
    }
    result
}

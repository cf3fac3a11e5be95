//! sigaction(2) and its kin: the program's handlers are covered ([`handlers`]), and it gets to see its own.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use libc::{sigaction as Action, sighandler_t};

use crate::fds::owner::owns_process_state;
use crate::system::errno::KeepErrno;
use crate::system::next;
use crate::threads::handlers::{self, Handler};

/// The signal's handler so far, where this process is to know of it.
fn known(signal: c_int) -> Option<Handler> {
    Handler::known(signal).filter(|_| owns_process_state())
}

/// sigaction(2), by `kernel`, which is given the action to install, if any.
///
/// # Safety
/// `new` is null or an action, `old` null or room for one. They may be the same memory.
pub unsafe fn install(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
    kernel: impl FnOnce(*const Action) -> c_int,
) -> c_int {
    let Some(known) = known(signal) else { return kernel(new) };
    // SAFETY: the caller's promise. A copy, as `old` may be the same memory.
    let mut covered = unsafe { new.as_ref() }.copied();
    if let Some(action) = &mut covered {
        handlers::cover(signal, action);
    }
    let result = kernel(covered.as_ref().map_or(core::ptr::null(), core::ptr::from_ref));
    if result != 0 {
        handlers::uncover(signal, known);
    // SAFETY: null, or just written by libc.
    } else if let Some(old) = unsafe { old.as_mut() } {
        known.show(old);
    }
    result
}

/// The older functions, by libc itself, and the handler covered after it.
pub fn install_by_libc(signal: c_int, libc: impl FnOnce() -> sighandler_t) -> sighandler_t {
    let known = known(signal);
    let old = libc();
    let Some(known) = known.filter(|_| old != libc::SIG_ERR) else { return old };
    cover_again(signal);
    known.shown(old)
}

/// siginterrupt(3), which installs the handler once more, by libc itself.
pub fn change_by_libc(signal: c_int, libc: impl FnOnce() -> c_int) -> c_int {
    let result = libc();
    if known(signal).is_some() {
        cover_again(signal);
    }
    result
}

fn cover_again(signal: c_int) {
    let _keep = KeepErrno::new();
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

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;
    use crate::fds::owner::claim;

    extern "C" fn first(_: c_int) {}
    extern "C" fn second(_: c_int) {}

    fn zeroed() -> Action {
        // SAFETY: all zero is an action: the signal's default.
        unsafe { core::mem::zeroed() }
    }

    fn action(handler: extern "C" fn(c_int)) -> Action {
        Action { sa_sigaction: handler as *const () as usize, ..zeroed() }
    }

    /// The address of the handler that the program gets to see, and whether the one in place takes notes.
    fn seen(signal: c_int) -> (usize, bool) {
        let (mut told, mut real) = (zeroed(), zeroed());
        // SAFETY: room for the answers.
        unsafe {
            let at = &raw mut told;
            assert_eq!(install(signal, ptr::null(), at, |new| next::sigaction(signal, new, at)), 0);
            assert_eq!(next::sigaction(signal, ptr::null(), &raw mut real), 0);
        }
        (told.sa_sigaction, handlers::is_covered(&real))
    }

    fn set(signal: c_int, new: &Action, kernel: impl FnOnce(*const Action) -> c_int) -> c_int {
        // SAFETY: an action, and no room for the one before.
        unsafe { install(signal, new, ptr::null_mut(), kernel) }
    }

    fn by_kernel(signal: c_int) -> impl FnOnce(*const Action) -> c_int {
        // SAFETY: null or an action, as `install` gives it.
        move |new| unsafe { next::sigaction(signal, new, ptr::null_mut()) }
    }

    #[test]
    fn the_program_sees_its_own_handler_and_another_is_in_place() {
        let signal = libc::SIGUSR1;
        assert!(claim());
        let installed = action(first);
        assert_eq!(set(signal, &installed, by_kernel(signal)), 0);
        assert_eq!(seen(signal), (installed.sa_sigaction, true));
        // One that the kernel refuses changes nothing.
        assert_eq!(set(signal, &action(second), |_| -1), -1);
        assert_eq!(seen(signal), (installed.sa_sigaction, true));
    }

    #[test]
    fn the_same_memory_holds_the_new_and_then_the_old_one() {
        let signal = libc::SIGUSR2;
        assert!(claim());
        assert_eq!(set(signal, &action(first), by_kernel(signal)), 0);
        let mut both = action(second);
        let at = &raw mut both;
        // SAFETY: an action, and room for one.
        unsafe {
            assert_eq!(install(signal, at, at, |new| next::sigaction(signal, new, at)), 0);
        }
        assert_eq!(both.sa_sigaction, action(first).sa_sigaction);
        assert_eq!(seen(signal), (action(second).sa_sigaction, true));
    }

    #[test]
    fn what_libc_installs_is_covered_after_it() {
        let signal = libc::SIGWINCH;
        assert!(claim());
        let address = |handler: extern "C" fn(c_int)| handler as *const () as sighandler_t;
        // SAFETY: a handler that does nothing.
        let by_libc = |handler| move || unsafe { libc::signal(signal, address(handler)) };
        assert_eq!(install_by_libc(signal, by_libc(first)), libc::SIG_DFL);
        assert_eq!(seen(signal), (address(first), true));
        assert_eq!(install_by_libc(signal, by_libc(second)), address(first));
        assert_eq!(seen(signal), (address(second), true));
        // What fails changes nothing.
        assert_eq!(install_by_libc(signal, || libc::SIG_ERR), libc::SIG_ERR);
        assert_eq!(seen(signal), (address(second), true));
    }

    #[test]
    fn a_handler_of_faults_is_left_as_it_is() {
        let signal = libc::SIGTRAP;
        assert!(claim());
        assert_eq!(set(signal, &action(first), by_kernel(signal)), 0);
        assert_eq!(seen(signal), (action(first).sa_sigaction, false));
    }
}

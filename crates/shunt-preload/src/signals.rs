//! Whether a call that a signal interrupted is to be restarted.
//!
//! The kernel restarts a socket call when the handler that ran was installed with `SA_RESTART` and
//! the socket has no timeout (signal(7)). Shunt's own waits are of kinds that are never restarted, so
//! it has to find out. Which handler ran cannot be known afterwards; when all handlers that the
//! program has agree, that does not matter. When they differ, the call is interrupted: a program that
//! installed a handler without `SA_RESTART` counts on it to get out of a wait.

use core::mem::MaybeUninit;

/// After a wait ended with `EINTR`: true when the program's call is to end with it, too.
pub fn interrupts(has_timeout: bool) -> bool {
    if has_timeout {
        return true;
    }
    let _keep = crate::errno::KeepErrno::new();
    (1..=64).any(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks; `action` is room for the answer, and valid when zeroed.
        let action = unsafe {
            if libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) != 0 {
                return false;
            }
            action.assume_init()
        };
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        handled && action.sa_flags & libc::SA_RESTART == 0
    })
}

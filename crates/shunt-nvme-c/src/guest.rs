//! Calls run in threads of a program that knows nothing of this library's language.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Once;

use libc::{c_int, sigset_t};

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and of musl.
const CANCEL_DISABLE: c_int = 1;

static ONCE: Once = Once::new();

/// The thread is not cancelled while this lives: that would unwind through this library's frames.
struct NotCancelled(c_int);

impl NotCancelled {
    fn new() -> Self {
        let mut old = 0;
        // SAFETY: the state is one of two, and `old` is live.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        // SAFETY: the state is one that the same function gave; the old one is not asked for.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
}

/// Does what a call does. A panic ends here, unheard; then it returns `broken`.
pub fn call<T>(broken: T, call: impl FnOnce() -> T) -> T {
    let _whole = NotCancelled::new();
    // This library has a hook of its own, as it has a standard library of its own.
    ONCE.call_once(|| {
        if !cfg!(test) {
            std::panic::set_hook(Box::new(|_| {}));
        }
    });
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => value,
        Err(payload) => {
            // Dropping it could panic once more.
            std::mem::forget(payload);
            broken
        }
    }
}

/// Makes threads that take no signals: they are the program's.
pub fn without_signals<T>(make: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<sigset_t>::uninit();
    let mut old = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: the first call fills `all`, the second one `old`.
    let is_set = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), old.as_mut_ptr()) == 0
    };
    let made = make();
    if is_set {
        // SAFETY: `old` was filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut()) };
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("SigBlk")).unwrap().to_owned()
    }

    #[test]
    fn panics_end_in_the_call() {
        assert_eq!(call(-1, || 7), 7);
        assert_eq!(call(-1, || std::panic::resume_unwind(Box::new(7))), -1);
    }

    #[test]
    fn threads_block_signals_and_their_maker_does_not() {
        let before = mask();
        let theirs = without_signals(|| std::thread::spawn(mask)).join().unwrap();
        assert_eq!(mask(), before);
        let blocked = theirs.split_whitespace().nth(1).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        let user = 1 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGCHLD - 1) | 1 << (libc::SIGTERM - 1);
        assert_eq!(blocked & user, user);
    }
}

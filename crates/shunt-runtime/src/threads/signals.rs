//! Whether a call that a signal interrupted is to be restarted, and what a handler must not enter again.
//!
//! The kernel restarts a socket call when the handler that ran was installed with `SA_RESTART` and
//! the socket has no timeout (signal(7)). Shunt's own waits are of kinds that are never restarted, so
//! it has to find out ([`handlers`]).

use core::cell::Cell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use libc::c_int;

use crate::system::next;
use crate::threads::handlers::{self, Seen};
use crate::threads::sections::{self, FAULTS};

/// Where a thread that `pthread_cancel` has marked ends, as it would in the kernel's call.
#[inline]
pub fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: no arguments. It may unwind through the callers, which hold nothing but what drops.
    unsafe { pthread_testcancel() }
}

/// While it lives the thread is not cancelled: descriptors are closed on drop, by libc's close, which is a
/// cancellation point, and nothing unwinds out of a drop.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// Begins; may be nested.
    pub fn begin() -> Self {
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        Self { before: set_cancel_state(PTHREAD_CANCEL_DISABLE) }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set_cancel_state(self.before);
    }
}

fn set_cancel_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = 0;
    // SAFETY: writes one int. It is no cancellation point: that a thread was marked meanwhile is noticed
    // at the next one.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// While it lives no signal handler runs on this thread, but for those of faults of its own. Signals
/// that come meanwhile are delivered after it ([`sections`]), so it is for what is short, or rare.
#[derive(Debug)]
pub struct Uninterrupted {
    _on_this_thread: PhantomData<*const ()>,
}

impl Uninterrupted {
    /// Begins; may be nested.
    pub fn begin() -> Self {
        if !sections::are_under_way() && sections::is_look_due() {
            look_for_handlers();
        }
        sections::begin();
        Self { _on_this_thread: PhantomData }
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        sections::end();
    }
}

/// Whether sections can do without blocking signals.
#[cold]
fn look_for_handlers() {
    // libc refuses to tell of the signals that it has for itself.
    let _keep = crate::system::errno::KeepErrno::new();
    if (1..=64).any(|signal| uncovered(signal).is_some()) {
        sections::block_always();
    } else {
        sections::are_covered();
    }
}

thread_local! {
    static SETTING_UP: Cell<bool> = const { Cell::new(false) };
}

/// A thread is setting a connection up: it takes locks and memory, and talks to the agent.
#[derive(Debug)]
pub struct SettingUp {
    _uncancelled: Uncancelled,
    _uninterrupted: Uninterrupted,
}

impl SettingUp {
    /// Begins. `None` in the handler of a fault that runs on top of it, in this very thread, which would
    /// wait for itself for ever: the connection stays as it is.
    pub fn begin() -> Option<Self> {
        let uninterrupted = Uninterrupted::begin();
        (!SETTING_UP.replace(true))
            .then(|| Self { _uncancelled: Uncancelled::begin(), _uninterrupted: uninterrupted })
    }
}

impl Drop for SettingUp {
    fn drop(&mut self) {
        SETTING_UP.set(false);
    }
}

/// After a wait that a signal may have ended: true when the program's call is to end, too. That of a socket with a timeout
/// `always` does, and one that has moved some bytes: the kernel restarts neither. `by_error`: the wait ended by `EINTR`.
pub fn interrupts(seen: &mut Seen, by_error: bool, always: bool) -> bool {
    // The signal may have been the one by which libc cancels threads.
    cancellation_point();
    match seen.renew() {
        Some(ends) => always || ends,
        None => by_error && (always || unknown_handlers_end_calls()),
    }
}

/// A handler has run that was installed past the hooks. Which one cannot be known; when all that may have been agree
/// that does not matter. When they differ, the call is interrupted: a program that installed a handler without
/// `SA_RESTART` counts on it to get out of a wait.
#[cold]
fn unknown_handlers_end_calls() -> bool {
    let _keep = crate::system::errno::KeepErrno::new();
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: only asks; `blocked` is room for the answer, and valid when zeroed.
    let blocked = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), blocked.as_mut_ptr());
        blocked.assume_init()
    };
    (1..=64).any(|signal| {
        // SAFETY: the set is valid.
        if unsafe { libc::sigismember(&raw const blocked, signal) } == 1 {
            return false;
        }
        uncovered(signal).is_some_and(|action| action.sa_flags & libc::SA_RESTART == 0)
    })
}

/// The handler of a signal that is not the library's, nor one of faults.
fn uncovered(signal: c_int) -> Option<libc::sigaction> {
    if FAULTS.contains(&signal) {
        return None;
    }
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; `action` is room for the answer, and valid when zeroed.
    let action = unsafe {
        if next::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) != 0 {
            return None;
        }
        action.assume_init()
    };
    let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    (handled && !handlers::is_covered(&action)).then_some(action)
}

#[cfg(test)]
mod tests {
    use super::{SettingUp, Uncancelled, cancellation_point, look_for_handlers};
    use crate::testing::in_child;
    use crate::threads::sections;

    #[test]
    fn a_cancelled_thread_goes_on_while_it_is_not_to_be() {
        extern "C" fn body(went_on: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: the flag of the test, which waits for this thread.
            let went_on = unsafe { &*went_on.cast::<core::sync::atomic::AtomicBool>() };
            let uncancelled = Uncancelled::begin();
            let nested = Uncancelled::begin();
            unsafe extern "C" {
                fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
            }
            // SAFETY: this very thread.
            unsafe { pthread_cancel(libc::pthread_self()) };
            drop(nested);
            cancellation_point();
            went_on.store(true, core::sync::atomic::Ordering::Relaxed);
            drop(uncancelled);
            core::ptr::null_mut()
        }
        let went_on = core::sync::atomic::AtomicBool::new(false);
        let mut thread = 0;
        let argument = (&raw const went_on).cast_mut().cast();
        // SAFETY: the thread is joined, so the flag outlives it.
        unsafe {
            assert_eq!(libc::pthread_create(&raw mut thread, core::ptr::null(), body, argument), 0);
            assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
        }
        assert!(went_on.into_inner());
    }

    #[test]
    fn a_handler_does_not_enter_what_it_interrupted() {
        let outer = SettingUp::begin();
        assert!(outer.is_some());
        assert!(SettingUp::begin().is_none());
        assert!(SettingUp::begin().is_none(), "a try changes nothing");
        drop(outer);
        assert!(SettingUp::begin().is_some());
    }

    #[test]
    fn a_look_finds_handlers_that_nobody_covers() {
        extern "C" fn nothing(_: libc::c_int) {}
        let install = |handler: libc::sighandler_t| {
            // SAFETY: a handler that does nothing, or none, past the hooks.
            unsafe { libc::signal(libc::SIGUSR1, handler) };
            sections::blocks_after(look_for_handlers)
        };
        crate::system::errno::set(libc::EDOM);
        look_for_handlers();
        assert_eq!(crate::system::errno::get(), libc::EDOM, "the program's");
        assert!(in_child(|| {
            !install(libc::SIG_DFL)
                && !install(libc::SIG_IGN)
                && install(nothing as *const () as libc::sighandler_t)
        }));
    }
}

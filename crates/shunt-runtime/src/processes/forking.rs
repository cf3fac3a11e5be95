//! Fork; and whose memory this is.
//!
//! **fork.** The handlers are registered with `pthread_atfork`, so that `daemon`, `forkpty` and
//! `system`-like helpers of libc are seen. They are the first that are registered, by the hook on
//! that very function: so the preparation is the last before a fork, and what follows the first
//! after it. The program's own handlers find no lock of ours held, whatever they call.
//!
//! **A raw fork** (`_Fork`, and `clone` and `fork` by syscall(2)) runs no handlers: the hooks on these functions do
//! what the library's handlers do. One by an instruction of the program's own, or by `clone3`, nobody sees. The owner's pid stands on
//! a page that the kernel wipes in the child (`MADV_WIPEONFORK`), so that child notices at its next call that changes the
//! table.
//!
//! **vfork and its kind** (`CLONE_VM`). The child has its own descriptors but *our* memory: what it
//! closes must stay in the parent's table. Once vfork(3) or clone(3) was called, each call that changes
//! the table asks for its pid: one that is not the owner's does the kernel's call only. What such a child
//! duplicates it means to exec with, so that is handed over. (`CLONE_VM` by a system call of the
//! program's own is not seen; its child may not call libc's functions anyhow.)

use core::cell::Cell;
use core::ffi::{c_int, c_long};
use core::ptr;
use std::sync::OnceLock;

use crate::contain::contain;
use crate::control::user::namespaces_change;
use crate::fds::owner;
use crate::panics;
use crate::processes::fork;
use crate::processes::fork_sharing::{self, Child};
use crate::system::errno::KeepErrno;
use crate::system::next;
use crate::threads::kept::Kept;
use crate::threads::signals::Uninterrupted;

thread_local! {
    /// True from the fork handlers' first run to their second, in the thread that forks.
    static FORKING: Cell<bool> = const { Cell::new(false) };
    /// From the first to the second as well: a handler that forks on top of a fork would use up what is
    /// prepared for that one.
    static UNINTERRUPTED: Kept<Uninterrupted> = const { Kept::none() };
    /// True in the hook on fork(2), which learns what becomes of it.
    static HOOKED: Cell<bool> = const { Cell::new(false) };
}

/// Has the fork handlers called from now on, before any of the program's is registered.
pub fn watch_forks() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        // SAFETY: the handlers live as long as the library, which is never unloaded; so they belong to no
        // object whose end would take them out.
        let rc = unsafe {
            next::__register_atfork(Some(before), Some(in_parent), Some(in_child), ptr::null_mut())
        };
        rc == 0
    })
}

extern "C" fn before() {
    contain(prepare);
}

extern "C" fn in_parent() {
    if !contain(parent) {
        contain(fork::in_parent_again);
    }
}

extern "C" fn in_child() {
    if !contain(child) {
        panics::in_child();
    }
}

fn prepare() {
    // Where start-up went well.
    if !owner::is_claimed() {
        return;
    }
    let uninterrupted = Uninterrupted::begin();
    if !FORKING.replace(true) {
        let _keep = KeepErrno::new();
        fork::prepare();
        UNINTERRUPTED.with(|kept| kept.put(uninterrupted));
    }
}

fn parent() {
    let _uninterrupted = UNINTERRUPTED.with(Kept::take);
    if FORKING.replace(false) {
        let _keep = KeepErrno::new();
        fork::in_parent();
        if !HOOKED.get() {
            fork_sharing::fork_settled(Child::Unknown);
        }
    }
}

fn child() {
    let _uninterrupted = UNINTERRUPTED.with(Kept::take);
    if FORKING.replace(false) {
        let _keep = KeepErrno::new();
        owner::become_own();
        fork::in_child();
    }
}

/// Forks, and notes what has become of the child.
pub fn settling<T: Copy + TryInto<u32> + PartialEq + Default>(fork: impl FnOnce() -> T) -> T {
    // In a handler above a fork of this thread, that one's.
    let outer = HOOKED.replace(true);
    let pid = fork();
    let in_child = pid == T::default();
    HOOKED.set(outer && !in_child);
    if !in_child {
        let _keep = KeepErrno::new();
        // The kernel has forked, whatever becomes of this.
        contain(|| fork_sharing::fork_settled(pid.try_into().map_or(Child::None, Child::Pid)));
    }
    pid
}

/// The same by a call for which libc runs no handlers.
pub fn without_handlers<T: Copy + TryInto<u32> + PartialEq + Default>(
    fork: impl FnOnce() -> T,
) -> T {
    // A child that shares this memory has nothing to prepare here.
    if !owner::owns_process_state() {
        return fork();
    }
    settling(|| {
        before();
        let pid = fork();
        if pid == T::default() {
            in_child();
        } else {
            in_parent();
        }
        pid
    })
}

/// A fork by syscall(2), with these flags of clone(2).
pub fn clone_by(flags: u64, clone: impl FnOnce() -> c_long) -> c_long {
    const NAMESPACES: c_int = libc::CLONE_NEWNET | libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
    if flags & u64::from(NAMESPACES.cast_unsigned()) != 0 {
        namespaces_change();
    }
    without_handlers(clone)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use crate::testing::exit_status;

    use super::*;

    #[test]
    fn fork_handlers_run_once_however_often_they_are_called() {
        assert!(owner::claim());
        assert!(!FORKING.get());
        prepare();
        prepare();
        assert!(FORKING.get());
        parent();
        parent();
        assert!(!FORKING.get());
    }

    /// What was registered before the library was asked runs inside of its own handlers.
    #[test]
    fn the_program_s_handlers_run_outside_of_ours() {
        static SEEN: AtomicU32 = AtomicU32::new(0);
        extern "C" fn look() {
            SEEN.fetch_or(1 << u32::from(FORKING.get()), Ordering::Relaxed);
        }
        assert!(owner::claim() && watch_forks());
        // SAFETY: the handler looks at a flag.
        let rc =
            unsafe { next::__register_atfork(Some(look), Some(look), Some(look), ptr::null_mut()) };
        assert_eq!(rc, 0);
        // SAFETY: the child exits at once.
        let pid = settling(|| unsafe { libc::fork() });
        if pid == 0 {
            let own = owner::is_own();
            let outside = SEEN.load(Ordering::Relaxed) == 1;
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(own && outside && !FORKING.get())) };
        }
        assert_eq!(exit_status(pid), 1);
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }
}

//! Which process the tables belong to.
//!
//! The child of a fork that no hook sees has a copy of this memory, and that of a vfork this memory itself: so each call that
//! changes the tables asks whose they are. The owner's pid stands on a page that the kernel wipes in a child
//! (`MADV_WIPEONFORK`).

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::callback::Callback;
use crate::system::errno::KeepErrno;

/// Where the pid of the process stands that the tables belong to; null before start-up.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// In the place of the page on a kernel that can't wipe one (before 4.14). A raw fork then looks
/// like a vfork, and its child leaves the tables alone.
static OWNER_UNWIPED: AtomicU32 = AtomicU32::new(0);

/// Another process may run in this memory, or have a copy of it that says otherwise: whoever changes
/// the tables asks who it is.
static MEMORY_IS_LENT: AtomicBool = AtomicBool::new(false);

/// What makes a process of its own of a child whose fork nobody has announced.
pub static BECOME_CHILD: Callback<fn()> = Callback::none();

/// The smallest page: the kernel rounds up.
const PAGE: usize = 4096;

/// Makes this process the owner of the tables; for the constructor. False without memory for it.
pub fn claim() -> bool {
    if OWNER.load(Ordering::Acquire).is_null() {
        // SAFETY: a fresh anonymous mapping; nothing is replaced.
        let mapped = unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE, flags, MapFlags::PRIVATE)
        };
        let Ok(page) = mapped else { return false };
        // SAFETY: the advice concerns that page alone.
        let wiped = unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) };
        if wiped.is_err() {
            lend();
        }
        let owner = if wiped.is_ok() { page.cast() } else { (&raw const OWNER_UNWIPED).cast_mut() };
        OWNER.store(owner, Ordering::Release);
    }
    become_own();
    true
}

/// In a forked child: it is the owner of its tables.
pub fn become_own() {
    if let Some(owner) = owner() {
        owner.store(own_pid(), Ordering::Release);
    }
}

/// False before start-up.
pub fn is_claimed() -> bool {
    owner().is_some()
}

/// Another process may run in this memory from now on.
pub fn lend() {
    MEMORY_IS_LENT.store(true, Ordering::Relaxed);
}

/// True when the tables belong to this process. Asked by every call that would change them; when
/// false, do the kernel's call and nothing else.
#[must_use]
pub fn owns_process_state() -> bool {
    // Before start-up there is nothing to change.
    let Some(owner) = owner() else { return false };
    match owner.load(Ordering::Acquire) {
        0 => {
            let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
            if owner.compare_exchange(0, own_pid(), ok, no).is_ok() {
                let _keep = KeepErrno::new();
                if let Some(become_child) = BECOME_CHILD.get() {
                    become_child();
                }
            }
            true
        }
        of => !MEMORY_IS_LENT.load(Ordering::Relaxed) || of == own_pid(),
    }
}

/// True when they are this process's, which changes nothing.
pub fn is_own() -> bool {
    owner().is_some_and(|owner| owner.load(Ordering::Acquire) == own_pid())
}

/// In the child of a fork without a word: makes it a process of its own before it takes a lock.
#[inline]
pub fn notice_raw_fork() {
    if owner().is_some_and(|owner| owner.load(Ordering::Relaxed) == 0) {
        let _ = owns_process_state();
    }
}

fn owner() -> Option<&'static AtomicU32> {
    // SAFETY: null, or set by `claim` to what lives as long as the library.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}

/// The process that the tables belong to: this one, where [`owns_process_state`] has just said so.
pub fn owner_pid() -> u32 {
    owner().map_or(0, |owner| owner.load(Ordering::Acquire))
}

fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_pid().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use core::ffi::{c_int, c_void};

    use libc::pid_t;

    use super::*;
    use crate::testing::exit_status;

    #[test]
    fn a_raw_fork_is_noticed_and_the_child_owns_its_copy() {
        assert!(claim());
        // From a process of one thread: what other threads, here those of other tests, have locked
        // would stay locked in the child.
        // SAFETY: the child makes system calls, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let noticed = raw_fork_is_noticed();
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(noticed)) };
        }
        assert_eq!(exit_status(pid), 1);
    }

    fn raw_fork_is_noticed() -> bool {
        let mine = owns_process_state();
        // SAFETY: the child looks at its page and exits.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        let pid = pid_t::try_from(pid).unwrap_or(-1);
        if pid == 0 {
            let wiped = owner().is_some_and(|owner| owner.load(Ordering::Acquire) == 0);
            let owns = owns_process_state() && owns_process_state();
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(wiped) + 2 * c_int::from(owns)) };
        }
        mine && exit_status(pid) == 3 && owns_process_state()
    }

    #[test]
    fn a_child_that_shares_our_memory_may_not_change_the_tables() {
        extern "C" fn child(_: *mut c_void) -> c_int {
            if owns_process_state() { 1 } else { 2 }
        }
        assert!(claim());
        // As the hook does, which a test executable has not.
        lend();
        let mut stack = vec![0_u128; 16 << 10];
        // SAFETY: the child has a stack of its own, which outlives it: CLONE_VFORK waits.
        let pid = unsafe {
            let top = stack.as_mut_ptr_range().end.cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            libc::clone(child, top, flags, ptr::null_mut())
        };
        assert_eq!(exit_status(pid), 2);
        assert!(owns_process_state());
    }
}

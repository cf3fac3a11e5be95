//! Helpers of the tests of this crate and of its users.

use core::ffi::c_int;

use libc::pid_t;

use crate::fds::owner;

/// Runs `check` in a child, where no other test is and it may close what it likes.
pub fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes system calls only, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // Claims as the library's fork handlers do.
        let passed = owner::claim() && check();
        // SAFETY: ends the child.
        unsafe { libc::_exit(c_int::from(passed)) };
    }
    exit_status(pid) == 1
}

/// With what it has exited; -1: by a signal.
pub fn exit_status(pid: pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: waits for a child of this test's.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

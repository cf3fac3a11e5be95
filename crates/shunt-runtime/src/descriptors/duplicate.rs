//! dup, dup2, dup3, and fcntl's duplicates.

use core::ffi::c_int;
use std::os::fd::BorrowedFd;

use crate::conn::Conn;
use crate::contain::contain_uncancelled;
use crate::descriptors::close::{forget, is_in_a_step};
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::own_fds;
use crate::fds::owner::owns_process_state;
use crate::fds::stdio;
use crate::fds::unconnected;
use crate::panics;
use crate::point;
use crate::processes::close;
use crate::stream::hand_over;
use crate::system::errno::{self, KeepErrno};

/// `dup`, or a duplicating `fcntl`: the kernel picks the number.
pub fn duplicate(fd: c_int, kernel_dup: impl FnOnce() -> c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Own {
        return errno::fail(libc::EBADF);
    }
    if entry.is_object() && !owns_process_state() {
        hand_over(fd, entry);
        return kernel_dup();
    }
    let new = kernel_dup();
    if new >= 0 {
        duplicated(fd, new, entry);
    }
    new
}

/// `new` is a duplicate of what `entry` stands for.
fn enter_duplicate(new: c_int, entry: Entry) {
    if !entry.is_object() {
        // What the number was before was closed behind the table's back (a raw system call).
        if fd_table::lookup(new) != Entry::KERNEL && owns_process_state() {
            fd_table::take(new);
        }
        return;
    }
    let _keep = KeepErrno::new();
    close::retain(new, entry);
    if !fd_table::set(new, entry) {
        // A number that the table does not reach is always the kernel's.
        close::before_close(new, entry);
        hand_over::hand_over(new, entry);
    } else if stdio::uses(new) {
        hand_over::hand_over(new, entry);
    }
}

/// [`enter_duplicate`] after the kernel has made one of `old`, which stays whatever becomes of this.
fn duplicated(old: c_int, new: c_int, entry: Entry) {
    let enter = || {
        point!(dup_done);
        enter_duplicate(new, entry);
        unconnected::forget(old, entry);
    };
    if !contain_uncancelled(enter)
        && let Some(conn) = Conn::of(old, entry)
    {
        // The table may say nothing of the duplicate: it must work as the kernel socket that it is.
        panics::give_back(conn);
    }
}

fn hand_over(fd: c_int, entry: Entry) {
    let _keep = KeepErrno::new();
    hand_over::hand_over(fd, entry);
}

/// `dup3`, which refuses what `dup2` takes: the same number twice. The kernel does that, and flags that it does not know.
pub fn duplicate_with(
    old: c_int,
    new: c_int,
    flags: c_int,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let is_refused = old == new || flags & !libc::O_CLOEXEC != 0;
    if is_refused { kernel() } else { duplicate_onto(old, new, kernel) }
}

/// `dup2` or `dup3`: the program picks the number, and what was there is closed.
pub fn duplicate_onto(old: c_int, new: c_int, kernel_dup: impl FnOnce() -> c_int) -> c_int {
    let (entry, displaced) = (fd_table::lookup(old), fd_table::lookup(new));
    if entry.kind() == Kind::Own {
        return errno::fail(libc::EBADF);
    }
    if old == new || (entry == Entry::KERNEL && displaced == Entry::KERNEL) {
        return kernel_dup();
    }
    if !owns_process_state() {
        if entry.is_object() {
            hand_over(old, entry);
        }
        return kernel_dup();
    }
    if displaced != Entry::KERNEL {
        // The kernel would refuse a closed `old`, and then nothing may have changed.
        if !is_open(old) {
            return kernel_dup();
        }
        if displaced.kind() == Kind::Own {
            if !own_fds::relocate(new, displaced) {
                return errno::fail(libc::EMFILE);
            }
        } else if displaced.is_object() && is_in_a_step(displaced) {
            // In a handler above a call that may be about to use the number. The kernel says so, too,
            // where a number is on its way to somebody else.
            return errno::fail(libc::EBUSY);
        } else {
            forget(new);
            point!(dup_displaced);
        }
    }
    let result = kernel_dup();
    if result >= 0 {
        duplicated(old, new, entry);
    }
    result
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: only looked at; if it is closed the kernel says so.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

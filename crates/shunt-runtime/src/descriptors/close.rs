//! close, close_range, closefrom.

use core::ffi::{c_int, c_uint};

use crate::calls;
use crate::conn::{Conn, Sock};
use crate::contain::contain_uncancelled;
use crate::epoll::instance::Instance;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::own_fds::{self, OwnFd};
use crate::fds::owner::owns_process_state;
use crate::point;
use crate::processes::close;
use crate::stream::in_doubt;
use crate::system::errno::{self, KeepErrno};
use crate::system::next;

/// `include/uapi/linux/close_range.h`.
const CLOSE_RANGE_UNSHARE: c_int = 1 << 1;
/// See above.
const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;

/// close, by whichever way the program has the kernel do it.
#[inline]
pub fn close(fd: c_int, kernel_close: impl FnOnce() -> c_int) -> c_int {
    match fd_table::lookup(fd).kind() {
        Kind::Kernel => {}
        Kind::Own => return errno::fail(libc::EBADF),
        _ if owns_process_state() && forget(fd) == Close::Later => return 0,
        _ => {}
    }
    kernel_close()
}

/// When the kernel closes a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// Right away.
    Now,
    /// Once a step of this thread is over above which a signal handler closes it, or no call waits in the
    /// epoll instance any more: they may be about to use the number. Until then it is the library's own.
    Later,
}

/// Takes `fd` out of the table and tells its object, before the kernel closes it.
pub(crate) fn forget(fd: c_int) -> Close {
    // Of two threads that close the same descriptor one tells.
    let entry = fd_table::take(fd);
    if !entry.is_object() {
        return Close::Now;
    }
    let _keep = KeepErrno::new();
    let mut when = Close::Now;
    if !contain_uncancelled(|| when = tell(fd, entry))
        && let Some(conn) = Conn::closing(fd, entry)
    {
        // What the peer has not got, it does not get any more.
        in_doubt::reset(conn);
    }
    when
}

/// Tells the object of a descriptor that this is about to be closed.
fn tell(fd: c_int, entry: Entry) -> Close {
    point!(close_taken);
    if is_in_a_step(entry) && defer(fd, entry) {
        return Close::Later;
    }
    if let Some(instance) = Instance::of(entry)
        && instance.outlives_its_descriptor()
        && let Some(own) = own_fds::adopt_here(fd)
    {
        instance.linger(own);
        instance.release(fd);
        return Close::Later;
    }
    close::before_close(fd, entry);
    Close::Now
}

/// True in a signal handler above a step of this thread on the connection.
pub(crate) fn is_in_a_step(entry: Entry) -> bool {
    calls::is_above_a_step() && Sock::of(entry).is_some_and(Sock::is_in_a_step)
}

/// Has the descriptor closed later. False when there is no place to note it.
fn defer(fd: c_int, entry: Entry) -> bool {
    let Some(own) = own_fds::adopt_here(fd) else { return false };
    let deferred = calls::close_later(own, entry);
    deferred.map_err(OwnFd::give_back).is_ok()
}

/// close_range(2).
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // Close-on-exec is what the library's own descriptors are anyhow, and changes no table; and
    // what the kernel will refuse must not be acted upon.
    let closes = flags & !CLOSE_RANGE_UNSHARE == 0 && first <= last;
    if !closes || fd_table::high_water().cast_unsigned() < first || !has_close_range() {
        // SAFETY: closes no descriptor of the library's: they lie below, or the kernel refuses the call, or closes none.
        return unsafe { next::close_range(first, last, flags) };
    }
    // With UNSHARE a thread gets descriptors of its own, and those that it closes stay open in
    // the other threads, to whom the table belongs as well.
    let mutate = owns_process_state() && (flags & CLOSE_RANGE_UNSHARE == 0 || is_only_thread());
    // UNSHARE in each call: where there is nothing left to unshare it does nothing.
    // SAFETY: the program closes these descriptors; the library's own are left out.
    close_between_own(first, last, mutate, |from, to| unsafe { next::close_range(from, to, flags) })
}

/// closefrom(3).
pub fn closefrom(low: c_int) {
    let low = low.max(0);
    if fd_table::high_water() < low {
        // SAFETY: closes no descriptor of the library's: all lie below.
        return unsafe { next::closefrom(low) };
    }
    let _keep = KeepErrno::new();
    let kernel_closes_ranges = has_close_range();
    // SAFETY: the program closes these descriptors; the library's own are left out.
    close_between_own(low.cast_unsigned(), c_uint::MAX, owns_process_state(), |from, to| unsafe {
        if to == c_uint::MAX {
            // Beyond the last own descriptor libc's way will do, whichever that is.
            next::closefrom(c_int::try_from(from).unwrap_or(c_int::MAX));
        } else if kernel_closes_ranges {
            next::close_range(from, to, 0);
        } else {
            (from..=to).filter_map(|fd| c_int::try_from(fd).ok()).for_each(|fd| {
                next::close(fd);
            });
        }
        0
    });
}

/// Closes `first..=last` but for the library's own descriptors, with calls of `kernel_close` for
/// the stretches between these. The first failure ends it.
fn close_between_own(
    first: c_uint,
    last: c_uint,
    mutate: bool,
    kernel_close: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let bound = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let mut from = first;
    for (fd, entry) in fd_table::iter(bound(first)..=bound(last)) {
        let is_own = entry.kind() == Kind::Own;
        if is_own || (mutate && forget(fd) == Close::Later) {
            let own = fd.cast_unsigned();
            if from < own && kernel_close(from, own - 1) != 0 {
                return -1;
            }
            from = own + 1;
        }
    }
    if from <= last { kernel_close(from, last) } else { 0 }
}

/// Whether kernel (5.9) and libc (2.34) have `close_range`: asked with a range that no descriptor
/// is in, since the table may change only if the descriptors will be closed.
fn has_close_range() -> bool {
    let _keep = KeepErrno::new();
    // SAFETY: a descriptor of this number can't be.
    unsafe { next::close_range(c_uint::MAX, c_uint::MAX, CLOSE_RANGE_CLOEXEC) == 0 }
}

/// Whether the process has one thread; false when it can't be told.
fn is_only_thread() -> bool {
    // ".", ".." and one directory per thread link to it.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

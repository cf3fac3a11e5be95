//! Descriptors that libc changes by its inner calls, which no hook sees.

use crate::fds::fd_table::{self, Kind};
use crate::fds::owner::owner_pid;
use crate::processes::close;
use crate::stream::hand_over;
use crate::system::abi::{Arguments, FILE, Requests, aiocb, c_int};
use crate::system::errno::KeepErrno;

/// A connection goes back to TCP before libc uses it past the library.
pub fn before_use(fd: c_int) {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Stream {
        let _keep = KeepErrno::new();
        hand_over::hand_over(fd, entry);
    }
}

/// The same before `dprintf`, which is variadic; its first argument is the descriptor.
#[allow(clippy::cast_possible_truncation, reason = "an int is the low half of its register")]
pub fn before_print([first, ..]: Arguments) {
    before_use((first as u32).cast_signed());
}

/// The same before `aio_read` and its kind.
///
/// # Safety
/// Null, or a valid request.
pub unsafe fn before_request(request: *const aiocb) {
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request.as_ref() } {
        before_use(request.aio_fildes);
    }
}

/// The same before `lio_listio`.
///
/// # Safety
/// `list` points to `count` requests, each null or valid.
pub unsafe fn before_requests(list: Requests, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    if !list.is_null() {
        // SAFETY: the caller's promise.
        (0..count).for_each(|n| unsafe { before_request(*list.add(n)) });
    }
}

/// Before a stream is closed, or gets another file: libc closes its descriptor, and may give the number to the new file.
///
/// # Safety
/// Null, or an open stream.
pub unsafe fn before_stream_ends(file: *mut FILE) {
    if !file.is_null() {
        // SAFETY: the caller's promise.
        close::forget(unsafe { libc::fileno(file) });
    }
}

/// A process may get a duplicate of `target` of this very process, by its `pidfd`: neither dup(2) nor another process is
/// seen to make it.
pub fn before_getting(pidfd: c_int, target: c_int) {
    if fd_table::lookup(target).kind() == Kind::Stream && is_own(pidfd) {
        before_use(target);
    }
}

/// Whether a pidfd is of this process.
fn is_own(pidfd: c_int) -> bool {
    let _keep = KeepErrno::new();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).unwrap_or_default();
    let mut pids = info.lines().filter_map(|line| line.strip_prefix("Pid:"));
    pids.any(|pid| pid.trim().parse() == Ok(owner_pid()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::process::{Pid, PidfdFlags, getpid, getppid, pidfd_open};

    use super::*;
    use crate::fds::owner::claim;

    #[test]
    fn a_pidfd_is_told_from_that_of_another_process() {
        assert!(claim());
        let is_own = |pid: Pid| is_own(pidfd_open(pid, PidfdFlags::empty()).unwrap().as_raw_fd());
        assert!(is_own(getpid()));
        assert!(!is_own(getppid().unwrap()));
    }
}

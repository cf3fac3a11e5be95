//! What libc does with descriptors by its inner calls, which no hook sees.

use crate::fds::fd_table::{self, Kind};
use crate::fds::owner::owner_pid;
use crate::stream::hand_over;
use crate::system::abi::c_int;
use crate::system::errno::KeepErrno;

/// A connection goes back to TCP before libc uses it past the library.
pub fn before_use(fd: c_int) {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Stream {
        let _keep = KeepErrno::new();
        hand_over::hand_over(fd, entry);
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

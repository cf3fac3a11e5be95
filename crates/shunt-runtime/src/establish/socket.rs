//! socket(2), and numbers of descriptors that are used again.

use crate::contain::contain_uncancelled;
use crate::fds::fd_table::{self, Entry};
use crate::fds::owner::owns_process_state;
use crate::fds::unconnected;
use crate::point;
use crate::processes::close;
use crate::system::abi::c_int;
use crate::system::errno::KeepErrno;

/// The program has made a socket, unless `fd` is an error.
pub fn was_made(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    if fd >= 0 {
        forget_stale(fd);
        let _keep = KeepErrno::new();
        contain_uncancelled(|| {
            point!(socket_made);
            unconnected::note(fd, domain, kind, protocol);
        });
    }
}

/// A number that the kernel just gave out was closed before, if behind the table's back.
pub fn forget_stale(fd: c_int) {
    if fd >= 0 && fd_table::lookup(fd) != Entry::KERNEL && owns_process_state() {
        let _keep = KeepErrno::new();
        let entry = fd_table::take(fd);
        if entry.is_object() {
            close::abandoned(fd, entry);
        }
    }
}

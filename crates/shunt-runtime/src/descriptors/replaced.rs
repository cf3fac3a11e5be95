//! Standard input, output and error, while libc puts other files in their place by its inner calls.

use std::os::fd::AsRawFd;

use shunt_sys::sockinfo;

use crate::fds::fd_table::{self, Entry};
use crate::fds::own_fds::{self, OwnFd};
use crate::fds::owner::owns_process_state;
use crate::processes::close;
use crate::system::abi;
use crate::system::errno::KeepErrno;

/// What lies behind standard input, output and error, while libc may put other files there.
pub struct Replaced([Option<(Entry, Option<OwnFd>)>; 3]);

impl Replaced {
    /// Before it does.
    #[must_use]
    pub fn begin() -> Self {
        let _keep = KeepErrno::new();
        Self([0, 1, 2].map(|fd| {
            let entry = fd_table::lookup(fd);
            let known = entry.is_object() && owns_process_state();
            // Open until the library has told the other end what is to be told.
            known.then(|| (entry, own_fds::duplicate(fd).ok()))
        }))
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        let _keep = KeepErrno::new();
        for (known, fd) in self.0.iter_mut().zip(0..) {
            let Some((entry, held)) = known.take() else { continue };
            let stat = |fd| rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
            let is_there = match &held {
                Some(held) => stat(abi::borrow(fd)) == stat(held.borrow()),
                None => sockinfo::is_tcp(abi::borrow(fd)),
            };
            if !is_there && owns_process_state() && fd_table::replace_if(fd, entry, Entry::KERNEL) {
                let open = held.as_ref().map_or(-1, |held| held.borrow().as_raw_fd());
                close::replaced(fd, entry, open);
            }
        }
    }
}

//! Wakes a thread that waits for descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd(2).
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    /// Set after it was rung, so that one which was not need not be asked.
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, rung: AtomicBool::new(false) })
    }

    pub(crate) fn ring(&self) {
        // It fails when it has been rung very often already.
        let _rung = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        self.rung.store(true, Ordering::Release);
    }

    /// Takes back what was rung.
    pub(crate) fn silence(&self) {
        let _silent = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// The same where it was rung, without a system call where it was not.
    pub(crate) fn hush(&self) {
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire) {
            self.silence();
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_bell_that_was_rung_is_silent_after_a_look() {
        let bell = Bell::new().unwrap();
        bell.hush();
        bell.ring();
        bell.ring();
        let is_readable = |bell: &Bell| {
            let mut polled = [PollFd::new(&bell.fd, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
        };
        assert!(is_readable(&bell));
        bell.hush();
        assert!(!is_readable(&bell));
    }
}

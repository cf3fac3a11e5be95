//! Where a thread that owns connections finds what stores have completed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::Outcome;

/// A request that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The one it was submitted under.
    pub tag: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// Completions on their way to one thread, with an eventfd that is readable while there are some.
#[derive(Debug)]
pub struct Mailbox {
    bell: OwnedFd,
    done: Mutex<Vec<Done>>,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, done: Mutex::default() })
    }

    /// Readable while something is there, or was rung.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes the thread.
    pub fn ring(&self) {
        // It cannot overflow before it is taken: each ring adds 1 to 64 bits.
        let _rung = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Puts a completion in.
    pub fn put(&self, done: Done) {
        let mut list = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = list.is_empty();
        list.push(done);
        drop(list);
        if was_empty {
            self.ring();
        }
    }

    /// Takes all completions, in the order in which they came.
    pub fn take(&self, into: &mut Vec<Done>) {
        let mut count = [0; 8];
        // First the bell: what comes after it rings again.
        let _silent = rustix::io::read(&self.bell, &mut count);
        into.append(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

//! What the program gave to epoll_wait: its buffer, and how long it waits.

use core::cell::Cell;

use crate::system::abi::{epoll_event, sigset_t};
use crate::threads::handlers::Seen;

/// The program's buffer.
pub struct Out {
    pub(super) events: *mut epoll_event,
    pub(super) max: usize,
    pub(super) len: usize,
}

impl Out {
    /// # Safety
    /// `events` points to room for `max` events.
    pub const unsafe fn new(events: *mut epoll_event, max: usize) -> Self {
        Self { events, max, len: 0 }
    }

    pub(super) fn full(&self) -> bool {
        self.len == self.max
    }

    pub(super) fn push(&mut self, event: epoll_event) {
        if self.full() {
            return;
        }
        // SAFETY: below max, for which there is room.
        unsafe { self.events.add(self.len).write_unaligned(event) };
        self.len += 1;
    }

    /// True when the program's buffer is memory that can be written. The kernel is asked about a buffer
    /// that the thread did not use just before.
    pub(super) fn is_writable(&self) -> bool {
        thread_local! {
            static KNOWN: Cell<*mut epoll_event> = const { Cell::new(core::ptr::null_mut()) };
        }
        let is = KNOWN.get() == self.events || shunt_sys::memory::is_writable(self.events.addr());
        if is {
            KNOWN.set(self.events);
        }
        is
    }
}

/// How long to wait.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Monotonic nanoseconds; `None`: for ever.
    pub deadline: Option<u64>,
    /// The program's signal mask for the wait, or null.
    pub mask: *const sigset_t,
    /// The signal handlers that have run before the call.
    pub seen: Seen,
}

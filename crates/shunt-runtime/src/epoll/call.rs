//! epoll_wait(2) and its kind.

use core::sync::atomic::Ordering;

use crate::epoll::instance::Instance;
use crate::epoll::out::{Limits, Out};
use crate::epoll::reentrancy;
use crate::epoll::wait::{Waiting, wait, wait_in_kernel};
use crate::fds::fd_table;
use crate::system::abi::{c_int, epoll_event, sigset_t};
use crate::system::errno;
use crate::threads::handlers::Seen;

/// One wait, whichever function it came by.
#[derive(Debug)]
pub struct Wait {
    /// The instance.
    pub epfd: c_int,
    /// Where the program wants the events.
    pub events: *mut epoll_event,
    /// How many it has room for.
    pub max: c_int,
    /// When it ends.
    pub deadline: Option<u64>,
    /// Signals that are blocked meanwhile; null: as they are.
    pub mask: *const sigset_t,
}

impl Wait {
    /// Does it, or has `kernel` do it.
    ///
    /// # Safety
    /// `events` points to room for `max` events; the mask is null or valid.
    #[inline]
    pub unsafe fn run(self, kernel: impl FnOnce() -> c_int) -> c_int {
        let entry = fd_table::lookup(self.epfd);
        let Some(instance) = Instance::of(entry) else { return kernel() };
        let Ok(room @ 1..) = usize::try_from(self.max) else { return kernel() };
        if reentrancy::is_above() {
            // A wait that its caller takes for one that a signal has ended.
            return errno::fail(libc::EINTR);
        }
        if self.events.is_null() {
            return kernel();
        }
        // Another thread may have closed it just now: the kernel says what the number stands for.
        let Some(_waiting) = Waiting::begin(instance, entry) else { return kernel() };
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(self.events, room) };
        let limits = Limits { deadline: self.deadline, mask: self.mask, seen: Seen::now() };
        if instance.active.load(Ordering::Acquire) > 0 {
            wait(instance, out, limits)
        } else {
            wait_in_kernel(instance, out, limits, kernel)
        }
    }
}

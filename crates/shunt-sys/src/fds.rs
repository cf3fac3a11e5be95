//! A small set of file descriptors that belongs to one message, and what std cannot do with one.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use std::io::Write as _;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use shunt_wire::agent::MAX_FDS;

use crate::raw::syscall;

/// Closes a descriptor with a bare system call: std's `drop` would go through libc's `close`, which
/// in a program that runs under Shunt is the library's own hook.
pub fn close(fd: OwnedFd) {
    // SAFETY: the descriptor was owned, and ownership ends here.
    unsafe { rustix::io::close(fd.into_raw_fd()) }
}

/// The same file by a description of its own, close-on-exec: whoever else has a descriptor of the first one cannot change its
/// flags. Takes no memory.
///
/// # Errors
/// Those of open(2) on `/proc/self/fd`.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut path = [0_u8; 32];
    let number = fd.as_fd().as_raw_fd();
    write!(path.as_mut_slice(), "/proc/self/fd/{number}\0").map_err(|_| Errno::INVAL)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Closes all descriptors of this process but these.
///
/// # Safety
/// Whatever the process knows of the others it does not use any more.
pub unsafe fn close_all_but<const N: usize>(kept: [BorrowedFd<'_>; N]) {
    let mut kept = kept.map(|fd| fd.as_raw_fd().cast_unsigned());
    kept.sort_unstable();
    let mut first = 0;
    for end in kept.into_iter().chain([u32::MAX]) {
        if first < end {
            // SAFETY: none of these is kept, and the caller promises that nobody uses the others any more.
            unsafe { close_range(first, end - 1) };
        }
        first = end.saturating_add(1);
    }
}

/// # Safety
/// Nobody uses these descriptors any more.
unsafe fn close_range(first: u32, last: u32) {
    // SAFETY: the call takes no address.
    let closed =
        unsafe { syscall(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0]) };
    if closed.is_ok() {
        return;
    }
    // Linux before 5.9.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST);
    let end = u64::from(last).min(limit);
    for fd in (u64::from(first)..=end).filter_map(|fd| i32::try_from(fd).ok()) {
        // SAFETY: the caller promises that nobody uses it any more; of one that is not open the kernel says so.
        unsafe { rustix::io::close(fd) };
    }
}

/// More descriptors than the kernel lets a process have, unless it is told (`fs.nr_open`).
const MOST: u64 = 1 << 20;

/// Up to [`MAX_FDS`] descriptors in the order of the message. Those not taken are closed on drop.
#[derive(Debug, Default)]
pub struct Fds {
    slots: [Option<OwnedFd>; MAX_FDS],
    len: usize,
    next: usize,
}

impl Fds {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: [const { None }; MAX_FDS], len: 0, next: 0 }
    }

    /// Appends one; gives it back when there is no room.
    ///
    /// # Errors
    /// The descriptor itself.
    pub fn push(&mut self, fd: OwnedFd) -> Result<(), OwnedFd> {
        match self.slots.get_mut(self.len) {
            Some(slot) => {
                *slot = Some(fd);
                self.len += 1;
                Ok(())
            }
            None => Err(fd),
        }
    }

    /// How many are left to take.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len - self.next
    }

    /// True when none is left to take.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next one, in the order of the message.
    pub fn take(&mut self) -> Option<OwnedFd> {
        let fd = self.slots.get_mut(self.next)?.take()?;
        self.next += 1;
        Some(fd)
    }

    /// Closes all that are left.
    pub fn clear(&mut self) {
        for slot in &mut self.slots {
            if let Some(fd) = slot.take() {
                close(fd);
            }
        }
        (self.len, self.next) = (0, 0);
    }

    /// Borrows those that are left into `room`.
    pub fn borrow<'a, 'r>(
        &'a self,
        room: &'r mut [MaybeUninit<BorrowedFd<'a>>; MAX_FDS],
    ) -> &'r [BorrowedFd<'a>] {
        let left = self.slots[self.next..self.len].iter().flatten();
        let mut count = 0;
        for (place, fd) in room.iter_mut().zip(left) {
            place.write(fd.as_fd());
            count += 1;
        }
        // SAFETY: the first `count` elements have just been written, and MaybeUninit<T> is laid out
        // as T.
        unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), count) }
    }
}

impl Drop for Fds {
    fn drop(&mut self) {
        self.clear();
    }
}

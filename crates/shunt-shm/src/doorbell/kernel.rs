//! The system calls of doorbells: eventfd and futex.
//!
//! An eventfd doorbell is never drained: its watchers use `EPOLLET`, which fires once per write for
//! each of them, so several threads can sleep on one bell and none steals another's wake-up.
//!
//! Whoever has a bell can set its count and its flags. So the count means nothing: a ring adds 0 to it,
//! which wakes the watchers and does not wait for room where 1 would, on a descriptor that blocks; and
//! watchers ask for room to write, too, of which there is some whenever there is nothing to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{ClockId, futex};

use crate::sync::AtomicU32;

/// Makes an eventfd doorbell.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM` of eventfd(2).
pub fn create() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// What a watcher asks the kernel's epoll for to be told of each ring; and once at the start.
pub const RUNG: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

/// Rings an eventfd doorbell.
pub fn ring(bell: BorrowedFd<'_>) {
    // An error would mean that the fd is no eventfd, which its owner has only itself to blame for.
    let _ = rustix::io::write(bell, &0_u64.to_ne_bytes());
}

/// Rings anything that can be borrowed as an fd.
pub fn ring_fd(bell: &impl AsFd) {
    ring(bell.as_fd());
}

/// Interrupts a machine by an eventfd of its ivshmem device, which counts: nothing added would be nothing heard.
pub fn interrupt(eventfd: impl AsFd) {
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// Sleeps until `word` is no longer `expected`, a wake-up, a signal, or `timeout` passes.
///
/// # Errors
/// `EAGAIN` when the word had changed already, `EINTR` for a handled signal, `ETIMEDOUT`.
pub fn futex_wait(
    word: &AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
) -> Result<(), rustix::io::Errno> {
    let timeout = timeout.map(|t| futex::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    futex_wait_timed(word, expected, timeout.as_ref())
}

/// The same with the time as the system call takes it.
///
/// # Errors
/// Those of [`futex_wait`].
pub fn futex_wait_timed(
    word: &AtomicU32,
    expected: u32,
    timeout: Option<&futex::Timespec>,
) -> Result<(), rustix::io::Errno> {
    // Not FUTEX_PRIVATE: the waker may be another process.
    futex::wait(word, futex::Flags::empty(), expected, timeout)
}

/// Most words on which a thread sleeps at a time (`FUTEX_WAITV_MAX` in include/uapi/linux/futex.h).
pub const MOST_WORDS: usize = 128;

/// Sleeps until one of the words is not any more what it was when it was armed, a wake-up for one of them, a signal, or the
/// time `until` of the monotonic clock (futex_waitv(2)). Those beyond [`MOST_WORDS`] wake nobody.
///
/// # Errors
/// `EAGAIN` when one of them had changed already, `EINTR` for a handled signal, `ETIMEDOUT`, `ENOSYS` before Linux 5.16.
pub fn futex_wait_any<'a>(
    words: impl Iterator<Item = (&'a AtomicU32, u32)>,
    until: Option<&futex::Timespec>,
) -> Result<(), rustix::io::Errno> {
    let mut all = [futex::Wait::new(); MOST_WORDS];
    let mut count = 0;
    for (wait, (word, armed)) in all.iter_mut().zip(words) {
        // Not FUTEX_PRIVATE: the waker may be another process.
        wait.flags = futex::WaitFlags::SIZE_U32;
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait.val = armed.into();
        count += 1;
    }
    let (flags, clock) = (futex::WaitvFlags::empty(), ClockId::Monotonic);
    futex::waitv(&all[..count], flags, until, clock).map(|_| ())
}

/// Wakes up to `n` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    // The kernel takes a signed count.
    let _ = futex::wake(word, futex::Flags::empty(), n.min(i32::MAX as u32));
}

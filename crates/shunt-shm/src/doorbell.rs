//! Doorbells: an eventfd for sleepers in the kernel's poll, a futex for those who wait for one word.
//!
//! An eventfd doorbell is never drained: its watchers use `EPOLLET`, which fires once per write for
//! each of them, so several threads can sleep on one bell and none steals another's wake-up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use crate::sync::{AtomicU32, Ordering, store_load_fence_after_rmw};

/// Makes an eventfd doorbell.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM` of eventfd(2).
pub fn create() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Rings an eventfd doorbell.
pub fn ring(bell: BorrowedFd<'_>) {
    // The counter saturates only after 2^64 rings; an error would mean that the fd is no eventfd,
    // which its owner has only itself to blame for.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Rings anything that can be borrowed as an fd.
pub fn ring_fd(bell: &impl AsFd) {
    ring(bell.as_fd());
}

/// An arm word: nobody waits.
pub const AWAKE: u32 = 0;
/// Bit of an arm word: a thread sleeps (or is about to) in futex(2) on the word itself.
pub const ON_FUTEX: u32 = 1;

/// Bit of an arm word: a thread sleeps (or is about to) on the doorbell of completion vector
/// `vector` (below 8).
#[must_use]
pub const fn on_bell(vector: usize) -> u32 {
    1 << (8 + (vector & 7))
}

/// The vectors that an arm word, as [`take`] returned it, asks to ring.
pub fn bells(word: u32) -> impl Iterator<Item = usize> {
    (0..8).filter(move |v| word & on_bell(*v) != 0)
}

/// Arms a word: the peer's next look at it finds `how`. Look again after it, then sleep. Returns the
/// word as it is now. It is not disarmed after waking: the bits are shared by all threads that wait,
/// and a stale one costs the peer one needless wake-up.
#[inline]
pub fn arm(word: &AtomicU32, how: u32) -> u32 {
    let now = word.fetch_or(how, Ordering::AcqRel) | how;
    // SYNC POINT word-arm: arm before the look at the cursors here; cursors before the look at the
    // word in `take`.
    store_load_fence_after_rmw();
    now
}

/// Takes all sleepers' requests for a wake-up, if there are any. The caller has stored its cursor
/// and issued [`crate::sync::store_load_fence`] (SYNC POINT word-arm) before.
#[inline]
pub fn take(word: &AtomicU32) -> u32 {
    if word.load(Ordering::Relaxed) == AWAKE {
        return AWAKE;
    }
    word.swap(AWAKE, Ordering::AcqRel)
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
    // Not FUTEX_PRIVATE: the waker may be another process.
    futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref())
}

/// Wakes up to `n` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    // The kernel takes a signed count.
    let _ = futex::wake(word, futex::Flags::empty(), n.min(i32::MAX as u32));
}

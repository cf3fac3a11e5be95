//! A lock in memory that threads and forks share. It names its owner, so that a signal handler that
//! interrupted the owner does not wait for itself, and so that a dead owner is noticed.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::doorbell::{futex_wait, futex_wake};
use crate::sync::{AtomicU32, Ordering};

const WAITERS: u32 = 1 << 31;

/// The lock word: 0, or the owner's thread id with a flag that others wait.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct TidLock(AtomicU32);

/// Unlocks on drop.
#[derive(Debug)]
pub struct TidGuard<'a> {
    lock: &'a TidLock,
    nested: bool,
}

impl TidLock {
    /// A free one.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock. When this very thread holds it already (we run in a signal handler that
    /// interrupted it), returns a guard that is [`TidGuard::nested`] and does not unlock.
    #[inline]
    pub fn lock(&self, tid: u32) -> TidGuard<'_> {
        if self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return TidGuard { lock: self, nested: false };
        }
        self.lock_slow(tid)
    }

    /// True when this very thread holds it: we run in a signal handler that interrupted it.
    #[inline]
    #[must_use]
    pub fn is_held_by(&self, tid: u32) -> bool {
        self.0.load(Ordering::Relaxed) & !WAITERS == tid
    }

    #[cold]
    fn lock_slow(&self, tid: u32) -> TidGuard<'_> {
        let mut spins = 0;
        // Whoever unlocks wakes one sleeper and forgets the rest: a thread that slept takes the lock
        // as one that others may still wait for, and so wakes the next.
        let mut slept = 0;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let owner = word & !WAITERS;
            if owner == tid {
                return TidGuard { lock: self, nested: true };
            }
            if owner == 0 {
                let taken = tid | (word & WAITERS) | slept;
                if self
                    .0
                    .compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return TidGuard { lock: self, nested: false };
                }
                continue;
            }
            spins += 1;
            if spins < 100 {
                core::hint::spin_loop();
                continue;
            }
            let waited = word | WAITERS;
            if word != waited
                && self
                    .0
                    .compare_exchange(word, waited, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            slept = WAITERS;
            if futex_wait(&self.0, waited, Some(Duration::from_millis(100))) == Err(Errno::TIMEDOUT)
                && !alive(owner)
            {
                // The owner was killed inside the critical section. Its direction's cursors are
                // published last, so what it left is a whole state.
                let _ = self.0.compare_exchange(
                    waited,
                    tid | WAITERS,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                );
                if self.0.load(Ordering::Relaxed) == tid | WAITERS {
                    return TidGuard { lock: self, nested: false };
                }
            }
        }
    }

    /// Takes the lock if it can be had within `patience`. `None` also where [`Self::lock`] would
    /// return a nested guard.
    pub fn lock_within(&self, tid: u32, patience: Duration) -> Option<TidGuard<'_>> {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        let mut left = patience;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let owner = word & !WAITERS;
            if owner == tid {
                return None;
            }
            let (from, to) = (Ordering::Acquire, Ordering::Relaxed);
            if owner == 0 || !alive(owner) {
                // Others may sleep, too: whoever unlocks wakes one of them.
                let taken = tid | (word & WAITERS);
                if self.0.compare_exchange(word, taken, from, to).is_ok() {
                    return Some(TidGuard { lock: self, nested: false });
                }
                continue;
            }
            let waited = word | WAITERS;
            if word != waited && self.0.compare_exchange(word, waited, to, to).is_err() {
                continue;
            }
            left = left.checked_sub(LOOK_EVERY)?;
            let _ = futex_wait(&self.0, waited, Some(LOOK_EVERY));
        }
    }

    /// Makes the lock free when its owner has died with it: for memory that is about to be used anew.
    pub fn free_if_dead(&self) {
        let word = self.0.load(Ordering::Relaxed);
        let owner = word & !WAITERS;
        if owner != 0 && !alive(owner) {
            let _ = self.0.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

fn alive(tid: u32) -> bool {
    // kill(2) takes the id of any thread. EPERM means that it exists.
    i32::try_from(tid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

impl TidGuard<'_> {
    /// True in a signal handler that interrupted the owner.
    #[must_use]
    pub const fn nested(&self) -> bool {
        self.nested
    }
}

impl Drop for TidGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.nested {
            return;
        }
        if self.lock.0.swap(0, Ordering::Release) & WAITERS != 0 {
            futex_wake(&self.lock.0, 1);
        }
    }
}

//! A lock in memory that threads and forks share. It names its owner, so that a signal handler that
//! interrupted the owner does not wait for itself, and so that a dead owner is noticed.
//!
//! A thread id alone does not name an owner: processes of two pid namespaces may share the memory,
//! and have the same ids. So the process stands beside it, by its name among those that share the
//! memory.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::doorbell::{futex_wait, futex_wake};
use crate::holders::Member;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Set while others wait. It lies in the half of the word in which the thread stands.
const WAITERS: u64 = 1 << 63;
const THREAD_AT: u32 = 32;

/// A thread of a process that may hold locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u64);

impl Owner {
    /// The thread `tid`, not 0, of a process that shares the memory.
    #[inline]
    #[must_use]
    pub const fn new(process: Member, tid: u32) -> Self {
        Self((tid as u64) << THREAD_AT & !WAITERS | process.code() as u64)
    }

    /// As a plain number, for storage.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "a register is as wide")]
    pub const fn to_word(self) -> usize {
        self.0 as usize
    }

    /// The reverse of [`Self::to_word`].
    #[must_use]
    pub const fn from_word(word: usize) -> Self {
        Self(word as u64)
    }

    /// Its process.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    pub const fn process(self) -> Member {
        Member::from_code(self.0 as u32)
    }

    /// Its thread id, as its pid namespace counts.
    #[must_use]
    pub const fn tid(self) -> u32 {
        (self.0 >> THREAD_AT) as u32
    }

    /// True when the caller's pid namespace has no such thread.
    #[must_use]
    pub fn has_ended_here(self) -> bool {
        // kill(2) takes the id of any thread. EPERM means that it exists.
        let pid = i32::try_from(self.tid()).ok().and_then(Pid::from_raw);
        pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }
}

/// The lock word: 0, or the owner with a flag that others wait.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct OwnerLock(AtomicU64);

/// Unlocks on drop.
#[derive(Debug)]
pub struct Guard<'a> {
    lock: &'a OwnerLock,
    owner: Owner,
    has: Has,
}

/// How a guard has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Has {
    Own,
    /// A call of this thread has it, which a signal handler has interrupted.
    Nested,
    /// Its last owner has ended with it.
    Inherited(Owner),
}

impl OwnerLock {
    /// A free one.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the lock. When this very thread holds it already (we run in a signal handler that
    /// interrupted it), returns a guard that is [`Guard::nested`] and does not unlock. `is_dead` says of
    /// an owner that it has certainly ended.
    #[inline]
    pub fn lock(&self, me: Owner, is_dead: impl Fn(Owner) -> bool) -> Guard<'_> {
        if self.0.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return self.guard(me, Has::Own);
        }
        self.lock_slow(me, &is_dead)
    }

    /// True when this very thread holds it: we run in a signal handler that interrupted it.
    #[inline]
    #[must_use]
    pub fn is_held_by(&self, me: Owner) -> bool {
        self.0.load(Ordering::Relaxed) & !WAITERS == me.0
    }

    /// Its owner, at this moment.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        let word = self.0.load(Ordering::Relaxed) & !WAITERS;
        (word != 0).then_some(Owner(word))
    }

    const fn guard(&self, owner: Owner, has: Has) -> Guard<'_> {
        Guard { lock: self, owner, has }
    }

    #[cold]
    fn lock_slow(&self, me: Owner, is_dead: &dyn Fn(Owner) -> bool) -> Guard<'_> {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        let mut spins = 0;
        // Whoever unlocks wakes one sleeper and forgets the rest: a thread that slept takes the lock
        // as one that others may still wait for, and so wakes the next.
        let mut slept = 0;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let owner = word & !WAITERS;
            if owner == me.0 {
                return self.guard(me, Has::Nested);
            }
            if owner == 0 {
                if self.take(word, me, slept) {
                    return self.guard(me, Has::Own);
                }
                continue;
            }
            spins += 1;
            if spins < 100 {
                core::hint::spin_loop();
                continue;
            }
            let Some(waited) = self.announce(word) else { continue };
            slept = WAITERS;
            // The owner may have been killed with the lock.
            if self.wait(waited, LOOK_EVERY) == Err(Errno::TIMEDOUT)
                && is_dead(Owner(owner))
                && self.take(waited, me, WAITERS)
            {
                return self.guard(me, Has::Inherited(Owner(owner)));
            }
        }
    }

    /// Takes the lock if it can be had within `patience`. `None` also where [`Self::lock`] would
    /// return a nested guard.
    pub fn lock_within(
        &self,
        me: Owner,
        patience: Duration,
        is_dead: impl Fn(Owner) -> bool,
    ) -> Option<Guard<'_>> {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        let mut left = patience;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let owner = word & !WAITERS;
            if owner == me.0 {
                return None;
            }
            if owner == 0 || is_dead(Owner(owner)) {
                if self.take(word, me, 0) {
                    let has = if owner == 0 { Has::Own } else { Has::Inherited(Owner(owner)) };
                    return Some(self.guard(me, has));
                }
                continue;
            }
            let Some(waited) = self.announce(word) else { continue };
            left = left.checked_sub(LOOK_EVERY)?;
            let _ = self.wait(waited, LOOK_EVERY);
        }
    }

    /// Others may sleep, too: whoever unlocks wakes one of them.
    fn take(&self, word: u64, me: Owner, waiters: u64) -> bool {
        let taken = me.0 | (word & WAITERS) | waiters;
        self.0.compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Says that somebody waits; the word as it is then. `None`: it has changed.
    fn announce(&self, word: u64) -> Option<u64> {
        let waited = word | WAITERS;
        let (ok, no) = (Ordering::Relaxed, Ordering::Relaxed);
        (word == waited || self.0.compare_exchange(word, waited, ok, no).is_ok()).then_some(waited)
    }

    fn wait(&self, waited: u64, longest: Duration) -> Result<(), Errno> {
        futex_wait(self.futex(), (waited >> THREAD_AT) as u32, Some(longest))
    }

    /// The half of the word on which the kernel sleeps.
    const fn futex(&self) -> &AtomicU32 {
        let half = if cfg!(target_endian = "little") { 1 } else { 0 };
        // SAFETY: the half lies in the word and is aligned. Only its address is used: the kernel alone
        // reads it by this reference.
        unsafe { &*core::ptr::from_ref(self).cast::<AtomicU32>().add(half) }
    }

    /// Unlocks what `owner` has locked. What it has not got any more it does not give.
    #[inline]
    pub fn unlock(&self, owner: Owner) {
        if self.0.compare_exchange(owner.0, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.give_up(owner);
        }
    }

    /// Gives the lock up in the place of `owner`, who does not come back to it. Nothing, where it is not
    /// the owner.
    pub fn give_up(&self, owner: Owner) {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & !WAITERS == owner.0 {
            match self.0.compare_exchange(word, 0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) if word & WAITERS != 0 => return futex_wake(self.futex(), 1),
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Gives back what `owner` has locked, as one that it has inherited from `dead`, and cannot bring to an end what that one has left half
    /// done: the next one inherits it again.
    #[cold]
    pub fn return_to(&self, owner: Owner, dead: Owner) {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & !WAITERS == owner.0 {
            let returned = dead.0 | (word & WAITERS);
            match self.0.compare_exchange(word, returned, Ordering::Release, Ordering::Relaxed) {
                Ok(_) if word & WAITERS != 0 => return futex_wake(self.futex(), 1),
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Makes the lock free when its owner has died with it: for memory that is about to be used anew.
    pub fn free_if_dead(&self, is_dead: impl Fn(Owner) -> bool) {
        let word = self.0.load(Ordering::Relaxed);
        if word & !WAITERS != 0 && is_dead(Owner(word & !WAITERS)) {
            let _ = self.0.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Guard<'_> {
    /// True in a signal handler that interrupted the owner.
    #[must_use]
    pub const fn nested(&self) -> bool {
        matches!(self.has, Has::Nested)
    }

    /// True where the last owner has ended with the lock: what it protects may be half changed.
    #[inline(always)]
    #[must_use]
    pub const fn is_inherited(&self) -> bool {
        matches!(self.has, Has::Inherited(_))
    }

    /// The last owner, where it has ended with the lock.
    #[inline(always)]
    #[must_use]
    pub const fn inherited_from(&self) -> Option<Owner> {
        if let Has::Inherited(owner) = self.has { Some(owner) } else { None }
    }
}

impl<'a> Guard<'a> {
    /// The lock, its owner, and whether it is nested; for who unlocks by [`OwnerLock::unlock`].
    #[inline(always)]
    #[must_use]
    pub const fn into_parts(self) -> (&'a OwnerLock, Owner, bool) {
        let parts = (self.lock, self.owner, self.nested());
        core::mem::forget(self);
        parts
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.nested() {
            self.lock.unlock(self.owner);
        }
    }
}

//! The locks of a connection, as a call of this thread has them.

use core::mem::ManuallyDrop;
use core::time::Duration;

use shunt_shm::lock::{Guard, Owner};

use crate::calls::{self, Has, UnderWay, Which};
use crate::conn::Sock;
use crate::ops::process;
use crate::relatives;

/// A lock of a connection. A signal handler that jumps out of the call gives it back.
#[derive(Debug)]
pub struct Locked {
    guard: ManuallyDrop<Guard<'static>>,
    /// Not for a nested one, which has nothing to give back.
    under_way: Option<UnderWay>,
    is_direction: bool,
}

impl Locked {
    fn of(guard: Guard<'static>, sock: &Sock, which: Which, me: Owner) -> Self {
        let is_direction = which != Which::Handshake && !guard.nested();
        let has = Has::Lock(sock.record(), which, me);
        let under_way = (!guard.nested()).then(|| UnderWay::note(has));
        if is_direction {
            calls::count_step(true);
        }
        Self { guard: ManuallyDrop::new(guard), under_way, is_direction }
    }

    /// True in a signal handler above a call of this thread that has the lock.
    #[inline]
    #[must_use]
    pub fn nested(&self) -> bool {
        self.guard.nested()
    }

    /// True when a handler above the call has forked, and this is the child: the lock is the parent's.
    #[inline]
    #[must_use]
    pub fn is_anothers(&self) -> bool {
        self.under_way.as_ref().is_some_and(|entry| !entry.is_live())
    }
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        if !self.is_anothers() {
            // SAFETY: dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.guard) };
        }
        self.under_way = None;
        if self.is_direction {
            calls::count_step(false);
        }
    }
}

impl Sock {
    /// This thread as an owner of the connection's locks.
    #[inline]
    #[must_use]
    pub fn me(&self) -> Owner {
        process::notice_raw_fork();
        Owner::new(self.member(), calls::tid())
    }

    #[inline]
    fn lock(&self, which: Which) -> Locked {
        let me = self.me();
        let is_dead = |owner| relatives::has_ended(self.endpoint(), owner);
        Locked::of(which.of(self.record()).lock(me, is_dead), self, which, me)
    }

    /// The lock of the receiving direction.
    #[inline]
    #[must_use]
    pub fn lock_rx(&self) -> Locked {
        self.lock(Which::Rx)
    }

    /// The lock of the sending direction.
    #[inline]
    #[must_use]
    pub fn lock_tx(&self) -> Locked {
        self.lock(Which::Tx)
    }

    /// Held while a proposal is looked for and taken up.
    #[must_use]
    pub fn lock_handshake(&self) -> Locked {
        self.lock(Which::Handshake)
    }

    /// The lock, if it can be had within `patience`. `None` also in a signal handler above a call of this
    /// thread that has it.
    #[must_use]
    pub fn lock_within(&self, which: Which, patience: Duration) -> Option<Locked> {
        let me = self.me();
        let is_dead = |owner| relatives::has_ended(self.endpoint(), owner);
        let guard = which.of(self.record()).lock_within(me, patience, is_dead)?;
        Some(Locked::of(guard, self, which, me))
    }

    /// True in a signal handler above a step of this thread on the connection.
    #[must_use]
    pub fn is_in_a_step(&self) -> bool {
        let me = self.me();
        let record = self.record();
        calls::is_above_a_step() && (record.rx.lock.is_held_by(me) || record.tx.lock.is_held_by(me))
    }
}

//! The locks of a connection, as a call of this thread has them.

use core::time::Duration;

use shunt_engine::conn::is_settled;
use shunt_shm::lock::{Guard, Owner, OwnerLock};

use crate::calls::{self, Has, Index, Thread, Which};
use crate::conn::Sock;
use crate::control::members;
use crate::fds::owner;

/// A lock of a connection. A signal handler that jumps out of the call gives it back.
#[derive(Debug)]
pub struct Locked {
    lock: &'static OwnerLock,
    owner: Owner,
    thread: &'static Thread,
    state: State,
    /// The one that it was taken from, which has ended with it, where this process cannot bring to an end what that has left half done.
    heir_of: Option<Owner>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Taken(Index),
    /// By this thread, above which a signal handler runs: there is nothing to give back.
    Nested,
    Released,
}

impl Locked {
    #[inline(always)]
    fn of(
        guard: Guard<'static>,
        thread: &'static Thread,
        has: Has,
        heir_of: Option<Owner>,
    ) -> Self {
        let (lock, owner, nested) = guard.into_parts();
        let state = if nested { State::Nested } else { State::Taken(thread.note(has)) };
        Self { lock, owner, thread, state, heir_of }
    }

    /// True in a signal handler above a call of this thread that has the lock.
    #[inline]
    #[must_use]
    pub const fn nested(&self) -> bool {
        matches!(self.state, State::Nested)
    }

    /// Unlocks before the value goes.
    #[inline(always)]
    pub fn release(&mut self) {
        if let State::Taken(index) = self.state {
            self.state = State::Released;
            // Where a handler above the call has forked, and this is the child, the lock is the parent's.
            self.thread.give_back(index, || match self.heir_of {
                None => self.lock.unlock(self.owner),
                Some(dead) => self.lock.return_to(self.owner, dead),
            });
        }
    }
}

impl Drop for Locked {
    #[inline(always)]
    fn drop(&mut self) {
        self.release();
    }
}

impl Sock {
    /// This thread as an owner of the connection's locks.
    #[inline]
    #[must_use]
    pub fn me(&self) -> Owner {
        self.owner(calls::current())
    }

    #[inline]
    fn owner(&self, thread: &Thread) -> Owner {
        owner::notice_raw_fork();
        Owner::new(self.member(), thread.tid())
    }

    #[inline]
    fn lock(&self, which: Which) -> Locked {
        let (thread, record) = (calls::current(), self.record());
        let me = self.owner(thread);
        let is_dead = |owner| members::has_ended(self.endpoint(), owner);
        let guard = which.of(record).lock(me, is_dead);
        let heir_of = self.inherits(&guard, which);
        Locked::of(guard, thread, Has::Lock(record, which, me), heir_of)
    }

    /// The lock was taken. Of one that was killed with it, what it has left half done comes to an end first; or later, where this process
    /// has no part in the link group yet: that one's name.
    #[inline(always)]
    fn inherits(&self, guard: &Guard<'_>, which: Which) -> Option<Owner> {
        guard.inherited_from().filter(|_| !self.inherit(which))
    }

    #[cold]
    fn inherit(&self, which: Which) -> bool {
        let Some(end) = self.end() else {
            return which == Which::Handshake || !is_settled(self.record());
        };
        match which {
            Which::Rx => end.inherit_receiving(),
            Which::Tx => end.inherit_sending(),
            Which::Handshake => {}
        }
        true
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
        let (thread, record) = (calls::current(), self.record());
        let me = self.owner(thread);
        let is_dead = |owner| members::has_ended(self.endpoint(), owner);
        let guard = which.of(record).lock_within(me, patience, is_dead)?;
        let heir_of = self.inherits(&guard, which);
        Some(Locked::of(guard, thread, Has::Lock(record, which, me), heir_of))
    }

    /// True in a signal handler above a step of this thread on the connection.
    #[must_use]
    pub fn is_in_a_step(&self) -> bool {
        let me = self.me();
        let record = self.record();
        calls::is_above_a_step() && (record.rx.lock.is_held_by(me) || record.tx.lock.is_held_by(me))
    }
}

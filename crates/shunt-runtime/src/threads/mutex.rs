//! The lock of all parts off the data path: the conversation with the agent, tables of link groups,
//! registrations.
//!
//! While a thread has one, no signal handler runs on top of it. So no handler waits for the thread
//! that it has interrupted, and none jumps out of a change that is half done.

use core::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError, TryLockError};

use crate::threads::signals::Uninterrupted;

/// The lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// Unlocks on drop.
#[derive(Debug)]
pub struct Guard<'a, T> {
    // In the order in which they are dropped.
    guard: MutexGuard<'a, T>,
    _uninterrupted: Uninterrupted,
}

impl<T> Mutex<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Takes it.
    pub fn lock(&self) -> Guard<'_, T> {
        let uninterrupted = Uninterrupted::begin();
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { guard, _uninterrupted: uninterrupted }
    }

    /// Takes it if nobody has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let uninterrupted = Uninterrupted::begin();
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { guard, _uninterrupted: uninterrupted })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

//! The lock of an instance, as a thread holds it.
//!
//! A signal handler may close, send and receive on top of an epoll call of its own thread, whose lock it
//! would wait for for ever. So a thread that is at such a lock leaves what the instances are to be told
//! undone, and does it when it has let go: the descriptor table says what each descriptor has become.

use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::epoll::state::State;
use crate::errno::KeepErrno;

thread_local! {
    /// Locks that this thread holds, or waits for.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
}

/// The instances were not told of something.
static UNTOLD: AtomicBool = AtomicBool::new(false);

/// True in a signal handler on top of a call of this thread that is at an instance's lock.
#[inline]
pub fn is_above() -> bool {
    LOCKS.with(Cell::get) > 0
}

/// The same for one who would tell the instances something, which then is done later.
pub fn is_told_later() -> bool {
    let above = is_above();
    if above {
        UNTOLD.store(true, Ordering::Release);
    }
    above
}

/// A locked state.
pub struct Held<'a> {
    // The order in which they are dropped.
    state: MutexGuard<'a, State>,
    _count: Count,
}

impl<'a> Held<'a> {
    pub(super) fn lock(state: &'a Mutex<State>) -> Self {
        let count = Count::one_more();
        Self { state: state.lock().unwrap_or_else(PoisonError::into_inner), _count: count }
    }
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

struct Count;

impl Count {
    fn one_more() -> Self {
        LOCKS.with(|locks| locks.set(locks.get() + 1));
        Self
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        LOCKS.with(|locks| locks.set(locks.get() - 1));
        if UNTOLD.load(Ordering::Relaxed) && !is_above() && UNTOLD.swap(false, Ordering::AcqRel) {
            let _keep = KeepErrno::new();
            super::everywhere().for_each(super::Instance::catch_up);
        }
    }
}

//! The lock of an instance, as a thread holds it.
//!
//! A signal handler may close, send and receive on top of an epoll call of its own thread, whose lock it
//! would wait for for ever. So a thread that is at such a lock leaves what the instances are to be told
//! undone, and does it when it has let go: the descriptor table says what each descriptor has become.
//! One that jumps out of such a call leaves the lists as they were at that moment; whoever has the lock
//! next makes them anew.

use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use shunt_shm::holders::Member;
use shunt_shm::lock::{Guard, Owner, OwnerLock};

use crate::calls::{self, Has, UnderWay};
use crate::epoll::instance::Instance;
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

/// This thread: nobody but the threads of this process has the lock.
fn me() -> Owner {
    Owner::new(Member::UNNAMED, calls::serial())
}

/// A state and its lock.
#[derive(Debug, Default)]
pub(super) struct Lock {
    lock: OwnerLock,
    /// A handler has jumped out of a call that had it.
    is_torn: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: the state is touched with the lock held alone.
unsafe impl Sync for Lock {}

/// A locked state.
pub struct Held {
    // The order in which they are dropped.
    guard: Guard<'static>,
    _under_way: UnderWay,
    lock: &'static Lock,
    _count: Count,
}

impl Held {
    pub(super) fn lock(instance: &'static Instance) -> Self {
        let lock = instance.state();
        let count = Count::one_more();
        let guard = lock.lock.lock(me(), |_| false);
        let under_way = UnderWay::note(Has::Instance(instance));
        let mut held = Self { guard, _under_way: under_way, lock, _count: count };
        if lock.is_torn.swap(false, Ordering::Relaxed) {
            let state: &mut State = &mut held;
            state.make_anew();
        }
        held
    }

    /// Before a fork. `None` in a handler on top of a call of this thread that has the lock.
    pub(super) fn for_fork(instance: &'static Instance) -> Option<Self> {
        (!instance.state().lock.is_held_by(me())).then(|| Self::lock(instance))
    }
}

impl Lock {
    /// In the place of a call of this thread that does not come back to it.
    pub(super) fn unlock_after_jump(&self) {
        self.is_torn.store(true, Ordering::Relaxed);
        self.lock.give_up(me());
        drop(Count);
    }
}

impl Deref for Held {
    type Target = State;

    fn deref(&self) -> &State {
        debug_assert!(!self.guard.nested());
        // SAFETY: the lock is held.
        unsafe { &*self.lock.state.get() }
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as above; a thread that has the lock does not take it again.
        unsafe { &mut *self.lock.state.get() }
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
        LOCKS.with(|locks| locks.set(locks.get().saturating_sub(1)));
        if UNTOLD.load(Ordering::Relaxed) && !is_above() && UNTOLD.swap(false, Ordering::AcqRel) {
            let _keep = KeepErrno::new();
            super::everywhere().for_each(super::Instance::catch_up);
        }
    }
}

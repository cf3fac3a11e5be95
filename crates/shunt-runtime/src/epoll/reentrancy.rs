//! The lock of an instance, as a thread holds it.
//!
//! A signal handler may close, send and receive on top of an epoll call of its own thread. It would
//! wait for that call's lock for ever. So a thread that is at such a lock leaves the news for the
//! instances undone, and delivers it when it has let go: the descriptor table says what each
//! descriptor has become. A thread that jumps out of such a call leaves the lists as they were at
//! that moment. The next holder of the lock makes them anew.

use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use shunt_shm::holders::Member;
use shunt_shm::lock::{Guard, Owner, OwnerLock};

use crate::callback::Callback;
use crate::calls::{self, Has, Keeper, UnderWay};
use crate::epoll::state::State;
use crate::system::errno::KeepErrno;

thread_local! {
    /// Locks that this thread holds, or waits for.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
}

/// The instances were not told of something.
static UNTOLD: AtomicBool = AtomicBool::new(false);

/// What tells them.
pub static CATCH_UP: Callback<fn()> = Callback::none();

/// True in a signal handler on top of a call of this thread that is at an instance's lock.
#[inline]
pub fn is_above() -> bool {
    LOCKS.with(Cell::get) > 0
}

/// The same for one who would tell the instances something, which is done later, when this thread has let go.
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
    pub(super) fn lock(lock: &'static Lock) -> Self {
        let count = Count::one_more();
        let guard = lock.lock.lock(me(), |_| false);
        let under_way = UnderWay::note(Has::kept(lock, &LOCKED));
        let mut held = Self { guard, _under_way: under_way, lock, _count: count };
        if lock.is_torn.swap(false, Ordering::Relaxed) {
            let state: &mut State = &mut held;
            state.make_anew();
        }
        held
    }

    /// Before a fork. `None` in a handler on top of a call of this thread that has the lock.
    pub(super) fn for_fork(lock: &'static Lock) -> Option<Self> {
        (!lock.lock.is_held_by(me())).then(|| Self::lock(lock))
    }
}

// SAFETY: `Held::lock` alone notes with it, a lock.
static LOCKED: Keeper = unsafe { Keeper::new(unlock_after_longjmp) };

/// In the place of a call of this thread that has the lock, and does not come back to it.
///
/// # Safety
/// The address is a lock's.
unsafe fn unlock_after_longjmp(lock: *const ()) {
    // SAFETY: the caller promises a lock's address; locks are never freed.
    let lock = unsafe { &*lock.cast::<Lock>() };
    lock.is_torn.store(true, Ordering::Relaxed);
    lock.lock.give_up(me());
    drop(Count);
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
        // SAFETY: the lock is held, and a thread that has it does not take it again: this is the only reference.
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
        if UNTOLD.load(Ordering::Relaxed)
            && !is_above()
            && UNTOLD.swap(false, Ordering::AcqRel)
            && let Some(catch_up) = CATCH_UP.get()
        {
            let _keep = KeepErrno::new();
            catch_up();
        }
    }
}

//! The epoll instances of the process.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::epoll::instance::Instance;
use crate::epoll::reentrancy::Held;
use crate::fds::fd_table::{Entry, Kind};
use crate::system::errno::KeepErrno;
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::mutex::{Guard, Mutex};

/// Epoll instances that a process can have under Shunt's eyes; further ones are the kernel's alone.
const INSTANCES: usize = 1024;

static TABLE: [AtomicPtr<Instance>; INSTANCES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; INSTANCES];
static HIGH: AtomicUsize = AtomicUsize::new(0);
static CHANGES: &Mutex<()> = &ACROSS_FORKS.epoll;

/// All instances of the process.
pub fn all() -> impl Iterator<Item = &'static Instance> {
    everywhere().filter(|i| i.is_live())
}

/// The same with those that are closed.
fn everywhere() -> impl Iterator<Item = &'static Instance> {
    let high = HIGH.load(Ordering::Acquire);
    TABLE[..high].iter().filter_map(at)
}

/// The instance that a place of the table has.
fn at(place: &AtomicPtr<Instance>) -> Option<&'static Instance> {
    // SAFETY: null, or an instance that `create` has leaked: none is ever freed, their places are used again.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Tells the instances of what they were not told.
pub fn catch_up() {
    everywhere().for_each(Instance::catch_up);
}

/// The instance with this number.
pub fn get(index: usize) -> Option<&'static Instance> {
    TABLE.get(index).and_then(at)
}

/// A new instance for the epoll descriptor `fd`.
pub fn create(fd: i32) -> Option<&'static Instance> {
    let _changes = lock();
    for (index, place) in TABLE.iter().enumerate() {
        match at(place) {
            Some(old) if old.is_live() => {}
            Some(old) => {
                old.renew(fd);
                return Some(old);
            }
            None => {
                let new: &'static Instance = Box::leak(Box::new(Instance::new(index, fd)));
                place.store(core::ptr::from_ref(new).cast_mut(), Ordering::Release);
                HIGH.fetch_max(index + 1, Ordering::AcqRel);
                return Some(new);
            }
        }
    }
    None
}

fn lock() -> Guard<'static, ()> {
    CHANGES.lock()
}

/// Every lock of this module, to be held across fork.
pub struct ForkLocks {
    _changes: Guard<'static, ()>,
    _instances: Vec<Held>,
}

/// Takes them.
pub fn lock_for_fork() -> ForkLocks {
    let _keep = KeepErrno::new();
    let changes = lock();
    let share = |instance: &'static Instance| {
        let mut state = instance.lock_for_fork()?;
        instance.share(&mut state);
        Some(state)
    };
    ForkLocks { _changes: changes, _instances: all().filter_map(share).collect() }
}

/// In a forked child: the completion queues are the parent's, so every connection is looked at by
/// itself.
pub fn forget_in_child() {
    for instance in all() {
        // But for one at whose lock a call of this thread is, above which a handler has forked.
        if let Some(mut state) = instance.lock_for_fork() {
            state.all_direct();
            state.inherited = true;
        }
    }
}

impl Instance {
    /// The instance of a descriptor table entry.
    #[must_use]
    #[inline]
    pub fn of(entry: Entry) -> Option<&'static Self> {
        match entry.kind() {
            Kind::Epoll => get(entry.name().index as usize),
            _ => None,
        }
    }
}

//! Epoll instances that watch shunted connections.
//!
//! The program's epoll instance stays a real one: descriptors that are the kernel's are registered
//! in it as the program asked, with the program's own data. A shunted connection is registered with
//! data of ours (a [`tag`]) so that only its end is heard from the kernel; its readiness is found
//! here, from the completion queue of the instance's vector. The doorbells of the vector are in the
//! kernel's set, too, so that one epoll_wait(2) sleeps for everything.

mod fd_map;
pub mod held;
pub mod instance;
mod low_water;
pub mod nested;
pub mod ready;
pub mod state;
pub mod wait;

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use held::Held;
use instance::Instance;

use crate::errno::KeepErrno;
use crate::mutex::{Guard, Mutex};

/// Epoll instances that a process can have under Shunt's eyes; further ones are the kernel's alone.
const INSTANCES: usize = 1024;

static TABLE: [AtomicPtr<Instance>; INSTANCES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; INSTANCES];
static HIGH: AtomicUsize = AtomicUsize::new(0);
static CHANGES: Mutex<()> = Mutex::new(());

/// Addresses that name watches towards the kernel: no data of the program can be equal to one.
static TAGS: [u8; WATCHES + 1] = [0; WATCHES + 1];
/// Watches of one instance.
pub const WATCHES: usize = 1 << 20;

/// The kernel's data for a watch; `None` stands for a doorbell.
pub fn tag(watch: Option<usize>) -> u64 {
    TAGS.as_ptr().addr() as u64 + watch.map_or(0, |w| w as u64 + 1)
}

/// The reverse of [`tag`], or `None` for the program's own data.
#[allow(clippy::option_option, reason = "three cases: not a tag, a doorbell, a watch")]
pub fn untag(data: u64) -> Option<Option<usize>> {
    let offset = usize::try_from(data.checked_sub(tag(None))?).ok()?;
    (offset <= WATCHES).then(|| offset.checked_sub(1))
}

/// All instances of the process.
pub fn all() -> impl Iterator<Item = &'static Instance> {
    everywhere().filter(|i| i.is_live())
}

/// The same with those that are closed.
fn everywhere() -> impl Iterator<Item = &'static Instance> {
    let high = HIGH.load(Ordering::Acquire);
    // SAFETY: instances are never freed; their places are used again.
    TABLE[..high].iter().filter_map(|p| unsafe { p.load(Ordering::Acquire).as_ref() })
}

/// Tells the instances of what they were not told.
pub fn catch_up() {
    everywhere().for_each(Instance::catch_up);
}

/// The instance with this number.
pub fn get(index: usize) -> Option<&'static Instance> {
    // SAFETY: as in `all`.
    unsafe { TABLE.get(index)?.load(Ordering::Acquire).as_ref() }
}

/// A new instance for the epoll descriptor `fd`.
pub fn create(fd: i32) -> Option<&'static Instance> {
    let _changes = lock();
    for (index, place) in TABLE.iter().enumerate() {
        // SAFETY: as in `all`.
        match unsafe { place.load(Ordering::Acquire).as_ref() } {
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
pub fn lock_for_fork() -> (Guard<'static, ()>, Vec<Held>) {
    let _keep = KeepErrno::new();
    let changes = lock();
    let share = |instance: &'static Instance| {
        let mut state = instance.lock_for_fork()?;
        instance.share(&mut state);
        Some(state)
    };
    (changes, all().filter_map(share).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_from_data() {
        assert_eq!(untag(tag(None)), Some(None));
        assert_eq!(untag(tag(Some(7))), Some(Some(7)));
        assert_eq!(untag(tag(Some(WATCHES - 1))), Some(Some(WATCHES - 1)));
        assert_eq!(untag(tag(None) - 1), None);
        assert_eq!(untag(u64::MAX), None);
        assert_eq!(untag(5), None);
    }
}

//! The lock: nested in a signal handler, fought over, and left by the dead.

use std::cell::UnsafeCell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shunt_shm::holders::Member;
use shunt_shm::lock::{Owner, OwnerLock};

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// This thread of a process without a name.
pub fn me() -> Owner {
    Owner::new(Member::UNNAMED, tid())
}

/// One that has ended.
pub fn dead() -> Owner {
    Owner::new(Member::UNNAMED, dead_tid())
}

pub fn is_dead(owner: Owner) -> bool {
    owner.has_ended_here()
}

/// The id of a thread that has ended.
fn dead_tid() -> u32 {
    let dead = thread::spawn(tid).join().unwrap();
    // The id may be gone a moment after the join only.
    let pid = rustix::process::Pid::from_raw(dead.cast_signed()).unwrap();
    while rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH) {
        thread::yield_now();
    }
    dead
}

/// A number that only holders of the lock touch, without an atomic to hide behind.
#[derive(Default)]
struct Guarded {
    lock: OwnerLock,
    value: UnsafeCell<u64>,
}

// SAFETY: the value is touched only with the lock held.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn add(&self, n: u64) {
        let guard = self.lock.lock(me(), is_dead);
        assert!(!guard.nested());
        // SAFETY: the lock is held.
        unsafe { *self.value.get() += n };
    }
}

#[test]
fn the_owner_gets_in_again_and_the_inner_guard_does_not_unlock() {
    let lock = OwnerLock::default();
    let outer = lock.lock(me(), is_dead);
    assert!(!outer.nested());
    let inner = lock.lock(me(), is_dead);
    assert!(inner.nested());
    drop(inner);
    let (send, taken) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.lock(me(), is_dead);
            send.send(guard.nested()).unwrap();
        });
        assert!(
            taken.recv_timeout(Duration::from_millis(50)).is_err(),
            "unlocked by the inner guard"
        );
        drop(outer);
        assert_eq!(taken.recv_timeout(Duration::from_secs(10)), Ok(false));
    });
}

#[test]
fn it_excludes() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 5_000;
    let guarded = Guarded::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..ROUNDS).for_each(|_| guarded.add(1)));
        }
    });
    assert_eq!(guarded.value.into_inner(), THREADS * ROUNDS);
}

/// Several sleep when the owner lets go: the one that is woken must wake the next, and none may be
/// left to wait until it looks for itself whether the owner lives (100 ms).
#[test]
fn every_sleeper_is_woken_in_turn() {
    // The machine may be too busy to run all of them so soon; but not each time.
    let mut all = (0..50).map(|_| slowest_of_many(8));
    assert!(all.any(|longest| longest < Duration::from_millis(60)));
}

/// How long after the owner's release the last of `sleepers` had the lock.
fn slowest_of_many(sleepers: usize) -> Duration {
    let lock = OwnerLock::default();
    let owner = lock.lock(me(), is_dead);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..sleepers)
            .map(|_| {
                scope.spawn(|| {
                    drop(lock.lock(me(), is_dead));
                    Instant::now()
                })
            })
            .collect();
        // They spin a little, then sleep.
        thread::sleep(Duration::from_millis(20));
        let released = Instant::now();
        drop(owner);
        let last = threads.into_iter().map(|t| t.join().unwrap()).max();
        last.map_or(Duration::ZERO, |last| last.duration_since(released))
    })
}

#[test]
fn a_dead_owner_s_lock_is_taken_over() {
    let lock = OwnerLock::default();
    std::mem::forget(lock.lock(dead(), is_dead));
    let began = Instant::now();
    let guard = lock.lock(me(), is_dead);
    assert!(!guard.nested() && guard.is_inherited());
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(guard);
    let next = lock.lock(me(), is_dead);
    assert!(!next.nested() && !next.is_inherited());
    drop(next);
}

#[test]
fn a_lock_is_not_waited_for_longer_than_asked() {
    let lock = OwnerLock::default();
    let patience = Duration::from_millis(20);
    thread::scope(|scope| {
        let owner = lock.lock(me(), is_dead);
        assert!(lock.lock_within(me(), patience, is_dead).is_none(), "this very thread has it");
        scope
            .spawn(|| assert!(lock.lock_within(me(), patience, is_dead).is_none()))
            .join()
            .unwrap();
        let waiter =
            scope.spawn(|| lock.lock_within(me(), Duration::from_secs(60), is_dead).is_some());
        drop(owner);
        assert!(waiter.join().unwrap());
    });
    std::mem::forget(lock.lock(dead(), is_dead));
    let inherited = lock.lock_within(me(), patience, is_dead).expect("its owner is dead");
    assert!(inherited.is_inherited());
    drop(inherited);
    assert!(!lock.lock(me(), is_dead).nested(), "unlocked");
}

#[test]
fn only_a_dead_owner_s_lock_is_freed() {
    let lock = OwnerLock::default();
    let owner = lock.lock(me(), is_dead);
    lock.free_if_dead(is_dead);
    assert!(lock.lock(me(), is_dead).nested());
    drop(owner);
    std::mem::forget(lock.lock(dead(), is_dead));
    lock.free_if_dead(is_dead);
    let began = Instant::now();
    assert!(!lock.lock(me(), is_dead).nested());
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Two pid namespaces have the same thread ids.
#[test]
fn a_thread_of_another_process_with_the_same_id_waits() {
    let lock = OwnerLock::default();
    let [mine, other] = [1, 2].map(|code| Owner::new(Member::from_code(code), tid()));
    let owner = lock.lock(mine, |_| false);
    assert!(!lock.is_held_by(other));
    assert!(lock.lock_within(other, Duration::from_millis(20), |_| false).is_none());
    assert!(lock.lock(mine, |_| false).nested());
    drop(owner);
    assert!(!lock.lock(other, |_| false).nested());
}

#[test]
fn an_owner_is_told_by_process_and_thread() {
    let owner = Owner::new(Member::from_code(0xfff0_1234), 0x003f_ffff);
    assert_eq!((owner.process().code(), owner.tid()), (0xfff0_1234, 0x003f_ffff));
}

/// A thread that comes too late gives back what another one has taken since.
#[test]
fn only_the_owner_s_guard_unlocks() {
    let lock = OwnerLock::default();
    let [first, second] = [1, 2].map(|code| Owner::new(Member::from_code(code), tid()));
    let late = lock.lock(first, |_| false);
    lock.give_up(second);
    assert!(lock.is_held_by(first), "another one cannot give it up");
    lock.give_up(first);
    let owner = lock.lock(second, |_| false);
    drop(late);
    assert!(lock.is_held_by(second));
    drop(owner);
    assert!(!lock.is_held_by(second));
}

/// One that cannot bring to an end what a dead owner has left gives the lock back to that: the next one knows.
#[test]
fn what_is_returned_to_the_dead_is_inherited_again() {
    let (lock, dead) = (OwnerLock::default(), dead());
    let _ = lock.lock(dead, |_| false).into_parts();
    for n in 0..2 {
        let guard = lock.lock(me(), is_dead);
        assert!(guard.is_inherited(), "{n}");
        assert_eq!(guard.inherited_from(), Some(dead));
        let (_, owner, _) = guard.into_parts();
        lock.return_to(owner, dead);
        lock.return_to(owner, me());
        assert_eq!(lock.owner(), Some(dead), "it is not that one's to give any more");
    }
    let guard = lock.lock_within(me(), Duration::ZERO, is_dead).unwrap();
    assert_eq!(guard.inherited_from(), Some(dead));
    drop(guard);
    assert_eq!(lock.lock(me(), is_dead).inherited_from(), None);
}

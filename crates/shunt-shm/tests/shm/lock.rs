//! The lock: nested in a signal handler, fought over, and left by the dead.

use std::cell::UnsafeCell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shunt_shm::lock::TidLock;

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// The id of a thread that has ended.
pub fn dead_tid() -> u32 {
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
    lock: TidLock,
    value: UnsafeCell<u64>,
}

// SAFETY: the value is touched only with the lock held.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn add(&self, n: u64) {
        let guard = self.lock.lock(tid());
        assert!(!guard.nested());
        // SAFETY: the lock is held.
        unsafe { *self.value.get() += n };
    }
}

#[test]
fn the_owner_gets_in_again_and_the_inner_guard_does_not_unlock() {
    let lock = TidLock::default();
    let outer = lock.lock(tid());
    assert!(!outer.nested());
    let inner = lock.lock(tid());
    assert!(inner.nested());
    drop(inner);
    let (send, taken) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.lock(tid());
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
    let lock = TidLock::default();
    let owner = lock.lock(tid());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..sleepers)
            .map(|_| {
                scope.spawn(|| {
                    drop(lock.lock(tid()));
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
    let lock = TidLock::default();
    std::mem::forget(lock.lock(dead_tid()));
    let began = Instant::now();
    let guard = lock.lock(tid());
    assert!(!guard.nested());
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(guard);
    assert!(!lock.lock(tid()).nested());
}

#[test]
fn a_lock_is_not_waited_for_longer_than_asked() {
    let lock = TidLock::default();
    let patience = Duration::from_millis(20);
    thread::scope(|scope| {
        let owner = lock.lock(tid());
        assert!(lock.lock_within(tid(), patience).is_none(), "this very thread has it");
        scope.spawn(|| assert!(lock.lock_within(tid(), patience).is_none())).join().unwrap();
        let waiter = scope.spawn(|| lock.lock_within(tid(), Duration::from_secs(60)).is_some());
        drop(owner);
        assert!(waiter.join().unwrap());
    });
    std::mem::forget(lock.lock(dead_tid()));
    assert!(lock.lock_within(tid(), patience).is_some(), "its owner is dead");
    assert!(!lock.lock(tid()).nested(), "unlocked");
}

#[test]
fn only_a_dead_owner_s_lock_is_freed() {
    let lock = TidLock::default();
    let owner = lock.lock(tid());
    lock.free_if_dead();
    assert!(lock.lock(tid()).nested());
    drop(owner);
    std::mem::forget(lock.lock(dead_tid()));
    lock.free_if_dead();
    let began = Instant::now();
    assert!(!lock.lock(tid()).nested());
    assert!(began.elapsed() < Duration::from_secs(5));
}

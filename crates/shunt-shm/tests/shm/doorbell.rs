//! Arm words, and the system calls behind them.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use shunt_shm::doorbell::{
    AWAKE, ON_BELL, ON_FUTEX, RUNG, arm, arm_bell, create, futex_wait, futex_wait_any, futex_wake,
    ring, take, take_bells, vectors,
};
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};

#[test]
fn a_word_collects_requests_until_they_are_taken() {
    let (word, bells) = (AtomicU32::new(AWAKE), AtomicU64::new(0));
    assert_eq!(take(&word), AWAKE);
    assert_eq!(arm(&word, ON_FUTEX), ON_FUTEX);
    assert_eq!(arm_bell(&word, &bells, 3), ON_FUTEX | ON_BELL);
    assert_eq!(arm_bell(&word, &bells, 63), ON_FUTEX | ON_BELL);
    let asked = take(&word);
    assert_eq!(asked, ON_FUTEX | ON_BELL);
    assert_eq!(vectors(take_bells(asked, &bells)).collect::<Vec<_>>(), [3, 63]);
    assert_eq!((take(&word), take_bells(ON_BELL, &bells)), (AWAKE, 0));
}

#[test]
fn a_word_names_as_many_doorbells_as_there_are() {
    let (word, bells) = (AtomicU32::new(AWAKE), AtomicU64::new(0));
    (0..64).for_each(|vector| assert_eq!(arm_bell(&word, &bells, vector), ON_BELL));
    assert_eq!(vectors(take_bells(take(&word), &bells)).collect::<Vec<_>>(), Vec::from_iter(0..64));
    arm_bell(&word, &bells, 64);
    assert_eq!(take_bells(take(&word), &bells), 1, "any number names one that there is");
}

#[test]
fn doorbells_beside_a_word_that_does_not_name_them_stay() {
    let bells = AtomicU64::new(5);
    assert_eq!(take_bells(AWAKE, &bells), 0);
    assert_eq!(take_bells(!ON_BELL, &bells), 0);
    assert_eq!(take_bells(u32::MAX, &bells), 5);
}

/// A bell, and what its watcher hears: how often since the last look.
fn watched() -> (OwnedFd, impl Fn() -> usize) {
    let bell = create().unwrap();
    let ear = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&ear, &bell, epoll::EventData::new_u64(0), RUNG).unwrap();
    let heard = move || {
        let mut events = Vec::with_capacity(1);
        let now = Timespec::default();
        epoll::wait(&ear, spare_capacity(&mut events), Some(&now)).unwrap()
    };
    assert_eq!((heard(), heard()), (1, 0), "the start");
    (bell, heard)
}

#[test]
fn each_ring_is_heard() {
    let (bell, heard) = watched();
    ring(bell.as_fd());
    ring(bell.as_fd());
    assert_eq!((heard(), heard()), (1, 0));
    ring(bell.as_fd());
    assert_eq!((heard(), heard()), (1, 0));
}

#[test]
fn whoever_has_a_bell_cannot_silence_it_or_hold_up_who_rings() {
    let (bell, heard) = watched();
    // As full as programs can make it, and without O_NONBLOCK.
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&bell, OFlags::empty()).unwrap();
    heard();
    ring(bell.as_fd());
    assert_eq!((heard(), heard()), (1, 0));
    // Emptied.
    rustix::io::read(&bell, &mut [0; 8]).unwrap();
    heard();
    ring(bell.as_fd());
    assert_eq!((heard(), heard()), (1, 0));
}

#[test]
fn a_futex_sleeper_sees_a_changed_word_a_wake_up_and_its_timeout() {
    let word = AtomicU32::new(ON_FUTEX);
    let moment = Some(Duration::from_millis(5));
    assert_eq!(futex_wait(&word, AWAKE, moment), Err(Errno::AGAIN));
    assert_eq!(futex_wait(&word, ON_FUTEX, moment), Err(Errno::TIMEDOUT));
    let began = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while word.load(Ordering::Acquire) == ON_FUTEX {
                let _ = futex_wait(&word, ON_FUTEX, Some(Duration::from_secs(30)));
            }
        });
        thread::sleep(Duration::from_millis(20));
        assert_eq!(take(&word), ON_FUTEX);
        futex_wake(&word, u32::MAX);
        sleeper.join().unwrap();
    });
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_sleeper_on_several_futexes_hears_each_of_them() {
    let words = [const { AtomicU32::new(ON_FUTEX) }; 3];
    let past = rustix::thread::futex::Timespec { tv_sec: 0, tv_nsec: 1 };
    let all = |armed| words.iter().map(move |word| (word, armed));
    match futex_wait_any(all(AWAKE), Some(&past)) {
        Err(Errno::NOSYS) => return eprintln!("skipped: the kernel has no futex_waitv(2)"),
        changed => assert_eq!(changed, Err(Errno::AGAIN)),
    }
    assert_eq!(futex_wait_any(all(ON_FUTEX), Some(&past)), Err(Errno::TIMEDOUT));
    for word in &words {
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| futex_wait_any(all(ON_FUTEX), None));
            while !sleeper.is_finished() {
                thread::sleep(Duration::from_millis(1));
                futex_wake(word, u32::MAX);
            }
            assert_eq!(sleeper.join().unwrap(), Ok(()));
        });
    }
}

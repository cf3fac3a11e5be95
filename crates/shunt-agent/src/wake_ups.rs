//! The time of a wake-up on this machine: some microseconds on metal, ten times as much in a
//! virtual machine. Programs begin with it, and go on by their own measurements.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shunt_shm::doorbell::{futex_wait, futex_wake};
use shunt_shm::sync::{AtomicU32, Ordering};

/// Wake-ups there and back, at most.
const ROUNDS: usize = 24;
/// No more of them once they have taken so long: the machine is busy.
const ENOUGH: Duration = Duration::from_millis(20);
/// A thread that was not woken for so long never will be.
const PATIENCE: Duration = Duration::from_secs(1);

/// By what a thread is woken.
trait Bell: Sync {
    fn ring(&self);
    /// False when nobody has rung for too long.
    fn wait(&self) -> bool;
}

#[derive(Default)]
struct Futex(AtomicU32);

impl Bell for Futex {
    fn ring(&self) {
        self.0.store(1, Ordering::Release);
        futex_wake(&self.0, 1);
    }

    fn wait(&self) -> bool {
        let until = Instant::now() + PATIENCE;
        while self.0.swap(0, Ordering::AcqRel) == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // Whatever it says: the word is what counts.
            let _ = futex_wait(&self.0, 0, Some(left));
        }
        true
    }
}

struct Event(OwnedFd);

impl Event {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
}

impl Bell for Event {
    fn ring(&self) {
        // Its count is far from full.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn wait(&self) -> bool {
        let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let rung = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&patience));
        rung == Ok(1) && rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

/// The lower quartile of what wake-ups take, in nanoseconds. Two threads put each other to sleep and wake each other.
fn one_of(bells: &[impl Bell; 2]) -> Option<u32> {
    let is_over = AtomicU32::new(0);
    let mut took = thread::scope(|scope| {
        let answers = || {
            while bells[0].wait() && is_over.load(Ordering::Acquire) == 0 {
                bells[1].ring();
            }
        };
        thread::Builder::new().spawn_scoped(scope, answers).ok()?;
        let (first, mut took) = (Instant::now(), Vec::with_capacity(ROUNDS));
        while took.len() < ROUNDS && (took.is_empty() || first.elapsed() < ENOUGH) {
            let began = Instant::now();
            bells[0].ring();
            if !bells[1].wait() {
                break;
            }
            took.push(began.elapsed() / 2);
        }
        is_over.store(1, Ordering::Release);
        bells[0].ring();
        Some(took)
    })?;
    took.sort_unstable();
    u32::try_from(took.get(took.len() / 4)?.as_nanos()).ok()
}

/// What a futex's wake-up takes, and an eventfd's, in nanoseconds; 0: that is not known. It takes some milliseconds to find
/// out.
pub fn measure() -> [u32; 2] {
    let futex = one_of(&[Futex::default(), Futex::default()]);
    let events = Event::new().and_then(|first| Ok([first, Event::new()?]));
    let event = events.ok().and_then(|events| one_of(&events));
    [futex, event].map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_known_where_threads_can_be_had() {
        let took = measure();
        assert!(took.iter().all(|nanos| *nanos > 0), "{took:?}");
    }

    #[test]
    fn who_is_never_woken_gives_up() {
        assert!(!Futex::default().wait());
        assert!(!Event::new().expect("a descriptor").wait());
        assert_eq!(one_of(&[Deaf, Deaf]), None);
    }

    struct Deaf;

    impl Bell for Deaf {
        fn ring(&self) {}

        fn wait(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_was_rung_before_is_heard() {
        let (futex, event) = (Futex::default(), Event::new().expect("a descriptor"));
        futex.ring();
        event.ring();
        assert!(futex.wait() && event.wait());
        assert!(!futex.wait() && !event.wait(), "once");
    }
}

//! Sleeping on arm words: on that of one connection, or on those of several.

use core::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, secure_computing_mode};
use shunt_engine::wait::Slept;
use shunt_shm::doorbell::{MOST_WORDS, ON_FUTEX, arm, futex_wait_any, futex_wait_timed};
use shunt_shm::sync::AtomicU32;

use crate::system::abi::timespec;
use crate::system::clock;
use crate::threads::handlers::{self, Seen};

/// Whether threads can sleep on several words at a time: [`NOT_KNOWN`], ...
static HAS_WAITV: AtomicU32 = AtomicU32::new(NOT_KNOWN);
const NOT_KNOWN: u32 = 0;
const YES: u32 = 1;
/// The kernel has no futex_waitv(2), or the process is under a filter (seccomp(2)), which may kill for a system call that hardly
/// any program makes.
const NO: u32 = 2;

/// True when a thread can sleep on so many words.
pub fn can_sleep_on(words: usize) -> bool {
    words == 1 || (words <= MOST_WORDS && has_waitv())
}

fn has_waitv() -> bool {
    let known = HAS_WAITV.load(Relaxed);
    if known != NOT_KNOWN {
        return known == YES;
    }
    let is_free = matches!(secure_computing_mode(), Ok(SecureComputingMode::Disabled));
    HAS_WAITV.store(if is_free { YES } else { NO }, Relaxed);
    is_free
}

/// Words that are armed for a futex.
#[derive(Debug, Default)]
pub struct Words(Vec<(&'static AtomicU32, u32)>);

impl Words {
    /// There are none.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Arms one more.
    pub fn arm(&mut self, word: &'static AtomicU32) {
        self.0.push((word, arm(word, ON_FUTEX)));
    }

    /// Sleeps until one of them is taken, for so many nanoseconds at the most.
    pub fn sleep(&self, seen: Seen, longest: Option<u64>) -> Slept {
        match self.0.as_slice() {
            [(word, armed)] => sleep_on(word, *armed, seen, longest),
            words => {
                let until = longest.map(|nanos| clock::now().saturating_add(nanos));
                let slept = handlers::sleep(seen, until, |time| {
                    futex_wait_any(words.iter().copied(), Some(at(&time)))
                });
                if slept == Some(Err(Errno::NOSYS)) || slept == Some(Err(Errno::PERM)) {
                    HAS_WAITV.store(NO, Relaxed);
                    return Slept::Woken;
                }
                outcome(slept)
            }
        }
    }
}

/// The same for one word.
pub fn sleep_on(word: &AtomicU32, armed: u32, seen: Seen, longest: Option<u64>) -> Slept {
    let wait = |time| futex_wait_timed(word, armed, Some(at(&time)));
    outcome(handlers::sleep(seen, longest, wait))
}

/// The time that this thread's handlers cut short.
const fn at(time: &*const timespec) -> &rustix::thread::futex::Timespec {
    // SAFETY: memory of this thread, laid out as rustix has it too, of which nothing but its address is used before
    // the kernel reads it.
    unsafe { &*time.cast() }
}

fn outcome(slept: Option<Result<(), Errno>>) -> Slept {
    match slept {
        // Something may have come before the signal.
        Some(Ok(()) | Err(Errno::AGAIN)) => Slept::Woken,
        Some(Err(Errno::INTR)) => Slept::Interrupted,
        Some(Err(Errno::TIMEDOUT)) => Slept::Over,
        Some(Err(_)) => Slept::Failed,
        None => Slept::NotAtAll,
    }
}

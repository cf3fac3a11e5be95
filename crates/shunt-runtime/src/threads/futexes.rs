//! Sleeping on arm words: on that of one connection, or on those of several.

use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use shunt_engine::wait::{Slept, UNATTENDED};
use shunt_shm::doorbell::{
    MOST_WORDS, ON_FUTEX, arm, futex_wait_any, futex_wait_timed, futex_wake,
};
use shunt_shm::sync::AtomicU32;

use crate::system::abi::timespec;
use crate::system::clock;
use crate::system::filter;
use crate::threads::handlers::{self, Seen};

/// The kernel has no futex_waitv(2), by which threads sleep on several words at a time.
static LACKS_WAITV: AtomicBool = AtomicBool::new(false);

/// True when a thread can sleep on so many words.
pub fn can_sleep_on(words: usize) -> bool {
    words == 1 || (words <= MOST_WORDS && !LACKS_WAITV.load(Relaxed) && !filter::is_there())
}

/// A word, and what it is until there is news.
pub type Word = (&'static AtomicU32, u32);

/// Words that are armed for a futex, and those of the agents that wake who sleeps there ([`Endpoint::agent`]).
///
/// [`Endpoint::agent`]: crate::control::endpoint::Endpoint::agent
#[derive(Debug, Default)]
pub struct Words {
    armed: Vec<Word>,
    agents: Vec<Word>,
    is_unattended: bool,
}

impl Words {
    /// There are none.
    pub fn clear(&mut self) {
        self.armed.clear();
        self.agents.clear();
        self.is_unattended = false;
    }

    /// Arms one more.
    pub fn arm(&mut self, word: &'static AtomicU32) {
        self.armed.push((word, arm(word, ON_FUTEX)));
    }

    /// Those who are killed at the other end of one of them are this agent's to tell of; `None`: it is gone.
    pub fn attend(&mut self, agent: Option<Word>) {
        let Some(agent) = agent else {
            self.is_unattended = true;
            return;
        };
        if !self.agents.iter().any(|(known, _)| ptr::eq(*known, agent.0)) {
            self.agents.push(agent);
        }
    }

    /// True where nobody tells of peers of some that were killed.
    pub const fn is_unattended(&self) -> bool {
        self.is_unattended
    }

    /// Sleeps until one of them is taken, for so many nanoseconds at the most.
    pub fn sleep(&self, seen: Seen, longest: Option<u64>) -> Slept {
        sleep_on(&self.armed, &self.agents, seen, longest)
    }
}

/// Sleeps until one of the `armed` words is taken or, if it is to be for long, one of the `agents` ends.
pub fn sleep_on(armed: &[Word], agents: &[Word], seen: Seen, longest: Option<u64>) -> Slept {
    // Who looks within that time anyhow needs no word of the agent's.
    let is_long = longest.is_none_or(|longest| longest > UNATTENDED);
    let agents = if is_long && can_sleep_on(armed.len() + agents.len()) { agents } else { &[] };
    if let ([(word, armed)], []) = (armed, agents) {
        let wait = |time| futex_wait_timed(word, *armed, Some(at(&time)));
        return outcome(handlers::sleep(seen, longest, wait));
    }
    let until = longest.map(|nanos| clock::now().saturating_add(nanos));
    let slept = handlers::sleep(seen, until, |time| {
        futex_wait_any(armed.iter().chain(agents).copied(), Some(at(&time)))
    });
    if slept == Some(Err(Errno::NOSYS)) || slept == Some(Err(Errno::PERM)) {
        LACKS_WAITV.store(true, Relaxed);
        return Slept::Woken;
    }
    // The kernel wakes one of those who sleep at an agent's end, and that one the others.
    for (agent, lived) in agents {
        if agent.load(Relaxed) != *lived {
            futex_wake(agent, u32::MAX);
        }
    }
    outcome(slept)
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

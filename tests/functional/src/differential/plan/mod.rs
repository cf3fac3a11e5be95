//! Programs as values: who does what, in which order.
//!
//! A plan is a sequence of *groups*. The steps of a group are begun at once, each by another actor (a thread of
//! a process); the next group begins when each of them, and whatever is still under way from earlier groups, is
//! done or asleep in the kernel. So it is known what has happened when an actor closes a descriptor in which
//! another one waits.

pub mod args;
pub mod ops;
mod text;

use std::fmt;

pub use args::{Arg, Kind, Stream, Var};
pub use ops::Op;

/// Most processes of a plan.
pub const PROCESSES: usize = 6;
/// Most threads of a process.
pub const THREADS: usize = 4;
/// Most steps of a plan.
pub const STEPS: usize = 400;

/// A thread of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Actor {
    /// Which process.
    pub process: u8,
    /// Which of its threads; 0 is the first.
    pub thread: u8,
}

impl Actor {
    /// Its number among all.
    #[must_use]
    pub const fn index(self) -> usize {
        self.process as usize % PROCESSES * THREADS + self.thread as usize % THREADS
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.{}", self.process, self.thread)
    }
}

/// Where an actor does what it does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Level {
    /// After what it did before.
    #[default]
    Base,
    /// In the handler of a signal that comes now, whatever it is doing.
    Handler(Signal),
}

/// Signals that actors handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGUSR1, whose handler interrupts calls.
    Interrupts,
    /// SIGUSR2, whose handler does not (SA_RESTART).
    Restarts,
    /// SIGVTALRM, whose handler jumps out of the call that it interrupts (siglongjmp(3)).
    Jumps,
}

impl Signal {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Interrupts, Self::Restarts, Self::Jumps];

    /// Its number.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Interrupts => libc::SIGUSR1,
            Self::Restarts => libc::SIGUSR2,
            Self::Jumps => libc::SIGVTALRM,
        }
    }
}

/// One operation of one actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Who.
    pub actor: Actor,
    /// Where.
    pub level: Level,
    /// What.
    pub op: Op,
    /// Time ends it: it is waited for, asleep or not.
    pub timed: bool,
}

/// See the module's description.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// Threads of each process. Those that no step makes are there from the start.
    pub processes: Vec<u8>,
    /// The steps.
    pub groups: Vec<Vec<Step>>,
}

impl Plan {
    /// All steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.groups.iter().flatten()
    }

    /// The descriptors, in order.
    #[must_use]
    pub fn vars(&self) -> Vec<Var> {
        let mut all = Vec::new();
        self.steps().for_each(|step| step.op.vars(&mut |var| all.push(var)));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// True for a process that a step makes.
    #[must_use]
    pub fn is_child(&self, process: usize) -> bool {
        self.steps().any(|step| {
            matches!(step.op, Op::Fork { child, .. } if usize::try_from(child) == Ok(process))
        })
    }
}

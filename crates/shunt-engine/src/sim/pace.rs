//! Programs as coroutines, and the points at which one of them stops.
//!
//! A point lies behind each access to an atomic ([`shunt_shm::sync::sim`]), and before each thing that a step asks of a port.

use core::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use generator::{Generator, Gn};
use shunt_shm::sync::sim::{Access, set_hook};

/// Points in a history; those of a program that goes in a circle have no end.
const MOST: u32 = 400_000;

/// Words of a coroutine's stack.
const STACK: usize = 0x8000;

thread_local! {
    static PACE: Pace = const {
        Pace {
            is_on: Cell::new(false),
            is_over: Cell::new(false),
            gap: Cell::new(0),
            life: Cell::new(u32::MAX),
            points: Cell::new(0),
        }
    };
}

/// How far the program goes that runs just now.
struct Pace {
    /// A program runs, and may be stopped.
    is_on: Cell<bool>,
    /// The history is over.
    is_over: Cell<bool>,
    /// Points that it passes before it stops.
    gap: Cell<u32>,
    /// Points that it passes before it is killed; `u32::MAX`: it is not.
    life: Cell<u32>,
    /// Those of the history.
    points: Cell<u32>,
}

/// Why a coroutine unwinds: the history is over.
struct Over;

/// The program may stop here.
#[inline]
pub fn point() {
    PACE.with(|pace| {
        if pace.is_on.get() {
            pass(pace);
        }
    });
}

fn pass(pace: &Pace) {
    pace.points.set(pace.points.get() + 1);
    assert!(pace.points.get() < MOST, "a program goes in a circle");
    match pace.life.get() {
        u32::MAX => {}
        0 => return stop(pace),
        left => pace.life.set(left - 1),
    }
    match pace.gap.get() {
        0 => stop(pace),
        left => pace.gap.set(left - 1),
    }
}

/// The program stops here, until the scheduler has it go on.
pub fn rest() {
    PACE.with(stop);
}

fn stop(pace: &Pace) {
    pace.is_on.set(false);
    // The other way to yield asks for a value that a hook has not got; loom takes this one, too.
    #[allow(deprecated)]
    generator::yield_with(());
    if pace.is_over.get() {
        resume_unwind(Box::new(Over));
    }
    pace.is_on.set(true);
}

/// Does this without a stop.
pub fn at_once<T>(what: impl FnOnce() -> T) -> T {
    let was_on = PACE.with(|pace| pace.is_on.replace(false));
    let result = what();
    PACE.with(|pace| pace.is_on.set(was_on));
    result
}

/// The program that runs is to be killed so many points further on.
pub fn is_to_die_in(points: u32) {
    PACE.with(|pace| pace.life.set(points));
}

/// How a program stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// It can go on.
    Between,
    /// It is to be killed where it is.
    Dies,
    /// It is over.
    Done,
}

/// A program.
pub struct Program {
    coroutine: Generator<'static, (), ()>,
    life: u32,
    has_begun: bool,
}

impl Program {
    /// One that does this. What it works on it finds in memory of the thread, on which it stays.
    #[allow(deprecated, reason = "see `stop`")]
    pub fn new(body: impl FnOnce() + Send + 'static) -> Self {
        let body = move || {
            // A value that the coroutine drops while it unwinds must not find that another one may go on there.
            let result = catch_unwind(AssertUnwindSafe(body));
            PACE.with(|pace| pace.is_on.set(false));
            match result {
                Err(failure) if !failure.is::<Over>() => resume_unwind(failure),
                _ => {}
            }
        };
        Self { coroutine: Gn::new_opt(STACK, body), life: u32::MAX, has_begun: false }
    }

    /// Goes on for so many points.
    pub fn goes_on(&mut self, gap: u32) -> Stopped {
        PACE.with(|pace| {
            pace.gap.set(gap);
            pace.life.set(self.life);
            pace.is_on.set(true);
        });
        self.has_begun = true;
        self.coroutine.resume();
        let life = PACE.with(|pace| {
            pace.is_on.set(false);
            pace.life.replace(u32::MAX)
        });
        self.life = life;
        match (life, self.coroutine.is_done()) {
            (_, true) => Stopped::Done,
            (0, false) => Stopped::Dies,
            (_, false) => Stopped::Between,
        }
    }

    /// True for one that is to be killed later.
    pub fn is_doomed(&self) -> bool {
        self.life != u32::MAX
    }
}

impl Drop for Program {
    /// What is left on its stack is dropped: by then the history is over.
    fn drop(&mut self) {
        if !self.has_begun || self.coroutine.is_done() {
            return;
        }
        PACE.with(|pace| pace.is_over.set(true));
        self.coroutine.resume();
        PACE.with(|pace| pace.is_over.set(false));
    }
}

/// A history begins on this thread.
pub fn begins() {
    PACE.with(|pace| pace.points.set(0));
    set_hook(Some(|_: Access| point()));
}

/// It is over.
pub fn ends() {
    set_hook(None);
}

/// Points that were passed.
pub fn points() -> u32 {
    PACE.with(|pace| pace.points.get())
}

//! Programs as coroutines, and the points at which one of them stops.
//!
//! A point lies behind each access to an atomic ([`shunt_shm::sync::sim`]), and before each thing that a step asks of a port.

use core::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::panicking;

use generator::{Generator, Gn};
use shunt_shm::sync::sim::{Access, set_hook};

use super::machine::Machine;

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
            fate: Cell::new(Fate::NONE),
            masked: Cell::new(false),
            who: Cell::new(0),
            points: Cell::new(0),
        }
    };
}

/// What is to become of a program, and how many points it passes before; [`Fate::NEVER`]: it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fate {
    /// It is killed.
    dies: u32,
    /// A handler of a signal runs.
    handles: u32,
    /// The library panics.
    panics: u32,
    /// It stands still.
    stalls: u32,
}

impl Fate {
    const NEVER: u32 = u32::MAX;
    const NONE: Self =
        Self { dies: Self::NEVER, handles: Self::NEVER, panics: Self::NEVER, stalls: Self::NEVER };
}

/// True where it is due; else it is one point closer.
fn is_due(at: &mut u32) -> bool {
    match *at {
        Fate::NEVER => false,
        0 => true,
        left => {
            *at = left - 1;
            false
        }
    }
}

/// How far the program goes that runs just now.
struct Pace {
    /// A program runs, and may be stopped.
    is_on: Cell<bool>,
    /// The history is over.
    is_over: Cell<bool>,
    /// Points that it passes before it stops.
    gap: Cell<u32>,
    fate: Cell<Fate>,
    /// No handler of a signal runs now.
    masked: Cell<bool>,
    /// Which program.
    who: Cell<usize>,
    /// Those of the history.
    points: Cell<u32>,
}

/// Why a coroutine unwinds: the history is over.
struct Over;

/// Why a call unwinds: the library has panicked.
pub struct Panicked;

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
    // What a value does as it is dropped on the way out of a call ends there.
    if panicking() {
        return;
    }
    pace.points.set(pace.points.get() + 1);
    assert!(pace.points.get() < MOST, "a program goes in a circle");
    let mut fate = pace.fate.get();
    let (dies, stalls) = (is_due(&mut fate.dies), is_due(&mut fate.stalls));
    if stalls {
        fate.stalls = Fate::NEVER;
    }
    pace.fate.set(fate);
    if stalls {
        Machine::here().stands_still(pace.who.get());
    }
    if dies || stalls {
        return stop(pace);
    }
    match pace.gap.get() {
        0 => stop(pace),
        left => pace.gap.set(left - 1),
    }
    if pace.masked.get() {
        return;
    }
    let mut fate = pace.fate.get();
    let (panics, handles) = (is_due(&mut fate.panics), is_due(&mut fate.handles));
    if panics {
        fate.panics = Fate::NEVER;
    } else if handles {
        fate.handles = Fate::NEVER;
    }
    pace.fate.set(fate);
    if panics {
        resume_unwind(Box::new(Panicked));
    }
    if handles {
        Machine::here().handles(pace.who.get());
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

/// Does this without a handler of a signal, and without a panic: the library makes system calls there.
pub fn uninterrupted<T>(what: impl FnOnce() -> T) -> T {
    let was_masked = PACE.with(|pace| pace.masked.replace(true));
    let result = what();
    PACE.with(|pace| pace.masked.set(was_masked));
    result
}

/// The program that runs is to be killed so many points further on.
pub fn is_to_die_in(points: u32) {
    PACE.with(|pace| pace.fate.set(Fate { dies: points, ..pace.fate.get() }));
}

/// A handler of a signal is to run so many points further on, with what the program would do next.
pub fn is_to_handle_in(points: u32) {
    PACE.with(|pace| pace.fate.set(Fate { handles: points, ..pace.fate.get() }));
}

/// The library is to panic so many points further on.
pub fn is_to_panic_in(points: u32) {
    PACE.with(|pace| pace.fate.set(Fate { panics: points, ..pace.fate.get() }));
}

/// The program that runs is to stand still so many points further on.
pub fn is_to_stall_in(points: u32) {
    PACE.with(|pace| pace.fate.set(Fate { stalls: points, ..pace.fate.get() }));
}

/// A call is over: what was to become of it is not to become of the next one.
pub fn is_not_to_panic() {
    is_to_panic_in(Fate::NEVER);
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
    body: fn(usize),
    /// Once it has begun.
    coroutine: Option<Generator<'static, (), ()>>,
    who: usize,
    fate: Fate,
    masked: bool,
}

impl Program {
    /// One that does this. What it works on it finds in memory of the thread, on which it stays.
    pub const fn new(who: usize, body: fn(usize)) -> Self {
        Self { body, coroutine: None, who, fate: Fate::NONE, masked: false }
    }

    #[allow(deprecated, reason = "see `stop`")]
    fn coroutine(who: usize, body: fn(usize)) -> Generator<'static, (), ()> {
        let body = move || {
            // A value that the coroutine drops while it unwinds must not find that another one may go on there.
            let result = catch_unwind(AssertUnwindSafe(|| body(who)));
            PACE.with(|pace| pace.is_on.set(false));
            match result {
                Err(failure) if !failure.is::<Over>() => resume_unwind(failure),
                _ => {}
            }
        };
        Gn::new_opt(STACK, body)
    }

    /// Goes on for so many points.
    pub fn goes_on(&mut self, gap: u32) -> Stopped {
        let (who, body) = (self.who, self.body);
        let coroutine = self.coroutine.get_or_insert_with(|| Self::coroutine(who, body));
        PACE.with(|pace| {
            pace.gap.set(gap);
            pace.fate.set(self.fate);
            pace.masked.set(self.masked);
            pace.who.set(self.who);
            pace.is_on.set(true);
        });
        coroutine.resume();
        PACE.with(|pace| {
            pace.is_on.set(false);
            (self.fate, self.masked) = (pace.fate.get(), pace.masked.get());
        });
        match (self.fate.dies, coroutine.is_done()) {
            (_, true) => Stopped::Done,
            (0, false) => Stopped::Dies,
            (_, false) => Stopped::Between,
        }
    }

    /// True for one that is to be killed later.
    pub fn is_doomed(&self) -> bool {
        self.fate.dies != Fate::NEVER
    }
}

impl Drop for Program {
    /// What is left on its stack is dropped: by then the history is over.
    fn drop(&mut self) {
        let Some(coroutine) = self.coroutine.as_mut().filter(|begun| !begun.is_done()) else {
            return;
        };
        PACE.with(|pace| pace.is_over.set(true));
        coroutine.resume();
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

/// Something did not hold: the program does not unwind for another reason.
pub fn is_failure(payload: &(dyn core::any::Any + Send)) -> bool {
    !payload.is::<Over>() && !payload.is::<Panicked>()
}

/// The points of a program that may go in a circle do not count.
pub fn forgives() {
    PACE.with(|pace| {
        pace.points.set(0);
        pace.is_on.set(true);
        pace.masked.set(false);
    });
}

/// Points that were passed.
pub fn points() -> u32 {
    PACE.with(|pace| pace.points.get())
}

//! What a program knows and does beside its connections, and the descriptors that stand for these.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::Op;
use super::sleep::Asleep;

/// Descriptors that a program can have at a time.
pub const NUMBERS: usize = 3;

/// What a program knows and does beside its connections.
pub struct Mind {
    pub ops: RefCell<VecDeque<Op>>,
    /// The connections for which its descriptors stand, and the one on which it acts.
    pub numbers: [Cell<Option<usize>>; NUMBERS],
    pub acts_on: Cell<usize>,
    pub asleep: Cell<Option<Asleep>>,
    /// In a call on this connection; `None`: in accept(2).
    pub asleep_on: Cell<Option<usize>>,
    /// A handler has sent or received something.
    pub had_handler: Cell<bool>,
    /// Handlers of signals that run.
    pub handlers: Cell<u32>,
    /// Between the two halves of telling those who wait on this connection.
    pub telling: Cell<Option<usize>>,
    /// A handler has begun a call, and has not told yet what those below it have not.
    pub tells_below: Cell<bool>,
    /// It keeps to no protocol.
    pub is_liar: Cell<bool>,
    /// It is no place for a fork.
    pub is_born: Cell<bool>,
    /// It was killed.
    pub is_dead: Cell<bool>,
    /// It stands still.
    pub stands: Cell<bool>,
    /// The agent has woken it, as its peer was killed.
    pub is_roused: Cell<bool>,
    /// Sleeps beside a liar.
    pub rests: Cell<u32>,
    /// It has got the link group, and the doorbells of the other one, of the agent.
    pub has_group: Cell<bool>,
    pub has_bells: Cell<bool>,
    /// It gets no more memory, nor descriptors.
    pub is_starved: Cell<bool>,
    /// It was seen to use what it accepts.
    pub uses_accepted: Cell<bool>,
    /// It has not got the library: for good, or as one that was started, for whose end the other one waits.
    pub is_foreign: Cell<bool>,
    pub is_started: Cell<bool>,
}

impl Mind {
    /// `None`: it is not forked yet.
    pub fn new(ops: Option<&[Op]>) -> Self {
        Self {
            ops: RefCell::new(ops.unwrap_or_default().iter().copied().collect()),
            numbers: Default::default(),
            acts_on: Cell::new(0),
            asleep: Cell::new(None),
            asleep_on: Cell::new(None),
            had_handler: Cell::new(false),
            handlers: Cell::new(0),
            telling: Cell::new(None),
            tells_below: Cell::new(false),
            is_liar: Cell::new(false),
            is_born: Cell::new(ops.is_some()),
            is_dead: Cell::new(false),
            stands: Cell::new(false),
            is_roused: Cell::new(false),
            rests: Cell::new(0),
            has_group: Cell::new(false),
            has_bells: Cell::new(false),
            is_starved: Cell::new(false),
            uses_accepted: Cell::new(false),
            is_foreign: Cell::new(false),
            is_started: Cell::new(false),
        }
    }

    /// What it does next.
    pub fn pops(&self) -> Option<Op> {
        self.ops.borrow_mut().pop_front()
    }

    /// A descriptor stands for this connection: the lowest one that is free, on which it acts from now on.
    pub fn names(&self, conn: usize) {
        let number = self.numbers.iter().position(|number| number.get().is_none());
        if let Some(number) = number {
            self.numbers[number].set(Some(conn));
            self.acts_on.set(number);
        }
    }

    /// The connection on which it sleeps.
    pub fn sleeps(&self) -> Option<usize> {
        self.asleep_on.get()
    }

    /// It goes to sleep in a call on this connection.
    pub fn sleeps_on(&self, conn: usize, asleep: Asleep) {
        self.asleep_on.set(Some(conn));
        self.asleep.set(Some(asleep));
    }

    /// Its descriptors stand for other connections, too.
    pub fn has_others(&self, conn: usize) -> bool {
        self.numbers.iter().any(|number| number.get().is_some_and(|of| of != conn))
    }

    pub fn has_room(&self) -> bool {
        self.numbers.iter().any(|number| number.get().is_none())
    }

    /// No descriptor stands for it any more.
    pub fn forgets(&self, conn: usize) {
        let is_it = |number: &&Cell<Option<usize>>| number.get() == Some(conn);
        self.numbers.iter().filter(is_it).for_each(|number| number.set(None));
    }
}

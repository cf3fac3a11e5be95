//! Whom a message wakes: those who sleep on its connection, and only where there is something that they do not know.

use core::sync::atomic::Ordering::Relaxed;

use super::pace::at_once;
use super::{World, other};
use crate::call::Direction;

/// What an end can see of what the other one has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// Bytes, marks and ends: of use to a receiver.
    comes: (u64, u32, u32),
    /// What was taken, and passed: of use to a sender.
    taken: (u64, u32),
    /// That it has closed, left, or come further in the handshake.
    state: (u32, u32, u32),
}

impl News {
    pub const NONE: Self = Self { comes: (0, 0, 0), taken: (0, 0), state: (0, 0, 0) };

    /// Nothing has come since for whoever waits in this direction; in an epoll it is both.
    fn is_nothing_since(self, before: Self, direction: Direction, by_edge: bool) -> bool {
        let receives = by_edge || direction == Direction::Receiving;
        let sends = by_edge || direction == Direction::Sending;
        self.state == before.state
            && (!receives || self.comes == before.comes)
            // An end concerns a sender, too.
            && (!sends || (self.taken == before.taken && self.comes.2 == before.comes.2))
    }
}

impl World {
    pub fn news(&self, who: usize) -> News {
        let (prod, cons, ctl, setup) = {
            let theirs = &self.procs[other(who)].section;
            (&theirs.prod, &theirs.cons, &theirs.ctl, &theirs.setup)
        };
        at_once(|| News {
            comes: (prod.prod.load(Relaxed), prod.marks.load(Relaxed), prod.fin.load(Relaxed)),
            taken: (cons.cons.load(Relaxed), cons.marks_passed.load(Relaxed)),
            state: (
                ctl.closed.load(Relaxed),
                ctl.handed_over.load(Relaxed),
                setup.state.load(Relaxed),
            ),
        })
    }

    /// An end has taken a word by which the other one is woken who waits in this direction. There is something for it: unless it
    /// began to sleep in the middle of the step, in which case it may have found what that tells of.
    pub fn has_cause(&self, teller: usize, direction: Direction) {
        if self.has_forks() || !self.is_honest() {
            return;
        }
        assert!(self.is_in_place(), "{teller} tells of {}, which has lost its place", self.conn);
        let (me, sleeper) = (&self.procs[teller], &self.procs[other(teller)]);
        let Some(asleep) = sleeper.mind.asleep.get() else { return };
        // A handler tells once more what the call below it may not have told of.
        if me.mind.handlers.get() > 0 {
            return;
        }
        let word = usize::from(direction == Direction::Sending);
        if asleep.armed[word].is_none() && !asleep.by_edge {
            return;
        }
        // It sleeps by the words of another connection: those of this one it has left as they were when the kernel woke it.
        if sleeper.mind.sleeps() != Some(self.conn) {
            return;
        }
        // Of what one that had left, and has read on, stops at the other one has heard.
        if me.leaves_again.get() {
            return;
        }
        // Whoever sets its buffers tells of them as they are.
        if me.has_set_buffers.get() {
            return;
        }
        // The close of an end that has left, and whose direction has ended before, tells once more.
        if me.has_let_go.get() && at_once(|| me.section.ctl.handed_over.load(Relaxed)) != 0 {
            return;
        }
        let waits = asleep.doing.op.direction();
        // One that waits for its buffers, too, looks at both directions.
        let is_both = asleep.by_edge || asleep.armed.iter().all(Option::is_some);
        let is_nothing = self.news(other(teller)).is_nothing_since(asleep.news, waits, is_both);
        let began_before = asleep.began <= me.step_began.get();
        assert!(!is_nothing || !began_before, "{} is woken for nothing: {asleep:?}", other(teller));
    }
}

//! An edge-triggered reader that counts, as nginx does: it takes as much as `FIONREAD` says after an edge, and waits for the next
//! edge then. What comes after the count comes with an edge of its own.

use core::cell::Cell;

use super::pace::point;
use super::program::Doing;
use super::{Op, World};
use crate::call::Step;
use crate::conn::repeated::are_pending;
use crate::events;
use crate::handshake::Phase;
use crate::kernel::KernelSocket;

/// What such a program knows of a connection.
#[derive(Debug, Default)]
pub struct Counted {
    /// The last edge is not used up, and so much is left of what was counted after it; `None`: it was not counted.
    is_ready: Cell<bool>,
    /// An edge has told of an end: it reads on until it finds that.
    has_ended: Cell<bool>,
    left: Cell<Option<u64>>,
}

impl Counted {
    /// Another call has come in between, which may have heard of an edge.
    pub fn is_unknown(&self) {
        self.is_ready.set(true);
        self.left.set(None);
    }
}

impl World {
    /// `FIONREAD`.
    fn counts(&self, who: usize) -> u64 {
        let socket = self.socket(who);
        let counted = self.linked(who).and_then(|end| end.unread(&socket));
        counted.unwrap_or_else(|| socket.waiting())
    }

    /// Receives so many bytes in all, or up to the end.
    pub fn receives_by_count(&self, who: usize, doing: &mut Doing, total: usize) {
        let (me, chunk) = (&self.procs[who], (total / 3).max(1));
        let Counted { is_ready, has_ended, left } = &me.counted;
        while doing.moved < total {
            if self.is_broken(who) {
                return;
            }
            if self.advances(who) == Phase::Tcp {
                return self.calls_kernel(who, doing);
            }
            if !is_ready.get() {
                me.mind.had_handler.set(false);
                self.polls(who, *doing);
                is_ready.set(true);
                left.set(None);
            }
            if left.get().is_none() {
                let told = self.readiness(who, events::IN | events::RDHUP);
                has_ended.set(told & events::END != 0);
            }
            let asked = chunk.min(total - doing.moved);
            let mut call = Doing { op: Op::PollReceive(asked), moved: 0, ..*doing };
            match self.step(who, &mut call, false) {
                Step::Again => point(),
                Step::Follow if self.follows(who) => {}
                Step::Follow => return,
                Step::Wait(_) if call.moved == 0 => {
                    if are_pending(&me.record) {
                        self.goes_on(who);
                    }
                    is_ready.set(has_ended.get());
                    if has_ended.get() {
                        self.pauses(who);
                    }
                }
                Step::Done if call.moved == 0 => return self.is_over(who, call, Step::Done),
                step @ Step::Failed(_) if call.moved == 0 => return self.is_over(who, call, step),
                _ => {}
            }
            doing.moved += call.moved;
            if call.moved > 0 {
                let taken = call.moved as u64;
                let rest = left.get().map(|left| left.saturating_sub(taken));
                let rest = rest.unwrap_or_else(|| self.counts(who));
                left.set(Some(rest));
                // A short read says that nothing is left, too.
                is_ready.set(has_ended.get() || (rest > 0 && call.moved == asked));
            }
        }
    }
}

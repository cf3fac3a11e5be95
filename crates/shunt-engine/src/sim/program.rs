//! What a program does: its calls, step by step.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shunt_shm::Violation;

use super::calls::{Lock, Receiving, Sending};
use super::pace::{self, Panicked, at_once, point};
use super::{Ending, Op, World, other};
use crate::call::{Direction, Errno, Kernel, Step, Until, enter};
use crate::conn::close::Shut;
use crate::conn::flags::{FROZEN, KERNEL_HINT};
use crate::conn::overflow;
use crate::conn::recv::{peek, receive};
use crate::conn::repeated::{are_known, are_pending};
use crate::conn::send::{Outgoing, over_kernel};
use crate::conn::{is_settled, put};
use crate::handshake::Phase;
use crate::wait::Naps;

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Doing {
    pub op: Op,
    pub moved: usize,
    /// The library leaves it to the kernel.
    pub is_plain: bool,
}

impl Op {
    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::Send(_)
            | Self::PollSend(_)
            | Self::EdgeSend(_)
            | Self::Grant(_)
            | Self::Pin(_)
            | Self::Parts(_)
            | Self::Shut
            | Self::ShutBoth
            | Self::Close => Direction::Sending,
            _ => Direction::Receiving,
        }
    }

    /// Its call takes steps, with the lock of a direction.
    pub(super) const fn moves(self) -> bool {
        matches!(
            self,
            Self::Send(_)
                | Self::PollSend(_)
                | Self::EdgeSend(_)
                | Self::Receive(_)
                | Self::ReceiveAll(_)
                | Self::PollReceive(_)
                | Self::EdgeReceive(_)
                | Self::Look(_)
                | Self::Skip(_)
                | Self::CountReceive(_)
                | Self::Grant(_)
                | Self::Pin(_)
                | Self::Parts(_)
        )
    }

    /// It would see bytes, or take some.
    const fn reads(self) -> bool {
        matches!(self, Self::Check)
            || self.moves() && matches!(self.direction(), Direction::Receiving)
    }

    /// In a handler: of what the epoll below has been told of, it does not hear once more.
    pub(super) const fn without_edges(self) -> Self {
        match self {
            Self::EdgeSend(n) => Self::PollSend(n),
            Self::EdgeReceive(n) | Self::CountReceive(n) => Self::PollReceive(n),
            Self::HearAll => Self::Hear,
            other => other,
        }
    }

    /// It ends with a descriptor of a further connection.
    pub(super) const fn makes_connection(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::ConnectPlain
                | Self::Accept
                | Self::AcceptNow
                | Self::AcceptLate
                | Self::AcceptPlain
        )
    }

    /// A call of it waits for itself.
    const fn blocks(self) -> bool {
        !matches!(
            self,
            Self::PollSend(_)
                | Self::PollReceive(_)
                | Self::EdgeSend(_)
                | Self::EdgeReceive(_)
                | Self::CountReceive(_)
        )
    }
}

/// Of what the kernel has done, what comes next in a call that the library leaves to it.
pub const fn past_library(done: Kernel) -> Step {
    match done {
        Kernel::Moved(_) => Step::Again,
        Kernel::Nothing => Step::Wait(Until::Kernel),
        Kernel::Failed(error) => Step::Failed(error),
    }
}

impl World {
    /// A whole call. A panic of the library ends in it.
    pub fn does(&self, who: usize, op: Op) {
        let me = &self.procs[who];
        if op.reads() && me.is_handed_over.get() && !me.mind.is_foreign.get() {
            return;
        }
        let mut doing = Doing { op, moved: 0, is_plain: false };
        // In a handler another call may be in the middle of one.
        let was_in_step = me.in_step.replace(false);
        me.calls.set(me.calls.get() + 1);
        let panicked = match catch_unwind(AssertUnwindSafe(|| self.numbered(who, &mut doing))) {
            Err(why) if !why.is::<Panicked>() => resume_unwind(why),
            result => result.is_err(),
        };
        let in_step = me.in_step.replace(was_in_step);
        if panicked {
            // What a call that does not wait has moved, the program was told of.
            let moved = if op.blocks() { doing.moved } else { 0 };
            self.contains(who, &mut Doing { moved, ..doing }, in_step);
        } else if !matches!(op, Op::Panic(_)) {
            pace::is_not_to_panic();
        }
        me.calls.set(me.calls.get() - 1);
        // What a handler has closed under the call.
        if me.calls.get() == 0 && me.is_to_close.get() && !me.is_gone.get() {
            if me.mind.is_foreign.get() {
                return self.closes_past(who);
            }
            pace::uninterrupted(|| self.closes(who));
        }
    }

    pub fn calls(&self, who: usize, doing: &mut Doing) {
        if self.procs[who].mind.is_foreign.get() {
            return self.calls_alone(who, doing);
        }
        if self.procs[who].is_past.get() {
            return self.calls_past(who, doing);
        }
        if doing.op == Op::Urgent {
            self.leaves(who);
            *doing = Doing { op: Op::Send(1), ..*doing };
        }
        let op = doing.op;
        if let Op::CountReceive(total) = op {
            return self.receives_by_count(who, doing, total);
        }
        if op.moves() && op.direction() == Direction::Receiving {
            self.procs[who].counted.is_unknown();
        }
        let (mut naps, mut in_vain) = (Naps::default(), 0);
        if op.moves() && self.advances(who) == Phase::Tcp {
            return self.calls_kernel(who, doing);
        }
        if op.moves() {
            self.procs[who].mind.had_handler.set(false);
        }
        // An edge-triggered program tries first.
        let polls = matches!(op, Op::PollReceive(_) | Op::PollSend(_));
        if polls {
            self.polls(who, *doing);
        }
        // A call that follows finds something.
        let mut was_told = polls;
        loop {
            let before = doing.moved;
            if op.moves() {
                self.goes_where_others_are(who);
            }
            if self.is_broken(who) && !matches!(op, Op::Close | Op::Die(_) | Op::Lie(_)) {
                self.is_over(who, *doing, Step::Failed(Errno::CONNRESET));
                return;
            }
            match self.step(who, doing, op.blocks()) {
                // As one that does not wait is a call by itself.
                Step::Again if !op.blocks() && self.advances(who) == Phase::Tcp => {
                    return self.calls_kernel(who, doing);
                }
                Step::Again => point(),
                Step::Wait(until) => {
                    if are_pending(&self.procs[who].record) {
                        self.goes_on(who);
                    }
                    if op.blocks() {
                        self.sleeps(who, *doing, until, &mut naps);
                        if self.linked(who).is_none() {
                            self.advances(who);
                        }
                        continue;
                    }
                    // What is to be sent once more may take all the room there was; and a sender that was to leave a ring which
                    // stays full waits once more where the receiver has taken something since.
                    let record = &self.procs[who].record;
                    was_told &= !are_pending(record) && !overflow::is_watched(record);
                    was_told &= !self.procs[who].mind.had_handler.take();
                    // A look that was begun before a mark was set, and found that the other one was killed after that, is not
                    // noted (`epoll/ready.rs`): the call is in the ring then, and asks the kernel some microseconds later.
                    was_told &= self.procs[other(who)].ending.get() < Ending::Killed;
                    // Above a step that is half done what was seen may be, too.
                    was_told &= self.is_honest() && self.procs[who].mind.handlers.get() == 0;
                    // Bytes in a ring that it has left itself are on their way over TCP as soon as the other one leaves, too.
                    let leaves_too = || are_pending(&self.procs[other(who)].record);
                    let has_left = self.linked(who).is_some_and(|end| end.has(FROZEN));
                    was_told &= !(has_left && leaves_too());
                    // Another program may have been quicker, and the other one have made its buffer smaller.
                    was_told &= !self.has_relatives(who);
                    let peer = &self.procs[other(who)].section;
                    was_told &= pace::at_once(|| peer.ctl.window.load(Relaxed)) == 0;
                    assert!(
                        !was_told || doing.moved > before,
                        "{who} was told too much: {doing:?}"
                    );
                    if !self.is_honest() {
                        // A liar can say all the time that there is something to come for.
                        in_vain += 1;
                        if in_vain > Self::PATIENCE * 8 {
                            return;
                        }
                    }
                    // It would look all the time, until the other one has said how far it has come.
                    if are_pending(record) && !are_known(record) {
                        self.waits_for_kernel_alone(who, doing.op, 0);
                    }
                    self.procs[who].mind.had_handler.set(false);
                    self.polls(who, *doing);
                    was_told = polls;
                    continue;
                }
                step @ (Step::Done | Step::Failed(_)) => {
                    self.is_over(who, *doing, step);
                    return;
                }
                Step::Follow => {
                    // What it sends once more may take the room there was.
                    was_told = false;
                    if !self.follows(who) {
                        return;
                    }
                }
            }
            was_told &= doing.moved == before;
        }
    }

    /// Another program that holds the end has taken the connection up since the call began.
    fn goes_where_others_are(&self, who: usize) {
        if self.linked(who).is_none() && at_once(|| is_settled(&self.procs[who].record)) {
            self.advances(who);
        }
    }

    /// One step of a call.
    pub fn step(&self, who: usize, doing: &mut Doing, blocking: bool) -> Step {
        let me = &self.procs[who];
        if me.mind.handlers.get() == 0 {
            me.step_began.set(pace::points());
        }
        // Both ends are done with a place before it is given out again.
        assert!(
            self.slot.is_none()
                || self.linked(who).is_none()
                || self.is_in_place()
                || !self.is_honest(),
            "{who} acts on a place that is another connection's"
        );
        if !doing.op.moves() {
            return self.other_step(who, doing.op);
        }
        let (direction, record) = (doing.op.direction(), &me.record);
        if direction == Direction::Receiving {
            self.notes_there(who);
        }
        let is_to_follow = || self.linked(who).is_some_and(|end| end.is_to_follow());
        if direction == Direction::Sending && !doing.is_plain && is_to_follow() {
            return Step::Follow;
        }
        let copying = match direction {
            Direction::Receiving => &record.rx.copying,
            Direction::Sending => &record.tx.copying,
        };
        let lock = Lock::of(self, who, direction);
        let Some(_entered) = enter(lock.is_nested(), copying) else {
            // Above a call that is moving bytes just now.
            return Step::Failed(Errno::INTR);
        };
        let was_in_step = me.in_step.replace(true);
        let (is_refused, before) = (self.is_refused(who), doing.moved);
        let step = self.locked_step(who, doing, blocking, &lock);
        if is_refused && direction == Direction::Sending && doing.moved > before {
            self.has_met_reset(who);
        }
        me.in_step.set(was_in_step);
        drop(lock);
        self.ends_late(who);
        step.unwrap_or_else(|_| {
            self.breaks_off(who);
            Step::Again
        })
    }

    /// The same with the lock of the direction held.
    fn locked_step(
        &self,
        who: usize,
        doing: &mut Doing,
        blocking: bool,
        lock: &Lock<'_>,
    ) -> Result<Step, Violation> {
        let (end, is_nested) = (self.linked(who), lock.is_nested());
        let record = &self.procs[who].record;
        let call = |total, only_looks, enough| Receiving {
            world: self,
            who,
            total,
            enough,
            got: doing.moved,
            only_looks,
            drops: matches!(doing.op, Op::Skip(_)),
            reads_pipes: Cell::new(false),
            is_nested,
            copied: Vec::new(),
        };
        match doing.op {
            Op::Send(total)
            | Op::PollSend(total)
            | Op::EdgeSend(total)
            | Op::Grant(total)
            | Op::Pin(total)
            | Op::Parts(total) => {
                let (sent, buffer) = (doing.moved, self.buffer(who, doing.op));
                let (piece, batch) = (None, None);
                let mut call =
                    Sending { world: self, who, total, sent, lock, buffer, piece, batch };
                let step = match &end {
                    _ if doing.is_plain => {
                        point();
                        // The kernel does it in one call.
                        Ok(past_library(pace::at_once(|| call.over_kernel())))
                    }
                    Some(end) => end.send(&mut call, is_nested, blocking),
                    None => Ok(over_kernel(record, None, &mut call)),
                };
                doing.moved = call.sent;
                let is_done = step == Ok(Step::Again) && call.sent >= total;
                if is_done { Ok(Step::Done) } else { step }
            }
            Op::Receive(total)
            | Op::ReceiveAll(total)
            | Op::PollReceive(total)
            | Op::EdgeReceive(total)
            | Op::CountReceive(total)
            | Op::Skip(total) => {
                let enough = match doing.op {
                    Op::ReceiveAll(_) => total,
                    _ => self.low_water(who),
                };
                // A hint may be of what was seen since.
                if self.choose(16) {
                    put(record, KERNEL_HINT, true);
                }
                let mut call = call(total, false, enough);
                let step = if doing.is_plain {
                    Ok(call.past_library())
                } else {
                    receive(record, end.as_ref(), &mut call, blocking)
                };
                doing.moved = call.got;
                step
            }
            Op::Look(total) => {
                let mut call = call(total, true, self.low_water(who));
                let step = if doing.is_plain {
                    Ok(call.past_library())
                } else {
                    peek(record, end.as_ref(), &mut call, blocking)
                };
                doing.moved = call.got;
                step
            }
            _ => unreachable!("it moves nothing"),
        }
    }

    fn other_step(&self, who: usize, op: Op) -> Step {
        match op {
            Op::Meet => self.meets(who),
            Op::Tire => self.tires(who),
            Op::Check => self.checks_readiness(who),
            Op::Shut => return self.shuts(who, Shut::Sending),
            Op::ShutReading => return self.shuts(who, Shut::Receiving),
            Op::ShutBoth => return self.shuts(who, Shut::Both),
            Op::LowWater(bytes) => self.sets_low_water(who, bytes),
            Op::Buffers(bytes) => self.sets_buffers(who, bytes),
            // Calls that are under way have another descriptor.
            Op::Close if self.procs[who].calls.get() > 1 => {
                self.procs[who].mind.forgets(self.conn);
                self.procs[who].is_to_close.set(true);
            }
            // What a handler did with it then would be a call on a descriptor that is gone.
            Op::Close => return pace::uninterrupted(|| self.closes(who)),
            Op::Sleep => self.passes_time(),
            Op::Die(points) => pace::is_to_die_in(points),
            Op::Signal(points) => pace::is_to_handle_in(points),
            Op::Stall(points) => pace::is_to_stall_in(points),
            Op::Bypass => self.bypasses(who),
            Op::Panic(points) => pace::is_to_panic_in(points),
            Op::Lie(number) => self.lies(who, number),
            Op::Fork(ops) => self.forks(who, ops),
            Op::Hear => drop(self.hears(who)),
            Op::HearAll => self.hears_all(who, Doing { op, moved: 0, is_plain: false }),
            Op::Share => self.shares(who),
            Op::Unmap => pace::uninterrupted(|| self.unmaps(who)),
            Op::Refuse => self.refuses(who),
            Op::Leave => self.gives_back(who),
            _ => unreachable!("it moves something, or is the machine's"),
        }
        Step::Done
    }

    /// Without consequences: whether a call that does not wait would find something to receive.
    pub fn would_receive(&self, who: usize) -> (Result<Step, Violation>, usize) {
        let mut call = Receiving {
            world: self,
            who,
            total: 1,
            enough: 1,
            got: 0,
            only_looks: true,
            drops: false,
            reads_pipes: Cell::new(false),
            is_nested: false,
            copied: Vec::new(),
        };
        let step = match self.advances(who) {
            Phase::Tcp => Ok(call.past_library()),
            _ => peek(&self.procs[who].record, self.linked(who).as_ref(), &mut call, false),
        };
        (step, call.got)
    }

    /// A handler of a signal may run here, above a copy.
    pub fn interrupt(&self, who: usize) {
        if !self.choose(2) {
            return;
        }
        let me = &self.procs[who];
        for copying in [&me.record.tx.copying, &me.record.rx.copying] {
            if copying.open.load(Relaxed) == 0 {
                continue;
            }
            let is_sender = core::ptr::eq(copying, &raw const me.record.tx.copying);
            let op = if is_sender { Op::Send(3) } else { Op::Receive(3) };
            let mut doing = Doing { op, moved: 0, is_plain: false };
            me.mind.had_handler.set(true);
            // It does not wait.
            me.mind.handlers.set(me.mind.handlers.get() + 1);
            let mut step = self.step(who, &mut doing, false);
            if step == Step::Follow && self.follows(who) {
                step = self.step(who, &mut doing, false);
            }
            if matches!(step, Step::Done | Step::Failed(_)) {
                self.is_over(who, doing, step);
            }
            me.mind.handlers.set(me.mind.handlers.get() - 1);
        }
    }

    /// A call that the library leaves to the kernel.
    pub fn calls_kernel(&self, who: usize, doing: &mut Doing) {
        doing.is_plain = true;
        loop {
            match self.step(who, doing, true) {
                Step::Wait(until) => self.sleeps_in_kernel(who, *doing, until),
                step @ (Step::Done | Step::Failed(_)) => {
                    return self.is_over(who, *doing, step);
                }
                Step::Again | Step::Follow => point(),
            }
        }
    }
}

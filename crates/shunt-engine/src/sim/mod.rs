//! A simulator: two ends, their programs, kernel TCP between them, a clock, and a scheduler, all from one seed.
//!
//! The ends run the engine's own code. Before each thing that a step asks of a port the scheduler may have the other program go
//! on, a whole step or more, and a handler of a signal may run above a copy: so each step is tried with all that can come in
//! its middle, but for what another thread of the same program does, which waits for the lock.
//!
//! What must hold: each direction is a queue of bytes ([`World::checks`]); an end is where the program has put it, and behind all
//! bytes ([`World::ends`]); nobody sleeps who has something to do ([`World::runs`]).

mod calls;
mod tcp;
mod tests;

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::VecDeque;

use shunt_shm::arena::Record;
use shunt_shm::region::{Section, Side};
use shunt_wire::clc::Proposal;

use crate::call::{Direction, Errno, Step, Until, may_intrude};
use crate::conn::End;
use crate::conn::flags::{KERNEL_HINT, SHUT_WR};
use crate::conn::recv::{peek, receive};
use crate::conn::repeated::are_pending;
use crate::events;
use crate::handshake::Phase;
use calls::{Receiving, Sending, places};
use tcp::{Pipe, Socket};

/// What a program does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Learns of the peer's doorbells, so that it may send by the ring.
    Meet,
    /// Sends so many bytes.
    Send(usize),
    /// Receives up to so many bytes.
    Receive(usize),
    /// Receives so many bytes, or all up to the end.
    ReceiveAll(usize),
    /// Looks at up to so many bytes.
    Look(usize),
    /// Does something else for a while.
    Sleep,
    /// Ends its direction.
    Shut,
    /// Is killed.
    Die,
}

/// One that is under way.
#[derive(Clone, Copy, Debug)]
struct Doing {
    op: Op,
    moved: usize,
}

/// A program, its end, and what the kernel knows of it.
struct Proc {
    record: Record,
    section: Section,
    /// The ring from which it receives.
    rmb: Vec<Cell<u8>>,
    ops: RefCell<VecDeque<Op>>,
    waits: Cell<Option<(Doing, Until)>>,
    /// In the middle of a step.
    is_busy: Cell<bool>,
    sent: Cell<u64>,
    received: Cell<u64>,
    can_tell: Cell<bool>,
    is_dead: Cell<bool>,
    has_shut: Cell<bool>,
    /// Its socket was reset, and a call was told so.
    is_reset: Cell<bool>,
    is_told: Cell<bool>,
}

impl Proc {
    fn new(side: Side, ops: &[Op]) -> Self {
        let record = Record::default();
        record.id.side.store(side as u32, Relaxed);
        record.id.phase.store(Phase::Active as u32, Relaxed);
        let section = Section::default();
        if side == Side::Client {
            section.setup.state.store(Proposal::Active as u32, Relaxed);
        }
        Self {
            record,
            section,
            rmb: vec![Cell::new(0); World::RING],
            ops: RefCell::new(ops.iter().copied().collect()),
            waits: Cell::new(None),
            is_busy: Cell::new(false),
            sent: Cell::new(0),
            received: Cell::new(0),
            can_tell: Cell::new(false),
            is_dead: Cell::new(false),
            has_shut: Cell::new(false),
            is_reset: Cell::new(false),
            is_told: Cell::new(false),
        }
    }
}

/// What a direction carries at this place.
fn byte(who: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_le_bytes()[7] ^ u8::try_from(who).unwrap()
}

/// All of it.
pub struct World {
    procs: [Proc; 2],
    /// From the first program to the second, and back.
    pipes: [Pipe; 2],
    now: Cell<u64>,
    choices: RefCell<VecDeque<u8>>,
    depth: Cell<u32>,
    steps: Cell<u32>,
}

impl World {
    /// Length of a ring.
    const RING: usize = 4096;
    /// Looks of the clock while nobody can go on, until all that wait wait for good.
    const PATIENCE: u32 = 6;
    /// Questions at ports in a history; those of a circle have no end.
    const MOST: u32 = 1_000_000;

    /// Two programs, and how the scheduler chooses.
    pub fn new(client: &[Op], server: &[Op], choices: &[u8]) -> Self {
        Self {
            procs: [Proc::new(Side::Client, client), Proc::new(Side::Server, server)],
            pipes: <[Pipe; 2]>::default(),
            now: Cell::new(1 << 30),
            choices: RefCell::new(choices.iter().copied().collect()),
            depth: Cell::new(0),
            steps: Cell::new(0),
        }
    }

    fn end(&self, who: usize) -> End<'_> {
        let (me, peer) = (&self.procs[who], &self.procs[1 - who]);
        End {
            record: &me.record,
            mine: &me.section,
            theirs: &peer.section,
            ring: Self::RING as u64,
        }
    }

    fn choose(&self, of: u8) -> bool {
        self.choices.borrow_mut().pop_front().is_some_and(|choice| choice % of == 0)
    }

    /// Something else may happen here.
    fn pause(&self, who: usize) {
        self.steps.set(self.steps.get() + 1);
        assert!(self.steps.get() < Self::MOST, "program {who} goes in a circle");
        let peer = 1 - who;
        while self.depth.get() < 3 && self.choose(3) && self.can_go_on(peer) {
            self.depth.set(self.depth.get() + 1);
            self.goes_on(peer);
            self.depth.set(self.depth.get() - 1);
        }
    }

    /// A handler of a signal may run here, above a copy.
    fn interrupt(&self, who: usize) -> bool {
        if !self.choose(2) {
            return false;
        }
        let me = &self.procs[who];
        for copying in [&me.record.tx.copying, &me.record.rx.copying] {
            if copying.open.load(Relaxed) == 0 {
                continue;
            }
            assert!(may_intrude(copying));
            let is_sender = core::ptr::eq(copying, &raw const me.record.tx.copying);
            let mut doing =
                Doing { op: if is_sender { Op::Send(3) } else { Op::Receive(3) }, moved: 0 };
            // It does not wait.
            let _ = self.step(who, &mut doing, true);
        }
        true
    }

    /// These are the bytes that come next.
    fn checks(&self, who: usize, at: u64, bytes: &[u8]) {
        let sent = self.procs[1 - who].sent.get();
        assert!(at + bytes.len() as u64 <= sent, "program {who} got bytes that were not sent");
        let is_right = |(n, found): (usize, &u8)| *found == byte(1 - who, at + n as u64);
        assert!(bytes.iter().enumerate().all(is_right), "program {who} got wrong bytes at {at}");
    }

    /// These come a second time.
    fn drops(&self, who: usize, bytes: &[u8]) {
        let me = &self.procs[who];
        let again = u64::from(me.record.rx.again.load(Relaxed));
        self.checks(who, me.received.get() - again, bytes);
    }

    /// The program is told of the end.
    fn ends(&self, who: usize) {
        let (me, peer) = (&self.procs[who], &self.procs[1 - who]);
        assert!(peer.is_dead.get() || peer.has_shut.get(), "program {who} saw an end too early");
        assert_eq!(me.received.get(), peer.sent.get(), "program {who} lost bytes at the end");
    }

    /// Sends once more what lay in a ring that was left.
    fn repeat(&self, who: usize) -> bool {
        self.pause(who);
        let (end, peer) = (self.end(who), &self.procs[1 - who]);
        let Some(left) = end.to_repeat() else { return false };
        let span = end.record.tx.cursor.last(left, end.ring);
        let pipe = &self.pipes[who];
        let n = pipe.room().min(span.len());
        if self.procs[1 - who].is_dead.get() {
            self.procs[who].is_reset.set(left > 0);
            end.record.tx.replay.store(0, Relaxed);
            return true;
        }
        pipe.write(places(span).take(n).map(|at| peer.rmb[at].get()));
        end.record.tx.replay.store(left - n as u64, Relaxed);
        self.pause(who);
        left == n as u64
    }

    fn can_go_on(&self, who: usize) -> bool {
        let me = &self.procs[who];
        if me.is_busy.get() || me.is_dead.get() {
            return false;
        }
        let Some((doing, until)) = me.waits.get() else { return !me.ops.borrow().is_empty() };
        self.is_woken(who, doing, until).0
    }

    /// Whether a wait has ended, and whether by the kernel.
    fn is_woken(&self, who: usize, doing: Doing, until: Until) -> (bool, bool) {
        let (end, told) = (self.end(who), Socket { world: self, who }.poll());
        let room = if are_pending(end.record) { events::OUT } else { 0 };
        let (direction, events) = match (doing.op, until) {
            (Op::Send(_) | Op::Shut, Until::Ring) => {
                let fin = end.theirs.prod.fin.load(Acquire);
                (Direction::Sending, if fin == 0 { events::RDHUP } else { 0 })
            }
            (Op::Send(_) | Op::Shut, _) => (Direction::Sending, events::OUT),
            (_, Until::More(_)) => (Direction::Receiving, events::RDHUP | room),
            _ => (Direction::Receiving, events::IN | events::RDHUP | room),
        };
        let by_kernel = told & (events | events::ALWAYS) != 0;
        // One who looks, and waits for more in the kernel socket, looks again now and then.
        let looks = matches!(until, Until::More(_)) && told & events::IN != 0;
        (end.ends_wait(direction, until) || by_kernel || looks, by_kernel)
    }

    /// The program goes on to its next wait, or through one call.
    fn goes_on(&self, who: usize) {
        let me = &self.procs[who];
        let mut doing = match me.waits.take() {
            Some((doing, until)) => {
                if until == Until::Ring && self.is_woken(who, doing, until).1 {
                    self.end(who).put(KERNEL_HINT, true);
                }
                doing
            }
            None => match me.ops.borrow_mut().pop_front() {
                Some(op) => Doing { op, moved: 0 },
                None => return,
            },
        };
        me.is_busy.set(true);
        loop {
            let step = self.step(who, &mut doing, false);
            match step {
                Step::Again => self.pause(who),
                Step::Wait(until) => {
                    if are_pending(&me.record) {
                        self.repeat(who);
                    }
                    me.waits.set(Some((doing, until)));
                    break;
                }
                Step::Done | Step::Failed(_) => {
                    self.is_over(who, doing, step);
                    break;
                }
                Step::Follow => unreachable!("nobody leaves for good"),
            }
        }
        me.is_busy.set(false);
    }

    fn is_over(&self, who: usize, doing: Doing, step: Step) {
        let (me, peer) = (&self.procs[who], &self.procs[1 - who]);
        match (doing.op, step) {
            (Op::Receive(_) | Op::ReceiveAll(_) | Op::Look(_), Step::Done) if doing.moved == 0 => {
                self.ends(who);
            }
            (Op::Receive(_) | Op::ReceiveAll(_) | Op::Look(_), Step::Failed(error)) => {
                assert!(peer.is_dead.get() && error == Errno::CONNRESET, "{who}: {error:?}");
            }
            (Op::Send(_), Step::Failed(error)) => {
                assert!(peer.is_dead.get() || me.has_shut.get(), "{who}: {error:?}");
            }
            _ => {}
        }
    }

    /// One step of a call.
    fn step(&self, who: usize, doing: &mut Doing, is_nested: bool) -> Step {
        let (end, me) = (self.end(who), &self.procs[who]);
        let call = |total, only_looks, enough| Receiving {
            world: self,
            who,
            total,
            enough,
            got: doing.moved,
            only_looks,
            is_nested,
            copied: Vec::new(),
        };
        match doing.op {
            Op::Meet => me.can_tell.set(true),
            Op::Send(total) => {
                let mut call = Sending { world: self, who, total, sent: doing.moved, is_nested };
                let step = end.send(&mut call, is_nested, !is_nested).unwrap();
                doing.moved = call.sent;
                let is_done = step == Step::Again && call.sent >= total;
                return if is_done { Step::Done } else { step };
            }
            Op::Receive(total) | Op::ReceiveAll(total) => {
                let all = matches!(doing.op, Op::ReceiveAll(_));
                // A hint may be of what was seen since.
                if self.choose(4) {
                    end.put(KERNEL_HINT, true);
                }
                let mut call = call(total, false, if all { total } else { 1 });
                let step = receive(end.record, Some(&end), &mut call, !is_nested).unwrap();
                doing.moved = call.got;
                return step;
            }
            Op::Look(total) => {
                let mut call = call(total, true, 1);
                let step = peek(end.record, Some(&end), &mut call, true).unwrap();
                doing.moved = call.got;
                return step;
            }
            Op::Shut => {
                // What is to be sent once more comes before the end.
                if are_pending(end.record) && !self.repeat(who) {
                    return Step::Wait(Until::Both);
                }
                end.put(SHUT_WR, true);
                me.has_shut.set(true);
                end.mine.prod.fin.store(1, Release);
                self.pause(who);
                self.pipes[who].fin.set(true);
            }
            Op::Sleep => self.passes_time(),
            Op::Die => self.dies(who),
        }
        Step::Done
    }

    /// SIGKILL, between two steps.
    fn dies(&self, who: usize) {
        let me = &self.procs[who];
        me.is_dead.set(true);
        me.ops.borrow_mut().clear();
        let has_unread = !self.pipes[1 - who].unread.borrow().is_empty();
        self.pipes[who].fin.set(true);
        if has_unread {
            self.procs[1 - who].is_reset.set(true);
        }
    }

    /// Runs both programs until neither can go on.
    pub fn runs(&self) {
        let mut idle = 0;
        while idle < Self::PATIENCE {
            let first = usize::from(self.choose(2));
            let Some(who) = [first, 1 - first].into_iter().find(|who| self.can_go_on(*who)) else {
                idle += 1;
                self.passes_time();
                continue;
            };
            idle = 0;
            self.goes_on(who);
        }
        for who in 0..2 {
            if let Some((doing, until)) = self.procs[who].waits.get() {
                self.waits_for_good(who, doing, until);
            }
        }
    }

    /// Those who look for themselves do so.
    fn passes_time(&self) {
        self.now.set(self.now.get() + 40_000_000);
        for who in 0..2 {
            let me = &self.procs[who];
            if let Some((Doing { op: Op::Send(_), .. }, Until::Ring)) = me.waits.get() {
                let has_room = self.end(who).room().0 > 0 && !self.can_go_on(who);
                assert!(me.is_dead.get() || !has_room, "{who} was not told of room");
            }
            let looks = match me.waits.get() {
                Some((doing, Until::Ring)) => matches!(doing.op, Op::Send(_)),
                Some((_, Until::More(_))) => true,
                _ => false,
            };
            if looks && !me.is_dead.get() && !me.is_busy.get() {
                self.goes_on(who);
            }
        }
    }

    /// Nobody will wake it: nothing may be there for it.
    fn waits_for_good(&self, who: usize, doing: Doing, until: Until) {
        let (me, peer) = (&self.procs[who], &self.procs[1 - who]);
        if me.is_dead.get() {
            return;
        }
        let has_ended = peer.has_shut.get() || peer.is_dead.get();
        match doing.op {
            Op::Send(_) | Op::Shut => {
                assert!(
                    !peer.is_dead.get(),
                    "{who} waits for one that is dead: {doing:?} {until:?}"
                );
                let is_full = self.pipes[who].room() == 0;
                assert!(is_full, "{who} waits though there is room: {doing:?} {until:?}");
            }
            _ => {
                assert!(!has_ended, "{who} sleeps over the end: {doing:?} {until:?}");
                let unread = peer.sent.get() - me.received.get();
                let wants = matches!(doing.op, Op::Look(_)) && unread > 0;
                assert!(unread == 0 && !wants, "{who} sleeps over bytes: {doing:?} {until:?}");
            }
        }
    }
}

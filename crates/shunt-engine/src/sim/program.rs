//! What a program does: its calls, step by step, and how it sleeps.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::doorbell::{ON_FUTEX, ON_QUEUE, arm, bells, on_bell, take, take_futex};
use shunt_shm::sync::AtomicU32;

use super::calls::{Receiving, Sending};
use super::pace::{self, point, rest};
use super::{Ending, Op, World};
use crate::call::{Direction, Step, Until, may_intrude};
use crate::conn::close::Tell;
use crate::conn::flags::{KERNEL_HINT, SHUT_WR};
use crate::conn::overflow;
use crate::conn::recv::{peek, receive};
use crate::conn::repeated::are_pending;
use crate::events;

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Doing {
    pub op: Op,
    pub moved: usize,
}

impl Op {
    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::Send(_) | Self::PollSend(_) | Self::EdgeSend(_) | Self::Shut | Self::Close => {
                Direction::Sending
            }
            _ => Direction::Receiving,
        }
    }

    /// A call of it waits for itself.
    const fn blocks(self) -> bool {
        !matches!(
            self,
            Self::PollSend(_) | Self::PollReceive(_) | Self::EdgeSend(_) | Self::EdgeReceive(_)
        )
    }
}

/// What ends a sleep.
#[derive(Clone, Copy, Debug)]
pub struct Asleep {
    pub doing: Doing,
    /// What its call said; `None`: it waits in poll or epoll.
    pub until: Option<Until>,
    /// What its arm words (bytes, room) were when it looked for the last time.
    pub armed: [Option<u32>; 2],
    /// Events of the kernel socket; `None`: on a futex.
    pub events: Option<u32>,
    /// Anything that has come: an edge, or a completion.
    pub by_edge: bool,
    /// When it looks for itself.
    pub looks_at: Option<u64>,
}

/// Longest sleep on a futex, and of a sender in the kernel.
const FUTEX_FOR: u64 = 20_000_000;
const LOOK: u64 = 100_000_000;

impl World {
    /// All that a program does.
    pub fn lives(&self, who: usize) {
        loop {
            let op = self.procs[who].ops.borrow_mut().pop_front();
            let Some(op) = op else { return };
            self.does(who, op);
            if self.procs[who].ending.get().is_over() {
                return;
            }
        }
    }

    fn does(&self, who: usize, op: Op) {
        let mut doing = Doing { op, moved: 0 };
        let mut since = None;
        // An edge-triggered program tries first.
        let polls = matches!(op, Op::PollReceive(_) | Op::PollSend(_));
        if polls {
            self.polls(who, doing);
            self.procs[who].had_handler.set(false);
        }
        // A call that follows finds something.
        let mut was_told = polls;
        loop {
            let before = doing.moved;
            match self.step(who, &mut doing, false) {
                Step::Again => point(),
                Step::Wait(until) => {
                    if are_pending(&self.procs[who].record) {
                        self.repeat(who);
                    }
                    if op.blocks() {
                        self.sleeps(who, doing, until, &mut since);
                        continue;
                    }
                    // What is to be sent once more may take all the room there was; and a sender that was to leave a ring which
                    // stays full waits once more where the receiver has taken something since.
                    let record = &self.procs[who].record;
                    was_told &= !are_pending(record) && !overflow::is_watched(record);
                    was_told &= !self.procs[who].had_handler.take();
                    // A look that was begun before a mark was set, and found that the other one was killed after that, is not
                    // noted (`epoll/ready.rs`): the call is in the ring then, and asks the kernel some microseconds later.
                    was_told &= self.procs[1 - who].ending.get() < Ending::Killed;
                    assert!(
                        !was_told || doing.moved > before,
                        "{who} was told too much: {doing:?}"
                    );
                    self.polls(who, doing);
                    self.procs[who].had_handler.set(false);
                    was_told = polls;
                    continue;
                }
                step @ (Step::Done | Step::Failed(_)) => {
                    self.is_over(who, doing, step);
                    return;
                }
                Step::Follow => unreachable!("nobody leaves for good"),
            }
            was_told &= doing.moved == before;
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
        let blocking = !is_nested && doing.op.blocks();
        match doing.op {
            Op::Meet => me.can_tell.set(true),
            Op::Send(total) | Op::PollSend(total) | Op::EdgeSend(total) => {
                let mut call = Sending { world: self, who, total, sent: doing.moved, is_nested };
                let step = end.send(&mut call, is_nested, blocking).unwrap();
                doing.moved = call.sent;
                let is_done = step == Step::Again && call.sent >= total;
                return if is_done { Step::Done } else { step };
            }
            Op::Receive(total)
            | Op::ReceiveAll(total)
            | Op::PollReceive(total)
            | Op::EdgeReceive(total) => {
                let all = matches!(doing.op, Op::ReceiveAll(_));
                // A hint may be of what was seen since.
                if self.choose(16) {
                    end.put(KERNEL_HINT, true);
                }
                let mut call = call(total, false, if all { total } else { 1 });
                let step = receive(end.record, Some(&end), &mut call, blocking).unwrap();
                doing.moved = call.got;
                return step;
            }
            Op::Look(total) => {
                let mut call = call(total, true, 1);
                let step = peek(end.record, Some(&end), &mut call, true).unwrap();
                doing.moved = call.got;
                return step;
            }
            Op::Check => self.checks_readiness(who),
            Op::Shut => return self.shuts(who),
            Op::Close => return self.closes(who),
            Op::Sleep => self.passes_time(),
            Op::Die(points) => pace::is_to_die_in(points),
        }
        Step::Done
    }

    /// Without consequences: whether a call that does not wait would find something to receive.
    pub fn would_receive(&self, who: usize) -> (Step, usize) {
        let end = self.end(who);
        let mut call = Receiving {
            world: self,
            who,
            total: 1,
            enough: 1,
            got: 0,
            only_looks: true,
            is_nested: false,
            copied: Vec::new(),
        };
        let step = peek(end.record, Some(&end), &mut call, false).unwrap();
        (step, call.got)
    }

    fn shuts(&self, who: usize) -> Step {
        let (end, me) = (self.end(who), &self.procs[who]);
        // What is to be sent once more comes before the end.
        if are_pending(end.record) && !self.repeat(who) {
            return Step::Wait(Until::Both);
        }
        if me.ending.get() == Ending::Not {
            me.ending.set(Ending::Announced);
        }
        end.put(SHUT_WR, true);
        end.announce_end();
        point();
        self.socket(who).shuts();
        me.ending.set(Ending::Shut);
        point();
        self.tells_of_end(who);
        Step::Done
    }

    fn closes(&self, who: usize) -> Step {
        let (end, me) = (self.end(who), &self.procs[who]);
        if are_pending(end.record) && !self.repeat(who) {
            return Step::Wait(Until::Both);
        }
        // What comes later is sent to a socket that is closed.
        self.notes_end(who);
        if me.ending.get() == Ending::Not {
            me.ending.set(Ending::Announced);
        }
        match end.close(Some(&self.socket(who))) {
            Tell::Sender => self.tells_sender(who),
            Tell::OnFutexes => self.tells_of_end(who),
            Tell::All => unreachable!("it has a descriptor"),
        }
        point();
        me.ending.set(Ending::Closed);
        self.socket(who).closes();
        Step::Done
    }

    /// A handler of a signal may run here, above a copy.
    pub fn interrupt(&self, who: usize) -> bool {
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
            let op = if is_sender { Op::Send(3) } else { Op::Receive(3) };
            let mut doing = Doing { op, moved: 0 };
            me.had_handler.set(true);
            // It does not wait.
            let step = self.step(who, &mut doing, true);
            if matches!(step, Step::Done | Step::Failed(_)) {
                self.is_over(who, doing, step);
            }
        }
        true
    }

    /// Tells the peer of bytes, a mark, or an end: as the library's `notify::data`.
    pub fn tells_receiver(&self, who: usize) {
        let (ctl, peer) = (&self.procs[1 - who].section.ctl, &self.procs[1 - who]);
        if ctl.queue.load(Relaxed) != 0 {
            peer.is_queued.set(true);
        }
        take(&ctl.rx_arm);
    }

    /// Tells the peer of room: as the library's `notify::space`.
    pub fn tells_sender(&self, who: usize) {
        let (ctl, peer) = (&self.procs[1 - who].section.ctl, &self.procs[1 - who]);
        let asked = take(&ctl.tx_arm);
        if asked & ON_QUEUE != 0 && ctl.queue.load(Relaxed) != 0 {
            peer.is_queued.set(true);
        }
        debug_assert!(bells(asked).count() <= 1);
    }

    fn tells_of_end(&self, who: usize) {
        let ctl = &self.procs[1 - who].section.ctl;
        for word in [&ctl.rx_arm, &ctl.tx_arm] {
            take_futex(word);
        }
    }

    /// Sleeps in a call, as the library's `stream/sleep.rs` has it: on a futex first, then in poll(2).
    fn sleeps(&self, who: usize, doing: Doing, until: Until, since: &mut Option<u64>) {
        let (end, now) = (self.end(who), self.now.get());
        let direction = doing.op.direction();
        let receives = direction == Direction::Receiving;
        let word = if receives { &end.mine.ctl.rx_arm } else { &end.mine.ctl.tx_arm };
        let armed = |seen| if receives { [Some(seen), None] } else { [None, Some(seen)] };
        let asleep = Asleep {
            doing,
            until: Some(until),
            armed: [None; 2],
            events: None,
            by_edge: false,
            looks_at: None,
        };
        let overflow = || {
            let look = (!receives).then(|| end.next_look_for_room(now)).flatten();
            look.map(|look| now + look)
        };
        let futex_until = *since.get_or_insert(now) + FUTEX_FOR;
        if until == Until::Ring && now < futex_until {
            let seen = arm(word, ON_FUTEX);
            if end.ends_wait(direction, until) {
                return;
            }
            let looks_at = [Some(futex_until), overflow()].into_iter().flatten().min();
            self.rests_until(who, Asleep { armed: armed(seen), looks_at, ..asleep });
            return;
        }
        let room = if are_pending(end.record) { events::OUT } else { 0 };
        let events = match (direction, until) {
            (Direction::Receiving, Until::More(_)) => events::RDHUP | room,
            (Direction::Receiving, _) => events::IN | events::RDHUP | room,
            (Direction::Sending, Until::Ring) if end.theirs.prod.fin.load(Relaxed) == 0 => {
                events::RDHUP
            }
            (Direction::Sending, Until::Ring) => 0,
            (Direction::Sending, _) => events::OUT,
        };
        let seen = arm(word, on_bell(0));
        if until != Until::Kernel && end.ends_wait(direction, until) {
            return;
        }
        let longest = match until {
            Until::More(_) => Some(now + Self::LOOK),
            _ => (!receives).then_some(now + LOOK),
        };
        let overflow = if until == Until::Ring { overflow() } else { None };
        let looks_at = [longest, overflow].into_iter().flatten().min();
        let told = self.rests_until(
            who,
            Asleep { armed: armed(seen), events: Some(events), looks_at, ..asleep },
        );
        if told != 0 && until == Until::Ring {
            end.put(KERNEL_HINT, true);
        }
    }

    /// Sleeps. What the kernel has to say afterwards, of what it was asked.
    pub fn rests_until(&self, who: usize, asleep: Asleep) -> u32 {
        let me = &self.procs[who];
        me.asleep.set(Some(asleep));
        rest();
        me.asleep.set(None);
        asleep.events.map_or(0, |events| self.socket(who).poll() & (events | events::ALWAYS))
    }

    /// Whether a sleep has ended.
    pub fn is_woken(&self, who: usize, asleep: &Asleep) -> bool {
        let (me, ctl) = (&self.procs[who], &self.procs[who].section.ctl);
        let is_taken = |(seen, word): (&Option<u32>, &AtomicU32)| {
            seen.is_some_and(|seen| word.load(Acquire) != seen)
        };
        let told = self.socket(who).poll();
        asleep.armed.iter().zip([&ctl.rx_arm, &ctl.tx_arm]).any(is_taken)
            || asleep.events.is_some_and(|events| told & (events | events::ALWAYS) != 0)
            || (asleep.by_edge && (me.socket.edge.get() || me.is_queued.get()))
            || asleep.looks_at.is_some_and(|at| self.now.get() >= at)
    }
}

//! What a program does: its calls, step by step, and how it sleeps.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shunt_shm::Violation;
use shunt_shm::doorbell::{ON_BELL, ON_FUTEX, ON_QUEUE, take, take_futex};
use shunt_shm::sync::{AtomicU32, store_load_fence};

use super::calls::{Lock, Receiving, Sending};
use super::pace::{self, Panicked, point, rest};
use super::wakes::News;
use super::{Ending, Op, World, other};
use crate::call::{Direction, Errno, Kernel, Step, Until, enter};
use crate::conn::close::Tell;
use crate::conn::flags::{KERNEL_HINT, SHUT_WR};
use crate::conn::kernel_events;
use crate::conn::overflow;
use crate::conn::put;
use crate::conn::recv::{peek, receive};
use crate::conn::repeated::are_pending;
use crate::conn::send::{Outgoing, over_kernel};
use crate::events;
use crate::handshake::Phase;
use crate::kernel::KernelSocket;
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
            Self::Send(_) | Self::PollSend(_) | Self::EdgeSend(_) | Self::Shut | Self::Close => {
                Direction::Sending
            }
            _ => Direction::Receiving,
        }
    }

    /// Its call takes steps, with the lock of a direction.
    const fn moves(self) -> bool {
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
        )
    }

    /// In a handler: of what the epoll below has been told of, it does not hear once more.
    pub(super) const fn without_edges(self) -> Self {
        match self {
            Self::EdgeSend(n) => Self::PollSend(n),
            Self::EdgeReceive(n) => Self::PollReceive(n),
            other => other,
        }
    }

    /// It ends with a descriptor of a further connection.
    pub(super) const fn makes_connection(self) -> bool {
        matches!(
            self,
            Self::Connect | Self::ConnectPlain | Self::Accept | Self::AcceptNow | Self::AcceptPlain
        )
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
    /// What there was of the other end's news when it began, and how many points had been passed.
    pub news: News,
    pub began: u32,
    /// The lock of this direction, and nothing else.
    pub lock: Option<Direction>,
}

impl Asleep {
    /// Until nothing comes.
    pub const fn nothing(doing: Doing) -> Self {
        Self {
            doing,
            until: None,
            armed: [None; 2],
            events: None,
            by_edge: false,
            looks_at: None,
            news: News::NONE,
            began: 0,
            lock: None,
        }
    }

    /// Until somebody connects.
    pub const fn in_accept() -> Self {
        let doing = Doing { op: Op::Accept, moved: 0, is_plain: true };
        Self::nothing(doing)
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

/// Longest sleep of a sender in the kernel.
const LOOK: u64 = 100_000_000;

impl World {
    /// A whole call. A panic of the library ends in it.
    pub fn does(&self, who: usize, op: Op) {
        let me = &self.procs[who];
        let mut doing = Doing { op, moved: 0, is_plain: false };
        // In a handler another call may be in the middle of one.
        let was_in_step = me.in_step.replace(false);
        me.calls.set(me.calls.get() + 1);
        let panicked = match catch_unwind(AssertUnwindSafe(|| self.calls(who, &mut doing))) {
            Err(why) if !why.is::<Panicked>() => resume_unwind(why),
            result => result.is_err(),
        };
        let in_step = me.in_step.replace(was_in_step);
        if panicked {
            // What a call that does not wait has moved, the program was told of.
            let moved = if op.blocks() { doing.moved } else { 0 };
            self.contains(who, Doing { moved, ..doing }, in_step);
        } else if !matches!(op, Op::Panic(_)) {
            pace::is_not_to_panic();
        }
        me.calls.set(me.calls.get() - 1);
        // What a handler has closed under the call.
        if me.calls.get() == 0 && me.is_to_close.get() && !me.is_gone.get() {
            pace::uninterrupted(|| self.closes(who));
        }
    }

    fn calls(&self, who: usize, doing: &mut Doing) {
        let op = doing.op;
        let (mut naps, mut in_vain) = (Naps::default(), 0);
        if op.moves() && self.advances(who) == Phase::Tcp {
            return self.calls_kernel(who, doing);
        }
        // An edge-triggered program tries first.
        let polls = matches!(op, Op::PollReceive(_) | Op::PollSend(_));
        if polls {
            self.procs[who].mind.had_handler.set(false);
            self.polls(who, *doing);
        }
        // A call that follows finds something.
        let mut was_told = polls;
        loop {
            let before = doing.moved;
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
                    // Another program may have been quicker.
                    was_told &= !self.has_relatives(who);
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
                    assert!(self.is_lied_to(who) || !self.is_honest(), "nobody leaves for good");
                    if !self.follows(who) {
                        return;
                    }
                }
            }
            was_told &= doing.moved == before;
        }
    }

    /// One step of a call.
    fn step(&self, who: usize, doing: &mut Doing, blocking: bool) -> Step {
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
        if direction == Direction::Sending && self.linked(who).is_some_and(|end| end.is_to_follow())
        {
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
        let step = self.locked_step(who, doing, blocking, &lock);
        me.in_step.set(was_in_step);
        drop(lock);
        self.shuts_late(who);
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
            is_nested,
            copied: Vec::new(),
        };
        match doing.op {
            Op::Send(total) | Op::PollSend(total) | Op::EdgeSend(total) => {
                let mut call = Sending { world: self, who, total, sent: doing.moved, lock };
                let step = match &end {
                    _ if doing.is_plain => Ok(past_library(call.over_kernel())),
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
            | Op::EdgeReceive(total) => {
                let all = matches!(doing.op, Op::ReceiveAll(_));
                // A hint may be of what was seen since.
                if self.choose(16) {
                    put(record, KERNEL_HINT, true);
                }
                let mut call = call(total, false, if all { total } else { 1 });
                let step = if doing.is_plain {
                    Ok(call.past_library())
                } else {
                    receive(record, end.as_ref(), &mut call, blocking)
                };
                doing.moved = call.got;
                step
            }
            Op::Look(total) => {
                let mut call = call(total, true, 1);
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
            Op::Shut => return self.shuts(who),
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
            Op::Panic(points) => pace::is_to_panic_in(points),
            Op::Lie(number) => self.lies(who, number),
            Op::Fork(ops) => self.forks(who, ops),
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
            is_nested: false,
            copied: Vec::new(),
        };
        let step = match self.advances(who) {
            Phase::Tcp => Ok(call.past_library()),
            _ => peek(&self.procs[who].record, self.linked(who).as_ref(), &mut call, false),
        };
        (step, call.got)
    }

    fn shuts(&self, who: usize) -> Step {
        let me = &self.procs[who];
        let record = &me.record;
        self.advances(who);
        // What is to be sent once more comes before the end.
        if are_pending(record) && !self.goes_on(who) {
            return Step::Wait(Until::Both);
        }
        let lock = Lock::of(self, who, Direction::Sending);
        // Above a step whose bytes may not be visible yet, and would come behind the end. One that only copies notices.
        let Some(_entered) = enter(lock.is_nested(), &record.tx.copying) else {
            me.is_to_shut.set(true);
            return Step::Done;
        };
        if me.ending.get() == Ending::Not {
            me.ending.set(Ending::Announced);
        }
        // A panic in the middle of it resets the connection: the peer would wait for an end, or find bytes behind one.
        let was_in_step = me.in_step.replace(true);
        put(record, SHUT_WR, true);
        // Where it is about to get its place, one of the two announces it.
        store_load_fence();
        if let Some(end) = self.linked(who) {
            end.announce_end();
        }
        point();
        self.socket(who).shuts();
        // A handler may have gone further.
        me.ending.set(me.ending.get().max(Ending::Shut));
        point();
        drop(lock);
        self.tells_of_end(who);
        me.in_step.set(was_in_step);
        Step::Done
    }

    /// What a handler above a step was to shut, once that is over.
    pub fn shuts_late(&self, who: usize) {
        let me = &self.procs[who];
        if !self.is_in_step(who, Direction::Sending) && me.is_to_shut.replace(false) {
            self.does(who, Op::Shut);
        }
    }

    fn closes(&self, who: usize) -> Step {
        let (end, me) = (self.end(who), &self.procs[who]);
        me.mind.forgets(self.conn);
        if !me.has_let_go.get() {
            if !self.lets_go(who) {
                self.leaves_it(who);
                return Step::Done;
            }
            me.has_let_go.set(true);
        }
        if are_pending(end.record) && !self.goes_on(who) {
            return Step::Wait(Until::Both);
        }
        // What comes later is sent to a socket that is closed.
        self.notes_end(who);
        if me.ending.get() == Ending::Not {
            me.ending.set(Ending::Announced);
        }
        if !self.ends_alone(who) {
            match end.close(Some(&self.socket(who))) {
                Tell::Sender => self.tells_sender(who),
                Tell::OnFutexes => self.tells_of_end(who),
                Tell::All => unreachable!("it has a descriptor"),
            }
            self.is_done(who);
        }
        point();
        if me.ending.get() < Ending::Closed {
            me.ending.set(Ending::Closed);
        }
        me.is_gone.set(true);
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
            let is_sender = core::ptr::eq(copying, &raw const me.record.tx.copying);
            let op = if is_sender { Op::Send(3) } else { Op::Receive(3) };
            let mut doing = Doing { op, moved: 0, is_plain: false };
            me.mind.had_handler.set(true);
            // It does not wait.
            me.mind.handlers.set(me.mind.handlers.get() + 1);
            let step = self.step(who, &mut doing, false);
            if matches!(step, Step::Done | Step::Failed(_)) {
                self.is_over(who, doing, step);
            }
            me.mind.handlers.set(me.mind.handlers.get() - 1);
        }
        true
    }

    /// A handler that waits may run above a call that has done something, and has not told of it yet: the peer's answer may be
    /// what it waits for. As the library's `notify::for_those_below`.
    pub fn tells_for_those_below(&self, who: usize) {
        if self.procs[who].mind.handlers.get() == 0 {
            return;
        }
        let untold = self.end(who).untold();
        if untold.data {
            self.tells_receiver(who);
        }
        if untold.room {
            self.tells_sender(who);
        }
    }

    /// Tells the peer of bytes, a mark, or an end: as the library's `notify::data`.
    pub fn tells_receiver(&self, who: usize) {
        let (ctl, peer) = (&self.procs[other(who)].section.ctl, &self.procs[other(who)]);
        let ctl_is_queued = ctl.queue.load(Relaxed) != 0;
        if ctl_is_queued {
            peer.is_queued.set(true);
        }
        if take(&ctl.rx_arm) != 0 || ctl_is_queued {
            self.wakes(who, Direction::Receiving);
        }
    }

    /// Tells the peer of room: as the library's `notify::space`.
    pub fn tells_sender(&self, who: usize) {
        let (ctl, peer) = (&self.procs[other(who)].section.ctl, &self.procs[other(who)]);
        let asked = take(&ctl.tx_arm);
        if asked & ON_QUEUE != 0 && ctl.queue.load(Relaxed) != 0 {
            peer.is_queued.set(true);
        }
        if asked != 0 {
            self.wakes(who, Direction::Sending);
        }
        debug_assert!(!self.is_honest() || asked & !(ON_FUTEX | ON_QUEUE | ON_BELL) == 0);
    }

    pub fn tells_of_end(&self, who: usize) {
        let ctl = &self.procs[other(who)].section.ctl;
        // Whoever shuts twice tells of it twice: of what is told for nothing the property asks no more.
        for (word, way) in [(&ctl.rx_arm, Direction::Receiving), (&ctl.tx_arm, Direction::Sending)]
        {
            if take_futex(word) {
                self.takes_word(other(who), way);
            }
        }
    }

    /// Sleeps in a call, as the library's `stream/sleep.rs` has it: on a futex first, then in poll(2).
    fn sleeps(&self, who: usize, doing: Doing, until: Until, naps: &mut Naps) {
        if self.linked(who).is_none() || doing.is_plain {
            return self.sleeps_in_kernel(who, doing, until);
        }
        self.tells_for_those_below(who);
        // One that runs from here on may leave the word as it was armed: the sleep does not begin (`threads/handlers.rs`).
        let had_handler = &self.procs[who].mind.had_handler;
        had_handler.set(false);
        let (end, now) = (self.end(who), self.now.get());
        let direction = doing.op.direction();
        let receives = direction == Direction::Receiving;
        let armed = |seen| if receives { [Some(seen), None] } else { [None, Some(seen)] };
        let asleep = Asleep { until: Some(until), ..Asleep::nothing(doing) };
        let overflow = || {
            let look = (!receives).then(|| end.next_look_for_room(now)).flatten();
            look.map(|look| now + look)
        };
        naps.begins(now);
        let events = kernel_events(end.record, Some(end.theirs), direction, until);
        if until == Until::Ring && (naps.is_young(now) || !end.has(KERNEL_HINT)) {
            let seen = self.arms(who, direction, ON_FUTEX);
            if end.ends_wait(direction, until) || had_handler.get() {
                return;
            }
            let looks_at = [Some(naps.end(now)), overflow()].into_iter().flatten().min();
            self.rests_until(who, Asleep { armed: armed(seen), looks_at, ..asleep });
            self.was_woken(looks_at, naps);
            if !end.ends_wait(direction, until) {
                self.visits(who, events);
            }
            return;
        }
        let seen = self.arms(who, direction, ON_BELL);
        if until != Until::Kernel && end.ends_wait(direction, until) {
            return;
        }
        let longest = match until {
            Until::More(_) => Some(now + Self::LOOK),
            _ => (!receives).then_some(now + LOOK),
        };
        let overflow = if until == Until::Ring { overflow() } else { None };
        let looks_at = [longest, overflow].into_iter().flatten().min();
        if had_handler.get() {
            return;
        }
        let told = self.rests_until(
            who,
            Asleep { armed: armed(seen), events: Some(events), looks_at, ..asleep },
        );
        self.was_woken(looks_at, naps);
        if told != 0 && until == Until::Ring {
            end.put(KERNEL_HINT, true);
        }
    }

    /// After a sleep that was to end then at the latest.
    pub fn was_woken(&self, limit: Option<u64>, naps: &mut Naps) {
        if limit.is_none_or(|at| self.now.get() < at) {
            naps.begins_anew(self.now.get());
        }
    }

    /// The same without a ring.
    fn sleeps_in_kernel(&self, who: usize, doing: Doing, until: Until) {
        let record = &self.procs[who].record;
        self.procs[who].mind.had_handler.set(false);
        let events = kernel_events(record, None, doing.op.direction(), until);
        let asleep = Asleep {
            until: Some(until),
            events: Some(events),
            looks_at: self.next_look(who),
            ..Asleep::nothing(doing)
        };
        self.rests_until(who, asleep);
    }

    /// A call that the library leaves to the kernel.
    fn calls_kernel(&self, who: usize, doing: &mut Doing) {
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

    /// After a nap on a futex in which nothing came.
    pub fn visits(&self, who: usize, events: u32) {
        if self.socket(who).readiness(events) != 0 {
            self.end(who).put(KERNEL_HINT, true);
        }
    }

    /// Sleeps. What the kernel has to say afterwards, of what it was asked.
    pub fn rests_until(&self, who: usize, mut asleep: Asleep) -> u32 {
        /// Looks of who waits for a liar, after which it is taken to wait for ever.
        const LOOKS: u32 = 200;
        let me = &self.procs[who];
        if !self.is_honest() {
            // Whoever is woken all the time gets on in time.
            self.now.set(self.now.get() + 10_000_000);
            me.mind.rests.set(me.mind.rests.get() + 1);
            if me.mind.rests.get() > LOOKS {
                asleep.looks_at = None;
            }
        }
        asleep.news = self.news(who);
        asleep.began = pace::points();
        me.mind.sleeps_on(self.conn, asleep);
        rest();
        me.mind.asleep.set(None);
        me.mind.is_roused.set(false);
        me.is_woken.set(false);
        me.has_armed.iter().for_each(|armed| armed.set(false));
        asleep.events.map_or(0, |events| self.socket(who).poll() & (events | events::ALWAYS))
    }

    /// Whether a sleep has ended.
    pub fn is_woken(&self, who: usize, asleep: &Asleep) -> bool {
        let (me, ctl) = (&self.procs[who], &self.procs[who].section.ctl);
        if let Some(direction) = asleep.lock {
            return self.can_lock(who, direction);
        }
        let is_taken = |(seen, word): (&Option<u32>, &AtomicU32)| {
            seen.is_some_and(|seen| word.load(Acquire) != seen)
        };
        let told = self.socket(who).poll();
        asleep.armed.iter().zip([&ctl.rx_arm, &ctl.tx_arm]).any(is_taken)
            || asleep.events.is_some_and(|events| told & (events | events::ALWAYS) != 0)
            || (asleep.events.is_none() && me.mind.is_roused.get())
            || me.is_woken.get()
            || (asleep.by_edge && (me.socket.edge.get() || me.is_queued.get()))
            || asleep.looks_at.is_some_and(|at| self.now.get() >= at)
    }
}

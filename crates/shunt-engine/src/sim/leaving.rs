//! Leaving the ring, as the library's `stream/{demote,again,hand_over}.rs`; and the program behind it, which knows of no library and
//! reads and writes the kernel socket.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shunt_shm::arena::UNDECIDED;
use shunt_shm::handover;
use shunt_wire::reason::Reason;

use super::calls::Lock;
use super::pace::{self, at_once, point};
use super::program::{Doing, past_library};
use super::sleep::Asleep;
use super::{Ending, Op, World, other, side};
use crate::call::{Direction, Errno, Kernel, Step, Until, enter};
use crate::conn::close::Shut;
use crate::conn::leave::{Below, Frozen, Leaving, Moment, Repeating};
use crate::conn::repeated::{are_awaited, are_known, are_pending};
use crate::conn::{is_half_settled, reset};
use crate::events;
use crate::handshake::Phase;
use crate::kernel::{KernelSocket, has_failed};
use crate::stretch::{Path, path};

/// Longest sleep of who waits for bytes that come twice, or for room for them.
const LOOK: u64 = 100_000_000;

/// What an end that goes on over TCP has beside the ring.
pub struct Out<'w> {
    world: &'w World,
    who: usize,
    /// In a handler of a signal above a step that sends.
    is_nested: bool,
    /// Room that it was told of.
    room: Cell<Option<u64>>,
}

/// A handler's step goes on above it.
const fn below(lock: &Lock<'_>) -> Below {
    if lock.is_nested() { Below::GoesOn } else { Below::Nothing }
}

impl<'w> Out<'w> {
    pub const fn new(world: &'w World, who: usize, is_nested: bool) -> Self {
        Self { world, who, is_nested, room: Cell::new(None) }
    }
}

impl Repeating for Out<'_> {
    fn socket(&self) -> impl KernelSocket {
        self.world.socket(self.who)
    }

    fn send_again(&self, at: usize, len: usize, note: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        point();
        let ring = &self.world.procs[other(self.who)].rmb;
        // No kill but one that ends all of it comes between the two.
        pace::at_once(|| {
            let bytes = ring[at..at + len].iter().map(Cell::get);
            match self.world.socket(self.who).sends(len, bytes) {
                Kernel::Moved(n) => {
                    note(n as u64);
                    Ok(())
                }
                Kernel::Nothing => Err(Errno::AGAIN),
                Kernel::Failed(error) => Err(error),
            }
        })
    }

    fn is_orphaned(&self) -> bool {
        self.world.is_orphaned(self.who)
    }

    fn was_reset(&self) {
        reset::tell_later(&self.world.procs[self.who].record);
    }

    fn uninterrupted(&self, step: impl FnOnce()) {
        pace::uninterrupted(step);
    }
}

impl Leaving for Out<'_> {
    fn take_back(&self) -> bool {
        self.world.takes_back(self.who)
    }

    fn room(&self) -> u64 {
        let room = self.world.pipes[side(self.who)].room() as u64;
        self.room.set(Some(room));
        room
    }

    fn has_left(&self) {}

    fn tell(&self) {
        self.world.tells_receiver(self.who);
    }

    fn reaches(&self, moment: Moment) {
        if moment == Moment::Marked {
            // What the kernel has no room for, and what a handler leaves, stays in the ring.
            let has_room = |untaken| self.room.get().is_none_or(|room| untaken <= room);
            self.world.leaves_behind(self.who, |untaken| self.is_nested || !has_room(untaken));
        }
        point();
    }
}

impl World {
    /// Sends once more what lay in a ring that was left. True when none is left.
    pub fn goes_on(&self, who: usize) -> bool {
        let lock = Lock::of(self, who, Direction::Sending);
        let is_done = self.end(who).repeat(&Out::new(self, who, lock.is_nested()));
        drop(lock);
        self.ends_late(who);
        is_done
    }

    /// Follows a peer that says that it has left. False in a handler that leaves it to the call below.
    pub fn follows(&self, who: usize) -> bool {
        let lock = Lock::of(self, who, Direction::Sending);
        let followed =
            self.end(who).follow(lock.is_nested(), &Out::new(self, who, lock.is_nested()));
        drop(lock);
        self.ends_late(who);
        followed.unwrap_or_else(|_| {
            self.breaks_off(who);
            true
        })
    }

    /// Passes the end of a ring, if it is there, and drops what comes twice.
    pub fn settles(&self, who: usize) {
        let lock = Lock::of(self, who, Direction::Receiving);
        let copying = &self.procs[who].record.rx.copying;
        let Some(entered) = enter(lock.is_nested(), copying) else { return };
        self.settles_locked(who);
        drop(entered);
        drop(lock);
        self.ends_late(who);
    }

    pub fn settles_locked(&self, who: usize) {
        let end = self.end(who);
        if end.pass_end_of_ring() == Path::Tcp {
            end.drop_repeated(&self.socket(who));
        }
    }

    /// It has set the mark at which it leaves the ring. What the other one has not taken, and what will not be sent once more, is
    /// lost to a program behind that one: which is so where `is_known` says.
    pub fn leaves_behind(&self, who: usize, is_known: impl FnOnce(u64) -> bool) {
        at_once(|| {
            let (end, sent) = (self.end(who), self.procs[who].sent.get());
            let tx = &end.record.tx;
            let untaken = tx.cursor.pos() - end.theirs.cons.cons.load(Relaxed);
            let repeats = tx.replay.load(Relaxed) & !UNDECIDED;
            if untaken > repeats && self.is_honest() {
                // As far as it knew when it looked for room.
                let known = tx.cursor.in_flight();
                assert!(is_known(known), "{who} leaves {untaken} bytes in the ring: {repeats}");
                let gap = sent - untaken..sent - repeats;
                self.procs[who].left_behind.borrow_mut().push(gap);
            }
        });
    }

    /// Leaves by itself: `demote::leave`.
    pub fn leaves(&self, who: usize) {
        self.polls_handshake(who);
        if self.linked(who).is_none() {
            return;
        }
        let me = &self.procs[who];
        me.leaves_again.set(at_once(|| me.section.ctl.handed_over.load(Relaxed)) != 0);
        let frozen = self.freezes(who);
        if frozen != Frozen::Before || self.end(who).is_to_leave() {
            let was_in_step = me.in_step.replace(true);
            let lock = Lock::of(self, who, Direction::Sending);
            let out = Out::new(self, who, lock.is_nested());
            let left = self.end(who).leave(below(&lock), &out);
            drop(lock);
            if left.is_err() {
                self.breaks_off(who);
            }
            // Above a step that would be surprised.
            if frozen == Frozen::Later || left == Ok(false) {
                me.is_to_leave.set(true);
            }
            point();
            self.end(who).notes_left(Reason::Unsupported, &out);
            self.tells_receiver(who);
            self.tells_sender(who);
            me.in_step.set(was_in_step);
            self.tells_own(who);
            self.ends_late(who);
        }
        me.leaves_again.set(false);
        self.drops_rest(who);
    }

    fn freezes(&self, who: usize) -> Frozen {
        let me = &self.procs[who];
        let was_in_step = me.in_step.replace(true);
        let lock = Lock::of(self, who, Direction::Receiving);
        let frozen = pace::uninterrupted(|| self.end(who).freeze(below(&lock), point));
        drop(lock);
        me.in_step.set(was_in_step);
        assert_ne!(frozen, Frozen::InDoubt, "nothing is read from pipes");
        frozen
    }

    /// What was read in the ring, and comes once more, is not to be read again: `again::finish`. A handler leaves that to the
    /// call below.
    fn drops_rest(&self, who: usize) {
        let me = &self.procs[who];
        while are_awaited(&me.record) && me.mind.handlers.get() == 0 {
            self.settles(who);
            if are_awaited(&me.record) {
                // Where its own reading has ended the kernel tells of that all the time.
                let events = if self.is_deaf(who) { 0 } else { events::IN };
                self.waits_for_kernel_alone(who, Op::Receive(1), events);
            }
        }
    }

    /// What lay in the ring is sent once more before this program is another one: `demote::finish`.
    fn sends_rest(&self, who: usize) {
        while !self.has_sent_rest(who) {
            // Of how much it is the other one is about to say.
            let is_known = are_known(&self.procs[who].record);
            self.waits_for_kernel_alone(who, Op::Send(1), if is_known { events::OUT } else { 0 });
        }
    }

    /// None of it is left.
    pub fn has_sent_rest(&self, who: usize) -> bool {
        if self.linked(who).is_some_and(|end| end.is_to_follow()) {
            self.follows(who);
        }
        !are_pending(&self.procs[who].record) || self.goes_on(who)
    }

    pub fn waits_for_kernel_alone(&self, who: usize, op: Op, events: u32) {
        let doing = Doing { op, moved: 0, is_plain: false };
        let asleep = Asleep {
            until: Some(Until::Kernel),
            events: Some(events),
            looks_at: Some(self.now.get() + LOOK),
            ..Asleep::nothing(doing)
        };
        self.rests_until(who, asleep);
    }

    /// The connection goes on over TCP, for who knows of no ring: `hand_over::give_back`.
    pub fn gives_back(&self, who: usize) {
        if self.procs[who].is_past.get() {
            return;
        }
        let id = &self.procs[who].record.id;
        match Phase::from_code(id.phase.load(Relaxed)) {
            Phase::Proposed if self.takes_proposal_back(who) => {
                id.phase.store(Phase::Tcp as u32, Release);
            }
            Phase::Candidate if !is_half_settled(&self.procs[who].record) => {
                id.phase.store(Phase::Tcp as u32, Release);
            }
            Phase::Candidate | Phase::Proposed | Phase::Active => {
                self.leaves(who);
                self.sends_rest(who);
            }
            Phase::Tcp | Phase::Broken => {}
        }
    }
}

impl World {
    /// The same before the connection goes to a program without the library. A panic resets it.
    pub fn hands_over(&self, who: usize) {
        let me = &self.procs[who];
        // What a handler closes stays open so long.
        me.calls.set(me.calls.get() + 1);
        match self.contained(who, || self.gives_back(who)) {
            true => pace::is_not_to_panic(),
            false => self.resets(who),
        }
        me.calls.set(me.calls.get() - 1);
        if me.is_to_close.get() {
            pace::uninterrupted(|| self.closes(who));
        }
    }

    /// It reads on in a ring that it has left.
    pub fn has_come_back(&self, who: usize) -> bool {
        let is_past = self.procs[who].is_past.get();
        at_once(|| !is_past && self.linked(who).is_some_and(|end| end.has_come_back()))
    }
}

/// A program without the library.
impl World {
    /// A whole call.
    pub fn calls_alone(&self, who: usize, doing: &mut Doing) {
        match doing.op {
            Op::Urgent => {
                *doing = Doing { op: Op::Send(1), ..*doing };
                self.moves_past(who, doing);
            }
            Op::Shut => self.shuts_past(who, Shut::Sending),
            // Of what one that was started does the program that has started it knows nothing.
            Op::ShutReading | Op::ShutBoth if self.procs[who].mind.is_started.get() => {}
            Op::ShutReading => self.socket(who).shuts_reading(),
            Op::ShutBoth => self.shuts_past(who, Shut::Both),
            Op::LowWater(bytes) => self.socket(who).sets_low_water(bytes),
            // The kernel keeps it for the call below.
            Op::Close if self.procs[who].calls.get() > 1 => {
                self.procs[who].mind.forgets(self.conn);
                self.procs[who].is_to_close.set(true);
            }
            Op::Close => self.closes_past(who),
            Op::Sleep => self.passes_time(),
            Op::Die(points) => pace::is_to_die_in(points),
            Op::Stall(points) => pace::is_to_stall_in(points),
            op if op.moves() => self.moves_past(who, doing),
            _ => {}
        }
    }

    /// A call on the kernel socket that moves bytes.
    pub fn moves_past(&self, who: usize, doing: &mut Doing) {
        // What the library has reset is as good as closed.
        if self.procs[who].has_reset.get() {
            return;
        }
        doing.is_plain = true;
        loop {
            point();
            let step = match doing.op.direction() {
                Direction::Sending => self.sends_past(who, doing),
                Direction::Receiving => self.receives_past(who, doing),
            };
            match step {
                Step::Wait(_) => {
                    let receives = doing.op.direction() == Direction::Receiving;
                    let events = if receives { events::IN } else { events::OUT };
                    let asleep = Asleep { events: Some(events), ..Asleep::nothing(*doing) };
                    self.rests_until(who, asleep);
                }
                Step::Failed(Errno::INTR) => return,
                step @ (Step::Done | Step::Failed(_)) => {
                    let is_end = step == Step::Done && doing.moved == 0;
                    if is_end && !self.procs[who].mind.is_foreign.get() && self.is_cut_off(who) {
                        return self.resets(who);
                    }
                    return self.is_over(who, *doing, step);
                }
                Step::Again | Step::Follow => {}
            }
        }
    }

    fn sends_past(&self, who: usize, doing: &mut Doing) -> Step {
        let (me, total) = (&self.procs[who], doing.op.size().unwrap_or(0));
        let socket = self.socket(who);
        if doing.moved > 0 && at_once(|| has_failed(&socket)) {
            return Step::Done;
        }
        let from = me.sent.get();
        let bytes = (from..).map(|at| self.byte(who, at));
        let done = socket.sends(total - doing.moved, bytes);
        if let Kernel::Moved(n) = done {
            doing.moved += n;
            me.sent.set(from + n as u64);
        }
        if doing.moved >= total { Step::Done } else { past_library(done) }
    }

    fn receives_past(&self, who: usize, doing: &mut Doing) -> Step {
        let (me, total, socket) =
            (&self.procs[who], doing.op.size().unwrap_or(0), self.socket(who));
        if doing.moved > 0 && socket.would_fail() {
            return Step::Done;
        }
        let only_looks = matches!(doing.op, Op::Look(_));
        let mut most = total - doing.moved;
        if me.mind.is_started.get() || !me.mind.is_foreign.get() {
            // The one that has started it, or goes on behind a panic, would find in the ring what this one has missed.
            most = most.min(self.before_gap(who, me.received.get()));
        }
        if most == 0 && total > 0 {
            return Step::Failed(Errno::INTR);
        }
        let bytes = match socket.receives(most, only_looks) {
            Ok(bytes) => bytes,
            Err(none) => return past_library(none),
        };
        let mut at = me.received.get();
        for byte in &bytes {
            at = self.next_in_kernel(who, at);
            self.checks(who, at, &[*byte]);
            at += 1;
        }
        if !only_looks {
            me.received.set(at);
        }
        doing.moved += bytes.len();
        let enough = if matches!(doing.op, Op::ReceiveAll(_)) {
            total
        } else {
            self.low_water(who).min(total)
        };
        if bytes.is_empty() || doing.moved >= enough { Step::Done } else { Step::Again }
    }

    /// An end that the kernel tells is none: as the library's `panics::whole`.
    fn is_cut_off(&self, who: usize) -> bool {
        let Some(end) = self.linked(who) else { return false };
        let marks = end.record.rx.marks.load(Relaxed);
        path(marks) == Path::Ring
            && end.theirs.prod.marks.load(Acquire) == marks
            && end.record.rx.cursor.refresh(&end.theirs.prod, end.ring) != Ok(0)
    }

    /// The byte that comes next over TCP.
    pub fn next_in_kernel(&self, who: usize, at: u64) -> u64 {
        let gaps = self.procs[other(who)].left_behind.borrow();
        gaps.iter().fold(at, |at, gap| if gap.contains(&at) { gap.end } else { at })
    }

    /// Bytes up to the next one that does not come over TCP.
    fn before_gap(&self, who: usize, at: u64) -> usize {
        let gaps = self.procs[other(who)].left_behind.borrow();
        let next =
            gaps.iter().filter(|gap| gap.end > at).map(|gap| gap.start.saturating_sub(at)).min();
        next.map_or(usize::MAX, |n| usize::try_from(n).unwrap())
    }

    /// Bytes that a program without the library cannot have: they lie in a ring that the other end has not left, and will not
    /// leave, or has not looked at since.
    pub fn kept_from(&self, who: usize) -> u64 {
        at_once(|| {
            let sender = self.end(other(who));
            let tx = &sender.record.tx;
            let is_frozen = handover::has_left(&sender.theirs.ctl.handed_over);
            if !is_frozen {
                return 0;
            }
            if path(tx.marks.load(Relaxed)) == Path::Tcp {
                return 0;
            }
            sender.mine.prod.prod.load(Relaxed) - sender.theirs.cons.cons.load(Relaxed)
        })
    }

    /// Bytes that the other end was to send once more to one that has left, and was killed before that.
    pub fn never_repeated(&self, who: usize) -> u64 {
        at_once(|| {
            let (sender, is_over) =
                (self.end(other(who)), self.procs[other(who)].ending.get().is_over());
            let is_left = handover::has_left(&sender.theirs.ctl.handed_over);
            let tx = &sender.record.tx;
            // It may not have noted the mark.
            let marks = sender.mine.prod.marks.load(Relaxed);
            let is_lost = is_over && is_left && path(marks) == Path::Tcp;
            let pending = tx.replay.load(Relaxed) & !UNDECIDED;
            if is_lost { pending.max(self.procs[other(who)].cut_off.get()) } else { 0 }
        })
    }

    /// The other end would do something about that, and nobody there looks at the connection, or only a handler above a step.
    pub fn is_unlooked(&self, who: usize) -> bool {
        let sleeps = |who: &usize| {
            let mind = &self.procs[*who].mind;
            !self.procs[*who].is_gone.get()
                && mind.asleep.get().is_some_and(|asleep| !asleep.doing.is_plain)
                && mind.sleeps() == Some(self.conn)
        };
        let is_above = !self.is_free(other(who), Direction::Sending);
        is_above || !self.programs(other(who)).any(|who| sleeps(&who))
    }

    fn shuts_past(&self, who: usize, what: Shut) {
        let me = &self.procs[who];
        point();
        me.ending.set(me.ending.get().max(Ending::Shut));
        self.shuts_in_kernel(who, what);
        point();
    }

    pub fn closes_past(&self, who: usize) {
        let me = &self.procs[who];
        point();
        me.mind.forgets(self.conn);
        // One that was started has a duplicate of it.
        if !me.mind.is_started.get() {
            me.is_gone.set(true);
            if !self.is_held(who) {
                self.ends_unannounced(who);
            }
        }
    }
}

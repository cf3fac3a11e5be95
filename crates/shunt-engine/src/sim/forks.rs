//! Forks: programs that hold one end of the connection together.
//!
//! They have its record, and the locks of its directions; each has calls of its own. The end is closed by the one that lets go
//! last (`processes/fork_sharing.rs` of the runtime), or by the kernel, where that was killed. A program that is killed in a step
//! leaves the others with what it has stored so far, and a lock that they take from it.

use core::time::Duration;

use shunt_shm::doorbell::{ON_BELL, arm, arm_bell};
use shunt_shm::holders::Member;
use shunt_shm::lock::{Guard, Owner, OwnerLock};

use super::pace::{at_once, point};
use super::program::Doing;
use super::sleep::Asleep;
use super::{Op, Proc, World, other, side};
use crate::call::Direction;
use crate::handshake::course;

/// Programs of a history, with all forks.
pub const PROGRAMS: usize = 6;

/// Which program of several comes first, and after how many points it stops.
pub fn turn(choice: u8) -> (usize, u32) {
    let gap = match u32::from(choice & 0x1f) {
        few @ 0..20 => few,
        more @ 20..28 => 20 + (more - 20) * 24,
        _ => u32::MAX,
    };
    (usize::from(choice >> 5) % PROGRAMS, gap)
}

/// The programs, from this one on.
pub fn order(first: usize) -> impl Iterator<Item = usize> {
    (0..PROGRAMS).map(move |n| (first + n) % PROGRAMS)
}

/// Its name among those that hold an end.
fn member(who: usize) -> Member {
    Member::from_code(u32::try_from(who).unwrap() + 1)
}

fn number(member: Member) -> usize {
    member.code() as usize - 1
}

fn owner(who: usize) -> Owner {
    Owner::new(member(who), u32::try_from(who).unwrap() + 1)
}

/// The program that owns a lock.
fn program(owner: Owner) -> usize {
    owner.tid() as usize - 1
}

/// A lock of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Of(Direction),
    Handshake,
}

impl From<Direction> for Which {
    fn from(direction: Direction) -> Self {
        Self::Of(direction)
    }
}

/// Bytes of a step that are where they should be, and that no cursor has passed yet.
#[derive(Clone, Copy, Default, Debug)]
pub struct Moved {
    /// Where the cursor was.
    pub at: u64,
    /// How many.
    pub n: u64,
}

impl Proc {
    pub fn begins_to_hold(&self, who: usize) {
        self.mind.is_born.set(true);
        self.is_gone.set(false);
        self.record.id.holders.add(member(who));
    }
}

impl World {
    /// All programs that hold that end, or have held it.
    pub fn programs(&self, who: usize) -> impl Iterator<Item = usize> + use<> {
        (side(who)..PROGRAMS).step_by(2)
    }

    /// A program holds the end that is not this one.
    pub fn is_held(&self, who: usize) -> bool {
        self.programs(who).any(|other| other != who && !self.procs[other].is_gone.get())
    }

    /// One of that end has.
    pub fn has_relatives(&self, who: usize) -> bool {
        self.programs(who).skip(1).any(|other| self.procs[other].mind.is_born.get())
    }

    /// Forks. The child does so many of the operations that come next.
    pub fn forks(&self, who: usize, ops: usize) {
        // The child would have the others of several connections, too.
        if self.conn > 0 || self.procs[who].mind.has_others(self.conn) {
            return;
        }
        let is_free = |child: &usize| !self.procs[*child].mind.is_born.get();
        let Some(child) = self.programs(who).find(is_free) else { return };
        let (me, child) = (&self.procs[who], (child, &self.procs[child]));
        // The child is counted before it is there: whoever closes meanwhile is not the last.
        child.1.begins_to_hold(child.0);
        child.1.mind.names(self.conn);
        let mut left = me.mind.ops.borrow_mut();
        let ops = ops.min(left.len());
        // What the epoll of the parent is told of it is not told of.
        child.1.mind.ops.borrow_mut().extend(left.drain(..ops).map(Op::without_edges));
        child.1.can_tell.set(me.can_tell.get());
        child.1.is_past.set(me.is_past.get());
        child.1.mind.has_bells.set(me.mind.has_bells.get());
        me.shaking.is_inherited_by(&child.1.shaking);
        me.sharing.is_inherited_by(&child.1.sharing);
    }

    /// Takes a lock, or finds that a step of the same program has it, above which this one runs.
    pub fn locks(&self, who: usize, which: Which) -> Guard<'_> {
        let lock = self.lock(who, which);
        while !self.can_lock(who, which) {
            let doing = Doing { op: Op::Sleep, moved: 0, is_plain: false };
            let nothing = Asleep::nothing(doing);
            self.rests_until(who, Asleep { lock: Some(which), ..nothing });
        }
        // A point in it would be one more in each step. With a lock that is to be had nobody waits.
        let is_dead = |owner| self.is_dead(owner);
        let guard = at_once(|| match lock.is_held_by(owner(who)) {
            true => lock.lock(owner(who), is_dead),
            false => lock.lock_within(owner(who), Duration::ZERO, is_dead).unwrap(),
        });
        if which == Which::Of(Direction::Sending) {
            at_once(|| self.notes_owed(who));
        }
        if let Some(end) = self.linked(who).filter(|_| guard.is_inherited()) {
            match which {
                Which::Of(Direction::Receiving) => end.inherit_receiving(),
                Which::Of(Direction::Sending) => end.inherit_sending(),
                Which::Handshake => {}
            }
        }
        guard
    }

    fn lock(&self, who: usize, which: Which) -> &OwnerLock {
        let record = &self.procs[who].record;
        match which {
            Which::Of(Direction::Receiving) => &record.rx.lock,
            Which::Of(Direction::Sending) => &record.tx.lock,
            Which::Handshake => &record.id.handshake,
        }
    }

    fn is_dead(&self, owner: Owner) -> bool {
        self.procs[program(owner)].is_gone.get()
    }

    /// It need not wait for it.
    pub fn can_lock(&self, who: usize, which: Which) -> bool {
        at_once(|| {
            let has = self.lock(who, which).owner();
            has.is_none_or(|has| has == owner(who) || self.is_dead(has))
        })
    }

    /// Arms the word of a direction. What it is then.
    pub fn arms(&self, who: usize, direction: Direction, how: u32) -> u32 {
        let (me, ctl) = (&self.procs[who], &self.procs[who].section.ctl);
        me.is_woken.set(false);
        me.has_armed[usize::from(direction == Direction::Sending)].set(true);
        match direction {
            Direction::Receiving if how == ON_BELL => arm_bell(&ctl.rx_arm, &ctl.rx_bells, 1),
            Direction::Sending if how == ON_BELL => arm_bell(&ctl.tx_arm, &ctl.tx_bells, 1),
            Direction::Receiving => arm(&ctl.rx_arm, how),
            Direction::Sending => arm(&ctl.tx_arm, how),
        }
    }

    /// Wakes all programs of an end that have armed a word, which was taken: one of them may arm it again before others look.
    pub fn wakes_armed(&self, whose: usize, direction: Direction) {
        let at = usize::from(direction == Direction::Sending);
        self.procs[other(whose)].untold[at].set(false);
        for me in self.programs(whose).map(|who| &self.procs[who]) {
            if me.has_armed[at].get() {
                me.is_woken.set(true);
            }
        }
    }

    /// A step of this program has it.
    pub fn is_in_step(&self, who: usize, direction: Direction) -> bool {
        at_once(|| self.lock(who, direction.into()).is_held_by(owner(who)))
    }

    /// No step of any program has the lock.
    pub fn is_free(&self, who: usize, which: impl Into<Which>) -> bool {
        at_once(|| self.lock(who, which.into()).owner().is_none())
    }

    /// A program waits for a lock, and nobody goes on: its owner has to be in a handler that sleeps.
    pub fn waits_for_good(&self, who: usize, which: Which) {
        let has = self.lock(who, which).owner().map(program);
        let is_above = |has: usize| self.procs[has].mind.handlers.get() > 0;
        assert!(has.is_some_and(is_above), "{who} waits for the lock of {has:?} for good");
    }

    /// One of several that hold the end was killed: bytes of its step that no cursor has passed are others' to send, or to
    /// receive.
    pub fn is_bereaved(&self, who: usize) {
        let me = &self.procs[who];
        // The agent has those look on futexes who do not hear of it otherwise.
        for peer in self.programs(other(who)).map(|who| &self.procs[who].mind) {
            peer.is_roused.set(peer.asleep.get().is_some());
        }
        // In a handler, or below it.
        if me.in_step.get() || me.mind.handlers.get() > 0 {
            me.untold.iter().for_each(|untold| untold.set(true));
        }
        for direction in [Direction::Sending, Direction::Receiving] {
            let sends = direction == Direction::Sending;
            let (cursor, moved, count, open) = match sends {
                true => (me.record.tx.cursor.pos(), &me.placed, &me.sent, &me.unseen),
                false => (me.record.rx.cursor.pos(), &me.claimed, &me.received, &me.untaken),
            };
            if !self.lock(who, direction.into()).is_held_by(owner(who)) {
                continue;
            }
            if sends {
                me.sharing.is_bereaved(cursor);
            }
            let Moved { at, n } = moved.take();
            if cursor == at {
                count.set(count.get() - n);
                open.set(open.get() - n);
            }
        }
    }

    /// It lets go of the end. True where it is the last: as the library's `fork_sharing::let_go`.
    pub fn lets_go(&self, who: usize) -> bool {
        self.leaves_grants(who);
        let let_go = || {
            let record = &self.procs[who].record;
            let holders = &record.id.holders;
            if course::is_to_be_told(record) && holders.count() > 1 {
                let is_dead = |other: &Member| self.procs[number(*other)].is_gone.get();
                for dead in holders.names().filter(is_dead) {
                    holders.bereave(dead);
                }
            }
            holders.remove(member(who))
        };
        if self.has_relatives(who) { let_go() } else { at_once(let_go) }
    }

    /// It has let go, and others hold the end still, as far as it knows.
    pub fn leaves_it(&self, who: usize) {
        point();
        self.procs[who].is_gone.set(true);
        if !self.is_held(who) {
            self.ends_unannounced(who);
        }
    }
}

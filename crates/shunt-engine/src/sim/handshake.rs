//! How connections come to be: connect, accept, and the course of the handshake, as the library's `establish` and
//! `stream/{promote,agree}.rs` have it around the engine's.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::rc::Rc;

use shunt_shm::arena::Record;
use shunt_shm::region::Side;
use shunt_shm::sync::store_load_fence;
use shunt_shm::table::{Place, Ticket};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{EndpointId, RegionId};
use shunt_wire::clc::{Answer, Proposal};
use shunt_wire::reason::Reason;

use super::calls::Lock;
use super::forks::Which;
use super::group::PLACES;
use super::machine::Machine;
use super::pace::{self, at_once, point, uninterrupted};
use super::program::Doing;
use super::{Ending, Op, World, side};
use crate::conn::close::Shut;
use crate::conn::state::Agreement;
use crate::conn::{End, is_settled};
use crate::handshake::course::{self, AtEnd, Course, Time};
use crate::handshake::slots::LinkGroup;
use crate::handshake::{CLIENT_LOOKS, CLIENT_PATIENCE, Phase, next_look, proposals};

/// The endpoints of the two programs.
const ENDPOINTS: [EndpointId; 2] = [11, 12];

/// How far an end has come in the handshake.
#[derive(Debug, Default)]
pub struct Shaking {
    /// It was connected or accepted in this history; the others begin agreed.
    pub is_new: Cell<bool>,
    /// It knows its place in the link group.
    has_place: Cell<bool>,
    /// It is put off for so many looks more.
    put_off: Cell<u32>,
}

impl Shaking {
    /// A child begins with what its parent has.
    pub fn is_inherited_by(&self, child: &Self) {
        child.is_new.set(self.is_new.get());
        child.has_place.set(self.has_place.get());
        child.put_off.set(self.put_off.get());
    }
}

/// The addresses of a connection, as its client sees them.
fn tuple(conn: usize) -> FourTuple {
    let of = |port| Addr { ip: [1; 16], port };
    FourTuple { local: of(40_000 + u16::try_from(conn).unwrap()), peer: of(80) }
}

impl Machine {
    pub const REGION: RegionId = 5;

    /// A place for a proposal. Without an agent there is none in a link group that is not there yet.
    fn drafts(&self, program: usize) -> Option<usize> {
        let me = &self.minds[program];
        if !me.has_group.get() && (!self.agent_lives.get() || me.is_starved.get()) {
            return None;
        }
        me.has_group.set(true);
        self.group.slots.take(PLACES, &self.group)
    }

    /// connect(2), by the library or past it.
    pub fn connects(self: &Rc<Self>, program: usize, by_library: bool) {
        let me = &self.minds[program];
        if program != 0 || !me.has_room() || !self.listens() {
            return;
        }
        let slot = uninterrupted(|| if by_library { self.drafts(program) } else { None });
        let connecting = slot.map(|_| self.table.connect_begins(Self::REGION));
        point();
        if !self.listens() {
            slot.into_iter().for_each(|slot| self.group.slots.free(slot, &self.group));
            return;
        }
        let Some(world) = self.begins(slot) else {
            slot.into_iter().for_each(|slot| self.group.slots.free(slot, &self.group));
            return;
        };
        self.comes(&world);
        point();
        uninterrupted(|| {
            world.procs[program].shaking.is_new.set(true);
            if let Some(slot) = slot {
                world.proposes(slot);
            }
        });
        drop(connecting);
        me.names(world.conn);
    }

    /// accept(2).
    pub fn accepts(&self, program: usize, op: Op) {
        if program != 1 {
            return;
        }
        let Some(world) = self.takes_next(program) else { return };
        let me = &world.procs[program];
        me.shaking.is_new.set(true);
        me.mind.names(world.conn);
        // No handler knows the number before the call has returned.
        uninterrupted(point);
        if op == Op::AcceptPlain {
            return;
        }
        uninterrupted(|| {
            let id = &me.record.id;
            id.set_tuple(&tuple(world.conn).reversed());
            id.since.store(self.now.get(), Relaxed);
            id.phase.store(Phase::Candidate as u32, Release);
            if op == Op::AcceptLate {
                me.shaking.put_off.set(3);
            }
            if op == Op::AcceptNow || me.mind.uses_accepted.get() {
                course::at_accept(&world.hand(program));
            }
        });
    }
}

/// A connection on its way into shared memory.
struct Hand<'w> {
    world: &'w World,
    who: usize,
}

impl Course for Hand<'_> {
    type Ticket = Ticket;

    fn record(&self) -> &Record {
        &self.world.procs[self.who].record
    }

    fn end(&self) -> Option<End<'_>> {
        self.world.linked(self.who)
    }

    fn is_open(&self) -> bool {
        !self.world.procs[self.who].ending.get().is_over()
    }

    fn now(&self) -> u64 {
        self.world.now.get()
    }

    fn kept<T>(&self, steps: impl FnOnce() -> T) -> Option<T> {
        self.is_open().then(steps)
    }

    fn alone<T>(&self, step: impl FnOnce(bool) -> T) -> Option<T> {
        Some(uninterrupted(|| {
            let lock = Lock::of(self.world, self.who, Which::Handshake);
            point();
            step(lock.is_nested())
        }))
    }

    fn is_put_off(&self) -> bool {
        let left = &self.world.procs[self.who].shaking.put_off;
        left.replace(left.get().saturating_sub(1)) > 0
    }

    fn find(&self) -> Option<Ticket> {
        self.world.table.find(&self.record().id.tuple())
    }

    fn is_connecting(&self) -> bool {
        self.world.table.connecting()
    }

    fn accept(&self, ticket: &Ticket, time: Time) -> Result<(), Reason> {
        let (world, me) = (self.world, &self.world.procs[self.who]);
        // It maps the place's rings, and the link group before.
        if me.mind.is_starved.get() {
            return Err(Reason::NoResources);
        }
        if !self.gets_group() {
            return Err(Reason::NoAgent);
        }
        point();
        let Place { slot, generation, .. } = ticket.place();
        let theirs = world.group.section(slot, Side::Client);
        let tuple = self.record().id.tuple();
        let client = proposals::take((&world.table, ticket), theirs, &tuple, Some, |_| {})
            .ok_or(Reason::NoProposal)?;
        point();
        let Some(client) = client else {
            assert!(!world.is_honest(), "the proposal of {} speaks of something else", world.conn);
            return Err(Reason::ProtocolViolation);
        };
        if world.is_honest() {
            assert_eq!(client, ENDPOINTS[0], "nobody's proposal");
            let of = world.group.places[slot].conn.get();
            assert_eq!(of, Some(world.conn), "it takes another connection's proposal up");
        }
        self.takes_place_and_answers(slot, generation, time);
        Ok(())
    }

    fn resumes(&self) -> bool {
        let me = &self.world.procs[self.who];
        if me.mind.is_starved.get() || !self.gets_group() {
            return false;
        }
        point();
        let generation = me.record.id.slot_generation.load(Relaxed);
        self.takes_place_and_answers(me.record.slot(), generation, Time::AtUse);
        true
    }

    fn claim(&self, _: Time) -> Result<bool, Reason> {
        Ok(false)
    }

    fn takes_place(&self, _: RegionId, _: usize) -> Result<(), Reason> {
        unreachable!("nothing is offered")
    }

    fn is_unanswered(&self) {
        unreachable!("nothing is offered")
    }

    fn meets(&self, acceptor: EndpointId) -> bool {
        let (world, me) = (self.world, &self.world.procs[self.who]);
        assert!(!world.is_honest() || acceptor == ENDPOINTS[1], "nobody has answered");
        point();
        let is_had = world.agent_lives.get() && !me.mind.is_starved.get();
        if !me.mind.has_bells.get() && !is_had {
            return false;
        }
        me.mind.has_bells.set(true);
        me.can_tell.set(true);
        world.end(self.who).has_met();
        true
    }

    fn has_agreed(&self) {}

    fn withdraw(&self) -> bool {
        let world = self.world;
        proposals::withdraw(&world.table, Machine::REGION, world.end(self.who), point)
    }

    /// A client's child has what its parent had; an acceptor's gets the link group of the agent.
    fn joins(&self) -> bool {
        let me = &self.world.procs[self.who];
        let has_place = side(self.who) == 1 && !me.mind.is_starved.get() && self.gets_group();
        me.shaking.has_place.set(me.shaking.has_place.get() || has_place);
        has_place
    }

    fn greets(&self) {
        self.world.procs[self.who].can_tell.set(true);
    }

    fn decline(&self, _: Reason) {
        self.record().id.phase.store(Phase::Tcp as u32, Release);
    }
}

impl Hand<'_> {
    /// It has the link group mapped, or gets it of the agent.
    fn gets_group(&self) -> bool {
        let has_group = &self.world.procs[self.who].mind.has_group;
        has_group.set(has_group.get() || self.world.agent_lives.get());
        has_group.get()
    }

    fn takes_place_and_answers(&self, slot: usize, generation: u32, time: Time) {
        let (world, me) = (self.world, &self.world.procs[self.who]);
        world.settles_in(self.who, slot, generation);
        me.can_tell.set(true);
        let end = world.end(self.who);
        let _ = end.prepare_answer(generation, ENDPOINTS[1], time == Time::AtAccept);
        point();
        end.answer();
        me.record.id.phase.store(Phase::Active as u32, Release);
    }
}

impl World {
    const fn hand(&self, who: usize) -> Hand<'_> {
        Hand { world: self, who }
    }

    /// Its open proposal is taken back. False: it was taken up.
    pub fn takes_proposal_back(&self, who: usize) -> bool {
        uninterrupted(|| self.hand(who).withdraw())
    }

    /// The client's end is about to be proposed, in this place.
    fn proposes(&self, slot: usize) {
        let me = &self.procs[0];
        let tuple = tuple(self.conn);
        let id = &me.record.id;
        id.set_tuple(&tuple);
        let (place, named) = ((Machine::REGION, slot), (ENDPOINTS[0], &tuple));
        let Some(ticket) = proposals::post(&self.table, place, &me.section, named) else {
            return self.group.slots.free(slot, &self.group);
        };
        proposals::note(&me.record, ticket);
        self.settles_in(0, slot, ticket.place().generation);
        id.phase.store(Phase::Proposed as u32, Release);
    }

    /// An end has its place from now on.
    fn settles_in(&self, who: usize, slot: usize, generation: u32) {
        let me = &self.procs[who];
        let id = &me.record.id;
        id.slot.store(u32::try_from(slot).unwrap(), Relaxed);
        id.slot_generation.store(generation, Relaxed);
        id.region.store(Machine::REGION, Relaxed);
        me.shaking.has_place.set(true);
        if side(who) == 1 {
            // The link before the flag: shutdown does it in the other order, so one of the two announces it.
            store_load_fence();
            self.end(who).announce_shut();
        }
    }

    /// The end in shared memory, once it has one.
    pub fn linked(&self, who: usize) -> Option<End<'_>> {
        let Shaking { is_new, has_place, .. } = &self.procs[who].shaking;
        (!is_new.get() || has_place.get()).then(|| self.end(who))
    }

    /// No other program takes the connection up as long as this value lives: this one would not know of the place. As the library's
    /// `promote::hold_off`.
    pub fn holds_off(&self, who: usize) -> Option<Lock<'_>> {
        while self.linked(who).is_none() && self.advances(who) == Phase::Candidate {
            let lock = Lock::of(self, who, Which::Handshake);
            if lock.is_nested() || !at_once(|| is_settled(&self.procs[who].record)) {
                return Some(lock);
            }
        }
        None
    }

    /// Looks after the handshake before a call.
    pub fn advances(&self, who: usize) -> Phase {
        match self.procs[who].shaking.is_new.get() {
            true => course::advance(&self.hand(who)),
            false => Phase::Active,
        }
    }

    /// The same for whoever only asks for readiness.
    pub fn polls_handshake(&self, who: usize) -> Phase {
        match self.procs[who].shaking.is_new.get() {
            true => course::poll_handshake(&self.hand(who)),
            false => self.end(who).phase(),
        }
    }

    /// When one that has no place yet looks once more whether it has come to one.
    pub fn next_look(&self, who: usize) -> Option<u64> {
        let id = &self.procs[who].record.id;
        let now = self.now.get();
        at_once(|| match Phase::from_code(id.phase.load(Relaxed)) {
            Phase::Tcp => None,
            _ => next_look(now - id.since.load(Relaxed)).map(|pause| now + pause),
        })
    }

    /// Of the connection with which a history begins: it learns of the other one's doorbells.
    pub fn meets(&self, who: usize) {
        let me = &self.procs[who];
        if !me.shaking.is_new.get() {
            me.can_tell.set(true);
        }
    }

    /// Makes so many calls that find nothing, and waits so long, that a proposal is given up.
    pub fn tires(&self, who: usize) {
        if self.procs[who].shaking.is_new.get() {
            self.leaps.set(true);
            at_once(|| {
                for _ in 0..CLIENT_LOOKS {
                    self.advances(who);
                }
            });
            self.now.set(self.now.get() + CLIENT_PATIENCE);
        }
    }

    /// A client leaves the library (execve(2) of a program without it, a system call of its own), and has made no call that would
    /// have shown that it uses the connection.
    pub fn bypasses(&self, who: usize) {
        let me = &self.procs[who];
        let is_proposed = at_once(|| me.record.id.phase.load(Relaxed)) == Phase::Proposed as u32
            && at_once(|| me.section.setup.state.load(Relaxed)) == Proposal::Proposed as u32;
        me.is_past.set(side(who) == 0 && me.shaking.is_new.get() && is_proposed);
    }

    /// A call that the library does not see.
    pub fn calls_past(&self, who: usize, doing: &mut Doing) {
        let me = &self.procs[who];
        match doing.op {
            Op::Sleep => self.passes_time(),
            Op::Die(points) => pace::is_to_die_in(points),
            Op::Stall(points) => pace::is_to_stall_in(points),
            Op::Shut | Op::ShutBoth => {
                me.ending.set(me.ending.get().max(Ending::Shut));
                let ends_both = doing.op == Op::ShutBoth;
                self.shuts_in_kernel(who, if ends_both { Shut::Both } else { Shut::Sending });
            }
            Op::ShutReading => self.socket(who).shuts_reading(),
            Op::Close => {
                me.mind.forgets(self.conn);
                self.notes_end(who);
                me.ending.set(Ending::Closed);
                me.is_gone.set(true);
                self.socket(who).closes();
            }
            op if op.moves() => self.calls_kernel(who, doing),
            _ => {}
        }
    }

    /// The last descriptor goes. Only another program may have used it.
    pub fn begins_to_end(&self, who: usize) {
        if self.procs[who].shaking.is_new.get() && course::is_to_join_at_end(&self.hand(who)) {
            self.hand(who).joins();
        }
    }

    /// The last descriptor goes. True when the other end has nothing to do with it but by the kernel.
    pub fn ends_alone(&self, who: usize) -> bool {
        let (me, id) = (&self.procs[who], &self.procs[who].record.id);
        if !me.shaking.is_new.get() {
            return false;
        }
        let at_end = course::ends(&self.hand(who));
        if at_end == AtEnd::GivesBack && side(who) == 0 && me.shaking.has_place.get() {
            self.group.slots.free(id.slot.load(Relaxed) as usize, &self.group);
        }
        at_end == AtEnd::GivesBack || self.linked(who).is_none()
    }

    /// This side is done with its place.
    pub fn is_done(&self, who: usize) {
        let me = &self.procs[who];
        let is_done = || {
            self.end(who).is_done(Some(&self.socket(who)));
            if side(who) == 0 {
                self.group.slots.has_ended(me.record.slot());
            }
        };
        // Of histories that begin agreed no point is added to those that they had.
        if me.shaking.is_new.get() { is_done() } else { at_once(is_done) }
    }

    /// The connection has its place still.
    pub fn is_in_place(&self) -> bool {
        self.slot.is_some_and(|slot| self.group.places[slot].conn.get() == Some(self.conn))
    }

    /// Both or neither: no end agrees with one that has taken its proposal back, or has not answered.
    pub fn agree(&self) {
        if !self.is_in_place() || !self.is_honest() {
            return;
        }
        at_once(|| {
            let [client, server] = [0, 1].map(|who| self.end(who));
            let [proposal, answer] = [client, server].map(|end| end.mine.setup.state.load(Relaxed));
            let has_answered = answer == Answer::Accepted as u32;
            let is_new = self.procs[0].shaking.is_new.get();
            let is_agreed = proposal == Proposal::Active as u32;
            assert!(
                is_agreed || !is_new || client.phase() != Phase::Active,
                "the client of {} goes on without the doorbells of its acceptor",
                self.conn
            );
            assert!(
                !has_answered || proposal != Proposal::Withdrawn as u32,
                "connection {} was taken up and taken back",
                self.conn
            );
            // A server that closes keeps its answer.
            assert!(
                !is_agreed || has_answered || !is_new,
                "the client of {} takes it for agreed, and nobody has answered",
                self.conn
            );
        });
    }

    /// At the end of the history: an end that goes into the ring has one at the other side that reads there.
    pub fn have_agreed(&self) {
        if !self.is_in_place() || !self.is_honest() {
            return;
        }
        at_once(|| {
            let [client, server] = [0, 1].map(|who| self.state(who).map(|state| state.agreement));
            let is_over = |who: usize| self.procs[who].ending.get().is_over();
            if server == Some(Agreement::Active) && !is_over(0) {
                assert_ne!(client, Some(Agreement::Tcp), "the server of {} is alone", self.conn);
            }
        });
    }
}

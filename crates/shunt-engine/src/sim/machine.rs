//! The machine on which the two programs run: their descriptors, the connections that these stand for, one after the other or
//! several at a time, and what all of them share.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use shunt_shm::region::{Section, Side};
use shunt_shm::table::Table;
use shunt_wire::clc::Proposal;

use super::forks::{self, PROGRAMS};
use super::history::History;
use super::pace::{self, Program, Stopped, at_once, point};
use super::program::Asleep;
use super::{Ending, Op, World};
use crate::conn::state::State;
use crate::handshake::Phase;
use crate::handshake::slots::{LinkGroup, Slots};

/// Descriptors that a program can have at a time.
const NUMBERS: usize = 3;
/// Places of the link group: fewer than connections that are open at a time, so that some stay on TCP.
pub const PLACES: usize = 2;
/// Most connections in a history.
const MOST: usize = 8;

/// What a program knows and does beside its connections.
pub struct Mind {
    pub ops: RefCell<VecDeque<Op>>,
    /// The connections for which its descriptors stand, and the one on which it acts.
    numbers: [Cell<Option<usize>>; NUMBERS],
    acts_on: Cell<usize>,
    pub asleep: Cell<Option<Asleep>>,
    /// In a call on this connection; `None`: in accept(2).
    asleep_on: Cell<Option<usize>>,
    /// A handler has sent or received something.
    pub had_handler: Cell<bool>,
    /// Handlers of signals that run.
    pub handlers: Cell<u32>,
    /// It keeps to no protocol.
    pub is_liar: Cell<bool>,
    /// It is no place for a fork.
    pub is_born: Cell<bool>,
    /// It was killed.
    is_dead: Cell<bool>,
    /// The agent has woken it, as its peer was killed.
    pub is_roused: Cell<bool>,
    /// Sleeps beside a liar.
    pub rests: Cell<u32>,
    /// It has got the link group, and the doorbells of the other one, of the agent.
    pub has_group: Cell<bool>,
    pub has_bells: Cell<bool>,
    /// It was seen to use what it accepts.
    pub uses_accepted: Cell<bool>,
}

impl Mind {
    /// `None`: it is not forked yet.
    fn new(ops: Option<&[Op]>) -> Self {
        Self {
            ops: RefCell::new(ops.unwrap_or_default().iter().copied().collect()),
            numbers: Default::default(),
            acts_on: Cell::new(0),
            asleep: Cell::new(None),
            asleep_on: Cell::new(None),
            had_handler: Cell::new(false),
            handlers: Cell::new(0),
            is_liar: Cell::new(false),
            is_born: Cell::new(ops.is_some()),
            is_dead: Cell::new(false),
            is_roused: Cell::new(false),
            rests: Cell::new(0),
            has_group: Cell::new(false),
            has_bells: Cell::new(false),
            uses_accepted: Cell::new(false),
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

    pub fn has_room(&self) -> bool {
        self.numbers.iter().any(|number| number.get().is_none())
    }

    /// No descriptor stands for it any more.
    pub fn forgets(&self, conn: usize) {
        let is_it = |number: &&Cell<Option<usize>>| number.get() == Some(conn);
        self.numbers.iter().filter(is_it).for_each(|number| number.set(None));
    }
}

/// A place in the link group: memory that connections have one after the other.
pub struct Place {
    sections: [Rc<Section>; 2],
    rmbs: [Rc<[Cell<u8>]>; 2],
    /// The connection that was begun there last.
    pub conn: Cell<Option<usize>>,
}

impl Default for Place {
    fn default() -> Self {
        let rmb = || (0..World::RING).map(|_| Cell::new(0)).collect();
        Self {
            sections: [Rc::default(), Rc::default()],
            rmbs: [rmb(), rmb()],
            conn: Cell::new(None),
        }
    }
}

impl Place {
    /// What this side writes for the other, and the ring from which it receives.
    pub fn of(&self, side: Side) -> (Rc<Section>, Rc<[Cell<u8>]>) {
        let side = side as usize;
        (Rc::clone(&self.sections[side]), Rc::clone(&self.rmbs[side]))
    }
}

/// The link group of the two.
pub struct Group {
    pub slots: Slots,
    pub places: [Place; PLACES],
}

impl Default for Group {
    fn default() -> Self {
        Self { slots: Slots::new(PLACES), places: Default::default() }
    }
}

impl LinkGroup for Group {
    fn section(&self, slot: usize, side: Side) -> &Section {
        &self.places[slot].sections[side as usize]
    }

    fn is_open(&self, _: usize) -> bool {
        true
    }

    fn open(&self, _: usize) -> bool {
        true
    }

    fn begins(&self, slot: usize) {
        self.places[slot].conn.set(None);
        point();
    }
}

/// All of it.
pub struct Machine {
    /// Those that the history begins with, then places for forks.
    pub minds: [Rc<Mind>; PROGRAMS],
    conns: RefCell<Vec<Rc<World>>>,
    pub group: Group,
    /// Open proposals to the second program.
    pub table: Rc<Table>,
    /// Connections that it has not accepted yet.
    backlog: RefCell<VecDeque<usize>>,
    pub agent_lives: Cell<bool>,
    /// A program has gone several steps without a point.
    pub leaps: Cell<bool>,
    pub now: Cell<u64>,
    choices: RefCell<VecDeque<u8>>,
}

thread_local! {
    static HERE: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
    static TABLE: Rc<Table> = {
        let memory = shunt_shm::table::create().expect("memory for a table of proposals");
        Rc::new(Table::map(memory).expect("a table of proposals"))
    };
}

impl Machine {
    pub fn new(history: &History) -> Rc<Self> {
        let ops = [&history.client[..], &history.server];
        let mind = |who: usize| Rc::new(Mind::new(ops.get(who).copied()));
        let minds: [Rc<Mind>; PROGRAMS] = core::array::from_fn(mind);
        let machine = Rc::new(Self {
            minds,
            conns: RefCell::default(),
            group: Group::default(),
            table: TABLE.with(Rc::clone),
            backlog: RefCell::default(),
            agent_lives: Cell::new(true),
            leaps: Cell::new(false),
            now: Cell::new(1 << 30),
            choices: RefCell::new(history.choices.iter().copied().collect()),
        });
        if history.connects() {
            machine.table.scrub(Self::REGION);
        } else {
            machine.begins_agreed();
        }
        machine
    }

    /// That of this thread.
    pub fn here() -> Rc<Self> {
        HERE.with_borrow(|here| here.clone().unwrap())
    }

    pub fn is_here(self: &Rc<Self>) {
        HERE.set(Some(Rc::clone(self)));
    }

    /// The history is over.
    pub fn is_over(&self) {
        HERE.set(None);
        self.conns.borrow_mut().clear();
    }

    /// A connection that both have agreed upon, on which both act.
    fn begins_agreed(self: &Rc<Self>) {
        let Some(slot) = self.group.slots.take(PLACES, &self.group) else { return };
        let Some(world) = self.begins(Some(slot)) else { return };
        for me in &world.procs[..2] {
            me.record.id.phase.store(Phase::Active as u32, Relaxed);
            me.mind.names(world.conn);
        }
        world.procs[0].section.setup.state.store(Proposal::Active as u32, Relaxed);
    }

    /// A further connection, in this place. `None`: there were many.
    pub fn begins(self: &Rc<Self>, slot: Option<usize>) -> Option<Rc<World>> {
        let conn = self.conns.borrow().len();
        if conn == MOST {
            return None;
        }
        if let Some(slot) = slot {
            self.group.places[slot].conn.set(Some(conn));
        }
        let world = at_once(|| World::new(self, conn, slot));
        let world = Rc::new(world);
        self.conns.borrow_mut().push(Rc::clone(&world));
        Some(world)
    }

    fn world(&self, conn: usize) -> Rc<World> {
        Rc::clone(&self.conns.borrow()[conn])
    }

    fn worlds(&self) -> Vec<Rc<World>> {
        self.conns.borrow().clone()
    }

    /// The connection that the calls of a program are about; `None`: its descriptor is closed.
    fn named(&self, program: usize) -> Option<Rc<World>> {
        let me = &self.minds[program];
        let world = self.world(me.numbers[me.acts_on.get()].get()?);
        (!world.procs[program].is_gone.get()).then_some(world)
    }

    /// One in so many.
    pub fn choose(&self, of: u8) -> bool {
        self.choices.borrow_mut().pop_front().is_some_and(|choice| choice % of == 0)
    }

    /// Which program comes first, and after how many points it stops: few as a rule.
    fn turn(&self) -> (usize, u32) {
        let Some(choice) = self.choices.borrow_mut().pop_front() else { return (0, u32::MAX) };
        if self.has_forks() {
            return forks::turn(choice);
        }
        let gap = match u32::from(choice & 0x7f) {
            few @ 0..64 => few,
            more @ 64..112 => 64 + (more - 64) * 8,
            _ => u32::MAX,
        };
        (usize::from(choice >> 7), gap)
    }

    pub fn passes_time(&self) {
        self.now.set(self.now.get() + World::LOOK);
    }

    /// All that a program does.
    pub fn lives(self: &Rc<Self>, program: usize) {
        let me = &self.minds[program];
        while let Some(op) = me.pops() {
            if let Err(failure) = catch_unwind(AssertUnwindSafe(|| self.does(program, op))) {
                // Whoever lies may come to believe what is not so.
                if !me.is_liar.get() || !pace::is_failure(&*failure) {
                    resume_unwind(failure);
                }
                pace::forgives();
                self.dies(program);
            }
            if me.is_dead.get() {
                return;
            }
        }
    }

    /// What a program does next.
    pub fn does(self: &Rc<Self>, program: usize, op: Op) {
        match op {
            Op::Connect | Op::ConnectPlain => self.connects(program, op == Op::Connect),
            Op::Accept | Op::AcceptNow | Op::AcceptPlain => self.accepts(program, op),
            Op::AgentDies => self.agent_lives.set(false),
            Op::AgentReturns => self.agent_returns(),
            Op::On(number) => self.minds[program].acts_on.set(number % NUMBERS),
            _ => match self.named(program) {
                Some(world) => world.does(program, op),
                None => self.does_alone(op),
            },
        }
    }

    /// What needs no connection.
    fn does_alone(&self, op: Op) {
        match op {
            Op::Sleep => self.passes_time(),
            Op::Die(points) => pace::is_to_die_in(points),
            Op::Signal(points) => pace::is_to_handle_in(points),
            _ => {}
        }
    }

    /// A handler of a signal does what the program would do next. One that closes goes on to connect or accept, so that the
    /// number of a descriptor is another one's under the call that it has interrupted.
    pub fn handles(self: &Rc<Self>, program: usize) {
        let me = &self.minds[program];
        let Some(op) = me.pops() else { return };
        me.handlers.set(me.handlers.get() + 1);
        self.does(program, op.without_edges());
        let is_next = |op: Option<&Op>| op.is_some_and(|op| op.makes_connection());
        while matches!(op, Op::Close | Op::On(_)) && is_next(me.ops.borrow().front()) {
            let Some(op) = me.pops() else { break };
            self.does(program, op);
        }
        me.handlers.set(me.handlers.get() - 1);
        // Whatever was looked at before is old.
        me.had_handler.set(true);
    }

    /// The other program has connected, and this one takes the connection. In a handler it does not wait.
    pub fn takes_next(&self, program: usize) -> Option<Rc<World>> {
        let me = &self.minds[program];
        loop {
            if !me.has_room() {
                return None;
            }
            if let Some(conn) = self.backlog.borrow_mut().pop_front() {
                return Some(self.world(conn));
            }
            if me.handlers.get() > 0 || me.is_dead.get() {
                return None;
            }
            me.asleep_on.set(None);
            me.asleep.set(Some(Asleep::in_accept()));
            pace::rest();
            me.asleep.set(None);
        }
    }

    /// Some program has forked.
    pub fn has_forks(&self) -> bool {
        self.minds[2..].iter().any(|me| me.is_born.get())
    }

    /// The kernel has connected it: it waits to be accepted.
    pub fn comes(&self, world: &World) {
        self.backlog.borrow_mut().push_back(world.conn);
    }

    /// True where connections are accepted, as far as the kernel knows.
    pub fn listens(&self) -> bool {
        !self.minds[1].is_dead.get()
    }

    fn can_go_on(&self, program: usize) -> bool {
        let me = &self.minds[program];
        if !me.is_born.get() {
            return false;
        }
        let Some(asleep) = me.asleep.get() else { return !me.is_dead.get() };
        let is_woken = || match me.asleep_on.get() {
            Some(conn) => self.world(conn).is_woken(program, &asleep),
            None => !self.backlog.borrow().is_empty(),
        };
        !me.is_dead.get() && is_woken()
    }

    /// SIGKILL, wherever it is.
    pub fn dies(&self, program: usize) {
        let me = &self.minds[program];
        me.is_dead.set(true);
        for world in self.worlds() {
            let its = &world.procs[program];
            if self.backlog.borrow().contains(&world.conn) && program == 1 {
                // The kernel of one that has not accepted it sends RST.
                its.socket.lingers.set(true);
            }
            if !its.is_gone.get() {
                world.dies(program);
            }
        }
        me.asleep.set(None);
        if program == 0 && self.agent_lives.get() {
            self.scrubs();
        }
    }

    /// A program that was killed has left proposals.
    fn scrubs(&self) {
        self.table.scrub(Self::REGION);
    }

    fn agent_returns(&self) {
        self.agent_lives.set(true);
        if self.minds[0].is_dead.get() {
            self.scrubs();
        }
    }

    /// Something else whenever a program has got anywhere.
    fn progress(&self) -> (u64, usize, Vec<[Ending; 2]>) {
        let left = self.minds.iter().map(|me| me.ops.borrow().len()).sum();
        let worlds = self.conns.borrow();
        let (moved, endings): (Vec<u64>, _) = worlds.iter().map(|world| world.progress()).unzip();
        (moved.iter().sum(), left, endings)
    }

    /// The connection on which a program sleeps.
    fn sleeps_on(&self, program: usize) -> Option<Rc<World>> {
        let me = &self.minds[program];
        me.asleep.get()?;
        Some(self.world(me.asleep_on.get()?))
    }

    /// Runs both programs until neither can go on.
    pub fn runs(&self, programs: &mut [Program; PROGRAMS]) {
        let (mut idle, mut before) = (0, self.progress());
        let mut is_done = [false; PROGRAMS];
        let mut states = Vec::new();
        self.have_moved(&mut states, 0);
        while idle < World::PATIENCE {
            let (first, gap) = self.turn();
            let can = |who: &usize| !is_done[*who] && self.can_go_on(*who);
            if let Some(who) = forks::order(first).find(can) {
                match programs[who].goes_on(gap) {
                    Stopped::Between => {}
                    Stopped::Done => is_done[who] = true,
                    Stopped::Dies => self.dies(who),
                }
                self.have_moved(&mut states, gap);
                continue;
            }
            for who in 0..PROGRAMS {
                if let Some(world) = self.sleeps_on(who) {
                    world.rests(who);
                }
            }
            let is_doomed =
                |who: &usize| programs[*who].is_doomed() && !self.minds[*who].is_dead.get();
            if let Some(who) = (0..PROGRAMS).find(is_doomed) {
                self.dies(who);
                continue;
            }
            let now = self.progress();
            idle = if now == before { idle + 1 } else { 0 };
            before = now;
            self.passes_time();
        }
        for who in 0..PROGRAMS {
            if let Some(world) = self.sleeps_on(who) {
                world.rests_for_good(who);
            }
        }
        self.worlds().iter().for_each(|world| world.have_agreed());
    }

    /// No end has gone other ways than there are, or further than a program comes that passes so many points.
    fn have_moved(&self, states: &mut Vec<[Option<State>; 2]>, gap: u32) {
        let gap = if self.leaps.take() { u32::MAX } else { gap };
        for world in self.conns.borrow().iter() {
            let before = states.get(world.conn).copied().unwrap_or_default();
            let now = world.have_moved(before, gap);
            world.agree();
            match states.get_mut(world.conn) {
                Some(state) => *state = now,
                None => states.push(now),
            }
        }
    }
}

//! The machine on which the two programs run: their descriptors, the connections that these stand for, one after the other or
//! several at a time, and what all of them share.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use shunt_shm::table::Table;
use shunt_wire::clc::Proposal;

use super::forks::PROGRAMS;
use super::group::{Group, PLACES};
use super::history::History;
use super::mind::{Mind, NUMBERS};
use super::pace::{self, at_once};
use super::sleep::Asleep;
use super::{Op, World};
use crate::handshake::Phase;

/// Most connections in a history.
const MOST: usize = 8;

/// All of it.
pub struct Machine {
    /// Those that the history begins with, then places for forks.
    pub minds: [Rc<Mind>; PROGRAMS],
    pub conns: RefCell<Vec<Rc<World>>>,
    pub group: Group,
    /// Open proposals to the second program.
    pub table: Rc<Table>,
    /// Connections that it has not accepted yet.
    pub backlog: RefCell<VecDeque<usize>>,
    pub agent_lives: Cell<bool>,
    /// A program has gone several steps without a point.
    pub leaps: Cell<bool>,
    pub now: Cell<u64>,
    pub choices: RefCell<VecDeque<u8>>,
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

    pub fn world(&self, conn: usize) -> Rc<World> {
        Rc::clone(&self.conns.borrow()[conn])
    }

    pub fn worlds(&self) -> Vec<Rc<World>> {
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
        let is_foreign = self.minds[program].is_foreign.get();
        match op {
            Op::Connect | Op::ConnectPlain => {
                self.connects(program, op == Op::Connect && !is_foreign);
            }
            Op::Accept | Op::AcceptNow | Op::AcceptLate if is_foreign => {
                self.accepts(program, Op::AcceptPlain);
            }
            Op::Accept | Op::AcceptNow | Op::AcceptLate | Op::AcceptPlain => {
                self.accepts(program, op);
            }
            Op::AgentDies => self.agent_lives.set(false),
            Op::AgentReturns => self.agent_returns(),
            Op::Starve => self.runs_out(program),
            Op::Feed => self.has_memory_again(program),
            Op::Exec => self.hands_over(program, None),
            Op::Spawn(ops) => self.hands_over(program, Some(ops)),
            Op::On(number) => self.minds[program].acts_on.set(number % NUMBERS),
            _ => match self.named(program) {
                Some(world) => world.does(program, op),
                None => self.does_alone(op),
            },
        }
    }

    /// All that it has goes to a program without the library: to one that it becomes, or to one that it starts, which does so many
    /// of the operations that come next. Not in a handler, nor where others hold its connection, who would read beside the new one.
    fn hands_over(self: &Rc<Self>, program: usize, ops: Option<usize>) {
        let me = &self.minds[program];
        if me.handlers.get() > 0 || me.is_foreign.get() || !self.leaves_it_alone(program) {
            return;
        }
        let has = |world: &Rc<World>| !world.procs[program].is_gone.get();
        let worlds: Vec<_> = self.worlds().into_iter().filter(has).collect();
        loop {
            worlds.iter().for_each(|world| world.hands_over(program));
            // A handler has read on in a ring that was left before it ran.
            if !worlds.iter().any(|world| world.has_come_back(program)) {
                break;
            }
        }
        me.is_foreign.set(true);
        let Some(ops) = ops else { return };
        me.is_started.set(true);
        for _ in 0..ops {
            let Some(op) = me.pops() else { break };
            // What it makes is its own.
            if !op.makes_connection() {
                self.does(program, op);
            }
        }
        me.is_started.set(false);
        me.is_foreign.set(false);
    }

    /// Those that hold its end with it are in no call, and from now on read nothing beside the new program.
    fn leaves_it_alone(&self, program: usize) -> bool {
        if !self.has_forks() {
            return true;
        }
        let shared = self.world(0);
        let mut others = shared.programs(program).filter(|other| *other != program);
        let is_alone = others.all(|other| shared.procs[other].calls.get() == 0);
        if is_alone {
            shared.procs[program].is_handed_over.set(true);
        }
        is_alone
    }

    /// A program gets no more memory, nor descriptors: it maps nothing that it has not mapped. The client has given the rings back
    /// that nobody uses.
    fn runs_out(&self, program: usize) {
        self.minds[program].is_starved.set(true);
        if program == 0 {
            let group = &self.group;
            group.is_short.set(true);
            for (slot, place) in group.places.iter().enumerate() {
                let is_used = at_once(|| group.slots.is_given(slot, group));
                place.is_open.set(place.is_open.get() && is_used);
            }
        }
    }

    fn has_memory_again(&self, program: usize) {
        self.minds[program].is_starved.set(false);
        if program == 0 {
            self.group.is_short.set(false);
        }
    }

    /// What needs no connection.
    fn does_alone(&self, op: Op) {
        match op {
            Op::Sleep => self.passes_time(),
            Op::Die(points) => pace::is_to_die_in(points),
            Op::Signal(points) => pace::is_to_handle_in(points),
            Op::Stall(points) => pace::is_to_stall_in(points),
            _ => {}
        }
    }

    /// A handler of a signal does what the program would do next. One that closes goes on to connect or accept, so that the
    /// number of a descriptor is another one's under the call that it has interrupted.
    pub fn handles(self: &Rc<Self>, program: usize) {
        let me = &self.minds[program];
        let Some(op) = me.pops() else { return };
        me.handlers.set(me.handlers.get() + 1);
        me.tells_below.set(true);
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
}

//! What is known of a plan's programs while it is made: who holds what, and who is probably blocked where.
//!
//! It need not be right. A step of an actor that is still busy, or on a descriptor that is not there, does nothing,
//! over TCP as under Shunt.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::families::{Families, Family};
use crate::differential::plan::{Actor, Kind, Level, Op, Plan, Signal, Step, Var};

/// What a descriptor stands for.
pub type Thing = Var;

/// A thread that is probably blocked.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Which.
    pub actor: Actor,
    /// The descriptor that it named.
    pub var: Var,
    /// What it takes bytes from, or watches for bytes: nobody else is to do so, or it would be a matter of time who gets them.
    pub reads: Vec<Thing>,
    /// The same for room.
    pub writes: Vec<Thing>,
    /// The descriptor that it is to make.
    pub makes: Option<Var>,
    /// It goes on to wait when some bytes have come.
    pub wants_all: bool,
}

/// A process.
#[derive(Clone, Default, Debug)]
pub struct Process {
    /// Its threads.
    pub threads: u8,
    /// It has begun, and not ended.
    pub lives: bool,
    /// The descriptors that it has, and what they stand for.
    pub open: BTreeMap<Var, Thing>,
}

/// What has become of one end of a connection.
#[derive(Clone, Copy, Default, Debug)]
pub struct End {
    /// Bytes for it that nobody has received.
    pub waiting: u32,
    /// More than can be counted.
    pub flooded: bool,
    /// Its direction has ended.
    pub shut: bool,
    /// It receives no more.
    pub deaf: bool,
    /// It does not block.
    pub nonblocking: bool,
    /// Its receives, or sends, are ended by time.
    pub timeouts: bool,
}

/// See the module's description.
pub struct Model {
    /// The random choices.
    pub rng: Rng,
    /// What may be done.
    pub families: Families,
    /// The plan so far.
    pub plan: Plan,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Who is probably blocked.
    pub blocked: Vec<Blocked>,
    /// Threads that have been cancelled.
    pub gone: Vec<Actor>,
    /// Connections may be waiting for an accept that nobody knows of.
    pub pending_connections: bool,
    /// Both ends of each connection that is not known to be broken.
    pub ends: BTreeMap<Thing, End>,
    /// Descriptors of each kind that have been made.
    made: BTreeMap<Kind, u8>,
    /// Buffers of new connections.
    pub buffer: u32,
    /// What signals do. One thing in a program: where handlers with SA_RESTART and without are mixed it is known that the library
    /// cannot tell which of them ran.
    pub restarts: bool,
}

impl Model {
    /// Processes that are there from the start, with so many threads each.
    pub fn new(seed: u64, families: Families, threads: &[u8]) -> Self {
        let mut model = Self {
            rng: Rng::with_seed(seed),
            families,
            plan: Plan::default(),
            processes: Vec::new(),
            blocked: Vec::new(),
            gone: Vec::new(),
            pending_connections: false,
            ends: BTreeMap::new(),
            made: BTreeMap::new(),
            buffer: 0,
            restarts: false,
        };
        for threads in threads {
            model.add_process(*threads, true);
        }
        model
    }

    /// One more process; its number.
    pub fn add_process(&mut self, threads: u8, lives: bool) -> u8 {
        self.plan.processes.push(threads);
        self.processes.push(Process { threads, lives, open: BTreeMap::new() });
        u8::try_from(self.processes.len() - 1).unwrap_or(0)
    }

    /// True with a probability of `percent`.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        self.rng.choice(all).cloned()
    }

    /// One of these, of which there is at least one.
    pub fn one<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.rng.usize(..N)]
    }

    /// True when plans may do this, and mostly this one then.
    pub fn may(&mut self, family: Family, percent: u32) -> bool {
        self.families.has(family) && self.chance(percent)
    }

    /// A new descriptor's name; `None` when there are too many.
    pub fn fresh(&mut self, kind: Kind) -> Option<Var> {
        let n = self.made.entry(kind).or_default();
        if *n >= 10 {
            return None;
        }
        *n += 1;
        Some(Var::new(kind, *n - 1))
    }

    /// A new duplicate's name.
    pub fn copy_of(&self, var: Var) -> Option<Var> {
        let same = |other: &&Var| other.kind == var.kind && other.n == var.n;
        let all = self.processes.iter().flat_map(|process| process.open.keys());
        let used = all.filter(same).map(|other| other.copy).max().unwrap_or(0);
        let planned = self.plan.vars().iter().filter(same).map(|v| v.copy).max().unwrap_or(0);
        let copy = used.max(planned) + 1;
        (copy < 4).then_some(Var { copy, ..var })
    }

    /// True where its end loses nothing whose amount depends on the sizes of buffers: who closes with bytes unread resets the
    /// connection, and what was under way to the peer is gone.
    pub fn may_end(&self, thing: Thing) -> bool {
        let under_way = self.ends.get(&peer(thing)).is_some_and(|end| end.flooded);
        let unread = self.ends.get(&thing).is_some_and(|end| end.flooded || end.waiting > 0);
        !(under_way && unread)
    }

    /// The same for an end that receives no more: bytes that still come reset the connection.
    pub fn may_be_deaf(&self, thing: Thing) -> bool {
        !self.is_written(peer(thing)) && self.ends.get(&thing).is_none_or(|end| !end.flooded)
    }

    /// Adds a group.
    pub fn group(&mut self, steps: Vec<Step>) {
        self.plan.groups.push(steps);
    }

    /// Adds a step.
    pub fn step(&mut self, actor: Actor, op: Op) {
        self.group(vec![step(actor, op)]);
    }

    /// Adds a step that time ends.
    pub fn timed(&mut self, actor: Actor, op: Op) {
        self.group(vec![Step { timed: true, ..step(actor, op) }]);
    }

    /// Adds a step in a signal's handler.
    pub fn handler(&mut self, actor: Actor, signal: Signal, op: Op) {
        self.group(vec![Step { level: Level::Handler(signal), ..step(actor, op) }]);
    }

    /// The actors of a process that are probably not blocked.
    pub fn idle(&self, process: u8) -> Vec<Actor> {
        let Some(of) = self.processes.get(usize::from(process)) else { return Vec::new() };
        let all = (0..of.threads).map(|thread| Actor { process, thread });
        let busy = |actor: &Actor| {
            self.gone.contains(actor) || self.blocked.iter().any(|blocked| blocked.actor == *actor)
        };
        all.filter(|actor| of.lives && !busy(actor)).collect()
    }

    /// An actor of a process that is probably not blocked.
    pub fn actor(&mut self, process: u8) -> Option<Actor> {
        let idle = self.idle(process);
        self.pick(&idle)
    }

    /// Processes that live.
    pub fn living(&self) -> Vec<u8> {
        let all = (0_u8..).zip(&self.processes);
        all.filter(|(_, process)| process.lives).map(|(n, _)| n).collect()
    }

    /// All open descriptors of these kinds: process, name, and what it stands for.
    pub fn open(&self, kinds: &[Kind]) -> Vec<(u8, Var, Thing)> {
        let all = (0_u8..).zip(&self.processes).filter(|(_, process)| process.lives);
        all.flat_map(|(n, process)| process.open.iter().map(move |(var, thing)| (n, *var, *thing)))
            .filter(|(_, _, thing)| kinds.contains(&thing.kind))
            .collect()
    }

    /// One of them, in a process that has an actor for it.
    pub fn pick_open(&mut self, kinds: &[Kind]) -> Option<(Actor, Var, Thing)> {
        let all = self.open(kinds);
        let with_actor: Vec<_> =
            all.into_iter().filter(|(process, _, _)| !self.idle(*process).is_empty()).collect();
        let (process, var, thing) = self.pick(&with_actor)?;
        Some((self.actor(process)?, var, thing))
    }

    /// One that stands for `thing`.
    pub fn holder(&mut self, thing: Thing) -> Option<(Actor, Var)> {
        let all = self.open(&[thing.kind]);
        let same: Vec<_> = all
            .into_iter()
            .filter(|(process, _, other)| *other == thing && !self.idle(*process).is_empty())
            .collect();
        let (process, var, _) = self.pick(&same)?;
        Some((self.actor(process)?, var))
    }

    /// A descriptor of a process from now on.
    pub fn opened(&mut self, process: u8, var: Var, thing: Thing) {
        if let Some(process) = self.processes.get_mut(usize::from(process)) {
            process.open.insert(var, thing);
        }
    }

    /// No descriptor of it any more; true when what it stood for is open nowhere else.
    pub fn closed(&mut self, process: u8, var: Var) -> bool {
        let Some(of) = self.processes.get_mut(usize::from(process)) else { return false };
        let Some(thing) = of.open.remove(&var) else { return false };
        !self.open(&[thing.kind]).iter().any(|(_, _, other)| *other == thing)
    }

    /// True when somebody is blocked in a read of it, or watches it.
    pub fn is_read(&self, thing: Thing) -> bool {
        self.blocked.iter().any(|blocked| blocked.reads.contains(&thing))
    }

    /// The same for writes.
    pub fn is_written(&self, thing: Thing) -> bool {
        self.blocked.iter().any(|blocked| blocked.writes.contains(&thing))
    }

    /// Some bytes for `thing` have come: who waits for any probably waits no more.
    pub fn tell_readers(&mut self, thing: Thing) {
        let all = self.families.has(Family::Lowat);
        let waits = |blocked: &Blocked| all || blocked.wants_all;
        self.blocked.retain(|blocked| !blocked.reads.contains(&thing) || waits(blocked));
    }

    /// `thing` has come to its end: who waits for them probably waits no more.
    pub fn wake_readers(&mut self, thing: Thing) {
        self.blocked.retain(|blocked| !blocked.reads.contains(&thing));
    }

    /// The same for room.
    pub fn wake_writers(&mut self, thing: Thing) {
        self.blocked.retain(|blocked| !blocked.writes.contains(&thing));
    }
}

/// A step that is not in a handler.
pub const fn step(actor: Actor, op: Op) -> Step {
    Step { actor, level: Level::Base, op, timed: false }
}

/// The other end of a connection.
pub const fn peer(thing: Thing) -> Thing {
    let stream = thing.incoming();
    Var::new(stream.kind, stream.n)
}

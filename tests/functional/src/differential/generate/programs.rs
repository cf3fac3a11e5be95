//! What whole programs do: fork handlers, exec, descriptors for others, event loops.

use super::basics::ENDS;
use super::model::{End, Model, peer, step};
use crate::differential::plan::ops::{
    Address, CloseBy, Entry, Events, FlagBy, Flags, Inner, OptionName, PollBy, RecvBy, RunBy,
    SendBy, Stage, Visitor,
};
use crate::differential::plan::{Actor, Kind, Op, Step, Var};

impl Model {
    /// A thread is cancelled, mostly one that is blocked.
    pub fn cancel(&mut self) -> Option<()> {
        let blocked: Vec<Actor> = self.blocked.iter().map(|blocked| blocked.actor).collect();
        let victim = self.pick(&blocked).filter(|victim| victim.thread > 0)?;
        let actor = self.actor(victim.process)?;
        self.step(actor, Op::Cancel { thread: victim.thread.into() });
        self.blocked.retain(|blocked| blocked.actor != victim);
        self.gone.push(victim);
        Some(())
    }

    /// Handlers of pthread_atfork(3), and a fork.
    pub fn at_fork(&mut self) -> Option<()> {
        for _ in 0..self.rng.u32(1..4) {
            let (actor, fd, thing) = self.pick_open(&ENDS)?;
            if self.is_read(thing) || self.is_written(thing) {
                return None;
            }
            let stage = self.one([Stage::Prepare, Stage::Parent, Stage::Child]);
            let what = self.one([
                Inner::Send,
                Inner::Recv,
                Inner::Poll,
                Inner::Epoll,
                Inner::Dup,
                Inner::Connect,
            ]);
            if what == Inner::Send && self.room_at(peer(thing)) < 100 {
                return None;
            }
            self.pending_connections |= what == Inner::Connect;
            self.step(actor, Op::AtFork { stage, what, fd });
        }
        self.fork()
    }

    /// exec(3) of the program itself, or another program, or a child of vfork(2).
    pub fn exec(&mut self) -> Option<()> {
        let living = self.living();
        let process = self.pick(&living)?;
        let actor = self.actor(process)?;
        match self.rng.u32(..4) {
            0..=1 => {
                let by = self.one([RunBy::System, RunBy::Popen, RunBy::Spawn]);
                self.step(actor, Op::Run { by });
            }
            2 => {
                let mine = self.open(&ENDS);
                let mine: Vec<Var> =
                    mine.into_iter().filter(|(p, _, _)| *p == process).map(|m| m.1).collect();
                let fd = self.pick(&mine)?;
                self.step(actor, Op::Vfork { fd });
            }
            _ => {
                // A thread that is blocked has nothing to go on with.
                if self.blocked.iter().any(|blocked| blocked.actor.process == process) {
                    return None;
                }
                self.step(actor, Op::Exec {});
                self.gone.retain(|gone| gone.process != process);
            }
        }
        Some(())
    }

    /// A descriptor goes to another process through a socket that both have since the fork.
    pub fn pass(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        let left = self.fresh(Kind::Left)?;
        let right = Var::new(Kind::Right, left.n);
        let process = actor.process;
        self.step(actor, Op::Pair { left, right });
        self.opened(process, left, left);
        self.opened(process, right, right);
        let child = self.fork_by(actor)?;
        let taker = Actor { process: child, thread: 0 };
        let by = CloseBy::Close;
        if self.chance(50) {
            self.step(taker, Op::Close { fd, by });
            self.closed(child, fd);
        }
        self.step(actor, Op::Pass { fd, via: left });
        if self.chance(50) && !self.is_read(thing) && !self.is_written(thing) {
            self.step(actor, Op::Close { fd, by });
            self.closed(process, fd);
        }
        let taken = self.copy_of(fd)?;
        self.step(taker, Op::Take { fd: taken, via: right });
        self.opened(child, taken, thing);
        Some(())
    }

    /// A process that was forked is killed.
    pub fn kill(&mut self) -> Option<()> {
        let children: Vec<u8> = self.living().into_iter().filter(|p| *p > 1).collect();
        let process = self.pick(&children)?;
        let parent = self.rng.u8(..2);
        let killer = self.actor(parent)?;
        self.step(killer, Op::Kill { process: process.into() });
        // The end of a process that was killed is not done when kill(2) returns.
        self.step(killer, Op::Dwell { millis: 20 });
        self.process_ended(process);
        Some(())
    }

    /// A byte of urgent data.
    pub fn urgent(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_sender()?;
        let other = peer(thing);
        if self.is_read(other) || self.ends.get(&thing)?.shut || self.room_at(other) < 100 {
            return None;
        }
        let (reader, from) = self.holder(other)?;
        let by = SendBy::Send;
        if self.chance(20) {
            self.step(reader, Op::SetOption { fd: from, name: OptionName::OobInline, value: 1 });
        }
        let len = self.rng.u32(1..4);
        self.step(actor, Op::Send { fd, len, flags: Flags::OOB, by });
        let entries = vec![Entry { fd: from, events: Events::IN | Events::PRI }];
        let poll = Op::Poll { entries, timeout: 0, by: PollBy::Poll };
        self.step(reader, poll);
        let flags = Flags::OOB | Flags::DONTWAIT;
        self.step(reader, Op::Recv { fd: from, len: 1, flags, by: RecvBy::Recv });
        self.step(reader, Op::Drain { fd: from });
        if let Some(end) = self.ends.get_mut(&other) {
            end.waiting = 0;
        }
        Some(())
    }

    /// preadv2(2) and pwritev2(2).
    pub fn vectors(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_sender()?;
        let other = peer(thing);
        if self.ends.get(&thing)?.shut || self.is_read(other) {
            return None;
        }
        let len = self.length(self.room_at(other));
        let flags = Flags(0);
        let by = self.one([SendBy::Pwritev2, SendBy::Send]);
        self.step(actor, Op::Send { fd, len, flags, by });
        self.arrived(other, len);
        if self.ends.get(&other)?.timeouts {
            return None;
        }
        let (reader, fd) = self.holder(other)?;
        self.step(reader, Op::Recv { fd, len, flags, by: RecvBy::Preadv2 });
        self.taken(other, len);
        Some(())
    }

    /// An event loop, and those who visit it.
    pub fn serve(&mut self) -> Option<()> {
        let (server, listener, thing) = self.pick_open(&[Kind::Listener])?;
        if self.is_read(thing) || self.pending_connections {
            return None;
        }
        let idle: Vec<Actor> = self
            .living()
            .into_iter()
            .filter(|process| *process != server.process)
            .flat_map(|process| self.idle(process))
            .collect();
        let visitors = self.rng.usize(1..4).min(idle.len());
        if visitors == 0 {
            return None;
        }
        let each = self.rng.u32(3..20);
        let connections = each * u32::try_from(visitors).unwrap_or(1);
        let mut group = vec![step(server, Op::Serve { listener, connections })];
        for visitor in idle.into_iter().take(visitors) {
            let (to, messages) = (Address(thing.n), self.rng.u32(1..12));
            let by = self.one([Visitor::Thread, Visitor::Thread, Visitor::Forked]);
            group.push(step(visitor, Op::Visit { to, connections: each, messages, by }));
        }
        self.group(group);
        // The loop has made the listener non-blocking.
        let (on, by) = (0, FlagBy::Fcntl);
        self.step(server, Op::Nonblock { fd: listener, on, by });
        Some(())
    }

    /// Much on one connection or several, both ways, while signals come.
    pub fn stream(&mut self) -> Option<()> {
        let mut group: Vec<Step> = Vec::new();
        let mut timers = Vec::new();
        for _ in 0..self.rng.u32(1..3) {
            let (_, _, thing) = self.pick_open(&ENDS)?;
            let other = peer(thing);
            let busy = [thing, other].iter().any(|end| {
                let quiet = |end: &End| !end.shut && !end.deaf && !end.flooded && !end.timeouts;
                let state = self.ends.get(end);
                self.is_read(*end) || self.is_written(*end) || !state.is_some_and(quiet)
            });
            if busy {
                continue;
            }
            let len = self.rng.u32(100_000..3_000_000);
            let (from, to) = (self.holder(thing)?, self.holder(other)?);
            let waiting = self.ends.get(&other)?.waiting;
            let taken = |actor: Actor| group.iter().any(|step| step.actor == actor);
            if from.0 == to.0 || taken(from.0) || taken(to.0) {
                continue;
            }
            let sends = Op::SendAll { fd: from.1, len };
            group.push(step(from.0, sends));
            group.push(step(to.0, Op::RecvAll { fd: to.1, len: len + waiting }));
            self.ends.get_mut(&other)?.waiting = 0;
            timers.extend([from.0, to.0]);
        }
        if group.is_empty() {
            return None;
        }
        let signals = self.chance(50) && !self.restarts;
        if signals {
            for actor in &timers {
                let micros = self.one([200, 1000]);
                self.step(*actor, Op::Timer { micros });
            }
        }
        self.group(group);
        if signals {
            for actor in timers {
                self.step(actor, Op::Timer { micros: 0 });
            }
        }
        Some(())
    }
}

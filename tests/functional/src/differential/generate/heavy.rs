//! Full buffers, bytes that the kernel moves, and processes.

use super::basics::ENDS;
use super::families::Family;
use super::model::{Model, Thing, peer, step};
use crate::differential::plan::ops::{
    Entry, Events, Flags, ForkBy, Opened, PollBy, RecvBy, SelectBy, SendBy, SpliceFlags,
};
use crate::differential::plan::{Actor, Kind, Op, PROCESSES, Var};

impl Model {
    /// A direction is filled, and some of it read.
    pub fn fill(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_sender()?;
        let other = peer(thing);
        if self.ends.get(&thing)?.shut || self.is_read(other) {
            return None;
        }
        if self.ends.get(&other)?.deaf {
            return None;
        }
        self.step(actor, Op::Fill { fd });
        self.ends.entry(other).or_default().flooded = true;
        let look = || Op::Poll {
            entries: vec![Entry { fd, events: Events::OUT }],
            timeout: 0,
            by: PollBy::Poll,
        };
        self.step(actor, look());
        let (reader, from) = self.holder(other)?;
        if reader != actor && !self.is_read(thing) && self.may(Family::Poll, 50) {
            self.block_for_room(actor, fd);
            self.empty(reader, from, other);
            return Some(());
        }
        // Where buffers are small a single message is a large part of one.
        if self.buffer == 0 && self.chance(60) {
            let len = self.rng.u32(1..100);
            let (flags, by) = (Flags::DONTWAIT, RecvBy::Recv);
            self.step(reader, Op::Recv { fd: from, len, flags, by });
            self.step(actor, look());
        }
        if self.chance(70) {
            self.empty(reader, from, other);
            self.step(actor, look());
        }
        Some(())
    }

    /// Waits until there is room, in one or several entries.
    fn block_for_room(&mut self, actor: Actor, fd: Var) {
        let mut entries = vec![Entry { fd, events: Events::OUT }];
        for _ in 0..self.rng.u32(..3) {
            let events = self.one([Events::IN, Events::IN, Events::OUT, Events(0)]);
            entries.push(Entry { fd, events });
        }
        self.rng.shuffle(&mut entries);
        let op = if self.chance(60) {
            let by = self.one([PollBy::Poll, PollBy::Ppoll]);
            Op::Poll { entries, timeout: -1, by }
        } else {
            let by = self.one([SelectBy::Select, SelectBy::Pselect]);
            Op::Select { entries, timeout: -1, top: self.top(), by }
        };
        self.step(actor, op);
    }

    /// All that was under way is received.
    fn empty(&mut self, reader: Actor, from: Var, thing: Thing) {
        for _ in 0..2 {
            self.step(reader, Op::Drain { fd: from });
            self.step(reader, Op::Dwell { millis: 3 });
        }
        self.step(reader, Op::Drain { fd: from });
        let end = self.ends.entry(thing).or_default();
        (end.flooded, end.waiting) = (false, 0);
    }

    /// Both ends send before either receives.
    pub fn send_both_ways(&mut self) -> Option<()> {
        if self.buffer > 0 {
            return None;
        }
        let (one, fd, thing) = self.pick_sender()?;
        let (two, other) = self.holder(peer(thing)).filter(|(two, _)| *two != one)?;
        for end in [thing, peer(thing)] {
            let state = self.ends.get(&end)?;
            if state.shut
                || state.deaf
                || state.flooded
                || state.timeouts
                || state.waiting > 0
                || self.is_read(end)
            {
                return None;
            }
        }
        let len = self.rng.u32(60_000..600_000);
        let send = |actor, fd| step(actor, Op::SendAll { fd, len });
        let recv = |actor, fd| step(actor, Op::RecvAll { fd, len });
        self.group(vec![send(one, fd), send(two, other)]);
        self.group(vec![recv(one, fd), recv(two, other)]);
        Some(())
    }

    /// A pipe with some bytes; its ends.
    fn pipe_with(&mut self, actor: Actor, len: u32) -> Option<(Var, Var)> {
        let reader = self.fresh(Kind::Reader)?;
        let writer = Var::new(Kind::Writer, reader.n);
        self.step(actor, Op::Pipe { reader, writer, size: 0 });
        self.opened(actor.process, reader, reader);
        self.opened(actor.process, writer, writer);
        if len > 0 {
            let (flags, by) = (Flags(0), SendBy::Write);
            self.step(actor, Op::Send { fd: writer, len, flags, by });
        }
        Some((reader, writer))
    }

    /// splice(2), to a connection or from it.
    pub fn splice(&mut self) -> Option<()> {
        match self.rng.u32(..8) {
            0..=2 => self.splice_to_full(),
            3..=4 => self.splice_to(),
            5..=6 => self.splice_from(),
            _ => self.splice_oddly(),
        }
    }

    fn splice_to(&mut self) -> Option<()> {
        let (actor, to, thing) = self.pick_sender()?;
        let len = self.length(self.room_at(peer(thing)));
        let (from, _) = self.pipe_with(actor, len)?;
        let flags = self.one([SpliceFlags(0), SpliceFlags::NONBLOCK, SpliceFlags::MOVE]);
        self.step(actor, Op::Splice { from, to, len: len + 10, flags });
        self.arrived(peer(thing), len);
        self.recv_at(peer(thing));
        Some(())
    }

    fn splice_from(&mut self) -> Option<()> {
        let (_, _, thing) = self.pick_open(&ENDS)?;
        if self.is_read(thing) {
            return None;
        }
        self.send_to(thing)?;
        let (actor, from) = self.holder(thing)?;
        let waiting = self.ends.get(&thing)?.waiting;
        if waiting == 0 {
            return None;
        }
        let (reader, to) = self.pipe_with(actor, 0)?;
        let len = waiting.min(20_000);
        let flags = self.one([SpliceFlags(0), SpliceFlags::NONBLOCK]);
        self.step(actor, Op::Splice { from, to, len, flags });
        self.taken(thing, len);
        self.step(actor, Op::Available { fd: reader });
        self.step(actor, Op::Recv { fd: reader, len, flags: Flags(0), by: RecvBy::Read });
        Some(())
    }

    /// Into a direction without room: it blocks, and is interrupted, or times out, or goes on.
    fn splice_to_full(&mut self) -> Option<()> {
        use crate::differential::plan::Signal;
        use crate::differential::plan::ops::OptionName;

        let (actor, to, thing) = self.pick_sender()?;
        let (other, end) = (peer(thing), *self.ends.get(&thing)?);
        if end.shut || end.timeouts || self.is_read(other) {
            return None;
        }
        if self.ends.get(&other)?.deaf {
            return None;
        }
        self.step(actor, Op::Fill { fd: to });
        self.ends.entry(other).or_default().flooded = true;
        let len = self.one([5000, 30_000, 60_000]);
        let (from, _) = self.pipe_with(actor, len)?;
        let op = Op::Splice { from, to, len, flags: SpliceFlags(0) };
        match self.rng.u32(..4) {
            0 if self.families.has(Family::Timeouts) => {
                let value = self.one([20, 60]);
                self.step(actor, Op::SetOption { fd: to, name: OptionName::SendTimeout, value });
                self.ends.get_mut(&thing)?.timeouts = true;
                self.timed(actor, op);
            }
            1..=2 if self.families.has(Family::Signals) => {
                for _ in 0..self.rng.u32(1..3) {
                    self.step(actor, op.clone());
                    self.handler(actor, Signal::Interrupts, Op::Available { fd: from });
                    self.step(actor, Op::Available { fd: from });
                }
            }
            _ => {
                let flags = SpliceFlags::NONBLOCK;
                self.step(actor, Op::Splice { from, to, len, flags });
            }
        }
        self.step(actor, Op::Available { fd: from });
        let (reader, fd) = self.holder(other).filter(|(reader, _)| *reader != actor)?;
        self.empty(reader, fd, other);
        self.step(actor, Op::SpliceAll { from, to, len });
        self.step(reader, Op::Drain { fd });
        Some(())
    }

    fn odd_file(&mut self, actor: Actor) -> Option<Var> {
        let what = self.one([
            Opened::Null,
            Opened::Directory,
            Opened::Proc,
            Opened::Datagram,
            Opened::Event,
            Opened::Memory,
        ]);
        let fd = self.fresh(Kind::File)?;
        self.step(actor, Op::Open { fd, what, len: 3000 });
        self.opened(actor.process, fd, fd);
        Some(fd)
    }

    /// Between things between which the kernel mostly splices nothing.
    fn splice_oddly(&mut self) -> Option<()> {
        let (actor, var, thing) = self.pick_open(&ENDS)?;
        if self.is_read(thing) || self.is_written(thing) {
            return None;
        }
        let odd = if self.chance(70) { self.odd_file(actor)? } else { var };
        let pair = self.one([(odd, var), (var, odd)]);
        let flags = SpliceFlags::NONBLOCK;
        self.step(actor, Op::Splice { from: pair.0, to: pair.1, len: 10, flags });
        Some(())
    }

    /// sendfile(2), from files of all kinds.
    pub fn send_file(&mut self) -> Option<()> {
        let (actor, to, thing) = self.pick_sender()?;
        let other = peer(thing);
        if self.ends.get(&thing)?.shut {
            return None;
        }
        if self.chance(50) {
            let len = self.room_at(other).clamp(1, 20_000);
            let from = self.fresh(Kind::File)?;
            self.step(actor, Op::Open { fd: from, what: Opened::Memory, len });
            self.opened(actor.process, from, from);
            let offset = self.one([-1, 0, 0, 100, 30_000]);
            let sent = match u32::try_from(offset) {
                Ok(offset) => len.saturating_sub(offset),
                Err(_) => len,
            };
            self.step(actor, Op::Sendfile { to, from, offset, len });
            self.arrived(other, sent);
            self.recv_at(other);
            return Some(());
        }
        let from = match self.rng.u32(..4) {
            0 => self.pipe_with(actor, 10)?.0,
            1 => to,
            _ => self.odd_file(actor)?,
        };
        let offset = self.one([-1, 0]);
        self.step(actor, Op::Sendfile { to, from, offset, len: 10 });
        self.arrived(other, 10);
        Some(())
    }

    /// A process forks.
    pub fn fork(&mut self) -> Option<()> {
        let living = self.living();
        let process = self.pick(&living)?;
        let actor = self.actor(process)?;
        self.fork_by(actor).map(drop)
    }

    /// The child.
    pub fn fork_by(&mut self, actor: Actor) -> Option<u8> {
        if self.processes.len() >= PROCESSES {
            return None;
        }
        let open = self.processes.get(usize::from(actor.process))?.open.clone();
        let threads = self.rng.u8(1..3);
        let child = self.add_process(threads, true);
        self.processes.get_mut(usize::from(child))?.open = open;
        let by = self.one([ForkBy::Fork, ForkBy::Fork, ForkBy::Fork, ForkBy::Raw]);
        self.step(actor, Op::Fork { child: child.into(), by });
        Some(child)
    }

    /// A forked child ends.
    pub fn exit(&mut self) -> Option<()> {
        let children: Vec<u8> = self.living().into_iter().filter(|p| *p > 1).collect();
        let process = self.pick(&children)?;
        let actor = self.actor(process)?;
        self.step(actor, Op::Exit { code: 0 });
        self.process_ended(process);
        Some(())
    }

    /// A process is gone, and with it its descriptors.
    pub fn process_ended(&mut self, process: u8) {
        let Some(of) = self.processes.get_mut(usize::from(process)) else { return };
        of.lives = false;
        let open = std::mem::take(&mut of.open);
        self.blocked.retain(|blocked| blocked.actor.process != process);
        for thing in open.into_values() {
            if !self.open(&[thing.kind]).iter().any(|(_, _, other)| *other == thing) {
                self.was_ended(thing);
            }
        }
    }
}

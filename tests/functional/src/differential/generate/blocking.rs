//! Threads that are blocked, and what is done to them.

use super::basics::ENDS;
use super::families::Family;
use super::model::{Blocked, End, Model, Thing, peer};
use crate::differential::plan::ops::{
    Address, CloseBy, Control, Dup2By, DupBy, Entry, EpollBy, Events, FlagBy, Flags, How, Opened,
    PollBy, RecvBy, SelectBy, SendBy, SocketFlags,
};
use crate::differential::plan::{Actor, Kind, Op, Signal, Var};

/// Bytes of a send that no buffer takes.
const TOO_MUCH: u32 = 12 << 20;
/// The same where buffers are small.
const MORE_THAN_SMALL: u32 = 1 << 20;

impl Model {
    fn is_blocked(&mut self, actor: Actor, var: Var, reads: &[Thing], writes: &[Thing]) {
        let (reads, writes) = (reads.to_vec(), writes.to_vec());
        self.blocked.push(Blocked { actor, var, reads, writes, makes: None, wants_all: false });
    }

    /// An actor to be blocked: mostly one whose process has others.
    fn spare(&mut self, process: u8) -> Option<Actor> {
        let idle = self.idle(process);
        if idle.len() < 2 && !self.chance(15) {
            return None;
        }
        self.pick(&idle)
    }

    /// A thread blocks.
    pub fn block(&mut self) -> Option<()> {
        match self.rng.u32(..10) {
            0..=5 => self.block_reading(),
            6..=7 => self.block_writing(),
            8 => self.block_accepting(),
            _ => self.block_at_pipe(),
        }
    }

    /// For bytes.
    fn block_reading(&mut self) -> Option<()> {
        let (_, fd, thing) = self.pick_open(&ENDS)?;
        let end = *self.ends.get(&thing)?;
        let peer_shut = self.ends.get(&peer(thing)).is_none_or(|peer| peer.shut);
        if self.is_read(thing) || end.waiting > 0 || end.flooded || peer_shut {
            return None;
        }
        let holders = self.open(&[thing.kind]);
        let process = holders.iter().find(|(_, var, other)| *var == fd && *other == thing)?.0;
        let actor = self.spare(process)?;
        let timed = end.timeouts;
        let waits = self.may(Family::Poll, 35) || end.nonblocking || timed;
        if waits && self.families.has(Family::Poll) {
            self.block_polling(actor, fd, thing);
            return Some(());
        }
        if self.may(Family::Epoll, 25) {
            return self.block_in_epoll(actor, fd, thing);
        }
        if waits {
            return None;
        }
        let by = self.way_to_recv();
        let takes = !matches!(by, RecvBy::Read | RecvBy::Readv);
        let len = self.length(20_000);
        let op = match self.rng.u32(..10) {
            0 => Op::RecvAll { fd, len },
            1..=2 if takes => Op::Recv { fd, len, flags: Flags::WAITALL, by },
            3 if takes && self.families.has(Family::Peek) => {
                Op::Recv { fd, len, flags: Flags::PEEK, by }
            }
            _ => Op::Recv { fd, len, flags: Flags(0), by },
        };
        let wants_all = match op {
            Op::Recv { flags, .. } => flags.has(Flags::WAITALL),
            _ => true,
        };
        self.step(actor, op);
        self.is_blocked(actor, fd, &[thing], &[]);
        self.blocked.iter_mut().filter(|blocked| blocked.actor == actor).for_each(|blocked| {
            blocked.wants_all = wants_all;
        });
        Some(())
    }

    fn block_polling(&mut self, actor: Actor, fd: Var, thing: Thing) {
        let mut entries = vec![Entry { fd, events: Events::IN }];
        let mut reads = vec![thing];
        let others = self.open(&[Kind::Client, Kind::Server, Kind::Listener, Kind::Reader]);
        for (process, var, other) in others {
            let free = !self.is_read(other) && self.is_quiet(other);
            if process == actor.process && free && self.chance(25) {
                let extra = if self.chance(20) { Events::RDHUP } else { Events(0) };
                entries.push(Entry { fd: var, events: Events::IN | extra });
                reads.push(other);
            }
        }
        if self.chance(15) {
            entries.push(Entry { fd, events: Events::PRI });
        }
        self.rng.shuffle(&mut entries);
        let op = if self.chance(70) {
            let by = self.one([PollBy::Poll, PollBy::Ppoll]);
            Op::Poll { entries, timeout: -1, by }
        } else {
            let by = self.one([SelectBy::Select, SelectBy::Pselect]);
            let top = self.top();
            Op::Select { entries, timeout: -1, top, by }
        };
        self.step(actor, op);
        self.is_blocked(actor, fd, &reads, &[]);
    }

    /// True when nothing is to be read there.
    fn is_quiet(&self, thing: Thing) -> bool {
        if !ENDS.contains(&thing.kind) {
            return true;
        }
        let ends = (self.ends.get(&thing), self.ends.get(&peer(thing)));
        matches!(ends, (Some(end), Some(other)) if end.waiting == 0 && !end.flooded && !other.shut)
    }

    fn block_in_epoll(&mut self, actor: Actor, fd: Var, thing: Thing) -> Option<()> {
        let epoll = self.fresh(Kind::Epoll)?;
        self.step(actor, Op::Epoll { epoll });
        self.opened(actor.process, epoll, epoll);
        let edge = if self.chance(30) { Events::ET } else { Events(0) };
        let control = Control::Add;
        self.step(actor, Op::EpollCtl { epoll, control, fd, events: Events::IN | edge });
        let by = self.one([EpollBy::Wait, EpollBy::Pwait, EpollBy::Pwait2]);
        self.step(actor, Op::EpollWait { epoll, max: 8, timeout: -1, by });
        self.is_blocked(actor, fd, &[thing], &[]);
        Some(())
    }

    /// For room.
    fn block_writing(&mut self) -> Option<()> {
        let (_, _, thing) = self.pick_sender()?;
        let (end, other) = (*self.ends.get(&thing)?, peer(thing));
        if end.nonblocking || end.shut || end.timeouts || self.is_read(other) {
            return None;
        }
        if self.ends.get(&other)?.deaf {
            return None;
        }
        let (actor, fd) = self.holder(thing)?;
        let actor = self.spare(actor.process)?;
        let len = if self.buffer > 0 { MORE_THAN_SMALL } else { TOO_MUCH };
        let by = self.one([SendBy::Send, SendBy::Write, SendBy::Writev, SendBy::Sendmsg]);
        let op = match self.rng.u32(..5) {
            0 => Op::SendAll { fd, len },
            _ => Op::Send { fd, len, flags: Flags(0), by },
        };
        self.step(actor, op);
        self.ends.entry(other).or_default().flooded = true;
        self.is_blocked(actor, fd, &[], &[thing]);
        Some(())
    }

    /// For a connection.
    fn block_accepting(&mut self) -> Option<()> {
        let (actor, on, listener) = self.pick_open(&[Kind::Listener])?;
        if self.is_read(listener) {
            return None;
        }
        let actor = self.spare(actor.process)?;
        let client = self.fresh(Kind::Client)?;
        let fd = Var::new(Kind::Server, client.n);
        self.step(actor, Op::Accept { fd, on, flags: SocketFlags(0) });
        let (reads, writes) = (vec![listener], Vec::new());
        self.blocked.push(Blocked {
            actor,
            var: on,
            reads,
            writes,
            makes: Some(fd),
            wants_all: false,
        });
        Some(())
    }

    /// For bytes of a pipe.
    fn block_at_pipe(&mut self) -> Option<()> {
        let living = self.living();
        let process = self.pick(&living)?;
        let actor = self.spare(process)?;
        let fd = self.fresh(Kind::Reader)?;
        let writer = Var::new(Kind::Writer, fd.n);
        self.step(actor, Op::Pipe { reader: fd, writer, size: 0 });
        self.opened(process, fd, fd);
        self.opened(process, writer, writer);
        self.step(actor, Op::Recv { fd, len: 50, flags: Flags(0), by: RecvBy::Read });
        self.is_blocked(actor, fd, &[fd], &[]);
        Some(())
    }

    /// Something happens to a thread that is blocked.
    pub fn disturb(&mut self) -> Option<()> {
        let all = self.blocked.clone();
        let blocked = self.pick(&all)?;
        match self.rng.u32(..14) {
            0..=3 if self.families.has(Family::Reuse) => self.close_under(&blocked),
            4 if self.families.has(Family::Reuse) => self.replace_under(&blocked),
            5 if self.families.has(Family::Reuse) => self.shut_down_under(&blocked),
            6..=8 if self.families.has(Family::Signals) => self.interrupt(&blocked),
            9 if self.families.has(Family::Fork) => self.fork_beside(&blocked),
            10 => {
                let other = self.actor(blocked.actor.process)?;
                let by = self.one([FlagBy::Fcntl, FlagBy::Ioctl]);
                self.step(other, Op::Nonblock { fd: blocked.var, on: 1, by });
                let thing = self.thing_of(&blocked)?;
                self.ends.get_mut(&thing)?.nonblocking = true;
                Some(())
            }
            _ => self.satisfy(&blocked),
        }
    }

    /// What a blocked thread's descriptor stood for when it was blocked.
    fn thing_of(&self, blocked: &Blocked) -> Option<Thing> {
        blocked.reads.first().or(blocked.writes.first()).copied()
    }

    /// Another thread closes the descriptor, and the number is used again.
    fn close_under(&mut self, blocked: &Blocked) -> Option<()> {
        let process = blocked.actor.process;
        let other = self.actor(process)?;
        let thing = self.thing_of(blocked)?;
        let known = self.processes[usize::from(process)].open.contains_key(&blocked.var);
        if !known || !self.may_end(thing) {
            return None;
        }
        if self.chance(15) {
            self.shut_down_under(blocked);
        }
        self.close_by_number(other, blocked.var);
        let again = self.use_again(other);
        if self.chance(60) {
            self.satisfy(blocked);
        }
        let _ = (thing, again);
        Some(())
    }

    /// The descriptor is closed; what it stood for lives on while a thread is blocked in it.
    fn close_by_number(&mut self, actor: Actor, fd: Var) {
        let by = CloseBy::Close;
        self.step(actor, Op::Close { fd, by });
        self.closed(actor.process, fd);
    }

    /// The number that is free now is given to something else, which is used.
    fn use_again(&mut self, actor: Actor) -> Option<()> {
        match self.rng.u32(..10) {
            0..=3 => {
                let (acceptor, on, listener) = self.pick_open(&[Kind::Listener])?;
                if acceptor.process == actor.process && !self.is_read(listener) {
                    let _ = on;
                    self.connect()?;
                    let newest = self.ends.keys().copied().max_by_key(|end| end.n)?;
                    let end = Var::new(Kind::Server, newest.n);
                    self.send_to(end)?;
                    return self.recv_at(end);
                }
                let a = self.fresh(Kind::Client)?;
                self.pending_connections = true;
                let (to, buffer) = (Address(listener.n), self.buffer);
                self.step(actor, Op::Connect { fd: a, to, buffer, flags: SocketFlags(0) });
                self.opened(actor.process, a, a);
                Some(())
            }
            4 => {
                let (_, of, thing) = self
                    .open(&ENDS)
                    .into_iter()
                    .find(|(process, _, _)| *process == actor.process)?;
                let fd = self.copy_of(of)?;
                self.step(actor, Op::Dup { fd, of, by: DupBy::Dup });
                self.opened(actor.process, fd, thing);
                Some(())
            }
            5..=6 => {
                let fd = self.fresh(Kind::File)?;
                let what =
                    self.one([Opened::Null, Opened::Memory, Opened::Event, Opened::Datagram]);
                self.step(actor, Op::Open { fd, what, len: 1000 });
                self.opened(actor.process, fd, fd);
                Some(())
            }
            7 => {
                let epoll = self.fresh(Kind::Epoll)?;
                self.step(actor, Op::Epoll { epoll });
                self.opened(actor.process, epoll, epoll);
                Some(())
            }
            8 => {
                let reader = self.fresh(Kind::Reader)?;
                let writer = Var::new(Kind::Writer, reader.n);
                self.step(actor, Op::Pipe { reader, writer, size: 0 });
                self.opened(actor.process, reader, reader);
                self.opened(actor.process, writer, writer);
                let (flags, by) = (Flags(0), SendBy::Write);
                self.step(actor, Op::Send { fd: writer, len: 20, flags, by });
                Some(())
            }
            _ => None,
        }
    }

    /// Another thread puts another connection in the descriptor's place.
    fn replace_under(&mut self, blocked: &Blocked) -> Option<()> {
        let process = blocked.actor.process;
        let other = self.actor(process)?;
        let known = self.thing_of(blocked)?;
        let all = self.open(&ENDS);
        let all: Vec<_> = all
            .into_iter()
            .filter(|(holder, _, thing)| *holder == process && *thing != known)
            .collect();
        if !self.may_end(known) {
            return None;
        }
        let (_, of, thing) = self.pick(&all)?;
        let by = Dup2By::Dup2;
        self.step(other, Op::Dup2 { fd: of, to: blocked.var, by });
        self.closed(process, blocked.var);
        self.opened(process, blocked.var, thing);
        if ENDS.contains(&thing.kind) && !self.is_read(thing) && self.chance(70) {
            self.send_to(thing);
            self.recv_at(thing);
        }
        if self.chance(60) {
            self.satisfy(blocked);
        }
        Some(())
    }

    fn shut_down_under(&mut self, blocked: &Blocked) -> Option<()> {
        let thing = self.thing_of(blocked)?;
        let other = self.actor(blocked.actor.process)?;
        let how = self.one([How::Wr, How::Rd, How::Both, How::Both]);
        if how != How::Wr && !self.may_be_deaf(thing) {
            return None;
        }
        self.step(other, Op::Shutdown { fd: blocked.var, how });
        self.was_shut_down(thing, how);
        Some(())
    }

    /// A signal comes, and its handler makes a call.
    fn interrupt(&mut self, blocked: &Blocked) -> Option<()> {
        let jumps = self.may(Family::Jump, 30);
        let signal = match (jumps, self.restarts) {
            (true, _) => Signal::Jumps,
            (false, true) => Signal::Restarts,
            (false, false) => Signal::Interrupts,
        };
        let process = blocked.actor.process;
        let all: Vec<_> = self
            .open(&ENDS)
            .into_iter()
            .filter(|(holder, _, _)| *holder == process)
            .filter(|(_, _, thing)| !self.is_read(*thing) && !self.is_written(*thing))
            .collect();
        let other = self.pick(&all);
        let flags = Flags::DONTWAIT | Flags::NOSIGNAL;
        let op = match (self.rng.u32(..8), other) {
            (0..=1, Some((_, fd, thing))) if self.room_at(peer(thing)) > 100 => {
                self.arrived(peer(thing), 60);
                Op::Send { fd, len: 60, flags, by: SendBy::Send }
            }
            (2..=3, Some((_, fd, thing))) => {
                self.taken(thing, 100);
                Op::Recv { fd, len: 100, flags: Flags::DONTWAIT, by: RecvBy::Recv }
            }
            (4, Some((_, fd, _))) => {
                let entries = vec![Entry { fd, events: Events::IN | Events::OUT }];
                Op::Poll { entries, timeout: 0, by: PollBy::Poll }
            }
            (5, Some((_, fd, thing))) if self.may_end(thing) => {
                if self.closed(process, fd) {
                    self.was_ended(thing);
                }
                Op::Close { fd, by: CloseBy::Close }
            }
            (6, Some((_, of, thing))) => {
                let fd = self.copy_of(of)?;
                self.opened(process, fd, thing);
                Op::Dup { fd, of, by: DupBy::Dup }
            }
            _ => Op::Available { fd: blocked.var },
        };
        self.handler(blocked.actor, signal, op);
        if signal != Signal::Restarts {
            self.blocked.retain(|other| other.actor != blocked.actor);
        }
        Some(())
    }

    /// A thread beside the blocked one forks.
    fn fork_beside(&mut self, blocked: &Blocked) -> Option<()> {
        let other = self.actor(blocked.actor.process)?;
        let child = self.fork_by(other)?;
        let actor = Actor { process: child, thread: 0 };
        if self.chance(50) {
            self.close_by_number(actor, blocked.var);
        }
        if self.chance(50) {
            self.satisfy(blocked);
        }
        Some(())
    }

    /// What a blocked thread waits for comes, in one way or another.
    pub fn satisfy(&mut self, blocked: &Blocked) -> Option<()> {
        let thing = self.thing_of(blocked)?;
        match thing.kind {
            Kind::Listener => {
                let living = self.living();
                let process = self.pick(&living)?;
                let actor = self.actor(process)?;
                let server = blocked.makes?;
                let fd = Var::new(Kind::Client, server.n);
                let (to, buffer) = (Address(thing.n), self.buffer);
                self.step(actor, Op::Connect { fd, to, buffer, flags: SocketFlags(0) });
                self.opened(process, fd, fd);
                self.opened(blocked.actor.process, server, server);
                for end in [fd, server] {
                    self.ends.insert(end, End::default());
                }
                self.wake_readers(thing);
                Some(())
            }
            Kind::Reader => {
                let (actor, fd) = self.holder(Var::new(Kind::Writer, thing.n))?;
                let (flags, by) = (Flags(0), SendBy::Write);
                self.step(actor, Op::Send { fd, len: 20, flags, by });
                self.wake_readers(thing);
                Some(())
            }
            _ if blocked.reads.is_empty() => self.make_room(thing),
            _ => match self.rng.u32(..8) {
                0 => {
                    let (actor, fd) = self.holder(peer(thing))?;
                    self.step(actor, Op::Shutdown { fd, how: How::Wr });
                    self.was_shut_down(peer(thing), How::Wr);
                    Some(())
                }
                1 => {
                    let (actor, fd) = self.holder(peer(thing))?;
                    let other = peer(thing);
                    if self.is_read(other) || self.is_written(other) || !self.may_end(other) {
                        return None;
                    }
                    self.close_by(actor, fd, peer(thing));
                    Some(())
                }
                _ => self.send_to(thing),
            },
        }
    }

    /// The peer of a blocked sender receives, or ends.
    fn make_room(&mut self, thing: Thing) -> Option<()> {
        let other = peer(thing);
        let (actor, fd) = self.holder(other)?;
        if self.is_read(other) {
            return None;
        }
        match self.rng.u32(..6) {
            0 if self.may_end(other) => self.close_by(actor, fd, other),
            1 => {
                // A little, which makes no room to speak of.
                let len = self.rng.u32(1..200);
                self.step(actor, Op::Recv { fd, len, flags: Flags(0), by: RecvBy::Recv });
            }
            _ => {
                let len = if self.buffer > 0 { MORE_THAN_SMALL } else { TOO_MUCH };
                self.step(actor, Op::RecvAll { fd, len });
                self.wake_writers(thing);
                // What the warm-up and other calls have sent stands before it, so some may be left.
                self.step(actor, Op::Drain { fd });
                if let Some(end) = self.ends.get_mut(&other) {
                    (end.flooded, end.waiting) = (false, 0);
                }
            }
        }
        Some(())
    }
}

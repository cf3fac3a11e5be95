//! Connections: made, used, ended.

use super::families::Family;
use super::model::{End, Model, Thing, peer, step};
use crate::differential::plan::ops::{
    Address, CloseBy, Dup2By, DupBy, FlagBy, Flags, How, OptionName, RecvBy, SendBy, SocketFlags,
};
use crate::differential::plan::{Actor, Kind, Op, Var};

/// Both ends of connections.
pub const ENDS: [Kind; 2] = [Kind::Client, Kind::Server];
/// Messages before a connection counts as having moved to shared memory.
const WARM: u32 = 4;

impl Model {
    /// A connection, which mostly has carried a few messages then.
    pub fn connect(&mut self) -> Option<()> {
        let (acceptor, on, listener) = self.pick_open(&[Kind::Listener])?;
        if self.is_read(listener) {
            return None;
        }
        let from = self.others(acceptor.process);
        let process = self.pick(&from)?;
        let connector = self.actor(process)?;
        let a = self.fresh(Kind::Client)?;
        let b = Var::new(Kind::Server, a.n);
        let nonblocking = [self.chance(8), self.chance(8)];
        let flags = nonblocking.map(|on| if on { SocketFlags::NONBLOCK } else { SocketFlags(0) });
        let (to, buffer) = (Address(listener.n), self.buffer);
        self.step(connector, Op::Connect { fd: a, to, buffer, flags: flags[0] });
        self.step(acceptor, Op::Accept { fd: b, on, flags: flags[1] });
        self.opened(connector.process, a, a);
        self.opened(acceptor.process, b, b);
        for (thing, nonblocking) in [(a, nonblocking[0]), (b, nonblocking[1])] {
            self.ends.insert(thing, End { nonblocking, ..End::default() });
        }
        if connector != acceptor && self.chance(90) {
            self.group(vec![
                step(connector, Op::Ping { fd: a, times: WARM }),
                step(acceptor, Op::Pong { fd: b, times: WARM }),
            ]);
        }
        Some(())
    }

    /// Other processes, mostly.
    fn others(&mut self, process: u8) -> Vec<u8> {
        let mut all = self.living();
        if all.len() > 1 && self.chance(90) {
            all.retain(|other| *other != process);
        }
        all
    }

    /// How many bytes more may wait at an end and be counted: buffers take them whatever they are.
    pub fn room_at(&self, thing: Thing) -> u32 {
        let most = if self.buffer > 0 { 1500 } else { 40_000 };
        match self.ends.get(&thing) {
            Some(end) if end.deaf && !self.families.has(Family::Late) => 0,
            Some(end) if !end.flooded => u32::saturating_sub(most, end.waiting),
            _ => 0,
        }
    }

    /// An end, its actor and its name there, to which something can be sent.
    pub fn pick_sender(&mut self) -> Option<(Actor, Var, Thing)> {
        let (actor, var, thing) = self.pick_open(&ENDS)?;
        let free = !self.is_written(thing) && self.room_at(peer(thing)) > 0;
        free.then_some((actor, var, thing))
    }

    /// A length of a message that fits.
    pub fn length(&mut self, room: u32) -> u32 {
        let most = self.one([10, 100, 2000, 20_000]);
        self.rng.u32(1..=most).min(room.max(1))
    }

    /// By which function something is sent, and with which flags.
    pub fn way_to_send(&mut self) -> (SendBy, Flags) {
        // pwritev2 is no hook's.
        let by = self.one([
            SendBy::Send,
            SendBy::Send,
            SendBy::Write,
            SendBy::Writev,
            SendBy::Sendto,
            SendBy::Sendmsg,
            SendBy::Sendmmsg,
        ]);
        let takes = !matches!(by, SendBy::Write | SendBy::Writev);
        let flags = match self.rng.u32(..4) {
            0 if takes => Flags::DONTWAIT,
            1 if takes => Flags::NOSIGNAL,
            _ => Flags(0),
        };
        (by, flags)
    }

    /// The same for what is received.
    pub fn way_to_recv(&mut self) -> RecvBy {
        self.one([
            RecvBy::Recv,
            RecvBy::Recv,
            RecvBy::Read,
            RecvBy::Readv,
            RecvBy::Recvfrom,
            RecvBy::Recvmsg,
        ])
    }

    /// A message, which mostly is received.
    pub fn traffic(&mut self) -> Option<()> {
        let (_, _, thing) = self.pick_sender()?;
        self.send_to(peer(thing))?;
        if self.chance(70) {
            self.recv_at(peer(thing));
        }
        Some(())
    }

    /// A message for an end.
    pub fn send_to(&mut self, to: Thing) -> Option<()> {
        let from = peer(to);
        if self.is_written(from) || self.room_at(to) == 0 {
            return None;
        }
        let (actor, fd) = self.holder(from)?;
        let len = self.length(self.room_at(to));
        let (mut by, flags) = self.way_to_send();
        if by == SendBy::Sendmmsg && self.is_read(to) {
            // Whether who waits gets one message or both is a matter of time.
            by = SendBy::Sendmsg;
        }
        self.step(actor, Op::Send { fd, len, flags, by });
        self.arrived(to, len);
        Some(())
    }

    /// Bytes have come to an end.
    pub fn arrived(&mut self, to: Thing, len: u32) {
        let from_shut = self.ends.get(&peer(to)).is_none_or(|end| end.shut);
        let taken = self.is_read(to);
        if let Some(end) = self.ends.get_mut(&to)
            && !from_shut
            && !taken
        {
            end.waiting += len;
        }
        self.tell_readers(to);
    }

    /// An end receives some of what waits there.
    pub fn recv_at(&mut self, thing: Thing) -> Option<()> {
        let end = *self.ends.get(&thing)?;
        if self.is_read(thing) {
            return None;
        }
        let (actor, fd) = self.holder(thing)?;
        let (by, mut flags) = (self.way_to_recv(), Flags(0));
        let len = match self.rng.u32(..4) {
            0 if end.waiting > 1 => self.rng.u32(1..end.waiting),
            1 => end.waiting.max(1),
            _ => end.waiting + 100,
        };
        let takes = !matches!(by, RecvBy::Read | RecvBy::Readv);
        if end.waiting == 0 || end.flooded || end.timeouts || self.families.has(Family::Lowat) {
            if !takes {
                self.step(actor, Op::Drain { fd });
                self.taken(thing, u32::MAX);
                return Some(());
            }
            flags = Flags::DONTWAIT;
        } else if takes && len <= end.waiting && self.chance(30) {
            flags = Flags::WAITALL;
        } else if takes && self.chance(15) {
            flags = Flags::DONTWAIT;
        }
        if by == RecvBy::Recv && self.chance(5) {
            flags = flags | Flags::TRUNC;
        }
        self.step(actor, Op::Recv { fd, len, flags, by });
        self.taken(thing, len);
        Some(())
    }

    /// Bytes have been received at an end.
    pub fn taken(&mut self, thing: Thing, len: u32) {
        if let Some(end) = self.ends.get_mut(&thing) {
            end.waiting = end.waiting.saturating_sub(len);
        }
    }

    /// An end ends what it sends, or receives.
    pub fn shut_down(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        if self.is_read(thing) || self.is_written(thing) {
            return None;
        }
        let how = self.one([How::Wr, How::Wr, How::Wr, How::Rd, How::Both]);
        if how != How::Wr && !self.may_be_deaf(thing) {
            return None;
        }
        self.step(actor, Op::Shutdown { fd, how });
        self.was_shut_down(thing, how);
        Some(())
    }

    /// What that means for both ends.
    pub fn was_shut_down(&mut self, thing: Thing, how: How) {
        if how != How::Wr {
            self.wake_readers(thing);
            if let Some(end) = self.ends.get_mut(&thing) {
                end.deaf = true;
            }
        }
        if how != How::Rd {
            self.wake_writers(thing);
            self.wake_readers(peer(thing));
            if let Some(end) = self.ends.get_mut(&thing) {
                end.shut = true;
            }
        }
    }

    /// A descriptor is closed in which nobody is blocked.
    pub fn close(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        if self.is_read(thing) || self.is_written(thing) || !self.may_end(thing) {
            return None;
        }
        self.close_by(actor, fd, thing);
        Some(())
    }

    /// The same, of a known one.
    pub fn close_by(&mut self, actor: Actor, fd: Var, thing: Thing) {
        let by = self.one([CloseBy::Close, CloseBy::Close, CloseBy::Close, CloseBy::Range]);
        self.step(actor, Op::Close { fd, by });
        if self.closed(actor.process, fd) {
            self.was_ended(thing);
        }
    }

    /// The last descriptor of something is gone.
    pub fn was_ended(&mut self, thing: Thing) {
        if self.ends.remove(&thing).is_some() {
            self.wake_readers(peer(thing));
            self.wake_writers(peer(thing));
        }
    }

    /// A second descriptor of an end, in a new place or in that of another one.
    pub fn duplicate(&mut self) -> Option<()> {
        let (actor, of, thing) = self.pick_open(&ENDS)?;
        if self.chance(60) {
            let fd = self.copy_of(of)?;
            let by = self.one([DupBy::Dup, DupBy::Fcntl, DupBy::Cloexec]);
            self.step(actor, Op::Dup { fd, of, by });
            self.opened(actor.process, fd, thing);
            return Some(());
        }
        let others = self.open(&ENDS);
        let others: Vec<_> = others
            .into_iter()
            .filter(|(process, _, other)| *process == actor.process && *other != thing)
            .filter(|(_, _, other)| !self.is_read(*other) && !self.is_written(*other))
            .filter(|(_, _, other)| self.may_end(*other))
            .collect();
        let (_, to, other) = self.pick(&others)?;
        self.put_in_place(actor, of, thing, to, other);
        Some(())
    }

    /// `of` in the place of `to`.
    pub fn put_in_place(&mut self, actor: Actor, of: Var, thing: Thing, to: Var, other: Thing) {
        let by = self.one([Dup2By::Dup2, Dup2By::Dup2, Dup2By::Dup3]);
        self.step(actor, Op::Dup2 { fd: of, to, by });
        if self.closed(actor.process, to) {
            self.was_ended(other);
        }
        self.opened(actor.process, to, thing);
    }

    /// O_NONBLOCK, on or off.
    pub fn set_nonblocking(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        let on = !self.ends.get(&thing)?.nonblocking;
        let by = self.one([FlagBy::Fcntl, FlagBy::Ioctl]);
        self.step(actor, Op::Nonblock { fd, on: on.into(), by });
        self.ends.entry(thing).or_default().nonblocking = on;
        Some(())
    }

    /// Time, in which those who wait go on to wait in other ways.
    pub fn dwell(&mut self) -> Option<()> {
        let living = self.living();
        let process = self.pick(&living)?;
        let actor = self.actor(process)?;
        let millis = self.one([1, 5, 25, 120]);
        self.step(actor, Op::Dwell { millis });
        Some(())
    }

    /// An end is closed so that the other one is reset.
    pub fn reset(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        let flooded = self.ends.get(&peer(thing)).is_some_and(|end| end.flooded);
        if self.is_read(thing) || self.is_written(thing) || flooded {
            return None;
        }
        if self.chance(50) {
            self.step(actor, Op::SetOption { fd, name: OptionName::Linger, value: 0 });
        } else {
            self.send_to(thing)?;
        }
        self.close_by(actor, fd, thing);
        Some(())
    }
}

//! Questions about connections, and the options that change the answers.

use super::basics::ENDS;
use super::families::Family;
use super::model::{Model, Thing, peer};
use crate::differential::plan::ops::{
    Control, Entry, EpollBy, Events, FlagBy, Flags, OptionName, PollBy, RecvBy, SelectBy, SendBy,
    Top,
};
use crate::differential::plan::{Actor, Kind, Op, Var};

/// What poll and select are asked about.
const POLLED: [Kind; 4] = [Kind::Client, Kind::Server, Kind::Listener, Kind::Reader];
/// Milliseconds that are waited for nothing.
const BRIEF: [i32; 4] = [0, 0, 0, 25];

impl Model {
    /// Some descriptors of one process, one or another of them several times.
    fn entries(&mut self, most: usize) -> Option<(Actor, Vec<Entry>)> {
        let (actor, first, _) = self.pick_open(&ENDS)?;
        let all = self.open(&POLLED);
        let mine: Vec<Var> = all
            .into_iter()
            .filter(|(process, _, _)| *process == actor.process)
            .map(|(_, var, _)| var)
            .collect();
        let mut entries = Vec::new();
        for n in 0..self.rng.usize(1..=most) {
            let fd = if n == 0 || self.chance(30) { first } else { self.pick(&mine)? };
            let events = self.one([
                Events::IN,
                Events::IN,
                Events::OUT,
                Events::IN | Events::OUT,
                Events::IN | Events::RDHUP,
                Events::PRI,
                Events(0),
            ]);
            entries.push(Entry { fd, events });
        }
        self.rng.shuffle(&mut entries);
        Some((actor, entries))
    }

    /// poll(2), of what may be ready.
    pub fn poll(&mut self) -> Option<()> {
        let (actor, entries) = self.entries(4)?;
        let (timeout, by) = (self.one(BRIEF), self.one([PollBy::Poll, PollBy::Ppoll]));
        self.timed(actor, Op::Poll { entries, timeout, by });
        Some(())
    }

    /// How many descriptors select(2) is asked about.
    pub fn top(&mut self) -> Top {
        if self.may(Family::Wide, 25) { Top::Limit } else { self.one([Top::Exact, Top::Size]) }
    }

    /// select(2), likewise.
    pub fn select(&mut self) -> Option<()> {
        let (actor, mut entries) = self.entries(3)?;
        entries.iter_mut().for_each(|entry| {
            entry.events = Events(entry.events.0 & (Events::IN | Events::OUT | Events::PRI).0);
        });
        let timeout = self.one(BRIEF);
        let by = self.one([SelectBy::Select, SelectBy::Pselect]);
        let top = self.top();
        self.timed(actor, Op::Select { entries, timeout, top, by });
        Some(())
    }

    /// An epoll instance is made, changed, or asked.
    pub fn epoll(&mut self) -> Option<()> {
        let known = self.pick_open(&[Kind::Epoll]);
        let Some((actor, epoll, _)) = known.filter(|_| self.rng.u32(..10) > 0) else {
            let living = self.living();
            let process = self.pick(&living)?;
            let actor = self.actor(process)?;
            let epoll = self.fresh(Kind::Epoll)?;
            self.step(actor, Op::Epoll { epoll });
            self.opened(process, epoll, epoll);
            self.add_to_epoll(actor, epoll);
            return Some(());
        };
        if self.chance(35) {
            return self.add_to_epoll(actor, epoll);
        }
        if self.chance(50) {
            self.traffic();
        }
        let by = self.one([EpollBy::Wait, EpollBy::Pwait, EpollBy::Pwait2]);
        let (max, timeout) = (self.one([8, 8, 8, 1]), self.one(BRIEF));
        self.timed(actor, Op::EpollWait { epoll, max, timeout, by });
        Some(())
    }

    fn add_to_epoll(&mut self, actor: Actor, epoll: Var) -> Option<()> {
        let all = self.open(&POLLED);
        let mine: Vec<Var> = all
            .into_iter()
            .filter(|(process, _, _)| *process == actor.process)
            .map(|(_, var, _)| var)
            .collect();
        let fd = self.pick(&mine)?;
        let control =
            self.one([Control::Add, Control::Add, Control::Add, Control::Mod, Control::Del]);
        let what = self.one([Events::IN, Events::IN, Events::OUT, Events::IN | Events::OUT]);
        let how = self.one([Events(0), Events(0), Events::ET, Events::ONESHOT, Events::RDHUP]);
        self.step(actor, Op::EpollCtl { epoll, control, fd, events: what | how });
        Some(())
    }

    /// Bytes are looked at, mostly while there are some.
    pub fn peek(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        if self.is_read(thing) {
            return None;
        }
        let more = self.families.has(Family::PeekMore);
        if more && self.chance(20) {
            let value = self.one([0, 0, 3, -1]);
            self.step(actor, Op::SetOption { fd, name: OptionName::PeekOff, value });
        }
        if self.chance(70) {
            self.send_to(thing);
        }
        let end = *self.ends.get(&thing)?;
        let all = more && self.chance(30);
        let wait = if all { Flags::WAITALL } else { Flags(0) };
        let len = match self.rng.u32(..3) {
            0 => end.waiting / 2 + 1,
            1 => end.waiting.max(1),
            _ => end.waiting + 50,
        };
        let blocks = end.waiting == 0 || (all && len > end.waiting) || end.timeouts;
        let blocks = blocks || self.families.has(Family::Lowat);
        let by = self.one([RecvBy::Recv, RecvBy::Recvmsg, RecvBy::Recvfrom]);
        if !blocks {
            self.step(actor, Op::Recv { fd, len, flags: Flags::PEEK | wait, by });
        } else if self.chance(60) || end.nonblocking {
            let flags = Flags::PEEK | Flags::DONTWAIT | wait;
            self.step(actor, Op::Recv { fd, len, flags, by });
        } else {
            self.look_at_more(fd, thing, len + 20, wait, by)?;
        }
        if self.chance(40) {
            self.recv_at(thing);
        }
        Some(())
    }

    /// A thread looks at bytes that come one after the other.
    fn look_at_more(
        &mut self,
        fd: Var,
        thing: Thing,
        len: u32,
        wait: Flags,
        by: RecvBy,
    ) -> Option<()> {
        let (actor, _) = self.holder(thing).filter(|(_, var)| *var == fd)?;
        self.step(actor, Op::Recv { fd, len, flags: Flags::PEEK | wait, by });
        for _ in 0..self.rng.u32(1..5) {
            let Some((sender, fd)) = self.holder(peer(thing)) else { break };
            if sender == actor || self.is_written(peer(thing)) {
                break;
            }
            let len = len.div_ceil(3).min(self.room_at(thing).max(1));
            self.step(sender, Op::Send { fd, len, flags: Flags(0), by: SendBy::Send });
            self.arrived(thing, len);
        }
        Some(())
    }

    /// SO_RCVLOWAT, and what is said about an end then.
    pub fn set_lowat(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        let value = self.one([1, 5, 100, 3000, 60_000, 200_000, 600_000]);
        self.step(actor, Op::SetOption { fd, name: OptionName::Lowat, value });
        if self.chance(30) {
            self.step(actor, Op::GetOption { fd, name: OptionName::Lowat });
        }
        let (sender, other) = self.holder(peer(thing)).filter(|(other, _)| *other != actor)?;
        let free = !self.is_read(thing) && !self.is_written(peer(thing));
        if !free || self.room_at(thing) == 0 || self.ends.get(&peer(thing))?.shut {
            return None;
        }
        let entries = vec![Entry { fd, events: Events::IN }];
        let (timeout, by) = (-1, PollBy::Poll);
        let large = self.buffer == 0 && value > 50_000;
        // Who does not wait in the call itself waits in poll for as much as the mark says, which the last bytes may not be.
        let waits = [thing, peer(thing)]
            .iter()
            .all(|end| self.ends.get(end).is_some_and(|end| !end.nonblocking));
        if large && waits {
            // More than is asked for: the sender may block, and the receiver is to be told in any case.
            let idle = self.idle(sender.process);
            if idle.len() > 1 || self.chance(40) {
                self.step(actor, Op::Poll { entries: entries.clone(), timeout, by });
                let (flags, by) = (Flags(0), SendBy::Send);
                self.step(sender, Op::Send { fd: other, len: 12 << 20, flags, by });
                self.ends.entry(thing).or_default().flooded = true;
                self.step(actor, Op::RecvAll { fd, len: 12 << 20 });
                self.step(actor, Op::Drain { fd });
                let end = self.ends.entry(thing).or_default();
                (end.flooded, end.waiting) = (false, 0);
            }
            return Some(());
        }
        if value < 5000 {
            self.step(actor, Op::Poll { entries, timeout, by });
            for _ in 0..3 {
                let len = value.cast_unsigned().div_ceil(2).min(self.room_at(thing).max(1));
                let (flags, by) = (Flags(0), SendBy::Send);
                self.step(sender, Op::Send { fd: other, len, flags, by });
                self.arrived(thing, len);
            }
        }
        Some(())
    }

    /// How much is under way.
    pub fn ask_queues(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        match self.rng.u32(..4) {
            0 => self.step(actor, Op::Available { fd }),
            1 => {
                self.send_to(peer(thing));
                let (actor, fd) = self.holder(thing)?;
                if !self.ends.get(&peer(thing))?.flooded {
                    self.step(actor, Op::Unacked { fd });
                }
            }
            _ => {
                self.step(actor, Op::SetOption { fd, name: OptionName::Inq, value: 1 });
                self.send_to(thing)?;
                let waiting = self.ends.get(&thing)?.waiting;
                let (len, by) = (waiting / 3 + 1, RecvBy::Recvmsg);
                let (actor, fd) = self.holder(thing)?;
                self.step(actor, Op::Recv { fd, len, flags: Flags::DONTWAIT, by });
                self.taken(thing, len);
            }
        }
        Some(())
    }

    /// A call that time ends.
    pub fn time_out(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        let end = *self.ends.get(&thing)?;
        if self.is_read(thing) || self.is_written(thing) || end.nonblocking {
            return None;
        }
        let value = self.one([1, 20, 60]);
        let full = self.ends.get(&peer(thing))?.flooded;
        if full && !end.shut {
            self.step(actor, Op::SetOption { fd, name: OptionName::SendTimeout, value });
            self.timed(
                actor,
                Op::Send { fd, len: 20_000_000, flags: Flags::NOSIGNAL, by: SendBy::Send },
            );
        } else if end.waiting == 0 {
            self.step(actor, Op::SetOption { fd, name: OptionName::RecvTimeout, value });
            let by = self.way_to_recv();
            self.timed(actor, Op::Recv { fd, len: 100, flags: Flags(0), by });
        } else {
            return None;
        }
        self.ends.get_mut(&thing)?.timeouts = true;
        Some(())
    }

    /// SIGIO for what comes.
    pub fn be_told(&mut self) -> Option<()> {
        let (actor, fd, thing) = self.pick_open(&ENDS)?;
        if self.is_read(thing) || self.room_at(thing) == 0 {
            return None;
        }
        let by = self.one([FlagBy::Fcntl, FlagBy::Ioctl]);
        self.step(actor, Op::Async { fd, on: 1, by });
        self.step(actor, Op::Sigio {});
        for _ in 0..self.rng.u32(1..3) {
            self.send_to(thing)?;
            self.step(actor, Op::Sigio {});
        }
        if self.chance(50) {
            self.step(actor, Op::Async { fd, on: 0, by });
        }
        Some(())
    }
}

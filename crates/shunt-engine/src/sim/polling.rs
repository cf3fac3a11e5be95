//! Programs that poll: readiness as the library puts it together from the end's questions and the kernel's answer
//! (`epoll/ready.rs`), and how poll(2) and an edge-triggered epoll sleep on it (`poll_set.rs`, `epoll/wait.rs`).

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::doorbell::{ON_QUEUE, arm, on_bell};
use shunt_shm::region::RESET;

use super::program::{Asleep, Doing};
use super::{Op, World};
use crate::call::Direction;
use crate::conn::End;
use crate::conn::flags::{FILLS_KERNEL, FROZEN, HAD_ROOM, KERNEL_HINT, SHUT_RD, SHUT_WR};
use crate::conn::overflow::{self, Full};
use crate::conn::repeated::{are_awaited, are_pending};
use crate::conn::{Source, reset, sends_over_tcp};
use crate::events::{self, Ring, readiness};
use crate::kernel::{KernelSocket, peer_is_gone};
use crate::stretch::Path;

/// What somebody knows of a kernel socket who hears of its news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Nothing: it is to be asked.
    Nothing,
    /// There was nothing to read when it was last asked, and there was no news since.
    Silent,
    /// What it has just told, but for room.
    Told(u32),
}

impl Heard {
    const fn answer(self) -> Option<u32> {
        match self {
            Self::Told(bits) => Some(bits),
            Self::Silent | Self::Nothing => None,
        }
    }
}

const KERNEL: u32 = events::IN | events::OUT | events::RDHUP | events::RDNORM | events::WRNORM;
/// What an edge-triggered program registers.
const EDGES: u32 = events::IN | events::OUT | events::RDHUP;

impl World {
    /// What poll(2) would say.
    pub fn readiness(&self, who: usize, wanted: u32) -> u32 {
        self.readiness_by(who, wanted, &mut Heard::Nothing)
    }

    fn asks_kernel(&self, who: usize) -> u32 {
        let (end, socket) = (self.end(who), self.socket(who));
        let mut told = socket.readiness(KERNEL);
        if told & events::HUP != 0 {
            told |= reset::readiness(end.record, Some(end));
        }
        if told & events::IN == 0 || !are_awaited(end.record) {
            return told;
        }
        self.settles(who);
        if are_awaited(end.record) {
            told & !(events::IN | events::RDNORM)
        } else {
            socket.readiness(KERNEL)
        }
    }

    fn goes_over_tcp(&self, who: usize, end: End<'_>) -> bool {
        !end.can_be_rung()
            || (!end.has(SHUT_RD) && peer_is_gone(&self.socket(who), &end.theirs.prod.fin))
            || self.is_orphaned(who)
            || end.notes_no_room(self.now.get()) == Full::Overflows
    }

    fn room(&self, who: usize, wanted: u32) -> Option<(u64, u64)> {
        let end = self.end(who);
        let too_little = |(free, of): (u64, u64)| free * 3 < of;
        let writes_ring = end.sends_to_ring(self.procs[who].can_tell.get())
            && !(end.has(FILLS_KERNEL) && sends_over_tcp(end.record))
            && !(wanted & events::OUT != 0
                && too_little(end.room())
                && self.goes_over_tcp(who, end));
        writes_ring.then(|| {
            let room = end.room();
            if wanted & events::OUT != 0 && too_little(room) {
                arm(&end.mine.ctl.tx_arm, ON_QUEUE);
                return end.room();
            }
            room
        })
    }

    fn readiness_by(&self, who: usize, wanted: u32, heard: &mut Heard) -> u32 {
        let end = self.end(who);
        if are_pending(end.record) {
            self.repeat(who);
        }
        assert!(!end.is_violated(), "{who} takes the other one for a liar");
        if end.may_settle() {
            self.settles(who);
            *heard = Heard::Nothing;
        }
        let source = end.source();
        let (readable, in_ring) = (end.readable(source), end.in_ring());
        let Source { path, has_mark } = source;
        let writable = self.room(who, wanted);
        let end_is_news = readable.is_none_or(|n| n == 0)
            || wanted & events::RDHUP != 0
            || end.has(SHUT_WR)
            || end.theirs.ctl.closed.load(Relaxed) == RESET;
        let reads = wanted & (events::IN | events::RDHUP | events::RDNORM) != 0;
        let writes_tcp = writable.is_none() && wanted & (events::OUT | events::WRNORM) != 0;
        let had_room = writes_tcp && end.has(HAD_ROOM);
        if had_room {
            end.put(HAD_ROOM, false);
        }
        let bytes = reads && path == Path::Tcp && *heard != Heard::Silent;
        let ends = (reads && end.has(FROZEN))
            || (reads && has_mark && in_ring == 0)
            || (end.theirs.prod.fin.load(Relaxed) != 0 && end_is_news)
            || end.has(KERNEL_HINT | SHUT_RD);
        let asks_room = writes_tcp && !had_room;
        let room = if had_room { events::OUT | events::WRNORM } else { 0 };
        let kernel = match heard.answer().filter(|_| !asks_room) {
            _ if !bytes && !ends && !asks_room => room,
            Some(told) => told | room,
            None => {
                let kernel = self.asks_kernel(who);
                let is_silent = kernel & !(events::OUT | events::WRNORM) == 0;
                *heard = if is_silent { Heard::Silent } else { Heard::Nothing };
                if writes_tcp && kernel & events::OUT != 0 {
                    end.put(HAD_ROOM, true);
                    end.put(FILLS_KERNEL, false);
                }
                kernel
            }
        };
        let kernel = match kernel & events::END {
            0 => kernel,
            _ => kernel | reset::readiness(end.record, Some(end)),
        };
        readiness(Ring { readable, writable }, kernel, 1)
    }

    /// Waits until a call of the program would not have to.
    pub fn polls(&self, who: usize, doing: Doing) {
        match doing.op {
            Op::EdgeReceive(_) | Op::EdgeSend(_) => self.waits_for_edge(who, doing),
            _ => self.waits_in_poll(who, doing),
        }
    }

    fn waits_in_poll(&self, who: usize, doing: Doing) {
        let end = self.end(who);
        let receives = doing.op.direction() == Direction::Receiving;
        let wanted = if receives { events::IN } else { events::OUT };
        let looks = || self.readiness(who, wanted) & (wanted | events::ALWAYS) != 0;
        let hears = |told: u32| {
            if told & !events::OUT != 0 {
                end.put(KERNEL_HINT, true);
            }
        };
        loop {
            if looks() {
                if !end.notes_visit(self.now.get()) {
                    return;
                }
                match self.socket(who).readiness(events::RDHUP) {
                    0 => return,
                    told => hears(told),
                }
                continue;
            }
            let (ctl, bell) = (&end.mine.ctl, on_bell(0));
            let armed = match receives {
                true => [Some(arm(&ctl.rx_arm, bell)), None],
                false => [None, Some(arm(&ctl.tx_arm, bell))],
            };
            if looks() {
                continue;
            }
            let mut events = wanted;
            if !sends_over_tcp(end.record) {
                events &= !events::OUT;
            }
            if are_pending(end.record) {
                events |= events::OUT;
            }
            if end.is_woken_by_fin() {
                events |= events::RDHUP;
            }
            // The look has armed the word for the queue, too.
            let armed = armed.map(|seen| seen.map(|seen| self.still_armed(who, receives, seen)));
            hears(self.rests_until(who, self.asleep(who, doing, armed, Some(events))));
        }
    }

    /// The arm word as it is, if all that was armed still is.
    fn still_armed(&self, who: usize, receives: bool, seen: u32) -> u32 {
        let ctl = &self.procs[who].section.ctl;
        let word = if receives { &ctl.rx_arm } else { &ctl.tx_arm };
        let now = super::pace::at_once(|| word.load(Relaxed));
        if now & seen == seen { now } else { seen }
    }

    fn asleep(
        &self,
        who: usize,
        doing: Doing,
        armed: [Option<u32>; 2],
        events: Option<u32>,
    ) -> Asleep {
        // A full ring has those who wait look again for a while, and so has a peer that may be gone.
        let is_in_doubt = overflow::is_watched(&self.procs[who].record)
            || self.procs[who].doubts_since.get() != 0;
        let looks_at = is_in_doubt.then(|| self.now.get() + 100_000_000);
        Asleep { doing, until: None, armed, events, by_edge: events.is_none(), looks_at }
    }

    fn waits_for_edge(&self, who: usize, doing: Doing) {
        let (end, me) = (self.end(who), &self.procs[who]);
        // Registered at first: then it is looked at once.
        let mut is_listed = end.mine.ctl.queue.swap(1, Relaxed) == 0;
        loop {
            if me.socket.edge.take() {
                let told = self.socket(who).poll();
                if told & !(events::OUT | events::WRNORM) != 0 {
                    me.heard.set(Heard::Told(told & !(events::OUT | events::WRNORM)));
                }
                if told & (events::RDHUP | events::ALWAYS) != 0 {
                    end.put(KERNEL_HINT, true);
                }
                is_listed = true;
            }
            is_listed |= me.is_queued.take();
            if is_listed {
                let mut heard = me.heard.get();
                let ready = self.readiness_by(who, EDGES, &mut heard);
                // What was told is good for one look.
                let is_old = matches!(heard, Heard::Told(_));
                me.heard.set(if is_old { Heard::Nothing } else { heard });
                if ready & (EDGES | events::ALWAYS) != 0 {
                    return;
                }
            }
            let asleep = self.asleep(who, doing, [None; 2], None);
            self.rests_until(who, asleep);
            is_listed = asleep.looks_at.is_some_and(|at| self.now.get() >= at);
        }
    }
}

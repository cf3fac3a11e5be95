//! Programs that poll: what the engine's look tells them ([`crate::conn::poll`]), and how poll(2) and an edge-triggered epoll sleep on it (`poll_set.rs`, `epoll/wait.rs`).

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::doorbell::{ON_BELL, ON_FUTEX};

use super::program::Doing;
use super::sleep::Asleep;
use super::tcp::Socket;
use super::{Op, World};
use crate::call::Direction;
use crate::conn::flags::{KERNEL_HINT, SHORT};
use crate::conn::poll::{self, KernelReadiness, Polled};
use crate::conn::repeated::{are_awaited, are_known};
use crate::conn::{SendPath, has, overflow};
use crate::events;
use crate::kernel::KernelSocket;
use crate::wait::Naps;

/// What an edge-triggered program registers.
const EDGES: u32 = events::IN | events::OUT | events::RDHUP;

/// A connection that a program looks at.
struct Looked<'a> {
    world: &'a World,
    who: usize,
}

impl<'a> Polled for Looked<'a> {
    type Socket = Socket<'a>;

    fn ask<T>(&self, mut question: impl FnMut(&Socket<'a>) -> T) -> Option<T> {
        Some(question(&self.world.socket(self.who)))
    }

    fn now(&self) -> u64 {
        self.world.now.get()
    }

    fn low_water(&self) -> u64 {
        self.world.low_water(self.who) as u64
    }

    fn can_tell(&self) -> bool {
        self.world.procs[self.who].can_tell.get()
    }

    fn is_orphaned(&self) -> bool {
        self.world.is_orphaned(self.who)
    }

    fn follows(&self) {
        self.world.follows(self.who);
    }

    fn repeats(&self) {
        self.world.goes_on(self.who);
    }

    fn breaks_off(&self) {
        self.world.breaks_off(self.who);
    }

    fn settles(&self) {
        self.world.settles(self.who);
    }

    /// A ring that is full, or a peer that may be gone, has those who wait look again as it is.
    fn doubts(&self) {}

    fn finds_unmarked(&self) {
        assert!(!self.world.is_honest(), "{} found bytes that no mark explains", self.who);
    }
}

impl World {
    /// What poll(2) would say.
    pub fn readiness(&self, who: usize, wanted: u32) -> u32 {
        self.readiness_by(who, wanted, &mut KernelReadiness::Nothing)
    }

    fn readiness_by(&self, who: usize, wanted: u32, heard: &mut KernelReadiness) -> u32 {
        let phase = self.polls_handshake(who);
        let looked = Looked { world: self, who };
        poll::look((&self.procs[who].record, self.linked(who)), phase, (wanted, heard), &looked)
    }

    /// Waits until a call of the program would not have to.
    pub fn polls(&self, who: usize, doing: Doing) {
        match doing.op {
            _ if self.linked(who).is_none() => self.waits_for_kernel(who, doing),
            Op::EdgeReceive(_) | Op::EdgeSend(_) | Op::CountReceive(_) => {
                self.waits_for_edge(who, doing);
            }
            _ => self.waits_in_poll(who, doing),
        }
    }

    /// The same where there is no ring yet.
    fn waits_for_kernel(&self, who: usize, doing: Doing) {
        let receives = doing.op.direction() == Direction::Receiving;
        let wanted = if receives { events::IN } else { events::OUT };
        while self.linked(who).is_none() {
            let is_ready = self.readiness(who, wanted) & (wanted | events::ALWAYS) != 0;
            if is_ready || self.procs[who].mind.had_handler.get() {
                return;
            }
            // The look has come to a ring, by whose words it is woken from now on.
            if self.linked(who).is_some() {
                break;
            }
            let looks_at = self.next_look(who);
            let asleep = self.asleep(who, doing, [None; 2], Some(wanted));
            self.sleeps_now(who, Asleep { looks_at, ..asleep });
        }
        self.polls(who, doing);
    }

    fn waits_in_poll(&self, who: usize, doing: Doing) {
        let end = self.end(who);
        let receives = doing.op.direction() == Direction::Receiving;
        let wanted = match doing.op {
            // Errors alone.
            Op::HearAll => 0,
            _ if receives => events::IN,
            _ => events::OUT,
        };
        let looks = || self.readiness(who, wanted) & (wanted | events::ALWAYS) != 0;
        let hears = |told: u32| {
            if told & !events::OUT != 0 {
                end.put(KERNEL_HINT, true);
            }
        };
        let mut naps = Naps::default();
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
            // A program hears of its buffers, and goes on to wait for what it has come for.
            if self.awaits_notice(who) {
                // In a handler above a call that has the list it is told later, and comes again all the time.
                if !self.hears(who) {
                    self.pauses(who);
                }
                if doing.op == Op::HearAll {
                    return;
                }
                continue;
            }
            self.tells_for_those_below(who);
            // Only the call below can drop what comes twice, of which the kernel tells all the time.
            let is_free = self.is_free(who, Direction::Receiving);
            if receives && are_awaited(end.record) && !is_free {
                return;
            }
            let path = SendPath::of(end.record, Some(&end));
            let by_words = end.is_heard_by_words(wanted);
            let how = if by_words { ON_FUTEX } else { ON_BELL };
            let ways = [Direction::Receiving, Direction::Sending];
            let is_meant = [receives, !receives || self.is_numbered(who)];
            let armed = [0, 1].map(|at| is_meant[at].then(|| self.arms(who, ways[at], how)));
            let is_heard = || !by_words || end.is_heard_by_words(wanted);
            let has_moved = || !by_words && path != SendPath::of(end.record, Some(&end));
            if looks() || has_moved() || !is_heard() || self.awaits_notice(who) {
                continue;
            }
            // A handler has run since the look: the call ends.
            if self.procs[who].mind.had_handler.get() {
                return;
            }
            let mut events = wanted;
            if !path.is_tcp() {
                events &= !events::OUT;
            }
            if are_known(end.record) {
                events |= events::OUT;
            }
            if end.is_woken_by_fin() {
                events |= events::RDHUP;
            }
            // The look has armed the word for the queue, too.
            let still = |at: usize| armed[at].map(|seen| self.still_armed(who, at == 0, seen));
            let armed = [0, 1].map(still);
            if by_words {
                let asleep = self.asleep(who, doing, armed, None);
                let now = self.now.get();
                naps.begins(now);
                let looks_at = [Some(naps.end(now)), asleep.looks_at].into_iter().flatten().min();
                self.sleeps_now(who, Asleep { by_edge: false, looks_at, ..asleep });
                self.was_woken(looks_at, &mut naps);
                if !looks() {
                    naps.looks(self.now.get());
                    self.visits(who, events);
                }
                continue;
            }
            let asleep = self.asleep(who, doing, armed, Some(events));
            hears(self.sleeps_now(who, asleep));
            self.was_woken(asleep.looks_at, &mut naps);
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
            || self.doubts_grants(who)
            || self.procs[who].doubts_since.get() != 0
            || has(&self.procs[who].record, SHORT);
        let looks_at = is_in_doubt.then(|| self.now.get() + 100_000_000);
        Asleep { armed, events, by_edge: events.is_none(), looks_at, ..Asleep::nothing(doing) }
    }

    fn waits_for_edge(&self, who: usize, doing: Doing) {
        let (end, me) = (self.end(who), &self.procs[who]);
        // Registered at first: then it is looked at once.
        let mut is_listed = end.mine.ctl.queue.swap(1, Relaxed) == 0;
        loop {
            if me.socket.edge.take() {
                let told = self.socket(who).poll();
                if told & !(events::OUT | events::WRNORM) != 0 {
                    me.heard.set(KernelReadiness::Told(told & !(events::OUT | events::WRNORM), 0));
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
                let is_old = matches!(heard, KernelReadiness::Told(..));
                me.heard.set(if is_old { KernelReadiness::Nothing } else { heard });
                if ready & (EDGES | events::ALWAYS) != 0 {
                    return;
                }
            }
            if me.mind.had_handler.get() {
                return;
            }
            let asleep = self.asleep(who, doing, [None; 2], None);
            self.sleeps_now(who, asleep);
            is_listed = asleep.looks_at.is_some_and(|at| self.now.get() >= at);
        }
    }
}

//! How a program sleeps in a call, and what wakes it: as the library's `stream/sleep.rs`.

use core::sync::atomic::Ordering::Acquire;

use shunt_shm::doorbell::{ON_BELL, ON_FUTEX};
use shunt_shm::sync::AtomicU32;

use super::forks::Which;
use super::pace::{self, at_once, rest};
use super::program::Doing;
use super::wakes::News;
use super::{Op, World};
use crate::call::{Direction, Until};
use crate::conn::flags::KERNEL_HINT;
use crate::conn::kernel_events;
use crate::events;
use crate::kernel::KernelSocket;
use crate::wait::Naps;

/// What ends a sleep.
#[derive(Clone, Copy, Debug)]
pub struct Asleep {
    pub doing: Doing,
    /// What its call said; `None`: it waits in poll or epoll.
    pub until: Option<Until>,
    /// What its arm words (bytes, room) were when it looked for the last time.
    pub armed: [Option<u32>; 2],
    /// Events of the kernel socket; `None`: on a futex.
    pub events: Option<u32>,
    /// Anything that has come: an edge, or a completion.
    pub by_edge: bool,
    /// When it looks for itself.
    pub looks_at: Option<u64>,
    /// What there was of the other end's news when it began, and how many points had been passed.
    pub news: News,
    pub began: u32,
    /// This lock, and nothing else.
    pub lock: Option<Which>,
}

impl Asleep {
    /// Until nothing comes.
    pub const fn nothing(doing: Doing) -> Self {
        Self {
            doing,
            until: None,
            armed: [None; 2],
            events: None,
            by_edge: false,
            looks_at: None,
            news: News::NONE,
            began: 0,
            lock: None,
        }
    }

    /// Until somebody connects.
    pub const fn in_accept() -> Self {
        let doing = Doing { op: Op::Accept, moved: 0, is_plain: true };
        Self::nothing(doing)
    }
}

/// Longest sleep of a sender in the kernel.
const LOOK: u64 = 100_000_000;

impl World {
    /// Sleeps in a call, as the library's `stream/sleep.rs` has it: on a futex first, then in poll(2).
    pub fn sleeps(&self, who: usize, doing: Doing, until: Until, naps: &mut Naps) {
        if self.linked(who).is_none() || doing.is_plain {
            return self.sleeps_in_kernel(who, doing, until);
        }
        self.tells_for_those_below(who);
        // What one that has run since the call began has seen is for the call to look at: the sleep does not begin
        // (`threads/handlers.rs`).
        let had_handler = &self.procs[who].mind.had_handler;
        let (end, now) = (self.end(who), self.now.get());
        let direction = doing.op.direction();
        let receives = direction == Direction::Receiving;
        let armed = |seen| if receives { [Some(seen), None] } else { [None, Some(seen)] };
        let asleep = Asleep { until: Some(until), ..Asleep::nothing(doing) };
        let overflow = || {
            let look = (!receives).then(|| end.next_look_for_room(now)).flatten();
            look.map(|look| now + look)
        };
        naps.begins(now);
        let events = kernel_events(end.record, Some(end.theirs), direction, until);
        if until == Until::Ring && (naps.is_young(now) || !end.has(KERNEL_HINT)) {
            let seen = self.arms(who, direction, ON_FUTEX);
            if had_handler.take() || end.ends_wait(direction, until) {
                return;
            }
            let looks_at = [Some(naps.end(now)), overflow()].into_iter().flatten().min();
            self.sleeps_now(who, Asleep { armed: armed(seen), looks_at, ..asleep });
            self.was_woken(looks_at, naps);
            if !end.ends_wait(direction, until) {
                naps.looks(self.now.get());
                self.visits(who, events);
            }
            return;
        }
        let seen = self.arms(who, direction, ON_BELL);
        if until != Until::Kernel && end.ends_wait(direction, until) {
            return;
        }
        let longest = match until {
            Until::More(_) => Some(now + Self::LOOK),
            _ => (!receives).then_some(now + LOOK),
        };
        let overflow = if until == Until::Ring { overflow() } else { None };
        let looks_at = [longest, overflow].into_iter().flatten().min();
        if had_handler.take() {
            return;
        }
        let told = self.sleeps_now(
            who,
            Asleep { armed: armed(seen), events: Some(events), looks_at, ..asleep },
        );
        self.was_woken(looks_at, naps);
        if told != 0 && until == Until::Ring {
            end.put(KERNEL_HINT, true);
        }
    }

    /// After a sleep that was to end then at the latest.
    pub fn was_woken(&self, limit: Option<u64>, naps: &mut Naps) {
        if limit.is_none_or(|at| self.now.get() < at) {
            naps.begins_anew(self.now.get());
        }
    }

    /// The same without a ring.
    pub fn sleeps_in_kernel(&self, who: usize, doing: Doing, until: Until) {
        let record = &self.procs[who].record;
        self.procs[who].mind.had_handler.set(false);
        let events = kernel_events(record, None, doing.op.direction(), until);
        let asleep = Asleep {
            until: Some(until),
            events: Some(events),
            looks_at: self.next_look(who),
            ..Asleep::nothing(doing)
        };
        self.sleeps_now(who, asleep);
    }

    /// After a nap on a futex in which nothing came.
    pub fn visits(&self, who: usize, events: u32) {
        if self.socket(who).readiness(events) != 0 {
            self.end(who).put(KERNEL_HINT, true);
        }
    }

    /// The same, unless a handler has run since the last look: the sleep does not begin then (`threads/handlers.rs`).
    pub fn sleeps_now(&self, who: usize, asleep: Asleep) -> u32 {
        if self.procs[who].mind.had_handler.get() { 0 } else { self.rests_until(who, asleep) }
    }

    /// Sleeps. What the kernel has to say afterwards, of what it was asked.
    pub fn rests_until(&self, who: usize, mut asleep: Asleep) -> u32 {
        /// Looks of who waits for a liar, after which it is taken to wait for ever.
        const LOOKS: u32 = 200;
        let me = &self.procs[who];
        if !self.is_honest() {
            // Whoever is woken all the time gets on in time.
            self.now.set(self.now.get() + 10_000_000);
            me.mind.rests.set(me.mind.rests.get() + 1);
            if me.mind.rests.get() > LOOKS {
                asleep.looks_at = None;
            }
        }
        asleep.news = self.news(who);
        asleep.began = pace::points();
        // futex(2) looks at the words, and whoever arms a queue looks at that.
        let on_futex = asleep.events.is_none() && !asleep.by_edge;
        let is_late = match asleep.by_edge {
            true => me.is_queued.get(),
            false => on_futex && self.is_taken(who, asleep.armed),
        };
        if is_late {
            me.is_woken.set(true);
        }
        me.mind.sleeps_on(self.conn, asleep);
        rest();
        me.mind.asleep.set(None);
        me.mind.is_roused.set(false);
        // Who waits for a lock between arming and sleeping has armed still, and finds that its word was taken.
        if asleep.lock.is_none() {
            me.is_woken.set(false);
            me.has_armed.iter().for_each(|armed| armed.set(false));
        }
        asleep.events.map_or(0, |events| self.socket(who).poll() & (events | events::ALWAYS))
    }

    /// A word is not as it was armed.
    fn is_taken(&self, who: usize, armed: [Option<u32>; 2]) -> bool {
        let ctl = &self.procs[who].section.ctl;
        let is_taken = |(seen, word): (Option<u32>, &AtomicU32)| {
            seen.is_some_and(|seen| at_once(|| word.load(Acquire)) != seen)
        };
        armed.into_iter().zip([&ctl.rx_arm, &ctl.tx_arm]).any(is_taken)
    }

    /// Whether a sleep has ended.
    pub fn is_woken(&self, who: usize, asleep: &Asleep) -> bool {
        let me = &self.procs[who];
        if let Some(which) = asleep.lock {
            return self.can_lock(who, which);
        }
        let told = self.socket(who).poll();
        asleep.events.is_some_and(|events| told & (events | events::ALWAYS) != 0)
            || (asleep.events.is_none() && me.mind.is_roused.get())
            || me.is_woken.get()
            || (asleep.by_edge && me.socket.edge.get())
            || asleep.looks_at.is_some_and(|at| self.now.get() >= at)
    }
}

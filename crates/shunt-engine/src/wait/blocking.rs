//! How a blocking call waits: it spins for what the ring brings, then sleeps on a futex, with a look at the kernel socket now and
//! then ([`Naps`]). Who waits for what the kernel tells, too, sleeps in poll(2) on the kernel socket and the doorbell.

use shunt_wire::waits::Part;

use crate::call::{Direction, Until};
use crate::spin::Nanos;
use crate::wait::naps::{Naps, SOON};
use crate::wait::ports::{Host, Limits, Spinner, Way, Woken};
use crate::wait::spin::{give_way, is_long};
use crate::wait::stopwatch::Stopwatch;

/// Longest spin for the first byte.
const FIRST_FOR: Nanos = 50_000;

/// Pauses before a look for more of what a peer tells without being asked: some hundred nanoseconds. A receiver that is
/// faster than its sender would else take the cursor's line from it after every message, and each of the two would wait
/// for the line.
pub const PAUSES: u32 = 16;

/// Whether a wait begins with a spin. `is_first`: no mark was passed yet. The first byte will come through the ring, if the
/// peer has heard of it in time.
#[must_use]
pub fn spins(direction: Direction, until: Until, is_first: bool) -> bool {
    match until {
        Until::Ring => true,
        Until::Both => is_first && direction == Direction::Receiving,
        Until::Kernel | Until::More(_) => false,
    }
}

/// The times of the waits of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Blocking {
    /// When the program's timeout ends; `None` until it was asked for.
    deadline: Option<Option<Nanos>>,
    naps: Naps,
    /// When it last came to sleep.
    now: Nanos,
    /// [`Ears::agent`] then.
    has_agent: bool,
    /// The wait that is under way.
    stopwatch: Stopwatch,
}

/// By what a call hears of news.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ears {
    /// By the ring's words: there is a ring.
    pub ring: bool,
    /// By the doorbell alone: the peer is on another machine, which wakes nobody on a futex.
    pub is_far: bool,
    /// By the kernel socket, which has told something before: after a while it is heard for good.
    pub kernel: bool,
    /// By the agent, which wakes it when the peer was killed, and of whose own end a sleeper hears.
    pub agent: bool,
    /// By the agent also of one that was killed while nobody slept: waits that last long need no short nap ([`Naps::is_patient`]).
    pub gone: bool,
}

impl Blocking {
    /// The program's timeout. `ask` is called when a call really has to wait.
    fn deadline(&mut self, now: Nanos, ask: impl FnOnce() -> Option<Nanos>) -> Option<Nanos> {
        *self.deadline.get_or_insert_with(|| ask().map(|nanos| now.saturating_add(nanos)))
    }

    /// When a spin ends at the latest. Bytes that come over TCP after all are not seen in it.
    pub fn spins_until(
        &mut self,
        until: Until,
        host: &impl Spinner,
        ask: impl FnOnce() -> Option<Nanos>,
    ) -> Option<Nanos> {
        if is_long(host) {
            self.deadline(host.now(), ask);
        }
        let first = (until == Until::Both).then(|| host.now() + FIRST_FOR);
        self.deadline.flatten().into_iter().chain(first).min()
    }

    /// How the call is to sleep, after it has given way to others where that pays; or why it has ended.
    ///
    /// `lasted` hears how long the wait was that ended as it did so.
    ///
    /// # Errors
    /// It has ended.
    pub fn turn_in(
        &mut self,
        until: Until,
        host: &impl Host,
        ears: Ears,
        ask: impl FnOnce() -> Option<Nanos>,
        is_ready: impl FnMut() -> bool,
        lasted: impl FnOnce(Part, Nanos),
    ) -> Result<Way, Woken> {
        self.now = host.now();
        self.has_agent = ears.agent;
        host.look_after(self.now);
        let is_begun = self.naps.begins(self.now);
        self.naps.have_lasted(ears.agent && ears.gone);
        let deadline = self.deadline(self.now, ask);
        if deadline.is_some_and(|deadline| self.now >= deadline) {
            return Err(Woken::TimedOut);
        }
        let by_ring = ears.ring && until == Until::Ring;
        // Not with a timeout: it may be long before the processor is given back.
        if by_ring
            && is_begun
            && deadline.is_none()
            && let Some(ended) = give_way(host, is_ready)
        {
            lasted(Part::GaveWay, self.stopwatch.ends(self.now, ended));
            return Err(Woken::Look);
        }
        let is_deaf = ears.is_far || (ears.kernel && !self.naps.is_young(self.now));
        let on_futex = by_ring && !is_deaf;
        Ok(if on_futex { Way::Futex } else { Way::Kernel })
    }

    /// When a sleep ends at the latest, where the call looks for itself so soon.
    #[must_use]
    pub fn limits(&mut self, way: Way, look: Option<Nanos>) -> Limits {
        let nap = (way == Way::Futex).then(|| match self.has_agent {
            true => self.naps.end(self.now),
            false => self.naps.end_unattended(self.now),
        });
        let deadline = self.deadline.flatten().into_iter().chain(nap).min();
        Limits { now: self.now, deadline, look, is_long: !self.naps.is_young(self.now) }
    }

    /// How long it has waited when it last came to sleep.
    #[must_use]
    pub const fn waited(&self) -> Nanos {
        self.naps.lasted(self.now)
    }

    /// The time of the wait that is under way.
    pub const fn stopwatch(&mut self) -> &mut Stopwatch {
        &mut self.stopwatch
    }

    /// True where it looks for those who were killed before it sleeps ([`Naps::is_patient`]).
    #[must_use]
    pub const fn is_patient(&self) -> bool {
        self.naps.is_patient()
    }

    /// It asks the kernel after a sleep on a futex.
    pub fn looks(&mut self, host: &impl Spinner) {
        self.naps.looks(host.now());
    }

    /// Somebody has woken it. True when it has waited for no longer than a short nap.
    pub fn was_woken(&mut self, host: &impl Spinner) -> bool {
        let now = host.now();
        let is_short = self.naps.lasted(now) < SOON;
        self.naps.begins_anew(now);
        is_short
    }

    /// A signal handler ends the call, whatever that handler is: it has a timeout, or has moved some bytes.
    #[must_use]
    pub fn always_ends(&self, has_moved: bool) -> bool {
        has_moved || self.deadline.flatten().is_some()
    }
}

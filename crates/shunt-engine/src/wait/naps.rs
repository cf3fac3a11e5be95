//! How long a thread sleeps on futexes before it looks for itself.
//!
//! A wake-up by a futex costs half of an eventfd's, and wakes those alone who wait for that connection. So who waits for shunted
//! connections and nothing else sleeps there. It does not hear what only the kernel tells, that the peer was killed above all.
//! The agent wakes those whose peer was killed. For everything else the sleeper asks the kernel itself after a nap, ever more
//! seldom; where the agent is gone at least once a second.
//!
//! A program that was killed while the sleeper was awake is heard at the end of the first, short nap. Where waits last longer than
//! that, each would be two sleeps. So those begin with a long nap, if the agent lets them see that somebody was killed
//! ([`Naps::is_patient`]).

use crate::spin::Nanos;

/// The first nap of a wait.
pub const SOON: Nanos = 20_000_000;
/// The first nap of a wait that begins with a long one.
pub const PATIENT: Nanos = 1_000_000_000;
/// The longest nap while the agent lives.
pub const SELDOM: Nanos = 60_000_000_000;
/// The longest nap where it is gone: then only the sleeper itself finds out that its peer was killed.
pub const UNATTENDED: Nanos = 1_000_000_000;
/// How many times as long as the wait has lasted the next nap is: few looks, however long it lasts.
const TIMES: Nanos = 3;

/// The naps of one wait. None lasts over time that the thread was awake: neither in its own code nor in a signal handler has the
/// agent woken it, and what came then it finds by the next look alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Naps {
    /// When it began, or was woken last; 0: it has not.
    since: Nanos,
    /// How long its naps have lasted since then that are over.
    napped: Nanos,
    /// The one that is under way. A signal handler may interrupt it, and take longer than it.
    nap: Option<Nap>,
    is_patient: bool,
    was_woken: bool,
}

/// A nap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Nap {
    /// When it began.
    from: Nanos,
    /// When it ends at the latest.
    to: Nanos,
}

impl Naps {
    /// The wait comes to sleep. True when it does so for the first time.
    pub const fn begins(&mut self, now: Nanos) -> bool {
        let is_first = self.since == 0;
        if is_first {
            self.since = now;
        }
        is_first
    }

    /// The waits before it have lasted longer than a short nap. Who says so looks for those who were killed before it sleeps, when
    /// it has said how it is to be woken.
    pub const fn have_lasted(&mut self, long: bool) {
        self.is_patient = long;
    }

    /// True where its first nap is a long one.
    #[must_use]
    pub const fn is_patient(&self) -> bool {
        self.is_patient
    }

    /// Somebody has woken it: what comes next may come a moment later, or have come while it was awake, and nobody tells of it
    /// again. So the next nap is a short one also after long waits: the agent wakes those whose peer ends, and a killed process that
    /// has many descriptors closes its connections only after that.
    pub const fn begins_anew(&mut self, now: Nanos) {
        let is_patient = self.is_patient;
        *self = Self { since: now, napped: 0, nap: None, is_patient, was_woken: true };
    }

    /// How long it has lasted.
    #[must_use]
    pub const fn lasted(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.since)
    }

    /// True while it has lasted for no longer than a short nap.
    #[must_use]
    pub const fn is_young(&self, now: Nanos) -> bool {
        !self.is_patient && self.lasted(now) < SOON
    }

    /// It naps from now on, or goes on with a nap that was interrupted. When that ends at the latest, while the agent lives; one
    /// that should be over ends at once.
    #[must_use]
    pub fn end(&mut self, now: Nanos) -> Nanos {
        self.end_within(now, SELDOM)
    }

    /// The same where the agent is gone.
    #[must_use]
    pub fn end_unattended(&mut self, now: Nanos) -> Nanos {
        self.end_within(now, UNATTENDED)
    }

    fn end_within(&mut self, now: Nanos, longest: Nanos) -> Nanos {
        let first = if self.is_patient && !self.was_woken { PATIENT } else { SOON };
        let length = match first.saturating_sub(self.napped) {
            0 => self.napped.saturating_mul(TIMES).min(longest),
            left => left,
        };
        let fresh = Nap { from: now, to: now.saturating_add(length) };
        let nap = self.nap.map_or(fresh, |begun| Nap { to: begun.to.min(fresh.to), ..begun });
        self.nap = Some(nap);
        nap.to
    }

    /// It is awake, and about to ask the kernel: the nap is over.
    pub fn looks(&mut self, now: Nanos) {
        if let Some(Nap { from, to }) = self.nap.take() {
            self.napped = self.napped.saturating_add(now.min(to).saturating_sub(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_become_longer_up_to_a_minute() {
        let mut naps = Naps::default();
        let mut now = 5;
        assert!(naps.begins(now));
        let mut lengths = Vec::new();
        while lengths.len() < 8 {
            let end = naps.end(now);
            lengths.push((end - now) / 1_000_000);
            now = end;
            naps.looks(now);
            assert!(!naps.begins(now));
        }
        assert_eq!(lengths, [20, 60, 240, 960, 3840, 15_360, 60_000, 60_000]);
    }

    #[test]
    fn without_an_agent_naps_grow_up_to_a_second() {
        let mut naps = Naps::default();
        naps.begins(5);
        let (mut now, mut lengths) = (5, Vec::new());
        while lengths.len() < 6 {
            let end = naps.end_unattended(now);
            lengths.push((end - now) / 1_000_000);
            now = end;
            naps.looks(now);
        }
        assert_eq!(lengths, [20, 60, 240, 960, 1000, 1000]);
    }

    #[test]
    fn what_was_woken_naps_shortly_again() {
        let mut naps = Naps::default();
        naps.begins(5);
        let now = 10 * SELDOM;
        assert!(!naps.is_young(now));
        naps.begins_anew(now);
        assert!(naps.is_young(now));
        assert_eq!(naps.end(now), now + SOON);
        assert_eq!(naps.lasted(now + 7), 7);
    }

    #[test]
    fn after_long_waits_the_first_nap_is_a_long_one() {
        let mut naps = Naps::default();
        naps.have_lasted(true);
        naps.begins(5);
        let (mut now, mut lengths) = (5, Vec::new());
        while lengths.len() < 4 {
            assert!(!naps.is_young(now));
            let end = naps.end(now);
            lengths.push((end - now) / 1_000_000_000);
            now = end;
            naps.looks(now);
        }
        assert_eq!(lengths, [1, 3, 12, 48]);
        let mut naps = Naps::default();
        naps.have_lasted(true);
        naps.have_lasted(false);
        naps.begins(now);
        assert_eq!(naps.end(now), now + SOON, "nobody looks for those who were killed any more");
    }

    #[test]
    fn what_was_woken_after_long_waits_naps_shortly_too() {
        let mut naps = Naps::default();
        naps.have_lasted(true);
        naps.begins(5);
        let now = 10 * SELDOM;
        naps.begins_anew(now);
        naps.have_lasted(true);
        assert!(naps.is_patient() && !naps.begins(now));
        let mut lengths = Vec::new();
        let mut at = now;
        while lengths.len() < 3 {
            let end = naps.end(at);
            lengths.push((end - at) / SOON);
            at = end;
            naps.looks(at);
        }
        assert_eq!(lengths, [1, 3, 12]);
    }

    #[test]
    fn a_nap_that_was_interrupted_ends_when_it_would_have() {
        let mut naps = Naps::default();
        naps.begins(5);
        assert_eq!(naps.end(5), 5 + SOON);
        assert_eq!(naps.end(5 + SOON / 2), 5 + SOON);
        let now = 5 + SOON;
        naps.looks(now);
        // However often, and whatever they do with the agent meanwhile.
        assert_eq!(naps.end(now), now + 3 * SOON);
        assert_eq!(naps.end(now + SOON), now + 3 * SOON);
        assert_eq!(naps.end_unattended(now + 2 * SOON), now + 3 * SOON);
        naps.looks(now + 3 * SOON);
        assert_eq!(naps.end_unattended(now + 3 * SOON), now + 3 * SOON + 12 * SOON);
    }

    #[test]
    fn what_a_handler_takes_makes_no_nap_longer() {
        let (mut naps, handler) = (Naps::default(), 13 * PATIENT);
        naps.begins(5);
        let woken = 5 + SOON / 2;
        naps.begins_anew(woken);
        // A handler runs between the wake-up and the next sleep.
        let now = woken + handler;
        naps.begins(now);
        assert_eq!(naps.end(now), now + SOON);
        // Another one interrupts the nap: it is over, and the kernel is asked at once.
        let later = now + handler;
        naps.begins(later);
        assert!(naps.end(later) < later);
        naps.looks(later);
        // A third one runs behind that.
        assert_eq!(naps.end(later + handler), later + handler + 3 * SOON);
    }

    #[test]
    fn a_look_for_another_reason_goes_on_where_the_nap_was() {
        let mut naps = Naps::default();
        naps.begins(5);
        assert_eq!(naps.end(5), 5 + SOON);
        naps.looks(5 + SOON / 4);
        assert_eq!(naps.end(5 + SOON / 4), 5 + SOON);
    }
}

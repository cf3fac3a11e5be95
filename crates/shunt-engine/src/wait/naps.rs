//! How long a thread sleeps on futexes before it looks for itself.
//!
//! A wake-up by a futex costs half of an eventfd's, and wakes those alone who wait for that connection. So who waits for shunted
//! connections and nothing else sleeps there. It does not hear what only the kernel tells, that the peer was killed above all.
//! The agent wakes those whose peer was killed. For everything else the sleeper asks the kernel itself after a nap, ever more
//! seldom; where the agent is gone at least once a second.

use crate::spin::Nanos;

/// The first nap of a wait.
pub const SOON: Nanos = 20_000_000;
/// The longest nap while the agent lives.
pub const SELDOM: Nanos = 60_000_000_000;
/// The longest nap where it is gone: then only the sleeper itself finds out that its peer was killed.
pub const UNATTENDED: Nanos = 1_000_000_000;
/// How many times as long as the wait has lasted the next nap is: few looks, however long it lasts.
const TIMES: Nanos = 3;

/// The naps of one wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Naps {
    /// When it began; 0: it has not.
    since: Nanos,
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

    /// Somebody has woken it: what comes next may come a moment later, or have come while it was awake, and nobody tells of it
    /// again.
    pub const fn begins_anew(&mut self, now: Nanos) {
        self.since = now;
    }

    /// How long it has lasted.
    #[must_use]
    pub const fn lasted(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.since)
    }

    /// True while the next nap is a short one.
    #[must_use]
    pub const fn is_young(&self, now: Nanos) -> bool {
        self.lasted(now) < SOON
    }

    /// When the nap that begins now ends at the latest, while the agent lives.
    #[must_use]
    pub fn end(&self, now: Nanos) -> Nanos {
        self.end_within(now, SELDOM)
    }

    /// The same where the agent is gone.
    #[must_use]
    pub fn end_unattended(&self, now: Nanos) -> Nanos {
        self.end_within(now, UNATTENDED)
    }

    fn end_within(&self, now: Nanos, longest: Nanos) -> Nanos {
        let first = self.since.saturating_add(SOON);
        if self.is_young(now) {
            first
        } else {
            now.saturating_add(self.lasted(now).saturating_mul(TIMES).min(longest))
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
    fn a_short_nap_that_was_interrupted_ends_when_it_would_have() {
        let mut naps = Naps::default();
        naps.begins(5);
        assert_eq!(naps.end(5 + SOON / 2), 5 + SOON);
    }
}

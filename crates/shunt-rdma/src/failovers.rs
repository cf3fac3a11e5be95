//! Links that have failed, and are to go on with another queue pair: until when that is tried, and how often.

use std::collections::BTreeMap;
use std::time::Duration;

use shunt_peer::PublicKey;

use crate::links::Name;

/// A link that has failed again within that time has no other one.
const AGAIN: Duration = Duration::from_secs(5);

/// What there is to know about them.
#[derive(Debug, Default)]
pub(crate) struct Failovers {
    /// Since when each waits, and until when.
    waits: BTreeMap<Name, (Duration, Duration)>,
    /// When each last went on.
    went_on: BTreeMap<Name, Duration>,
}

impl Failovers {
    /// A link is to go on, until then.
    pub(crate) fn begins(&mut self, name: Name, now: Duration, until: Duration) {
        self.waits.entry(name).or_insert((now, until));
    }

    /// One of them waits longer: the peer has had no time for it.
    pub(crate) fn waits(&mut self, name: Name, until: Duration) {
        if let Some(waits) = self.waits.get_mut(&name) {
            waits.1 = until;
        }
    }

    /// It does.
    pub(crate) fn goes_on(&mut self, name: Name, now: Duration) {
        self.waits.remove(&name);
        self.went_on.insert(name, now);
    }

    /// It does not.
    pub(crate) fn is_over(&mut self, name: Name) {
        self.waits.remove(&name);
    }

    /// There is no such link group any more.
    pub(crate) fn forget(&mut self, name: Name) {
        self.waits.remove(&name);
        self.went_on.remove(&name);
    }

    /// True for one that has not gone on just now.
    pub(crate) fn may_go_on(&self, name: Name, now: Duration) -> bool {
        self.went_on.get(&name).is_none_or(|at| now.saturating_sub(*at) >= AGAIN)
    }

    /// When one has waited long enough.
    pub(crate) fn at(&self) -> Option<Duration> {
        self.waits.values().map(|(_, until)| *until).min()
    }

    /// Those that have waited long enough, and since when.
    pub(crate) fn due(&self, now: Duration) -> Vec<(Name, Duration)> {
        let due = self.waits.iter().filter(|(_, (_, until))| *until <= now);
        due.map(|(name, (since, _))| (*name, *since)).collect()
    }

    /// Those with a peer.
    pub(crate) fn with(&self, peer: PublicKey) -> Vec<Name> {
        self.waits.keys().filter(|name| name.0 == peer).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use shunt_peer::SecretKey;

    use super::*;

    const NOW: Duration = Duration::ZERO;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_link_waits_once_and_has_another_queue_pair_seldom() {
        let peer = SecretKey::generate().unwrap().public().unwrap();
        let (one, two) = ((peer, 0), (peer, 1));
        let mut failovers = Failovers::default();
        assert_eq!(failovers.at(), None);
        failovers.begins(one, NOW, SECOND);
        failovers.begins(two, NOW, 3 * SECOND);
        // What is tried for it later is part of the same.
        failovers.begins(one, SECOND, 2 * SECOND);
        assert_eq!((failovers.at(), failovers.with(peer)), (Some(SECOND), vec![one, two]));
        assert_eq!((failovers.due(SECOND / 2), failovers.due(SECOND)), (vec![], vec![(one, NOW)]));
        failovers.waits(one, 2 * SECOND);
        assert_eq!((failovers.due(SECOND), failovers.at()), (vec![], Some(2 * SECOND)));
        failovers.goes_on(one, SECOND);
        assert!(!failovers.may_go_on(one, SECOND + AGAIN / 2));
        assert!(failovers.may_go_on(one, SECOND + AGAIN));
        failovers.is_over(two);
        assert!(failovers.at().is_none() && failovers.may_go_on(two, SECOND));
        // Another link group of that name is another one.
        failovers.forget(one);
        assert!(failovers.may_go_on(one, SECOND));
    }
}

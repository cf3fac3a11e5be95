//! The difference between two looks at the connections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use shunt_wire::waits::Waits;

use crate::listing::{Connection, Listing};

/// How fast something goes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rates {
    /// Messages a second, sent.
    pub messages: f64,
    /// Bytes a second, sent.
    pub bytes: f64,
    /// Spins a second that ended with work.
    pub paid: f64,
    /// Spins a second that ended in sleep.
    pub unpaid: f64,
}

impl Rates {
    /// The share of spins that ended with work; `None`: nothing waited.
    #[must_use]
    pub fn spin_share(&self) -> Option<f64> {
        let all = self.paid + self.unpaid;
        (all > 0.0).then(|| self.paid / all)
    }

    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.paid += other.paid;
        self.unpaid += other.unpaid;
    }
}

/// One end of a connection.
#[derive(Clone, PartialEq, Debug)]
pub struct End {
    /// As the agent tells.
    pub connection: Connection,
    /// Since the last look.
    pub rates: Rates,
    /// How long calls have waited for it alone, since then.
    pub waits: Waits,
}

/// All connections between two programs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pair {
    /// Their names, in order.
    pub programs: (String, String),
    /// Connections, not ends.
    pub connections: usize,
    /// Those of them whose bytes go through shared memory.
    pub shunted: usize,
    /// Of both directions.
    pub rates: Rates,
    /// Bytes that lie in rings.
    pub ring: u64,
    /// How long calls have waited for one of them alone, at both ends.
    pub waits: Waits,
    /// Why ends are on TCP, and how many.
    pub reasons: BTreeMap<String, usize>,
}

/// Something that could be shunted and is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missed {
    /// The program, and to whom.
    pub what: String,
    /// How many.
    pub count: usize,
    /// The reason's name.
    pub reason: String,
}

/// One look.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// Every end.
    pub ends: Vec<End>,
    /// What is on TCP, the most first.
    pub missed: Vec<Missed>,
    /// There are more than the agent lists.
    pub truncated: bool,
}

type Key = (u32, i32, String, String);

fn key(c: &Connection) -> Key {
    (c.pid, c.fd, c.local.clone(), c.peer.clone())
}

/// A program that is not under Shunt, or not on this host, by its address.
fn peer_of(c: &Connection) -> String {
    let address =
        || c.peer.rsplit_once(':').map_or(c.peer.as_str(), |(address, _)| address).to_owned();
    c.peer_program.clone().unwrap_or_else(address)
}

impl Sample {
    /// `before`: the last look, so many seconds ago; without it nothing has a rate.
    #[must_use]
    pub fn new(listing: Listing, before: Option<(&Self, f64)>) -> Self {
        let known: HashMap<Key, &Connection> = before.map_or_else(HashMap::new, |(sample, _)| {
            sample.ends.iter().map(|end| (key(&end.connection), &end.connection)).collect()
        });
        let missed = missed(&listing);
        let truncated = listing.truncated;
        let none = Connection::default();
        let rated = |connection: Connection| {
            // What is new has begun since.
            let old = known.get(&key(&connection)).copied().unwrap_or(&none);
            let all = |c: &Connection| c.waits.unwrap_or_default().0;
            let waits = before.map(|_| all(&connection).since(&all(old))).unwrap_or_default();
            let rates = before.map_or_else(Rates::default, |(_, seconds)| {
                let rate = |now: u64, then: u64| per_second(now.saturating_sub(then), seconds);
                Rates {
                    messages: rate(connection.messages_sent, old.messages_sent),
                    bytes: rate(connection.bytes_sent, old.bytes_sent),
                    paid: rate(connection.spins_paid, old.spins_paid),
                    unpaid: rate(connection.spins_unpaid, old.spins_unpaid),
                }
            });
            End { connection, rates, waits }
        };
        let ends = listing.connections.into_iter().map(rated).collect();
        Self { ends, missed, truncated }
    }

    /// The ends by pairs of programs.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair> {
        let mut pairs = BTreeMap::<_, (Pair, BTreeMap<_, bool>)>::new();
        for end in &self.ends {
            let c = &end.connection;
            let name = programs(c);
            let (pair, connections) = pairs.entry(name).or_default();
            pair.rates.add(&end.rates);
            // The other end's sending ring is this end's receiving one.
            pair.ring += c.ring_fill_rx;
            pair.waits.add(&end.waits);
            let tuple = BTreeSet::from([c.local.as_str(), c.peer.as_str()]);
            *connections.entry(tuple).or_default() |= c.is_shunted();
            if let Some(reason) = c.reason.clone().filter(|_| !c.is_shunted()) {
                *pair.reasons.entry(reason).or_default() += 1;
            }
        }
        let counted = |(programs, (pair, connections)): (_, (Pair, BTreeMap<_, bool>))| Pair {
            programs,
            connections: connections.len(),
            shunted: connections.values().filter(|is_shunted| **is_shunted).count(),
            ..pair
        };
        pairs.into_iter().map(counted).collect()
    }
}

/// Both programs of a connection, in order.
#[must_use]
pub fn programs(c: &Connection) -> (String, String) {
    let (one, other) = (c.program.clone(), peer_of(c));
    if one <= other { (one, other) } else { (other, one) }
}

#[allow(clippy::cast_precision_loss, reason = "it is shown with three digits")]
fn per_second(n: u64, seconds: f64) -> f64 {
    n as f64 / seconds
}

fn missed(listing: &Listing) -> Vec<Missed> {
    let mut counts = BTreeMap::<_, usize>::new();
    for c in listing.connections.iter().filter(|c| !c.is_shunted()) {
        let reason = c.reason.clone().unwrap_or_else(|| "-".to_owned());
        *counts.entry((format!("{} with {}", c.program, peer_of(c)), reason)).or_default() += 1;
    }
    for l in &listing.listeners_unregistered {
        let what = format!("{} at {}", l.program, l.address);
        *counts.entry((what, l.reason.clone())).or_default() += 1;
    }
    let all = counts.into_iter().map(|((what, reason), count)| Missed { what, count, reason });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|missed| Reverse(missed.count));
    all
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::listing::Listener;
    use crate::waits::WaitTimes;
    use crate::waits::tests::slept;

    /// nginx and wrk with two connections, one of which is on TCP at both ends; curl with another host; a listener.
    pub fn listing(n: u64) -> Listing {
        let end =
            |local: &str, peer: &str, pid, program: &str, other: Option<(u32, &str)>| Connection {
                local: local.to_owned(),
                peer: peer.to_owned(),
                mode: "shunt-attach".to_owned(),
                pid,
                program: program.to_owned(),
                fd: 9,
                peer_pid: other.map(|(pid, _)| pid),
                peer_program: other.map(|(_, name)| name.to_owned()),
                bytes_sent: n * 1_000_000,
                messages_sent: n * 1000,
                ring_fill_rx: 512 * n,
                spins_paid: 3 * n,
                spins_unpaid: n,
                waits: Some(WaitTimes(slept(100 * n))),
                ..Connection::default()
            };
        let on_tcp = |end: Connection, reason: &str| Connection {
            mode: "tcp".to_owned(),
            reason: Some(reason.to_owned()),
            bytes_sent: 0,
            messages_sent: 0,
            ring_fill_rx: 0,
            spins_paid: 0,
            spins_unpaid: 0,
            waits: None,
            ..end
        };
        let (nginx, wrk) = (Some((7, "nginx")), Some((8, "wrk")));
        Listing {
            connections: vec![
                end("127.0.0.1:80", "127.0.0.1:5000", 7, "nginx", wrk),
                end("127.0.0.1:5000", "127.0.0.1:80", 8, "wrk", nginx),
                on_tcp(end("127.0.0.1:80", "127.0.0.1:5001", 7, "nginx", wrk), "no-proposal"),
                on_tcp(end("127.0.0.1:5001", "127.0.0.1:80", 8, "wrk", nginx), "short-lived"),
                on_tcp(end("10.0.0.1:5002", "192.0.2.7:443", 9, "curl", None), "remote"),
            ],
            listeners_unregistered: vec![Listener {
                address: "0.0.0.0:443".to_owned(),
                reason: "no-agent".to_owned(),
                pid: 7,
                program: "nginx".to_owned(),
                ..Listener::default()
            }],
            ..Listing::default()
        }
    }

    /// A second look, two seconds after the first one.
    pub fn sample() -> Sample {
        let before = Sample::new(listing(1), None);
        Sample::new(listing(5), Some((&before, 2.0)))
    }

    #[test]
    fn both_ends_are_one_connection_of_a_pair() {
        let pairs = sample().pairs();
        let names: Vec<_> =
            pairs.iter().map(|p| (p.programs.0.as_str(), p.programs.1.as_str())).collect();
        assert_eq!(names, [("192.0.2.7", "curl"), ("nginx", "wrk")]);
        let pair = &pairs[1];
        assert_eq!((pair.connections, pair.shunted, pair.ring), (2, 1, 2 * 5 * 512));
        // What each end has sent.
        assert_eq!((pair.rates.messages, pair.rates.bytes), (4000.0, 4_000_000.0));
        assert_eq!(pair.rates.spin_share(), Some(0.75));
        assert_eq!(pair.waits.whole().count(), 2 * 400);
        assert_eq!(pair.reasons.keys().collect::<Vec<_>>(), ["no-proposal", "short-lived"]);
        assert_eq!(pairs[0].rates.spin_share(), None);
    }

    #[test]
    fn the_first_look_has_no_rates_and_what_is_new_has_its_own() {
        let first = Sample::new(listing(5), None);
        assert!(first.ends.iter().all(|end| end.rates == Rates::default()));
        assert!(first.ends.iter().all(|end| end.waits.is_empty()));
        let empty = Sample::default();
        let new = Sample::new(listing(5), Some((&empty, 5.0)));
        assert_eq!(new.ends[0].rates.messages, 1000.0);
        // A descriptor's number is used again by another connection whose counters begin anew.
        let again = Sample::new(listing(1), Some((&first, 1.0)));
        assert_eq!(again.ends[0].rates.messages, 0.0);
    }

    #[test]
    fn what_is_missed_is_named_with_its_reason() {
        let missed = sample().missed;
        assert_eq!(missed.len(), 4);
        let listener = missed.iter().find(|m| m.what == "nginx at 0.0.0.0:443").unwrap();
        assert_eq!((listener.count, listener.reason.as_str()), (1, "no-agent"));
        assert!(missed.iter().any(|m| m.what == "curl with 192.0.2.7" && m.reason == "remote"));
    }
}

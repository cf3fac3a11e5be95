//! The proof that connections were shunted.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Sandbox;
use crate::mode::Mode;

/// Longest wait for the connections of a program that has just started, or ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `shunt stats --json` says.
#[derive(Clone, Debug)]
pub struct Stats {
    json: Value,
}

impl Stats {
    /// A counter by its name.
    ///
    /// # Panics
    /// When there is none of that name: the names are stable.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.json[name].as_u64().unwrap_or_else(|| panic!("no counter {name}: {}", self.json))
    }

    /// Connection ends that stayed on TCP for this reason.
    #[must_use]
    pub fn declined(&self, reason: &str) -> u64 {
        self.json["declined"][reason].as_u64().unwrap_or(0)
    }

    /// Every reason for which connection ends stayed on TCP, with their number.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<String, u64> {
        let all = self.json["declined"].as_object().into_iter().flatten();
        let counts = all.filter_map(|(name, n)| Some((name.clone(), n.as_u64()?)));
        counts.filter(|(_, n)| *n > 0).collect()
    }

    /// Connection ends made under Shunt, and how many of them were shunted, since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> (u64, u64) {
        let delta = |name| self.get(name).saturating_sub(before.get(name));
        (delta("connections"), delta("connections_shunted"))
    }
}

/// How many connections must have been shunted.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// At least so many ends (two per connection).
    Ends(u64),
    /// At least so many ends, and all the ends that there are.
    All(u64),
    /// At least so many percent of the ends.
    Percent(u64),
    /// None at all, though Shunt is there.
    Nothing,
}

impl Expect {
    fn is_met(self, ends: u64, shunted: u64) -> bool {
        match self {
            Self::Ends(n) => shunted >= n,
            Self::All(n) => shunted >= n && shunted == ends,
            Self::Percent(p) => shunted > 0 && shunted * 100 >= ends * p,
            Self::Nothing => shunted == 0,
        }
    }
}

impl Sandbox {
    /// Asks the agent.
    ///
    /// # Panics
    /// When it does not answer with JSON.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut command = self.plain(self.shunt_path());
        command.args(["stats", "--json"]);
        let out = self.run(command);
        let json = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out}"));
        Stats { json }
    }

    /// Runs `body` and then looks whether its connections were shunted, in this sandbox's mode,
    /// and nothing went wrong inside Shunt. Over plain TCP it only runs `body`.
    ///
    /// # Panics
    /// When they were not.
    pub fn expect<T>(&self, expect: Expect, body: impl FnOnce() -> T) -> T {
        if !self.mode.is_shunted() {
            return body();
        }
        let before = self.stats();
        let result = body();
        let met = self.settles(expect, &before, PATIENCE);
        let after = self.stats();
        let (ends, shunted) = after.since(&before);
        assert!(
            met,
            "{shunted} of {ends} connection ends were shunted ({}), expected {expect:?}; \
             before: {}; after: {}",
            self.mode, before.json, after.json
        );
        self.assert_clean(&after);
        result
    }

    /// Looks whether at least so many connection ends were shunted since the sandbox was made, in its
    /// mode, and nothing went wrong inside Shunt.
    ///
    /// # Panics
    /// When they were not.
    pub fn assert_shunted(&self, ends: u64) {
        let stats = self.stats();
        let shunted = stats.get("connections_shunted");
        assert!(shunted >= ends, "{shunted} ends of {ends} ({}): {}", self.mode, stats.json);
        self.assert_clean(&stats);
    }

    /// True when what was shunted since `before` meets the expectation, now or within `patience`: ends
    /// that were just closed may not be counted yet.
    #[must_use]
    pub fn settles(&self, expect: Expect, before: &Stats, patience: Duration) -> bool {
        let started = Instant::now();
        loop {
            let (ends, shunted) = self.stats().since(before);
            if expect.is_met(ends, shunted) {
                return true;
            }
            if started.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The right mode only, no violation, no contained fault.
    fn assert_clean(&self, stats: &Stats) {
        let other = match self.mode {
            Mode::Attach => stats.get("connections_shunted_copy"),
            Mode::Copy => stats.get("connections_shunted_attach"),
            Mode::Plain => 0,
        };
        assert_eq!(other, 0, "connections shunted in the other mode: {}", stats.json);
        assert_eq!(stats.get("protocol_violations"), 0, "{}", stats.json);
        assert_eq!(stats.get("contained_faults"), 0, "{}", stats.json);
        for reason in ["internal", "protocol-violation"] {
            assert_eq!(stats.declined(reason), 0, "{reason}: {}", stats.json);
        }
    }
}

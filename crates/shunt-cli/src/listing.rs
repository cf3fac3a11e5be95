//! The agent's report on connections and listeners: the schema of `shunt list --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shunt_wire::agent::Request;
use shunt_wire::reason::Reason;

use crate::directory::{Directory, Unreachable};
use crate::waits::WaitTimes;

/// Version of the JSON: it changes when a field goes or means something else, not when one is added.
pub const SCHEMA: u32 = 1;

/// Live connection ends, and listeners that clients do not find.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Listing {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Each end of a connection that has a program under Shunt.
    pub connections: Vec<Connection>,
    /// There are more than the agent lists.
    pub truncated: bool,
    /// Listeners of programs under Shunt that clients do not find.
    pub listeners_unregistered: Vec<Listener>,
}

/// One end of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Address and port of this end.
    pub local: String,
    /// Those of the other one.
    pub peer: String,
    /// `tcp`, `shunt-attach` or `shunt-copy`.
    pub mode: String,
    /// Why it is on TCP.
    pub reason: Option<String>,
    /// The process that has it.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// The descriptor.
    pub fd: i32,
    /// The user.
    pub uid: u32,
    /// The control group.
    pub cgroup: Option<String>,
    /// The container.
    pub container: Option<String>,
    /// The process at the other end, where that is under Shunt.
    pub peer_pid: Option<u32>,
    /// Its program.
    pub peer_program: Option<String>,
    /// Its control group.
    pub peer_cgroup: Option<String>,
    /// Its container.
    pub peer_container: Option<String>,
    /// Bytes sent through shared memory.
    pub bytes_sent: u64,
    /// Bytes received through shared memory.
    pub bytes_received: u64,
    /// Calls that sent bytes.
    pub messages_sent: u64,
    /// Calls that received bytes.
    pub messages_received: u64,
    /// Bytes in the sending ring that the peer has not taken.
    pub ring_fill_tx: u64,
    /// Bytes in the receiving ring that have not been taken.
    pub ring_fill_rx: u64,
    /// Times a sender found the ring full.
    pub ring_full_waits: u64,
    /// Spins that ended with work.
    pub spins_paid: u64,
    /// Spins that ended in sleep.
    pub spins_unpaid: u64,
    /// Wake-ups that cost a system call.
    pub doorbells_rung: u64,
    /// Wake-ups that were not needed.
    pub doorbells_saved: u64,
    /// Counters of sends without copies, where the program asks for such.
    pub zerocopy: Option<BTreeMap<String, u64>>,
    /// Completion vector.
    pub vector: Option<u32>,
    /// How long calls have waited for it alone, where one has.
    pub waits: Option<WaitTimes>,
}

/// A listener that clients do not find.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Listener {
    /// Address and port.
    pub address: String,
    /// Why.
    pub reason: String,
    /// The process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// The descriptor.
    pub fd: i32,
    /// The user.
    pub uid: u32,
    /// The control group.
    pub cgroup: Option<String>,
    /// The container.
    pub container: Option<String>,
}

impl Listing {
    /// Reads what the agent has told.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn read(report: Value) -> Result<Self, Unreachable> {
        let listing = serde_json::from_value(report);
        let listing: Self = listing.map_err(|e| Unreachable::Broken(e.to_string()))?;
        Ok(Self { schema: SCHEMA, ..listing })
    }

    /// Asks the agent.
    ///
    /// # Errors
    /// Why it does not tell.
    pub fn ask() -> Result<Self, Unreachable> {
        Self::read(Directory::open()?.report(&Request::List)?)
    }
}

impl Connection {
    /// True where bytes go through shared memory.
    #[must_use]
    pub fn is_shunted(&self) -> bool {
        self.mode.starts_with("shunt")
    }
}

/// What a reason means, and what to do; empty for one of an agent of another version.
#[must_use]
pub fn explained(reason: &str) -> String {
    let text = |reason: Reason| format!("{} {}", reason.explain().trim(), reason.fix());
    Reason::from_name(reason).map_or_else(String::new, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document that is published.
    fn documented() -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/list-schema.md");
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn every_field_is_documented_and_no_other() {
        let text = documented();
        assert!(text.contains(&format!("`\"schema\": {SCHEMA}`")));
        let rows = |heading: &str| -> Vec<String> {
            let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
            let section = section.split("\n## ").next().unwrap();
            let names =
                section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            names.map(str::to_owned).collect()
        };
        let fields =
            |value: Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        let waits = serde_json::to_value(WaitTimes::default()).unwrap();
        for (heading, value) in [
            ("The report", serde_json::to_value(Listing::default()).unwrap()),
            ("A connection", serde_json::to_value(Connection::default()).unwrap()),
            ("Waits", waits.clone()),
            ("Waits that ended in one way", waits["slept"].clone()),
            ("A listener", serde_json::to_value(Listener::default()).unwrap()),
        ] {
            let (mut documented, mut known) = (rows(heading), fields(value));
            documented.sort();
            known.sort();
            assert_eq!(documented, known, "{heading}");
        }
    }

    #[test]
    fn what_an_agent_of_another_version_leaves_out_or_adds() {
        let report = serde_json::json!({ "connections": [{ "mode": "tcp", "later": 1 }] });
        let listing = Listing::read(report).unwrap();
        assert_eq!((listing.schema, listing.connections[0].mode.as_str()), (SCHEMA, "tcp"));
        assert!(Listing::read(serde_json::json!({ "connections": 7 })).is_err());
    }
}

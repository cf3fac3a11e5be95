//! What the agent and the kernel tell, put together: the schema of `shunt explain --json`.

use serde::{Deserialize, Serialize};
use shunt_wire::decision;
use shunt_wire::reason::Reason;

use crate::listing::{Connection, Listener};

/// Version of the JSON: it changes when a field goes or means something else, not when one is added.
pub const SCHEMA: u32 = 1;

/// What the agent tells.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Told {
    agent: Agent,
    connections: Vec<Connection>,
    truncated: bool,
    listeners: Vec<Known>,
    listeners_unregistered: Vec<Listener>,
    decisions: Vec<Decision>,
    decisions_complete: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Known {
    address: String,
    programs: Vec<Program>,
}

/// How connections and listeners go, and why.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Explanation {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was asked about.
    pub target: String,
    /// The agent that was asked, where there is one.
    pub agent: Option<Agent>,
    /// Listeners at the port.
    pub listeners: Vec<Listening>,
    /// Connections, each once.
    pub connections: Vec<Pair>,
    /// There are more than the agent tells of.
    pub truncated: bool,
    /// What was decided about them, and about those before them, the oldest first.
    pub decisions: Vec<Decision>,
    /// False: there were more decisions than are kept.
    pub decisions_complete: bool,
}

/// An agent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// Its process.
    pub pid: u32,
    /// Its socket.
    pub socket: String,
    /// Whom it serves: `user` or `host`.
    pub scope: String,
}

/// A program that has a listener.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// The process.
    pub pid: u32,
    /// Its program.
    pub program: String,
}

/// A listener.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Listening {
    /// Address and port.
    pub address: String,
    /// Programs that have it.
    pub programs: Vec<Program>,
    /// Clients under Shunt find it.
    pub is_found: bool,
    /// Why not.
    pub reason: Option<String>,
    /// What the reason means.
    pub happened: Option<String>,
    /// What to do.
    pub fix: Option<String>,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Pair {
    /// Address and port of one end: the one that was asked about, or the other one of a port.
    pub local: String,
    /// Those of the other end.
    pub peer: String,
    /// `shunted`, `pending`, `tcp` or `broken`.
    pub state: &'static str,
    /// Why it is not shunted.
    pub reason: Option<String>,
    /// What the reason means.
    pub happened: Option<String>,
    /// What to do.
    pub fix: Option<String>,
    /// The processes at both ends, as far as they are known.
    pub ends: Vec<End>,
}

/// A process at an end of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct End {
    /// Address and port of the end.
    pub local: String,
    /// The process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Its descriptor.
    pub fd: i32,
    /// How it runs: `shunt`, `shunt-unknown` (its agent does not know the connection), `shunt-without-agent`,
    /// `shunt-with-another-agent`, `without` or `unknown`.
    pub runs: &'static str,
    /// The directory or the socket of its agent.
    pub agent: Option<String>,
    /// `tcp`, `shunt-attach` or `shunt-copy`, as this end has it.
    pub mode: Option<String>,
    /// Why it is on TCP, as this end has it.
    pub reason: Option<String>,
}

/// A decision.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Decision {
    /// When, in nanoseconds since 1970.
    pub at: u64,
    /// Its name.
    pub decision: String,
    /// Why.
    pub reason: Option<String>,
    /// The process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// The descriptor.
    pub fd: i32,
    /// Address and port.
    pub local: String,
    /// Those of the other end; null for a listener.
    pub peer: Option<String>,
}

/// A process that the kernel shows at a socket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Address and port.
    pub local: String,
    /// Those of the other end; `None`: it listens.
    pub peer: Option<String>,
    /// The process, as an end.
    pub end: End,
}

/// How [`End::runs`].
pub mod runs {
    /// Under Shunt.
    pub const SHUNT: &str = "shunt";
    /// The same; the agent that was asked does not know of the connection.
    pub const UNKNOWN_TO_AGENT: &str = "shunt-unknown";
    /// The same, and there is no agent where it looks.
    pub const NO_AGENT: &str = "shunt-without-agent";
    /// The same, with an agent that was not asked.
    pub const ANOTHER_AGENT: &str = "shunt-with-another-agent";
    /// Without Shunt.
    pub const WITHOUT: &str = "without";
    /// That cannot be seen.
    pub const UNKNOWN: &str = "unknown";
}

fn reason(name: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.name() == name)
}

/// What a reason means, and what to do.
fn meaning(name: Option<&str>) -> (Option<String>, Option<String>) {
    let known = name.and_then(reason);
    let text = |text: &str| text.trim().to_owned();
    (known.map(|r| text(r.explain())), known.map(|r| text(r.fix())))
}

/// What a decision means.
pub fn explain_decision(name: &str) -> &'static str {
    let found = decision::Decision::ALL.iter().find(|known| known.name() == name);
    found.map_or("", |decision| decision.explain().trim())
}

impl Explanation {
    /// Puts together what the agent has told, where one was asked, and what the kernel shows. `only`: the ends of the one
    /// connection that was asked about.
    pub fn of(
        target: String,
        told: Option<Told>,
        seen: &[Seen],
        only: Option<(&str, &str)>,
    ) -> Self {
        let agent = told.as_ref().map(|told| told.agent.clone());
        let told = told.unwrap_or_else(|| Told { decisions_complete: true, ..Told::default() });
        let is_wanted = |local: &str, peer: &str| {
            only.is_none_or(|(a, b)| (local, peer) == (a, b) || (local, peer) == (b, a))
        };
        let concerns = |d: &Decision| match (&d.peer, only) {
            (Some(peer), _) => is_wanted(&d.local, peer),
            (None, Some((a, b))) => port(a) == port(&d.local) || port(b) == port(&d.local),
            (None, None) => true,
        };
        let decisions: Vec<_> = told.decisions.iter().filter(|d| concerns(d)).cloned().collect();
        let mut pairs = Vec::<Pair>::new();
        let mut add = |local: &str, peer: &str, end: End| {
            let same = |p: &&mut Pair| {
                [(&p.local, &p.peer), (&p.peer, &p.local)]
                    .contains(&(&local.to_owned(), &peer.to_owned()))
            };
            match pairs.iter_mut().find(same) {
                Some(pair) => pair.ends.push(end),
                None => {
                    let (local, peer) = (local.to_owned(), peer.to_owned());
                    pairs.push(Pair { local, peer, ends: vec![end], ..Pair::default() });
                }
            }
        };
        for c in told.connections.iter().filter(|c| is_wanted(&c.local, &c.peer)) {
            add(&c.local, &c.peer, known_end(c, agent.as_ref()));
        }
        for found in seen {
            let Some(peer) = found.peer.as_deref().filter(|peer| is_wanted(&found.local, peer))
            else {
                continue;
            };
            let is_known =
                |c: &Connection| c.local == found.local && c.peer == peer && c.pid == found.end.pid;
            if !told.connections.iter().any(is_known) {
                add(&found.local, peer, found.end.clone());
            }
        }
        for pair in &mut pairs {
            pair.judge(&decisions);
            pair.turn(&target, only);
        }
        let listeners = if only.is_some() { Vec::new() } else { listeners(&told, seen) };
        Self {
            schema: SCHEMA,
            target,
            agent,
            listeners,
            connections: pairs,
            truncated: told.truncated,
            decisions,
            decisions_complete: told.decisions_complete,
        }
    }

    /// False where nothing of it runs under Shunt: there is nothing to explain then.
    pub fn concerns_shunt(&self) -> bool {
        let ends = self.connections.iter().flat_map(|pair| &pair.ends);
        !self.decisions.is_empty()
            || self.listeners.iter().any(|l| l.reason.as_deref() != Some(WITHOUT))
            || ends.into_iter().any(|end| end.runs.starts_with(runs::SHUNT))
    }

    /// Processes of which it speaks.
    pub fn programs(&self) -> Vec<String> {
        let ends = self.connections.iter().flat_map(|pair| &pair.ends);
        let ends = ends.map(|end| (&end.program, end.pid));
        let listening = self.listeners.iter().flat_map(|l| &l.programs);
        let all = ends.chain(listening.map(|program| (&program.program, program.pid)));
        let mut all: Vec<_> = all.map(|(name, pid)| format!("{name} (pid {pid})")).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// In [`Listening::reason`]: its programs run without Shunt.
const WITHOUT: &str = runs::WITHOUT;

fn known_end(c: &Connection, agent: Option<&Agent>) -> End {
    End {
        local: c.local.clone(),
        pid: c.pid,
        program: c.program.clone(),
        fd: c.fd,
        runs: runs::SHUNT,
        agent: agent.map(|agent| agent.socket.clone()),
        mode: Some(c.mode.clone()),
        reason: c.reason.clone(),
    }
}

fn listeners(told: &Told, seen: &[Seen]) -> Vec<Listening> {
    let mut found: Vec<_> = told
        .listeners
        .iter()
        .map(|l| Listening {
            address: l.address.clone(),
            programs: l.programs.clone(),
            is_found: true,
            ..Listening::default()
        })
        .collect();
    let mut add = |address: &str, program: Program, why: &str| {
        if let Some(same) = found.iter_mut().find(|l| l.address == address) {
            if !same.programs.contains(&program) && !same.is_found {
                same.programs.push(program);
            }
            return;
        }
        let (happened, fix) = meaning(Some(why));
        found.push(Listening {
            address: address.to_owned(),
            programs: vec![program],
            is_found: false,
            reason: Some(why.to_owned()),
            happened,
            fix,
        });
    };
    for l in &told.listeners_unregistered {
        add(&l.address, Program { pid: l.pid, program: l.program.clone() }, &l.reason);
    }
    for l in seen.iter().filter(|seen| seen.peer.is_none()) {
        let why = match l.end.runs {
            runs::NO_AGENT => Reason::NoAgent.name(),
            other => other,
        };
        add(&l.local, Program { pid: l.end.pid, program: l.end.program.clone() }, why);
    }
    found
}

fn port(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or("", |(_, port)| port)
}

impl Pair {
    /// Says how it goes.
    fn judge(&mut self, decisions: &[Decision]) {
        let is_its = |d: &&Decision| {
            let peer = d.peer.as_deref().unwrap_or_default();
            let (local, other) = (self.local.as_str(), self.peer.as_str());
            [(local, other), (other, local)].contains(&(d.local.as_str(), peer))
        };
        // Another connection may have had the same addresses before.
        let begins =
            |d: &Decision| matches!(d.decision.as_str(), "proposed" | "offered" | "accepted");
        let broken = decisions.iter().rev().filter(is_its).take_while(|d| !begins(d));
        let broken = broken.into_iter().find(|d| d.decision == "broken");
        let mode = |end: &End| end.mode.as_deref().is_some_and(|mode| mode.starts_with("shunt"));
        let reasons = || self.ends.iter().filter_map(|end| end.reason.clone());
        let settled = |reason: &String| reason != Reason::Pending.name();
        (self.state, self.reason) = if let Some(broken) = broken {
            ("broken", broken.reason.clone())
        } else if self.ends.iter().any(mode) {
            ("shunted", None)
        } else if let Some(reason) = reasons().find(settled) {
            ("tcp", Some(reason))
        } else if let Some(reason) = reasons().next() {
            ("pending", Some(reason))
        } else if self.ends.iter().any(|end| end.runs == runs::NO_AGENT) {
            ("tcp", Some(Reason::NoAgent.name().to_owned()))
        } else {
            ("tcp", None)
        };
        (self.happened, self.fix) = meaning(self.reason.as_deref());
    }

    /// The end that was asked about first; of a port, the other one.
    fn turn(&mut self, target: &str, only: Option<(&str, &str)>) {
        let is_turned = match only {
            Some((local, _)) => self.local != local,
            None => port(&self.peer) != target && port(&self.local) == target,
        };
        if is_turned {
            std::mem::swap(&mut self.local, &mut self.peer);
        }
        let local = self.local.clone();
        self.ends.sort_by_key(|end| (end.local != local, end.pid));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const HERE: &str = "127.0.0.1:5000";
    const THERE: &str = "127.0.0.1:80";

    fn told(report: Value) -> Option<Told> {
        Some(serde_json::from_value(report).unwrap())
    }

    fn end(local: &str, peer: &str, mode: &str, reason: Option<&str>) -> Value {
        json!({ "local": local, "peer": peer, "mode": mode, "reason": reason, "pid": 7, "program": "p" })
    }

    fn decision(local: &str, name: &str, reason: Option<&str>) -> Value {
        let peer = if local == HERE { THERE } else { HERE };
        json!({ "at": 1, "decision": name, "reason": reason, "local": local, "peer": peer })
    }

    fn seen(local: &str, peer: Option<&str>, how: &'static str) -> Seen {
        let end = End { local: local.to_owned(), pid: 9, runs: how, ..End::default() };
        Seen { local: local.to_owned(), peer: peer.map(str::to_owned), end }
    }

    fn state(ends: &[Value], decisions: &[Value]) -> (&'static str, Option<String>) {
        let report = json!({ "connections": ends, "decisions": decisions });
        let found = Explanation::of("80".into(), told(report), &[], None);
        assert_eq!(found.connections.len(), 1);
        (found.connections[0].state, found.connections[0].reason.clone())
    }

    #[test]
    fn both_ends_are_one_connection_and_the_settled_reason_counts() {
        let pending = end(HERE, THERE, "tcp", Some("pending"));
        let declined = end(THERE, HERE, "tcp", Some("bypassed"));
        let shunted = end(THERE, HERE, "shunt-copy", None);
        assert_eq!(state(&[pending.clone(), declined], &[]), ("tcp", Some("bypassed".into())));
        assert_eq!(state(&[pending.clone(), shunted.clone()], &[]), ("shunted", None));
        assert_eq!(state(&[pending], &[]), ("pending", Some("pending".into())));
        let broken = decision(HERE, "broken", Some("internal"));
        let accepted = decision(THERE, "accepted", None);
        let now = state(std::slice::from_ref(&shunted), &[accepted.clone(), broken.clone()]);
        assert_eq!(now, ("broken", Some("internal".into())));
        // The one before with the same addresses.
        assert_eq!(state(&[shunted], &[broken, accepted]), ("shunted", None));
    }

    #[test]
    fn what_the_agent_does_not_know_the_kernel_shows() {
        let report = json!({ "connections": [end(THERE, HERE, "tcp", Some("no-proposal"))] });
        let others = [
            seen(HERE, Some(THERE), runs::WITHOUT),
            seen("127.0.0.1:6000", Some(THERE), runs::WITHOUT),
        ];
        let found = Explanation::of("1:2".into(), told(report), &others, Some((HERE, THERE)));
        assert_eq!(found.connections.len(), 1);
        let pair = &found.connections[0];
        assert_eq!((pair.local.as_str(), pair.peer.as_str()), (HERE, THERE));
        let ends: Vec<_> = pair.ends.iter().map(|end| end.runs).collect();
        assert_eq!(ends, [runs::WITHOUT, runs::SHUNT]);
        assert!(pair.fix.as_deref().unwrap().contains("client") && found.concerns_shunt());
        let found = Explanation::of("80".into(), None, &others, None);
        assert!(!found.concerns_shunt());
        assert_eq!(found.programs(), [" (pid 9)"]);
        let alone = [seen(HERE, Some(THERE), runs::NO_AGENT)];
        let found = Explanation::of("80".into(), None, &alone, None);
        assert_eq!(found.connections[0].reason.as_deref(), Some("no-agent"));
        assert!(found.concerns_shunt());
    }

    #[test]
    fn listeners_are_found_or_not() {
        let report = json!({
            "listeners": [{ "address": THERE, "programs": [{ "pid": 1, "program": "a" }] }],
            "listeners_unregistered": [
                { "address": "[::1]:80", "pid": 2, "program": "b", "reason": "refused" } ] });
        let kernel = [seen(THERE, None, runs::SHUNT), seen("127.0.0.2:80", None, runs::NO_AGENT)];
        let found = Explanation::of("80".into(), told(report), &kernel, None);
        let said: Vec<_> =
            found.listeners.iter().map(|l| (l.is_found, l.reason.as_deref())).collect();
        assert_eq!(said, [(true, None), (false, Some("refused")), (false, Some("no-agent"))]);
        assert_eq!(found.listeners[0].programs.len(), 1);
        assert!(found.listeners[1].fix.is_some());
    }

    #[test]
    fn every_field_is_documented_and_no_other() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("`\"schema\": {SCHEMA}`")));
        let documented = |heading: &str| {
            let (_, section) = text.split_once(&format!("## {heading}\n")).expect(heading);
            let section = section.split("\n## ").next().unwrap_or_default();
            let rows =
                section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            let mut rows: Vec<_> = rows.map(str::to_owned).collect();
            rows.sort();
            rows
        };
        for (heading, value) in [
            ("The explanation", serde_json::to_value(Explanation::default())),
            ("An agent", serde_json::to_value(Agent::default())),
            ("A listener", serde_json::to_value(Listening::default())),
            ("A connection", serde_json::to_value(Pair::default())),
            ("An end", serde_json::to_value(End::default())),
            ("A decision", serde_json::to_value(Decision::default())),
        ] {
            let value = value.unwrap();
            let mut fields: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            fields.sort();
            assert_eq!(documented(heading), fields, "{heading}");
        }
    }

    #[test]
    fn every_decision_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md");
        let text = std::fs::read_to_string(path).unwrap();
        for known in decision::Decision::ALL {
            let row = format!("| `{}` | {} |", known.name(), known.explain().trim());
            assert!(text.contains(&row), "{row}");
        }
    }
}

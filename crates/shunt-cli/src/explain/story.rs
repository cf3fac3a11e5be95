//! The reports of agent and kernel, put together: the schema of `shunt explain --json`.

use serde::{Deserialize, Serialize};
use shunt_wire::decision;
use shunt_wire::reason::Reason;

use super::end::End;
use super::runs;
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
    /// `shunted`, `pending`, `tcp`, `broken`, or `unknown` where another agent knows it.
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

/// What a reason means, and what to do.
fn meaning(name: Option<&str>) -> (Option<String>, Option<String>) {
    let known = name.and_then(Reason::from_name);
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
            || self.listeners.iter().any(|l| l.reason.as_deref() != Some(runs::WITHOUT))
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

fn known_end(c: &Connection, agent: Option<&Agent>) -> End {
    End {
        local: c.local.clone(),
        pid: c.pid,
        program: c.program.clone(),
        fd: c.fd,
        runs: runs::SHUNT,
        agent: agent.map(|agent| agent.socket.clone()),
        of_user: None,
        mode: Some(c.mode.clone()),
        waits: c.waits,
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
    let mut add = |address: &str, program: Program, why: &str, (happened, fix)| {
        if let Some(same) = found.iter_mut().find(|l| l.address == address) {
            if !same.programs.contains(&program) && !same.is_found {
                same.programs.push(program);
            }
            return;
        }
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
        let program = Program { pid: l.pid, program: l.program.clone() };
        add(&l.address, program, &l.reason, meaning(Some(&l.reason)));
    }
    for l in seen.iter().filter(|seen| seen.peer.is_none()) {
        let why = match l.end.runs {
            runs::NO_AGENT => Reason::NoAgent.name(),
            other => other,
        };
        let program = Program { pid: l.end.pid, program: l.end.program.clone() };
        add(&l.local, program, why, l.end.meaning().unzip());
    }
    found
}

fn port(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or("", |(_, port)| port)
}

/// Reasons that an end has for what the other one is, or does not do.
const ABOUT_THE_OTHER_END: [Reason; 5] = [
    Reason::PeerNotShunted,
    Reason::NoProposal,
    Reason::NotAccepted,
    Reason::Pending,
    Reason::NoAgent,
];

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
        } else if self.ends.iter().any(|end| end.runs == runs::ANOTHER_AGENT) {
            ("unknown", None)
        } else {
            ("tcp", None)
        };
        // How the other end runs says more than a reason that is about it.
        let is_about_it = self
            .reason
            .as_deref()
            .is_none_or(|reason| ABOUT_THE_OTHER_END.iter().any(|about| about.name() == reason));
        // Of the others it is no cause that the connection is not accepted yet.
        let is_open = self.reason.as_deref().is_none_or(|reason| {
            [Reason::Pending.name(), Reason::NotAccepted.name()].contains(&reason)
        });
        let tells = |end: &&End| is_open || end.runs != runs::UNACCEPTED;
        let seen = if is_about_it && self.state != "shunted" {
            self.ends.iter().filter(tells).find_map(End::meaning)
        } else {
            None
        };
        (self.happened, self.fix) = match seen {
            Some((happened, fix)) => (Some(happened), Some(fix)),
            None => meaning(self.reason.as_deref()),
        };
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
#[path = "story_tests.rs"]
mod tests;

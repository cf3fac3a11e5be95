//! Reports for the tools, as JSON in a memfd.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;

use serde_json::{Map, Value, json};
use shunt_shm::arena::{ConnInfo, Mode};
use shunt_shm::decisions::Noted;
use shunt_shm::memfd;
use shunt_shm::region::Side;
use shunt_shm::unregistered::Unregistered;
use shunt_shm::zerocopy::Tally;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{RegionId, Reply};
use shunt_wire::reason::Reason;
use shunt_wire::version::{EXPLAIN_SINCE, OLDEST_VERSION};

use crate::container;
use crate::held::Held;
use crate::party::Party;
use crate::programs::{self, Program, Programs};
use crate::state::{Answer, Endpoint, Listener, Rejection, State};
use crate::totals::{ENDED, LIVE, PROGRAMS, Totals, WAITS_BY_PROGRAM};
use crate::waits;

pub(crate) fn sealed(value: &Value) -> Result<Answer, Rejection> {
    let text = value.to_string();
    let len = u32::try_from(text.len()).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let fd = memfd::create_sealed("shunt-report", text.len())?;
    let mut written = 0;
    while let Some(rest) = text.as_bytes().get(written..).filter(|rest| !rest.is_empty()) {
        written += rustix::io::write(&fd, rest).map_err(io::Error::from)?;
    }
    Ok(Answer { reply: Reply::Report { len }, fds: vec![Rc::new(Held::own(fd))] })
}

/// One end of a connection and the program that has it.
struct End<'a> {
    conn: ConnInfo,
    endpoint: &'a Endpoint,
}

impl End<'_> {
    /// Names the end within its link group.
    fn place(&self) -> Option<(RegionId, u32, Side)> {
        let c = &self.conn;
        (c.region != 0 && c.mode != Mode::Tcp).then_some((c.region, c.slot, c.side))
    }

    fn pid(&self) -> u32 {
        pid(self.endpoint, self.conn.pid)
    }

    /// Names the end among all TCP connections of all namespaces.
    fn name(&self) -> (u64, FourTuple) {
        (self.endpoint.netns, self.conn.tuple)
    }
}

/// The process, as this one counts where it is known: another pid namespace has numbers of its own, in which
/// it has said `own`.
fn pid(endpoint: &Endpoint, own: u32) -> u32 {
    let seen = u32::try_from(endpoint.pid).ok().filter(|pid| *pid != 0);
    seen.filter(|_| endpoint.origin.network != 0).unwrap_or(own)
}

/// The programs that are shown: those of one party, or all.
fn shown(state: &State, of: Option<Party>) -> impl Iterator<Item = &Endpoint> {
    state.endpoints.values().filter(move |e| of.is_none_or(|party| e.origin.party == party))
}

/// `List`: the live connections, at most `most` of them.
pub(crate) fn list(state: &State, most: usize, of: Option<Party>) -> Result<Answer, Rejection> {
    let all = shown(state, of)
        .flat_map(|endpoint| endpoint.arena.connections().map(move |conn| End { conn, endpoint }));
    let mut ends: Vec<_> = all.take(most.saturating_add(1)).collect();
    let truncated = ends.len() > most;
    ends.truncate(most);
    let listeners = shown(state, of).flat_map(|e| {
        e.arena.unregistered_listeners().map(|listener| describe_unregistered(e, &listener))
    });
    let listeners: Vec<_> = listeners.take(most).collect();
    sealed(&json!({
        "connections": describe_all(state, &ends),
        "truncated": truncated,
        "listeners_unregistered": listeners,
    }))
}

/// The ends, each with what is known of the other one.
fn describe_all(state: &State, ends: &[End<'_>]) -> Vec<Value> {
    let mut by_place = HashMap::new();
    let mut by_name = HashMap::new();
    for (i, end) in ends.iter().enumerate() {
        if let Some((region, slot, side)) = end.place() {
            by_place.insert((region, slot, side as u32), i);
        }
        by_name.insert(end.name(), i);
    }
    let other = |end: &End<'_>| {
        let place = end.place().map(|(region, slot, side)| (region, slot, side.other() as u32));
        let (netns, tuple) = end.name();
        let found = place.and_then(|p| by_place.get(&p));
        found.or_else(|| by_name.get(&(netns, tuple.reversed()))).map(|i| &ends[*i])
    };
    let all = ends.iter().map(|end| {
        let mut value = describe(end, other(end));
        if end.place().is_some_and(|(region, ..)| state.leads_to_host(region)) {
            value["mode"] = RDMA.into();
        }
        value
    });
    all.collect()
}

/// The mode of a connection that goes to another host over RDMA.
const RDMA: &str = "shunt-rdma";

/// Most decisions, and most connections, in an answer to `Explain`: the latest.
const EXPLAINED: usize = 2000;

/// `Explain`: what was decided about the connections with these ports (the second may be 0: any), and listeners with the first.
pub(crate) fn explain(
    state: &State,
    (port, other): (u16, u16),
    of: Option<Party>,
) -> Result<Answer, Rejection> {
    let matches = |tuple: &FourTuple| {
        let (local, peer) = (tuple.local.port, tuple.peer.port);
        [(local, peer), (peer, local)]
            .iter()
            .any(|(one, two)| *one == port && (other == 0 || *two == other))
    };
    let is_listener = |noted: &Noted| {
        let FourTuple { local, peer } = &noted.tuple;
        peer.port == 0 && (local.port == port || (other != 0 && local.port == other))
    };
    let (mut ends, mut decisions, mut is_complete) = (Vec::new(), Vec::new(), true);
    for endpoint in shown(state, of) {
        let found = endpoint.arena.connections().filter(|conn| matches(&conn.tuple));
        let room = (EXPLAINED + 1).saturating_sub(ends.len());
        ends.extend(found.take(room).map(|conn| End { conn, endpoint }));
        is_complete &= endpoint.version >= EXPLAIN_SINCE && endpoint.arena.has_all_decisions();
        let found = endpoint.arena.decisions().filter(|n| matches(&n.tuple) || is_listener(n));
        decisions.extend(found.map(|noted| (noted, endpoint)));
        decisions.sort_by_key(|(noted, _)| noted.at);
        let surplus = decisions.len().saturating_sub(EXPLAINED);
        is_complete &= decisions.drain(..surplus).count() == 0;
    }
    let truncated = ends.len() > EXPLAINED;
    ends.truncate(EXPLAINED);
    let listeners = state
        .listeners
        .values()
        .filter(|l| l.name.addr.port == port && of.is_none_or(|party| l.name.party == party));
    let unregistered = shown(state, of).flat_map(|e| {
        let found = e.arena.unregistered_listeners().filter(|l| l.addr.port == port);
        found.map(|listener| describe_unregistered(e, &listener))
    });
    sealed(&json!({
        "agent": {
            "pid": std::process::id(),
            "socket": state.socket_path,
            "scope": state.scope_name(),
        },
        "connections": describe_all(state, &ends),
        "truncated": truncated,
        "listeners": listeners.map(|l| describe_listener(state, l)).collect::<Vec<_>>(),
        "listeners_unregistered": unregistered.collect::<Vec<_>>(),
        "decisions": decisions.iter().map(|(n, e)| describe_decision(n, e)).collect::<Vec<_>>(),
        "decisions_complete": is_complete,
    }))
}

fn describe_decision(noted: &Noted, endpoint: &Endpoint) -> Value {
    let Noted { at, decision, reason, pid: own, fd, tuple } = noted;
    json!({
        "at": at,
        "decision": decision.name(),
        "reason": reason.map(Reason::name),
        "pid": pid(endpoint, *own),
        "program": endpoint.program,
        "fd": fd,
        "local": tuple.local.to_string(),
        "peer": (tuple.peer.port != 0).then(|| tuple.peer.to_string()),
    })
}

/// A listener that clients find.
fn describe_listener(state: &State, listener: &Listener) -> Value {
    let holders = listener.holders.keys().filter_map(|id| state.endpoints.get(id));
    let mut programs: Vec<_> =
        holders.map(|e| (pid(e, e.pid.cast_unsigned()), &e.program)).collect();
    programs.sort();
    let programs = programs.iter().map(|(pid, program)| json!({ "pid": pid, "program": program }));
    json!({
        "address": listener.name.addr.to_string(),
        "programs": programs.collect::<Vec<_>>(),
    })
}

/// A listener that clients do not find, as its program says.
fn describe_unregistered(endpoint: &Endpoint, listener: &Unregistered) -> Value {
    json!({
        "address": listener.addr.to_string(),
        "reason": listener.reason.name(),
        "pid": pid(endpoint, listener.pid),
        "program": endpoint.program,
        "fd": listener.fd,
        "uid": endpoint.origin.party.uid,
        "cgroup": group(endpoint),
        "container": container::name(&endpoint.origin.cgroup),
    })
}

fn describe(end: &End<'_>, peer: Option<&End<'_>>) -> Value {
    let c = &end.conn;
    json!({
        "local": c.tuple.local.to_string(),
        "peer": c.tuple.peer.to_string(),
        "mode": c.mode.name(),
        "reason": c.reason.filter(|_| c.mode == Mode::Tcp).map(Reason::name),
        "pid": end.pid(),
        "program": end.endpoint.program,
        "fd": c.fd,
        "uid": end.endpoint.origin.party.uid,
        "cgroup": group(end.endpoint),
        "container": container::name(&end.endpoint.origin.cgroup),
        "peer_pid": peer.map(End::pid),
        "peer_program": peer.map(|p| p.endpoint.program.as_str()),
        "peer_cgroup": peer.and_then(|p| group(p.endpoint)),
        "peer_container": peer.and_then(|p| container::name(&p.endpoint.origin.cgroup)),
        "bytes_sent": c.bytes_sent,
        "bytes_received": c.bytes_received,
        "messages_sent": c.messages_sent,
        "messages_received": c.messages_received,
        "ring_fill_tx": c.ring_fill_tx,
        "ring_fill_rx": c.ring_fill_rx,
        "ring_full_waits": c.doorbells[2],
        "doorbells_rung": c.doorbells[0],
        "doorbells_saved": c.doorbells[1],
        "spins_paid": c.spins[0],
        "spins_unpaid": c.spins[1],
        "zerocopy": c.zero_copy.map(|counts| {
            let named = Tally::COUNTERS.iter().zip(counts);
            named.map(|(counter, n)| (counter.name().to_owned(), n.into())).collect::<Map<_, _>>()
        }),
        "vector": c.vector,
        "waits": c.waits.as_ref().map(waits::to_json),
    })
}

/// The control group, where it is known.
fn group(endpoint: &Endpoint) -> Option<&str> {
    Some(endpoint.origin.cgroup.as_str()).filter(|group| !group.is_empty())
}

/// Totals of ended and live programs, of one run or (0) of all, and how many of them have ended.
pub(crate) fn totals(state: &State, run: u64, of: Option<Party>) -> (Totals, u64) {
    // Whose programs those were that have ended is not known any more.
    let mut sum = of.map_or_else(|| state.ended.get(run), |_| Totals::default());
    let ended = sum.programs;
    for endpoint in shown(state, of).filter(|e| run == 0 || e.run == run) {
        sum.add(&Totals::of(&endpoint.arena));
    }
    (sum, ended)
}

/// Totals of ended and live programs, by program. Of one run those that live are known.
pub(crate) fn by_program(state: &State, run: u64, of: Option<Party>) -> BTreeMap<String, Program> {
    let live = shown(state, of).filter(|e| run == 0 || e.run == run);
    let live = live.map(|e| (e.program.as_str(), Totals::of(&e.arena)));
    if run == 0 && of.is_none() {
        state.ended.programs.with(live)
    } else {
        Programs::default().with(live)
    }
}

/// `Stats`: the same as a report.
pub(crate) fn stats(state: &State, run: u64, of: Option<Party>) -> Result<Answer, Rejection> {
    let (sum, ended) = totals(state, run, of);
    let mut map = heading(state);
    map.extend(sum.to_json());
    map.insert(LIVE.into(), (sum.programs - ended).into());
    map.insert(ENDED.into(), ended.into());
    let [programs, waits] = programs::to_json(&by_program(state, run, of));
    map.insert(PROGRAMS.into(), programs);
    map.insert(WAITS_BY_PROGRAM.into(), waits);
    if let Some(counts) = state.peer_counts() {
        map.insert("rdma_peers".into(), counts);
    }
    if let Some(counts) = state.promotion_counts() {
        map.insert("rdma_promotion".into(), counts);
    }
    sealed(&Value::Object(map))
}

/// `Status`: the agent itself.
pub(crate) fn status(state: &State, of: Option<Party>) -> Result<Answer, Rejection> {
    let listeners = state.listeners.values();
    let listeners = listeners.filter(|l| of.is_none_or(|party| l.name.party == party)).map(|l| {
        let holders = l.holders.len();
        json!({ "address": l.name.addr.to_string(), "holders": holders })
    });
    let mut map = heading(state);
    map.insert("pid".into(), std::process::id().into());
    map.insert("socket".into(), state.socket_path.as_str().into());
    map.insert("endpoints".into(), shown(state, of).count().into());
    map.insert("listeners".into(), listeners.collect());
    map.insert("regions".into(), state.regions.len().into());
    map.insert("rejected_clients".into(), state.rejected_clients().into());
    let by_reason = state.rejected.iter().map(|(why, n)| ((*why).to_owned(), (*n).into()));
    map.insert("rejected".into(), Value::Object(by_reason.collect()));
    map.insert("protocol".into(), json!({ "newest": PROTOCOL_VERSION, "oldest": OLDEST_VERSION }));
    let others = state.other_versions.living(of);
    let others = others.map(|(pid, version)| json!({ "pid": pid, "version": version }));
    map.insert("other_versions".into(), others.collect());
    let (stuck, waiting) = state.burden;
    map.insert("inspectors_stuck".into(), stuck.into());
    map.insert("descriptors_waiting".into(), waiting.into());
    map.insert("scope".into(), state.scope_name().into());
    map.insert("ivshmem".into(), state.describe_shared());
    map.insert("rdma".into(), state.describe_peers());
    map.insert("metrics".into(), state.metrics.as_deref().into());
    sealed(&Value::Object(map))
}

fn heading(state: &State) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    map.insert("uptime_s".into(), state.started.elapsed().as_secs().into());
    map
}

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
    let (at, program) = (local.to_owned(), "p9".to_owned());
    let end = End { local: at, pid: 9, program, runs: how, ..End::default() };
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
    assert!(pair.fix.as_deref().unwrap().starts_with("Start p9 under Shunt"), "{pair:?}");
    assert!(found.concerns_shunt());
    let found = Explanation::of("80".into(), None, &others, None);
    assert!(!found.concerns_shunt());
    assert_eq!(found.programs(), ["p9 (pid 9)"]);
    let alone = [seen(HERE, Some(THERE), runs::NO_AGENT)];
    let found = Explanation::of("80".into(), None, &alone, None);
    assert_eq!(found.connections[0].reason.as_deref(), Some("no-agent"));
    assert!(found.concerns_shunt());
}

/// Who is to blame is seen, so it is named.
#[test]
fn the_other_end_is_told_by_how_it_runs() {
    let of = |reason: &str, how| {
        let report = json!({ "connections": [end(THERE, HERE, "tcp", Some(reason))] });
        let other = [seen(HERE, Some(THERE), how)];
        let found = Explanation::of("80".into(), told(report), &other, None);
        let pair = found.connections.into_iter().next().unwrap();
        (pair.state, pair.happened.unwrap(), pair.fix.unwrap())
    };
    for (how, happened, fix) in [
        (runs::WITHOUT, "p9 (pid 9) runs without Shunt.", "Start p9 under Shunt"),
        (runs::NO_AGENT, "p9 (pid 9) runs under Shunt, and no agent is in ", "Start an agent"),
        (
            runs::ANOTHER_AGENT,
            "p9 (pid 9) runs under Shunt with another agent",
            "the same SHUNT_RUN_DIR",
        ),
    ] {
        let (state, told, advice) = of("no-proposal", how);
        assert_eq!(state, "tcp");
        assert!(told.starts_with(happened) && advice.contains(fix), "{told} {advice}");
    }
    let (state, told, _) = of("pending", runs::UNACCEPTED);
    assert_eq!(state, "pending");
    assert!(told.starts_with("p9 (pid 9) has not accepted the connection yet."), "{told}");
    let (_, told, _) = of("peer-not-shunted", runs::UNACCEPTED);
    assert_eq!(told, Reason::PeerNotShunted.explain().trim());
    // Reasons of this end stay what they are.
    let (_, told, _) = of("bypassed", runs::WITHOUT);
    assert_eq!(told, Reason::Bypassed.explain().trim());
    // Of an agent that was not asked nothing is known.
    let others = [seen(HERE, Some(THERE), runs::ANOTHER_AGENT)];
    let found = Explanation::of("80".into(), None, &others, None);
    let pair = &found.connections[0];
    assert_eq!((pair.state, pair.reason.as_deref()), ("unknown", None));
    assert!(pair.fix.as_deref().unwrap().contains("shunt explain 9:0"), "{pair:?}");
}

#[test]
fn listeners_are_found_or_not() {
    let report = json!({
        "listeners": [{ "address": THERE, "programs": [{ "pid": 1, "program": "a" }] }],
        "listeners_unregistered": [
            { "address": "[::1]:80", "pid": 2, "program": "b", "reason": "refused" } ] });
    let kernel = [seen(THERE, None, runs::SHUNT), seen("127.0.0.2:80", None, runs::NO_AGENT)];
    let found = Explanation::of("80".into(), told(report), &kernel, None);
    let said: Vec<_> = found.listeners.iter().map(|l| (l.is_found, l.reason.as_deref())).collect();
    assert_eq!(said, [(true, None), (false, Some("refused")), (false, Some("no-agent"))]);
    assert_eq!(found.listeners[0].programs.len(), 1);
    assert!(found.listeners.iter().skip(1).all(|l| l.happened.is_some() && l.fix.is_some()));
    let kernel = [seen(THERE, None, runs::WITHOUT), seen(HERE, None, runs::ANOTHER_AGENT)];
    let found = Explanation::of("80".into(), None, &kernel, None);
    assert!(found.listeners.iter().all(|l| l.happened.is_some() && l.fix.is_some()));
}

#[test]
fn every_field_is_documented_and_no_other() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(&format!("`\"schema\": {SCHEMA}`")));
    let documented = |heading: &str| {
        let (_, section) = text.split_once(&format!("## {heading}\n")).expect(heading);
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
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

/// vsftpd's sessions: as another user they have no agent where they look.
#[test]
fn a_program_of_another_user_needs_the_agent_for_the_host() {
    let mut other = seen(HERE, Some(THERE), runs::NO_AGENT);
    other.end.of_user = Some(102);
    let report = json!({ "connections": [end(THERE, HERE, "tcp", Some("no-proposal"))] });
    let found = Explanation::of("80".into(), told(report), &[other], None);
    let pair = &found.connections[0];
    let happened = pair.happened.as_deref().unwrap();
    assert!(
        happened.starts_with("p9 (pid 9) runs under Shunt as another user (uid 102)"),
        "{pair:?}"
    );
    assert!(pair.fix.as_deref().unwrap().contains("`shunt agent --host` as root"), "{pair:?}");
}

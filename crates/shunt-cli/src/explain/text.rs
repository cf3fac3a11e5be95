//! The explanation in words.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::story::{Decision, End, Explanation, Listening, Pair, explain_decision, runs};
use crate::table::{Table, count_of};

/// Connections that are told of one by one.
const FEW: usize = 3;
/// Decisions that are shown.
const LATEST: usize = 20;

/// All of it.
pub fn render(told: &Explanation) -> String {
    let mut parts: Vec<_> = told.listeners.iter().map(listener).collect();
    if told.connections.len() <= FEW {
        parts.extend(told.connections.iter().map(connection));
    } else {
        parts.push(connections(&told.connections));
    }
    if !told.decisions.is_empty() {
        parts.push(decisions(told));
    }
    parts.join("\n")
}

fn listener(l: &Listening) -> String {
    let programs: Vec<_> =
        l.programs.iter().map(|p| format!("{} (pid {})", p.program, p.pid)).collect();
    let how = match l.reason.as_deref() {
        None => "clients under Shunt find it".to_owned(),
        Some(runs::WITHOUT) => "it runs without Shunt, so its connections stay on TCP".to_owned(),
        Some(runs::UNKNOWN) => "whether it runs under Shunt cannot be seen by you".to_owned(),
        Some(runs::ANOTHER_AGENT) => "it is known to another agent".to_owned(),
        Some(runs::UNKNOWN_TO_AGENT) => "its agent does not know it (yet)".to_owned(),
        Some(reason) => format!("clients do not find it, so its connections stay on TCP: {reason}"),
    };
    let mut text = format!("Listener {}, {}: {how}.\n", l.address, programs.join(", "));
    advice(&mut text, l.happened.as_deref(), l.fix.as_deref());
    text
}

fn advice(text: &mut String, happened: Option<&str>, fix: Option<&str>) {
    for (title, said) in [("What happened", happened), ("What to do", fix)] {
        if let Some(said) = said {
            let _ = writeln!(text, "  {title}: {said}");
        }
    }
}

fn state(pair: &Pair) -> String {
    let reason = pair.reason.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
    let how = match pair.state {
        "shunted" => "goes through shared memory",
        "pending" => "is on TCP, and the handshake is not over",
        "broken" => "is broken",
        _ => "is on TCP",
    };
    format!("{how}{reason}")
}

fn connection(pair: &Pair) -> String {
    let mut text = format!("Connection {} -> {}: it {}.\n", pair.local, pair.peer, state(pair));
    advice(&mut text, pair.happened.as_deref(), pair.fix.as_deref());
    let mut table = Table::without_heading(&[]);
    for end in &pair.ends {
        let who = format!("{},pid={},fd={}", end.program, end.pid, end.fd);
        table.row(vec![format!("  {}", end.local), who, how(end)]);
    }
    for local in [&pair.local, &pair.peer] {
        if !pair.ends.iter().any(|end| end.local == *local) {
            let what = "is not on this host, or not to be seen by you";
            table.row(vec![format!("  {local}"), "-".to_owned(), what.to_owned()]);
        }
    }
    text + &table.render()
}

/// How a process runs, and what it says of the connection.
fn how(end: &End) -> String {
    let agent = end.agent.as_deref().unwrap_or("-");
    let own = end.reason.as_deref().or(end.mode.as_deref()).unwrap_or("-");
    match end.runs {
        runs::SHUNT => format!("under Shunt, agent {agent}: {own}"),
        runs::UNKNOWN_TO_AGENT => {
            format!("under Shunt, and its agent {agent} does not know this connection")
        }
        runs::NO_AGENT => format!("under Shunt, and there is no agent in {agent}"),
        runs::ANOTHER_AGENT => format!(
            "under Shunt, with another agent: `SHUNT_RUN_DIR={agent} shunt explain {}:{}`",
            end.pid, end.fd
        ),
        runs::WITHOUT => "runs without Shunt".to_owned(),
        _ => "may not be looked at by you".to_owned(),
    }
}

/// Many: by how they go.
fn connections(all: &[Pair]) -> String {
    let mut groups = BTreeMap::<String, Vec<&Pair>>::new();
    for pair in all {
        groups.entry(state(pair)).or_default().push(pair);
    }
    let mut text = String::new();
    for (state, pairs) in groups {
        let n = count_of(pairs.len() as u64, "connection");
        let such = pairs.first().map_or("-", |pair| pair.local.as_str());
        let _ = writeln!(text, "{n}, such as that of {such}: each {state}.");
        let first = pairs.first();
        let of = |f: fn(&Pair) -> Option<&str>| first.and_then(|pair| f(pair));
        advice(&mut text, of(|pair| pair.happened.as_deref()), of(|pair| pair.fix.as_deref()));
    }
    text
}

fn decisions(told: &Explanation) -> String {
    let all = &told.decisions;
    let shown = &all[all.len().saturating_sub(LATEST)..];
    let mut text = "Decisions".to_owned();
    if shown.len() < all.len() {
        let _ = write!(text, ", the latest {} of {}", shown.len(), all.len());
    }
    if !told.decisions_complete {
        text.push_str(" (earlier ones are not kept)");
    }
    text.push_str(":\n");
    let mut table = Table::without_heading(&[]);
    for d in shown {
        let program = format!("{},pid={}", d.program, d.pid);
        table.row(vec![format!("  {}", time(d.at)), program, place(d, told), what(d)]);
    }
    text + &table.render()
}

/// The addresses, where there are several connections.
fn place(d: &Decision, told: &Explanation) -> String {
    match &d.peer {
        Some(_) if told.connections.len() == 1 && told.listeners.is_empty() => d.local.clone(),
        Some(peer) => format!("{} -> {peer}", d.local),
        None => d.local.clone(),
    }
}

fn what(d: &Decision) -> String {
    match &d.reason {
        Some(reason) => format!("{} ({reason})", d.decision),
        None => format!("{}: {}", d.decision, explain_decision(&d.decision)),
    }
}

/// The time of day in UTC.
fn time(at: u64) -> String {
    let at = Duration::from_nanos(at);
    let of_day = at.as_secs() % 86_400;
    let (hours, minutes, seconds) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:06}Z", at.subsec_micros())
}

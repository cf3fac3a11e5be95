//! The explanation in words.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use shunt_wire::waits::{Part, Waits};

use super::end::End;
use super::runs;
use super::story::{Decision, Explanation, Listening, Pair, explain_decision};
use crate::table::{Table, count_of, wrapped};
use crate::waits::quantile;

/// Connections that are told of one by one.
const FEW: usize = 3;
/// Decisions that are shown.
const LATEST: usize = 20;

/// All of it. `width`: the terminal's, which tables fit.
pub fn render(told: &Explanation, width: Option<u16>) -> String {
    let mut parts: Vec<_> = told.listeners.iter().map(|l| listener(l, width)).collect();
    if told.connections.len() <= FEW {
        parts.extend(told.connections.iter().map(|pair| connection(pair, width)));
    } else {
        parts.push(connections(&told.connections, width));
    }
    if parts.is_empty() && !told.decisions.is_empty() {
        let text =
            "No such listener or connection is there any more. This was decided before it ended.\n";
        parts.push(text.to_owned());
    }
    if !told.decisions.is_empty() {
        parts.push(decisions(told, width));
    }
    parts.join("\n")
}

fn listener(l: &Listening, width: Option<u16>) -> String {
    let programs: Vec<_> =
        l.programs.iter().map(|p| format!("{} (pid {})", p.program, p.pid)).collect();
    let how = match l.reason.as_deref() {
        None => "clients under Shunt find it".to_owned(),
        Some(runs::UNKNOWN) => "whether clients find it cannot be seen by you".to_owned(),
        Some(runs::ANOTHER_AGENT) => "clients with another agent may find it".to_owned(),
        Some(runs::WITHOUT | runs::UNKNOWN_TO_AGENT) => {
            "clients do not find it, so its connections stay on TCP".to_owned()
        }
        Some(reason) => format!("clients do not find it, so its connections stay on TCP: {reason}"),
    };
    let text = format!("Listener {}, {}: {how}.", l.address, programs.join(", "));
    let mut text = wrapped(&text, width, 2) + "\n";
    advice(&mut text, width, l.happened.as_deref(), l.fix.as_deref());
    text
}

fn advice(text: &mut String, width: Option<u16>, happened: Option<&str>, fix: Option<&str>) {
    for (title, said) in [("What happened", happened), ("What to do", fix)] {
        if let Some(said) = said {
            let _ = writeln!(text, "{}", wrapped(&format!("  {title}: {said}"), width, 4));
        }
    }
}

fn state(pair: &Pair) -> String {
    let reason = pair.reason.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
    let how = match pair.state {
        "shunted" => "goes through shared memory",
        "pending" => "is on TCP, and the handshake is not over",
        "broken" => "is broken",
        "unknown" => "is known to another agent",
        _ => "is on TCP",
    };
    format!("{how}{reason}")
}

fn connection(pair: &Pair, width: Option<u16>) -> String {
    let text = format!("Connection {} -> {}: it {}.", pair.local, pair.peer, state(pair));
    let mut text = wrapped(&text, width, 2) + "\n";
    advice(&mut text, width, pair.happened.as_deref(), pair.fix.as_deref());
    let mut rows = Vec::new();
    for end in &pair.ends {
        let who = format!("{},pid={},fd={}", end.program, end.pid, end.fd);
        rows.push((vec![format!("  {}", end.local), who], how(end)));
        let of = end.waits.map(|waits| waits.0).filter(|waits| !waits.is_empty());
        if let Some(waits) = of {
            rows.push((vec![String::new(), String::new()], waited(&waits)));
        }
    }
    for local in [&pair.local, &pair.peer] {
        if !pair.ends.iter().any(|end| end.local == *local) {
            let what = "is not on this host, or not to be seen by you";
            rows.push((vec![format!("  {local}"), "-".to_owned()], what.to_owned()));
        }
    }
    text + &rows_with(&rows, width)
}

/// Rows of some short cells and a text. Where the terminal has no room for both, the text has lines of its own.
fn rows_with(rows: &[(Vec<String>, String)], width: Option<u16>) -> String {
    let mut table = Table::without_heading(&[]).fitting(width);
    for (head, said) in rows {
        table.row([head.clone(), vec![said.clone()]].concat());
    }
    if table.fits() {
        return table.render();
    }
    let mut heads = Table::without_heading(&[]).fitting(width);
    rows.iter().for_each(|(head, _)| heads.row(head.clone()));
    let mut text = String::new();
    for (head, (_, said)) in heads.render().lines().zip(rows) {
        if !head.is_empty() {
            let _ = writeln!(text, "{head}");
        }
        let _ = writeln!(text, "{}", wrapped(&format!("    {said}"), width, 4));
    }
    text
}

/// How a process runs, and what it says of the connection.
fn how(end: &End) -> String {
    let agent = end.agent.as_deref().unwrap_or("-");
    let own = end.reason.as_deref().or(end.mode.as_deref()).unwrap_or("-");
    match end.runs {
        runs::SHUNT => format!("{own}, under Shunt with agent {agent}"),
        runs::UNKNOWN_TO_AGENT => {
            format!("under Shunt, and its agent {agent} does not know this connection")
        }
        runs::NO_AGENT => format!("under Shunt, and there is no agent in {agent}"),
        runs::ANOTHER_AGENT => format!("under Shunt, with another agent in {agent}"),
        runs::UNACCEPTED => "listens, and has not accepted the connection yet".to_owned(),
        runs::WITHOUT => "runs without Shunt".to_owned(),
        _ => "may not be looked at by you".to_owned(),
    }
}

/// How long an end has waited, and which part of that is the machine's.
fn waited(waits: &Waits) -> String {
    let (whole, wake_up) = (waits.whole(), waits.of(Part::WakeUp));
    let n = count_of(whole.count(), "time");
    let mut text =
        format!("waited {n}: p50 {}, p99 {}", quantile(&whole, 500), quantile(&whole, 990));
    if wake_up.count() > 0 {
        let (half, most) = (quantile(wake_up, 500), quantile(wake_up, 990));
        let _ = write!(text, "; of which wake-ups took p50 {half}, p99 {most}");
    }
    text
}

/// Many: by how they go.
fn connections(all: &[Pair], width: Option<u16>) -> String {
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
        advice(
            &mut text,
            width,
            of(|pair| pair.happened.as_deref()),
            of(|pair| pair.fix.as_deref()),
        );
    }
    text
}

fn decisions(told: &Explanation, width: Option<u16>) -> String {
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
    let head = |d: &Decision| {
        vec![format!("  {}", time(d.at)), format!("{},pid={}", d.program, d.pid), place(d, told)]
    };
    let rows: Vec<_> = shown.iter().map(|d| (head(d), what(d))).collect();
    text + &rows_with(&rows, width)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decisions_are_whole_however_narrow_the_terminal_is() {
        let ends = [("127.0.0.1:50000", "127.0.0.1:6379"), ("127.0.0.1:6379", "127.0.0.1:50000")];
        let decisions = ends.map(|(local, peer)| {
            json!({ "at": 1, "decision": "accepted", "local": local, "peer": peer, "program": "redis-server", "pid": 4_194_303 })
        });
        let told = serde_json::from_value(json!({ "decisions": decisions })).unwrap();
        let told = Explanation::of("6379".into(), Some(told), &[], None);
        let said = explain_decision("accepted");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for width in [None, Some(200), Some(80), Some(60)] {
            let text = super::decisions(&told, width);
            assert_eq!(words(&text).matches(&words(said)).count(), 2, "{text}");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.is_some_and(|n| n <= width.unwrap_or(u16::MAX).into()), "{text}");
        }
    }

    #[test]
    fn ends_are_whole_too() {
        let end = |local: &str, pid| End {
            local: local.to_owned(),
            pid,
            program: "redis-server".to_owned(),
            runs: runs::ANOTHER_AGENT,
            agent: Some("/run/user/1000/shunt".to_owned()),
            ..End::default()
        };
        let ends = vec![end("127.0.0.1:50000", 7), end("127.0.0.1:6379", 8)];
        let pair = Pair {
            local: "127.0.0.1:50000".into(),
            peer: "127.0.0.1:6379".into(),
            ends,
            ..Pair::default()
        };
        let text = super::connection(&pair, Some(70));
        let expected = "\
            Connection 127.0.0.1:50000 -> 127.0.0.1:6379: it is on TCP.\n  \
              127.0.0.1:50000  redis-server,pid=7,fd=0\n    \
                under Shunt, with another agent in /run/user/1000/shunt\n  \
              127.0.0.1:6379   redis-server,pid=8,fd=0\n    \
                under Shunt, with another agent in /run/user/1000/shunt\n";
        assert_eq!(text, expected);
        assert_eq!(super::connection(&pair, None).lines().count(), 3);
    }
}

//! `shunt list`.

mod filter;

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};
use shunt_wire::agent::Request;

use crate::cli::{List, Sort};
use crate::directory::{Directory, Unreachable};
use crate::output::USAGE;
use crate::output::{complain, print};
use crate::table::Table;
use filter::Filter;
pub use filter::HELP;

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs the subcommand.
pub fn run(args: &List) -> u8 {
    let filter = match Filter::parse(&args.filter) {
        Ok(filter) => filter,
        Err(why) => {
            complain(&format!("the filter makes no sense: {why}"));
            return USAGE;
        }
    };
    let Some(pause) = args.watch else { return once(args, &filter, "") };
    let is_terminal = std::io::stdout().is_terminal();
    let mut before = if is_terminal { CLEAR } else { "" };
    loop {
        let status = once(args, &filter, before);
        if status != 0 {
            return status;
        }
        before = if is_terminal { CLEAR } else { "\n" };
        std::thread::sleep(Duration::from_secs_f64(pause));
    }
}

fn once(args: &List, filter: &Filter, before: &str) -> u8 {
    let mut report = match Directory::open().and_then(|agent| agent.report(&Request::List)) {
        Ok(report) => report,
        // Nobody to ask means that nothing runs, or that nothing is known of what does.
        Err(e @ (Unreachable::NotRunning(_) | Unreachable::HostNotRunning(_))) => {
            complain(&e);
            json!({ "connections": [], "truncated": false, "listeners_unregistered": [] })
        }
        Err(e) => {
            complain(&e);
            return 1;
        }
    };
    choose(&mut report, args, filter);
    let text = if args.json { format!("{report:#}\n") } else { text(&report, args.listeners) };
    if report["truncated"] == true {
        complain(&"there are more connections than the agent lists");
    }
    print(&format!("{before}{text}"))
}

/// Leaves what is asked for, in the order that is asked for.
fn choose(report: &mut Value, args: &List, filter: &Filter) {
    for list in ["connections", "listeners_unregistered"] {
        if let Some(all) = report[list].as_array_mut() {
            all.retain(|entry| filter.takes(entry));
        }
    }
    if args.listeners {
        report["connections"] = json!([]);
    }
    let Some(connections) = report["connections"].as_array_mut() else { return };
    let number = |name: &'static str| {
        move |connection: &Value| Reverse(connection[name].as_u64().unwrap_or(0))
    };
    match args.sort {
        None => {}
        Some(Sort::Sent) => connections.sort_by_key(number("bytes_sent")),
        Some(Sort::Received) => connections.sort_by_key(number("bytes_received")),
        Some(Sort::Pid) => connections.sort_by_key(|c| c["pid"].as_u64()),
        Some(Sort::Program) => connections.sort_by_key(|c| text_of(&c["program"])),
        Some(Sort::Mode) => connections.sort_by_key(|c| text_of(&c["mode"])),
        Some(Sort::Reason) => connections.sort_by_key(|c| text_of(&c["reason"])),
    }
}

/// The connections and, where there are any, the listeners that clients do not find.
fn text(report: &Value, listeners_alone: bool) -> String {
    let mut text = if listeners_alone { String::new() } else { table(report).render() };
    if let Some(listeners) = listeners(report, listeners_alone) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&listeners.render());
    }
    text
}

/// A table without rows only where it is asked for.
fn listeners(report: &Value, even_none: bool) -> Option<Table> {
    let all = report["listeners_unregistered"].as_array();
    let all = all.filter(|all| even_none || !all.is_empty())?;
    let mut table = Table::new(&["Listener on TCP", "Process", "Reason"], &[]);
    for l in all {
        table.row(vec![text_of(&l["address"]), process(l), text_of(&l["reason"])]);
    }
    Some(table)
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Who has it, by which descriptor.
fn process(entry: &Value) -> String {
    let program = text_of(&entry["program"]);
    format!("{program},pid={},fd={}{}", entry["pid"], entry["fd"], place(entry, ""))
}

/// Columns for connections that send without copies, and what they show.
const ZEROCOPY: [(&str, &str); 3] = [
    ("Zerocopy", "tx_zerocopy_sent"),
    ("Copied", "tx_zerocopy_fail"),
    ("Granted", "bytes_granted"),
];

/// Columns that are set to the right.
static NUMBERS: [bool; 13] =
    [false, false, false, false, false, true, true, true, true, true, true, true, true];

fn table(report: &Value) -> Table {
    let none = Vec::new();
    let connections = report["connections"].as_array().unwrap_or(&none);
    let mut heading = vec![
        "Mode",
        "Local Address:Port",
        "Peer Address:Port",
        "Process",
        "Peer Process",
        "Sent",
        "Received",
        "Ring Tx",
        "Ring Rx",
        "Vector",
        "Reason",
    ];
    // Few programs send without copies.
    let is_shown = connections.iter().any(|c| c["zerocopy"].is_object());
    if is_shown {
        heading.splice(10..10, ZEROCOPY.map(|(title, _)| title));
    }
    let numbers = if is_shown { &NUMBERS[..] } else { &NUMBERS[..NUMBERS.len() - ZEROCOPY.len()] };
    let mut table = Table::new(&heading, numbers);
    for c in connections {
        let text = |name: &str| text_of(&c[name]);
        let peer = match &c["peer_pid"] {
            Value::Null => "-".to_owned(),
            pid => format!("{},pid={pid}", text("peer_program")),
        };
        let mut row = vec![
            text("mode"),
            text("local"),
            text("peer"),
            process(c),
            format!("{peer}{}", place(c, "peer_")),
            text("bytes_sent"),
            text("bytes_received"),
            text("ring_fill_tx"),
            text("ring_fill_rx"),
            text("vector"),
            text("reason"),
        ];
        if is_shown {
            let counts = ZEROCOPY.map(|(_, name)| match &c["zerocopy"][name] {
                Value::Null => "-".to_owned(),
                n => n.to_string(),
            });
            row.splice(10..10, counts);
        }
        table.row(row);
    }
    table
}

/// Where an end is, as far as an agent for the host knows: its container, else its control group.
fn place(connection: &Value, whose: &str) -> String {
    let named = |what: &str| {
        let known = connection[format!("{whose}{what}")].as_str();
        known.filter(|name| *name != "/").map(|name| format!(",{what}={name}"))
    };
    named("container").or_else(|| named("cgroup")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_rows() {
        let report = json!({ "connections": [
            { "mode": "shunt-attach", "local": "127.0.0.1:80", "peer": "127.0.0.1:5000",
              "pid": 7, "program": "nginx", "fd": 9, "peer_pid": 8, "peer_program": "wrk",
              "bytes_sent": 10, "bytes_received": 20, "ring_fill_tx": 1, "ring_fill_rx": 2,
              "vector": 0, "reason": null },
            { "mode": "tcp", "local": "[::1]:80", "peer": "[::1]:5000", "pid": 7,
              "program": "nginx", "fd": 10, "peer_pid": null, "peer_program": null,
              "bytes_sent": 0, "bytes_received": 0, "ring_fill_tx": 0, "ring_fill_rx": 0,
              "vector": null, "reason": "no-proposal" } ] });
        let text = table(&report).render();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("nginx,pid=7,fd=9") && lines[1].contains("wrk,pid=8"));
        assert!(lines[2].starts_with("tcp ") && lines[2].ends_with("no-proposal"));
        assert!(!text.contains("cgroup"));
    }

    #[test]
    fn listeners_that_clients_do_not_find_are_shown_with_the_reason() {
        let none = json!({ "connections": [], "listeners_unregistered": [] });
        assert_eq!(text(&none, false), table(&none).render());
        let some = json!({ "connections": [], "listeners_unregistered": [
            { "address": "127.0.0.1:80", "pid": 7, "program": "nginx", "fd": 6, "reason": "refused" },
            { "address": "[::]:8080", "pid": 12, "program": "node", "fd": 21, "reason": "bypassed",
              "container": "0123456789ab", "cgroup": "/docker/0123" } ] });
        let text = text(&some, false);
        let listeners = text.strip_prefix(&table(&some).render()).unwrap();
        let expected = "\n\
            Listener on TCP  Process                                   Reason\n\
            127.0.0.1:80     nginx,pid=7,fd=6                          refused\n\
            [::]:8080        node,pid=12,fd=21,container=0123456789ab  bypassed\n";
        assert_eq!(listeners, expected);
    }

    #[test]
    fn what_is_asked_for_comes_in_the_order_that_is_asked_for() {
        let mut report = json!({ "connections": [
            { "pid": 1, "mode": "tcp", "local": "127.0.0.1:80", "bytes_sent": 5 },
            { "pid": 2, "mode": "tcp", "local": "127.0.0.1:81", "bytes_sent": 7 },
            { "pid": 3, "mode": "tcp", "local": "127.0.0.1:80", "bytes_sent": 9 } ],
            "listeners_unregistered": [ { "address": "127.0.0.1:80" }, { "address": "127.0.0.1:81" } ] });
        let mut args = List { sort: Some(Sort::Sent), ..List::default() };
        let filter = Filter::parse(&["sport".into(), "80".into()]).unwrap();
        choose(&mut report, &args, &filter);
        let pids: Vec<_> =
            report["connections"].as_array().unwrap().iter().map(|c| &c["pid"]).collect();
        assert_eq!(pids, [3, 1]);
        assert_eq!(report["listeners_unregistered"].as_array().unwrap().len(), 1);
        args.listeners = true;
        choose(&mut report, &args, &filter);
        let said = text(&report, true);
        assert!(said.starts_with("Listener on TCP") && said.contains("127.0.0.1:80"), "{said}");
    }

    #[test]
    fn containers_are_named() {
        let report = json!({ "connections": [
            { "mode": "tcp", "pid": 7, "program": "nginx", "fd": 9, "container": "0123456789ab",
              "cgroup": "/docker/0123", "peer_pid": 8, "peer_program": "wrk", "peer_container": null,
              "peer_cgroup": "/user.slice" },
            { "mode": "tcp", "pid": 9, "program": "curl", "fd": 3, "container": null, "cgroup": "/" } ] });
        let text = table(&report).render();
        assert!(text.contains("nginx,pid=7,fd=9,container=0123456789ab "), "{text}");
        assert!(text.contains("wrk,pid=8,cgroup=/user.slice "), "{text}");
        assert!(text.contains("curl,pid=9,fd=3 "), "{text}");
    }

    #[test]
    fn who_sends_without_copies_is_shown_with_its_counts() {
        let end = |zerocopy: Value| json!({ "mode": "shunt-attach", "zerocopy": zerocopy });
        let counts = json!({ "tx_zerocopy_sent": 71, "tx_zerocopy_fail": 8, "bytes_granted": 999 });
        let of = |ends: Vec<Value>| table(&json!({ "connections": ends })).render();
        assert!(!of(vec![end(Value::Null)]).contains("Granted"));
        let text = of(vec![end(counts), end(Value::Null)]);
        let rows: Vec<Vec<_>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        let ends: Vec<_> = rows.iter().map(|row| &row[row.len() - 4..]).collect();
        assert_eq!(ends[0], ["Zerocopy", "Copied", "Granted", "Reason"]);
        assert_eq!((ends[1], ends[2]), (&["71", "8", "999", "-"][..], &["-", "-", "-", "-"][..]));
    }
}

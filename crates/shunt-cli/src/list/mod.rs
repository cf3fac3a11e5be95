//! `shunt list`.

pub mod filter;

use std::cmp::Reverse;
use std::io::{self, IsTerminal};
use std::time::Duration;

use crate::cli::{List, Sort};
use crate::directory::Unreachable;
use crate::listing::{Connection, Listener, Listing, SCHEMA};
use crate::output::{USAGE, complain, is_coloured, print, width};
use crate::table::{Colour, Table, human_count};
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
    let mut listing = match Listing::ask() {
        Ok(listing) => listing,
        // Nobody to ask means that nothing runs, or that nothing is known of what does.
        Err(e @ (Unreachable::NotRunning(_) | Unreachable::HostNotRunning(_))) => {
            complain(&e);
            Listing { schema: SCHEMA, ..Listing::default() }
        }
        Err(e) => {
            complain(&e);
            return 1;
        }
    };
    choose(&mut listing, args, filter);
    let text = if args.json {
        match serde_json::to_string_pretty(&listing) {
            Ok(text) => text + "\n",
            Err(e) => {
                complain(&e);
                return 1;
            }
        }
    } else {
        let is_terminal = io::stdout().is_terminal();
        let look = Look {
            width: if is_terminal { width() } else { None },
            is_coloured: is_coloured(&io::stdout()),
            is_exact: args.bytes,
        };
        text(&listing, args.listeners, look)
    };
    if listing.truncated {
        complain(&"there are more connections than the agent lists");
    }
    print(&format!("{before}{text}"))
}

/// How text looks.
#[derive(Clone, Copy, Default)]
struct Look {
    width: Option<u16>,
    is_coloured: bool,
    is_exact: bool,
}

impl Look {
    fn count(self, n: u64) -> String {
        if self.is_exact { n.to_string() } else { human_count(n) }
    }

    fn of(self, table: Table, column: usize) -> Table {
        let table = table.fitting(self.width);
        if self.is_coloured { table.coloured(column, colour) } else { table }
    }
}

/// Of a mode, or of a reason for TCP.
fn colour(cell: &str) -> Option<Colour> {
    match cell {
        "Mode" | "Reason" | "-" => None,
        shunted if shunted.starts_with("shunt-") => Some(Colour::Green),
        _ => Some(Colour::Yellow),
    }
}

/// Leaves what is asked for, in the order that is asked for.
fn choose(listing: &mut Listing, args: &List, filter: &Filter) {
    listing.connections.retain(|connection| filter.takes(connection) && !args.listeners);
    listing.listeners_unregistered.retain(|listener| filter.takes_listener(listener));
    let connections = &mut listing.connections;
    match args.sort {
        None => {}
        Some(Sort::Sent) => connections.sort_by_key(|c| Reverse(c.bytes_sent)),
        Some(Sort::Received) => connections.sort_by_key(|c| Reverse(c.bytes_received)),
        Some(Sort::Pid) => connections.sort_by_key(|c| c.pid),
        Some(Sort::Program) => connections.sort_by(|a, b| a.program.cmp(&b.program)),
        Some(Sort::Mode) => connections.sort_by(|a, b| a.mode.cmp(&b.mode)),
        // Those without one last.
        Some(Sort::Reason) => {
            connections.sort_by(|a, b| {
                (a.reason.is_none(), &a.reason).cmp(&(b.reason.is_none(), &b.reason))
            });
        }
    }
}

/// The connections and, where there are any, the listeners that clients do not find.
fn text(listing: &Listing, listeners_alone: bool, look: Look) -> String {
    let mut text =
        if listeners_alone { String::new() } else { table(&listing.connections, look).render() };
    if listeners_alone || !listing.listeners_unregistered.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&listeners(&listing.listeners_unregistered, look).render());
    }
    text
}

fn listeners(all: &[Listener], look: Look) -> Table {
    let mut table = look.of(Table::new(&["Listener on TCP", "Process", "Reason"], &[]), 2);
    for l in all {
        let place = place(l.container.as_deref(), l.cgroup.as_deref());
        let process = format!("{},pid={},fd={}{place}", l.program, l.pid, l.fd);
        table.row(vec![l.address.clone(), process, l.reason.clone()]);
    }
    table
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

fn table(connections: &[Connection], look: Look) -> Table {
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
    let is_shown = connections.iter().any(|c| c.zerocopy.is_some());
    if is_shown {
        heading.splice(10..10, ZEROCOPY.map(|(title, _)| title));
    }
    let numbers = if is_shown { &NUMBERS[..] } else { &NUMBERS[..NUMBERS.len() - ZEROCOPY.len()] };
    let none = || "-".to_owned();
    let mut table = look.of(Table::new(&heading, numbers), 0);
    for c in connections {
        let peer = c.peer_pid.map_or_else(none, |pid| {
            format!("{},pid={pid}", c.peer_program.as_deref().unwrap_or("-"))
        });
        let place_of_peer = place(c.peer_container.as_deref(), c.peer_cgroup.as_deref());
        let own = place(c.container.as_deref(), c.cgroup.as_deref());
        let mut row = vec![
            c.mode.clone(),
            c.local.clone(),
            c.peer.clone(),
            format!("{},pid={},fd={}{own}", c.program, c.pid, c.fd),
            format!("{peer}{place_of_peer}"),
            look.count(c.bytes_sent),
            look.count(c.bytes_received),
            look.count(c.ring_fill_tx),
            look.count(c.ring_fill_rx),
            c.vector.map_or_else(none, |vector| vector.to_string()),
            c.reason.clone().unwrap_or_else(none),
        ];
        if is_shown {
            let count = |name| c.zerocopy.as_ref()?.get(name).map(|n| look.count(*n));
            row.splice(10..10, ZEROCOPY.map(|(_, name)| count(name).unwrap_or_else(none)));
        }
        table.row(row);
    }
    table
}

/// Where an end is, as far as an agent for the host knows: its container, else its control group.
fn place(container: Option<&str>, cgroup: Option<&str>) -> String {
    let named = |what: &str, known: Option<&str>| {
        known.filter(|name| *name != "/").map(|name| format!(",{what}={name}"))
    };
    named("container", container).or_else(|| named("cgroup", cgroup)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(report: Value) -> Listing {
        Listing::read(report).unwrap()
    }

    fn plain(report: Value) -> String {
        table(&read(report).connections, Look::default()).render()
    }

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
        let text = plain(report);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("nginx,pid=7,fd=9") && lines[1].contains("wrk,pid=8"));
        assert!(lines[2].starts_with("tcp ") && lines[2].ends_with("no-proposal"));
        assert!(!text.contains("cgroup"));
    }

    #[test]
    fn listeners_that_clients_do_not_find_are_shown_with_the_reason() {
        let none = read(json!({ "connections": [], "listeners_unregistered": [] }));
        let empty = table(&[], Look::default()).render();
        assert_eq!(text(&none, false, Look::default()), empty);
        let some = read(json!({ "connections": [], "listeners_unregistered": [
            { "address": "127.0.0.1:80", "pid": 7, "program": "nginx", "fd": 6, "reason": "refused" },
            { "address": "[::]:8080", "pid": 12, "program": "node", "fd": 21, "reason": "bypassed",
              "container": "0123456789ab", "cgroup": "/docker/0123" } ] }));
        let text = text(&some, false, Look::default());
        let listeners = text.strip_prefix(&empty).unwrap();
        let expected = "\n\
            Listener on TCP  Process                                   Reason\n\
            127.0.0.1:80     nginx,pid=7,fd=6                          refused\n\
            [::]:8080        node,pid=12,fd=21,container=0123456789ab  bypassed\n";
        assert_eq!(listeners, expected);
    }

    #[test]
    fn what_is_asked_for_comes_in_the_order_that_is_asked_for() {
        let mut listing = read(json!({ "connections": [
            { "pid": 1, "mode": "tcp", "local": "127.0.0.1:80", "bytes_sent": 5 },
            { "pid": 2, "mode": "tcp", "local": "127.0.0.1:81", "bytes_sent": 7 },
            { "pid": 3, "mode": "tcp", "local": "127.0.0.1:80", "bytes_sent": 9 } ],
            "listeners_unregistered": [ { "address": "127.0.0.1:80" }, { "address": "127.0.0.1:81" } ] }));
        let mut args = List { sort: Some(Sort::Sent), ..List::default() };
        let filter = Filter::parse(&["sport".into(), "80".into()]).unwrap();
        choose(&mut listing, &args, &filter);
        let pids: Vec<_> = listing.connections.iter().map(|c| c.pid).collect();
        assert_eq!(pids, [3, 1]);
        assert_eq!(listing.listeners_unregistered.len(), 1);
        args.listeners = true;
        choose(&mut listing, &args, &filter);
        let said = text(&listing, true, Look::default());
        assert!(said.starts_with("Listener on TCP") && said.contains("127.0.0.1:80"), "{said}");
    }

    #[test]
    fn containers_are_named() {
        let report = json!({ "connections": [
            { "mode": "tcp", "pid": 7, "program": "nginx", "fd": 9, "container": "0123456789ab",
              "cgroup": "/docker/0123", "peer_pid": 8, "peer_program": "wrk", "peer_container": null,
              "peer_cgroup": "/user.slice" },
            { "mode": "tcp", "pid": 9, "program": "curl", "fd": 3, "container": null, "cgroup": "/" } ] });
        let text = plain(report);
        assert!(text.contains("nginx,pid=7,fd=9,container=0123456789ab "), "{text}");
        assert!(text.contains("wrk,pid=8,cgroup=/user.slice "), "{text}");
        assert!(text.contains("curl,pid=9,fd=3 "), "{text}");
    }

    #[test]
    fn who_sends_without_copies_is_shown_with_its_counts() {
        let end = |zerocopy: Value| json!({ "mode": "shunt-attach", "zerocopy": zerocopy });
        let counts = json!({ "tx_zerocopy_sent": 71, "tx_zerocopy_fail": 8, "bytes_granted": 999 });
        let of = |ends: Vec<Value>| plain(json!({ "connections": ends }));
        assert!(!of(vec![end(Value::Null)]).contains("Granted"));
        let text = of(vec![end(counts), end(Value::Null)]);
        let rows: Vec<Vec<_>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        let ends: Vec<_> = rows.iter().map(|row| &row[row.len() - 4..]).collect();
        assert_eq!(ends[0], ["Zerocopy", "Copied", "Granted", "Reason"]);
        assert_eq!((ends[1], ends[2]), (&["71", "8", "999", "-"][..], &["-", "-", "-", "-"][..]));
    }

    #[test]
    fn counts_are_for_people_unless_they_are_to_be_exact() {
        let listing = read(json!({ "connections": [{ "mode": "tcp", "bytes_sent": 12_345_678 }] }));
        let text =
            |is_exact| table(&listing.connections, Look { is_exact, ..Look::default() }).render();
        assert!(text(false).contains(" 12M ") && !text(false).contains("12345678"));
        assert!(text(true).contains(" 12345678 "));
    }

    #[test]
    fn it_fits_the_terminal_and_has_its_colours() {
        let end = |mode: &str| {
            json!({ "mode": mode, "local": "[2001:db8::1]:80", "peer": "[2001:db8::2]:50000",
            "program": "a-long-name-of-a-program", "pid": 123_456, "reason": "-" })
        };
        let listing = read(json!({ "connections": [end("shunt-attach"), end("tcp")] }));
        let look = Look { width: Some(120), ..Look::default() };
        let narrow = text(&listing, false, look);
        assert!(narrow.lines().all(|line| line.chars().count() <= 120), "{narrow}");
        assert!(narrow.contains('…') && !narrow.contains('\x1b'), "{narrow}");
        let coloured = text(&listing, false, Look { is_coloured: true, ..look });
        assert!(coloured.contains("\x1b[32mshunt-attach\x1b[0m"), "{coloured}");
        assert!(coloured.contains("\x1b[33mtcp\x1b[0m"), "{coloured}");
    }
}

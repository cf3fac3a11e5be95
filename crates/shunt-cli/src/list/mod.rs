//! `shunt list`.

pub mod filter;

use std::cmp::Reverse;
use std::io::{self, IsTerminal};
use std::time::Duration;

use crate::cli::{List, Sort};
use crate::directory::Unreachable;
use crate::listing::{Connection, Listener, Listing, SCHEMA};
use crate::output::{USAGE, complain, is_coloured, print, terminal_width};
use crate::table::{Colour, Table, human_count};
use crate::waits;
use filter::Filter;
pub use filter::HELP;
use shunt_wire::waits::{Histogram, Part, Waits};

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
        let look = Look {
            width: terminal_width(),
            is_coloured: is_coloured(&io::stdout()),
            is_exact: args.bytes,
            is_wide: args.wide,
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
    is_wide: bool,
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
        Some(Sort::Wait) => {
            let longest = |c: &Connection| c.waits.and_then(|waits| waits.0.whole().quantile(990));
            connections.sort_by_key(|c| Reverse(longest(c)));
        }
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

/// Columns of waits: of which, and the quantile in thousandths; `None`: how many.
type Waited = fn(&Waits) -> Histogram;
const WHOLE: Waited = Waits::whole;
const WAKE_UP: Waited = |waits| *waits.of(Part::WakeUp);
const WAITS: [(&str, Waited, Option<u16>); 6] = [
    ("Waits", WHOLE, None),
    ("p50", WHOLE, Some(500)),
    ("p99", WHOLE, Some(990)),
    ("p99.9", WHOLE, Some(999)),
    ("Wake p50", WAKE_UP, Some(500)),
    ("Wake p99", WAKE_UP, Some(990)),
];

/// Columns that are set to the right: those between the first ones and the last one.
static NUMBERS: [bool; 5 + 5 + ZEROCOPY.len() + WAITS.len()] = {
    let mut right = [true; 5 + 5 + ZEROCOPY.len() + WAITS.len()];
    let mut i = 0;
    while i < 5 {
        right[i] = false;
        i += 1;
    }
    right
};

/// Columns that a narrow terminal has no room for, the first ones first.
const LEFT_OUT: [&str; 9] = [
    "Vector",
    "Ring Rx",
    "Ring Tx",
    "Granted",
    "Copied",
    "Zerocopy",
    "Peer Process",
    "Received",
    "Sent",
];

/// The same beside waits, which are asked for.
const LEFT_OUT_BESIDE_WAITS: [&str; 5] = ["Peer", "Wake p50", "p99.9", "Wake p99", "Local"];

/// As the terminal has room for it: a narrow one gets the reason in the place of `tcp`, and fewer columns.
fn table(connections: &[Connection], look: Look) -> Table {
    let whole = columns(connections, look, false);
    if whole.fits() {
        return whole;
    }
    let narrow = columns(connections, look, true).dropping(&LEFT_OUT);
    if look.is_wide { narrow.dropping(&LEFT_OUT_BESIDE_WAITS) } else { narrow }
}

fn columns(connections: &[Connection], look: Look, is_narrow: bool) -> Table {
    let mut heading = vec![
        "Mode",
        if is_narrow { "Local" } else { "Local Address:Port" },
        if is_narrow { "Peer" } else { "Peer Address:Port" },
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
    if look.is_wide {
        let at = heading.len() - 1;
        heading.splice(at..at, WAITS.map(|(title, ..)| title));
    }
    let numbers = &NUMBERS[..heading.len() - 1];
    if is_narrow {
        heading.pop();
    }
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
        if look.is_wide {
            let cell = |(_, of, quantile): (_, Waited, Option<u16>)| {
                let histogram = of(&c.waits?.0);
                Some(match quantile {
                    None => look.count(histogram.count()),
                    Some(of_1000) => waits::quantile(&histogram, of_1000),
                })
            };
            let at = row.len() - 1;
            row.splice(at..at, WAITS.map(|column| cell(column).unwrap_or_else(none)));
        }
        if is_narrow {
            let reason = row.pop();
            if let Some(reason) = reason.filter(|_| c.reason.is_some()) {
                row[0] = reason;
            }
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
    fn how_long_calls_have_waited_is_shown_where_it_is_asked_for() {
        let slept = |n| Some(waits::WaitTimes(waits::tests::slept(n)));
        let end = |pid, waits| Connection { pid, waits, ..Connection::default() };
        let mut listing = Listing {
            connections: vec![end(1, None), end(2, slept(2)), end(3, slept(2000))],
            ..Listing::default()
        };
        let rows = |look| -> Vec<Vec<String>> {
            let text = table(&listing.connections, look).render();
            text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
        };
        assert!(rows(Look::default()).iter().all(|row| !row.contains(&"Waits".to_owned())));
        let wide = rows(Look { is_wide: true, ..Look::default() });
        let last = |row: &[String]| row[row.len() - 7..].join(" ");
        assert!(wide[0].join(" ").ends_with("Waits p50 p99 p99.9 Wake p50 Wake p99 Reason"));
        assert_eq!(last(&wide[1]), "- - - - - - -");
        assert_eq!(last(&wide[2]), "2 10µs 1.0ms 1.0ms 5.1µs 5.1µs -");
        assert_eq!(last(&wide[3]), "2.0K 10µs 1.0ms 1.0ms 4.6µs 5.1µs -");
        let args = List { sort: Some(Sort::Wait), ..List::default() };
        choose(&mut listing, &args, &Filter::parse(&[]).unwrap());
        assert_eq!(listing.connections.last().map(|c| c.pid), Some(1));
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
    fn a_narrow_terminal_gets_whole_cells_of_fewer_columns() {
        let end = |mode: &str, reason: Option<&str>| {
            json!({ "mode": mode, "local": "127.0.0.1:6379", "peer": "127.0.0.1:47884", "reason": reason,
            "program": "redis-server", "pid": 23_315, "fd": 14, "peer_program": "redis-benchmark",
            "peer_pid": 23_348, "bytes_sent": 580_000, "bytes_received": 4_200_000 })
        };
        let ends = [end("shunt-attach", None), end("tcp", Some("no-proposal"))];
        let listing = read(json!({ "connections": ends }));
        let at = |width| text(&listing, false, Look { width: Some(width), ..Look::default() });
        let expected = "\
            Mode          Local           Peer             Process\n\
            shunt-attach  127.0.0.1:6379  127.0.0.1:47884  redis-server,pid=23315,fd=14\n\
            no-proposal   127.0.0.1:6379  127.0.0.1:47884  redis-server,pid=23315,fd=14\n";
        assert_eq!(at(80), expected);
        assert!(at(120).starts_with("Mode          Local           Peer             Process "));
        assert!(at(120).contains("Sent  Received") && !at(120).contains("Ring"), "{}", at(120));
        assert_eq!(at(200), text(&listing, false, Look::default()));
        // Beside waits there is less room.
        let wide = Look { width: Some(80), is_wide: true, ..Look::default() };
        let expected = "\
            Mode          Local           Process                       Waits  p50  p99\n\
            shunt-attach  127.0.0.1:6379  redis-server,pid=23315,fd=14      -    -    -\n\
            no-proposal   127.0.0.1:6379  redis-server,pid=23315,fd=14      -    -    -\n";
        assert_eq!(text(&listing, false, wide), expected);
    }

    #[test]
    fn it_fits_the_terminal_and_has_its_colours() {
        let end = |mode: &str| {
            json!({ "mode": mode, "local": "[2001:db8::1]:80", "peer": "[2001:db8::2]:50000",
            "program": "a-long-name-of-a-program", "pid": 123_456, "reason": null })
        };
        let listing = read(json!({ "connections": [end("shunt-attach"), end("tcp")] }));
        let look = Look { width: Some(80), ..Look::default() };
        let narrow = text(&listing, false, look);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains('…') && !narrow.contains('\x1b'), "{narrow}");
        let coloured = text(&listing, false, Look { is_coloured: true, ..look });
        assert!(coloured.contains("\x1b[32mshunt-attach\x1b[0m"), "{coloured}");
        assert!(coloured.contains("\x1b[33mtcp\x1b[0m"), "{coloured}");
    }
}

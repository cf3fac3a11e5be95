//! A peer that breaks the rules of shared memory, on purpose and at random: whoever talks to it loses that
//! connection at the worst, and goes on with all others, byte for byte.
//!
//! The short forms run always; `SHUNT_TEST_FULL=1` asks for the long ones, of which each ends after
//! `SOAK_SECONDS` at the latest, if that is set. `make asan` runs those with AddressSanitizer.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, parse, start_client};
use shunt_functional::mode::Mode;
use shunt_functional::record::{Event, Listening, Record, compare};
use shunt_functional::rounds::{are_long, rounds, seed};
use shunt_functional::sandbox::{Process, Sandbox, Stats};
use shunt_functional::waiting::settles;

/// How a victim waits.
const STYLES: [&str; 4] = ["blocking", "poll", "epoll-lt", "epoll-et"];
/// Longest run of a hostile program, or of a victim: long forms run with a sanitizer, maybe beside other work.
fn patience() -> Duration {
    Duration::from_secs(if are_long() { 1200 } else { 150 })
}
/// For a program whose connections are carried to whatever end they have.
const VICTIM: [&str; 4] = ["--survive", "--distrust", "-b", "200000"];
/// Connections of an honest client, or to an honest server.
const HONEST: usize = 8;

/// What a hostile program is to write to.
#[derive(Clone, Copy)]
enum Into {
    Region,
    RegionAndBells,
    All,
}

impl Into {
    const fn name(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::RegionAndBells => "region,bells",
            Self::All => "region,table,bells",
        }
    }

    /// The table is shared by all clients of a listener: who spoils it keeps others on TCP.
    const fn spares_others(self) -> bool {
        !matches!(self, Self::All)
    }
}

fn hostile(sandbox: &Sandbox, args: &[&str]) -> Process {
    let mut command = sandbox.command(built("shunt-hostile"));
    command.args(args);
    sandbox.spawn(command)
}

/// What a hostile program has written, and over how many connections.
fn deeds(process: &Process) -> (u64, u64) {
    let text = process.whole_lines();
    let last = text.lines().rev().find_map(|line| {
        let said: serde_json::Value = serde_json::from_str(line).ok()?;
        Some((said["writes"].as_u64()?, said["connections"].as_u64()?))
    });
    last.unwrap_or_default()
}

/// Connections begun, lost (and how), and carried to their end.
fn course(process: &Process) -> (usize, Vec<String>, Vec<Record>) {
    let text = process.whole_lines();
    let (mut begun, mut lost) = (0, Vec::new());
    for event in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match event {
            Event::Begun => begun += 1,
            Event::Lost { how, .. } => lost.push(how),
        }
    }
    (begun, lost, parse(&text))
}

/// Nobody complains, and every connection has come to its end.
fn assert_all_ended(victim: &mut Process) -> Vec<Record> {
    settles("open connections", &0, || {
        let (begun, lost, records) = course(victim);
        begun - lost.len() - records.len()
    });
    victim.assert_running();
    course(victim).2
}

/// An honest client that says how many of its connections were shunted.
fn honest_client(sandbox: &Sandbox, server: &mut Server, seed: u64) -> (Vec<Record>, u64) {
    let mut command: Command = sandbox.plain(sandbox.shunt_path());
    let mode = sandbox.mode.to_string();
    command.args(["run", "--summary", "--dmb", &mode, "--"]).arg(built("shunt-gen"));
    let to = SocketAddr::from(([127, 0, 0, 1], server.port));
    let server = server.process();
    let (to, n, seed) = (to.to_string(), HONEST.to_string(), seed.to_string());
    let args = ["connect", "--to", &to, "-n", &n, "-b", "200000", "--seed", &seed];
    command.args(args).args(["--style", "epoll-lt"]);
    let done = sandbox.spawn(command).wait_at_most(patience());
    assert!(done.status.success(), "{done}\nof {}", server.describe());
    let shunted = done.stderr.strip_prefix("shunt: ").and_then(|text| text.split(' ').next());
    let shunted = shunted.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{done}"));
    (parse(&done.stdout), shunted)
}

/// Of the records of one end those whose other end is among `others`.
fn met(records: Vec<Record>, others: &[Record]) -> Vec<Record> {
    let sent: HashSet<u64> = others.iter().map(|record| record.sent_label).collect();
    let is_met = |record: &Record| record.received_label.is_some_and(|label| sent.contains(&label));
    records.into_iter().filter(is_met).collect()
}

/// The agent lives, and nothing went wrong inside Shunt.
fn assert_sound(sandbox: &Sandbox) -> Stats {
    let stats = sandbox.stats();
    assert_eq!(stats.get("contained_faults"), 0);
    assert_eq!(stats.declined("internal"), 0);
    stats
}

/// What all rounds of a test came to.
#[derive(Default)]
struct Total {
    writes: u64,
    connections: u64,
    lost: usize,
    honest: usize,
}

impl Total {
    fn print(&self, what: &str, stats: &Stats) {
        println!(
            "{what}: {} writes over {} connections, {} lost, {} violations; {} honest connections",
            self.writes,
            self.connections,
            self.lost,
            stats.get("protocol_violations"),
            self.honest
        );
    }
}

fn clients_write(into: Into) {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut total = Total::default();
        for round in rounds(4, 100_000) {
            let style = STYLES[round as usize % STYLES.len()];
            let args = [&VICTIM[..], &["-n", "1000000", "--style", style]].concat();
            let mut server = Server::start(&sandbox, true, &args);
            let to = SocketAddr::from(([127, 0, 0, 1], server.port));
            let start = (seed() + u64::from(round)).to_string();
            let writes = if are_long() { "30000" } else { "5000" };
            let args = ["connect", "--to", &to.to_string(), "--into", into.name()];
            let args = [&args[..], &["--writes", writes, "--seed", &start]].concat();
            let mut peer = hostile(&sandbox, &args);
            let mut honest = Vec::new();
            // One more when the other is gone.
            let mut more = 2;
            while more > 0 {
                let (records, shunted) =
                    honest_client(&sandbox, &mut server, 1 + honest.len() as u64);
                assert!(shunted > 0 || !into.spares_others(), "nothing was shunted");
                honest.extend(records);
                more = if peer.is_running() { 2 } else { more - 1 };
            }
            let (writes, connections) = deeds(&peer);
            let _ended = peer.wait_at_most(patience()).success();
            let ends = assert_all_ended(server.process());
            compare(&honest, &met(ends, &honest))
                .unwrap_or_else(|e| panic!("{e} [{mode} {style}]"));
            total.writes += writes;
            total.connections += connections;
            total.lost += course(server.process()).1.len();
            total.honest += honest.len();
        }
        let stats = assert_sound(&sandbox);
        total.print(&format!("clients, {}, {mode}", into.name()), &stats);
        assert!(stats.get("protocol_violations") > 0);
    }
}

#[test]
fn clients_write_to_link_groups() {
    clients_write(Into::Region);
}

#[test]
fn clients_meddle_with_doorbells() {
    clients_write(Into::RegionAndBells);
}

#[test]
fn clients_write_everywhere() {
    clients_write(Into::All);
}

/// Clients that are connected to an honest server and to another one.
fn servers_write(into: Into) {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut total = Total::default();
        for round in rounds(4, 100_000) {
            let style = STYLES[round as usize % STYLES.len()];
            let half = if are_long() { 400 } else { 40 };
            let (n, all) = (half.to_string(), (2 * half).to_string());
            let bytes = ["-b", "200000", "--style", style];
            let honest = Server::start(&sandbox, true, &[&bytes[..], &["-n", &n]].concat());
            let start = (seed() + u64::from(round)).to_string();
            let args = ["serve", "--into", into.name(), "--writes", "1000000000", "--seed", &start];
            let mut peer = hostile(&sandbox, &args);
            let port = peer.wait_for_line(|line| {
                serde_json::from_str::<Listening>(line).ok().map(|listening| listening.port)
            });
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let other = SocketAddr::from(([127, 0, 0, 1], honest.port)).to_string();
            let args = ["--to", &other, "-n", &all, "--at-once", "16", "--style", style];
            let victim = start_client(&sandbox, true, to, &[&VICTIM[..], &args].concat());
            let done = victim.wait_at_most(patience()).success();
            peer.assert_running();
            let ends = honest.finish();
            let met = met(parse(&done.stdout), &ends);
            compare(&met, &ends).unwrap_or_else(|e| panic!("{e} [{mode} {style}]"));
            let (writes, connections) = deeds(&peer);
            total.writes += writes;
            total.connections += connections;
            total.lost += done.stdout.matches(r#""lost""#).count();
            total.honest += ends.len();
        }
        let stats = assert_sound(&sandbox);
        total.print(&format!("servers, {}, {mode}", into.name()), &stats);
        assert!(stats.get("connections_shunted") > 0);
        assert!(stats.get("protocol_violations") > 0);
    }
}

#[test]
fn servers_write_to_link_groups() {
    servers_write(Into::Region);
}

#[test]
fn servers_write_everywhere() {
    servers_write(Into::All);
}

/// What no honest peer can have written: the victim's next look must find it.
const VIOLATIONS: [&str; 11] = [
    "producer-beyond",
    "producer-back",
    "consumer-beyond",
    "consumer-back",
    "marks-ahead",
    "marks-back",
    "mark-behind",
    "handed-over-beyond",
    "grants-ahead",
    "grant-of-nothing",
    "unmarked-bytes",
];
/// Connections on which each is tried.
const TIMES: usize = 2;

/// Each lost connection was reset, and counted as what it is.
fn assert_violations(victim: &Process, before: &Stats, sandbox: &Sandbox, what: &str) {
    let (_, lost, _) = course(victim);
    assert_eq!(lost.len(), TIMES, "{what}: {lost:?}");
    let reset = format!("os error {}", libc::ECONNRESET);
    assert!(lost.iter().all(|how| how.contains(&reset)), "{what}: {lost:?}");
    let stats = assert_sound(sandbox);
    let count =
        |stats: &Stats| (stats.get("protocol_violations"), stats.declined("protocol-violation"));
    let (before, after) = (count(before), count(&stats));
    let news = (after.0 - before.0, after.1 - before.1);
    assert_eq!(news, (TIMES as u64, TIMES as u64), "{what}");
}

#[test]
fn each_violation_resets_its_connection() {
    let times = TIMES.to_string();
    // With buffers of their own no victim leaves a ring that stays full.
    let endless = ["--survive", "--distrust", "-b", "1000000000000", "--buffers", "1000000"];
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        for (style, what) in STYLES.iter().flat_map(|s| VIOLATIONS.iter().map(move |v| (*s, *v))) {
            let only = ["--only", what, "--times", &times];
            let named = format!("{what} [{mode} {style}]");

            let before = sandbox.stats();
            let args = [&endless[..], &["-n", "1000", "--style", style]].concat();
            let mut server = Server::start(&sandbox, true, &args);
            let to = SocketAddr::from(([127, 0, 0, 1], server.port)).to_string();
            let peer = hostile(&sandbox, &[&["connect", "--to", &to][..], &only].concat());
            let _ended = peer.wait_at_most(patience()).success();
            assert_all_ended(server.process());
            assert_violations(server.process(), &before, &sandbox, &format!("client: {named}"));
            drop(server);

            let before = sandbox.stats();
            let mut peer = hostile(&sandbox, &[&["serve"][..], &only].concat());
            let port = peer.wait_for_line(|line| {
                serde_json::from_str::<Listening>(line).ok().map(|listening| listening.port)
            });
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let args = [&endless[..], &["-n", &times, "--style", style]].concat();
            let mut client = start_client(&sandbox, true, to, &args);
            settles("lost connections", &TIMES, || course(&client).1.len());
            assert_violations(&client, &before, &sandbox, &format!("server: {named}"));
            settles("a victim that runs", &false, || client.is_running());
            peer.assert_running();
        }
    }
}

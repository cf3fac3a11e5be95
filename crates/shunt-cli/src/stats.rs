//! `shunt stats`.

use std::ffi::OsStr;
use std::fmt::Display;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};
use shunt_agent::book::Book;
use shunt_agent::programs;
use shunt_agent::totals::{ENDED, LIVE, PROGRAMS, Totals, UNREGISTERED, WAITS_BY_PROGRAM};
use shunt_sys::run_dir::TOTALS;
use shunt_wire::agent::Request;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::cli::Stats;
use crate::directory::{Directory, Unreachable, run_dir};
use crate::output::{complain, print};
use crate::table::Table;
use crate::waits;

/// Runs the subcommand.
pub fn run(args: &Stats) -> u8 {
    match args.interval {
        None => match ask(args.run) {
            Ok(report) => narrowed(report, args.program.as_deref())
                .map_or_else(|why| failed(&why), |report| show(&report, args)),
            Err(why) => failed(&why),
        },
        Some(pause) => watch(args, Duration::from_secs_f64(pause)),
    }
}

fn failed(why: &impl Display) -> u8 {
    complain(why);
    1
}

/// What a report says of the programs of one name, in the form of a report.
fn narrowed(mut report: Value, program: Option<&str>) -> Result<Value, String> {
    let Some(program) = program else { return Ok(report) };
    let Some(programs) = report[PROGRAMS].as_object() else {
        return Err("the agent is older, and does not tell programs apart; start it anew".into());
    };
    let Some(told) = programs.get(program) else {
        let names: Vec<_> = programs.keys().map(String::as_str).collect();
        let known = if names.is_empty() { "none has".into() } else { names.join(", ") + " have" };
        return Err(format!("no program named {program} has had connections under Shunt; {known}"));
    };
    let mut map = Map::new();
    let mut totals = Totals::from_json(told).unwrap_or_default();
    totals.waits = waits::told(&report[WAITS_BY_PROGRAM][program]);
    map.extend(totals.to_json());
    for number in [LIVE, ENDED] {
        map.insert(number.into(), told.get(number).cloned().unwrap_or_else(|| 0.into()));
    }
    for what in ["version", "uptime_s"] {
        map.insert(what.into(), report[what].take());
    }
    Ok(Value::Object(map))
}

fn show(report: &Value, args: &Stats) -> u8 {
    print(&if args.json {
        format!("{:#}\n", completed(report))
    } else {
        text(report, args.verbose)
    })
}

fn completed(report: &Value) -> Value {
    let mut report = report.clone();
    waits::complete_report(&mut report);
    report
}

fn ask(run: u64) -> Result<Value, Unreachable> {
    match Directory::open().and_then(|agent| agent.report(&Request::Stats { run })) {
        Err(Unreachable::NotRunning(_) | Unreachable::HostNotRunning(_)) => Ok(kept(run)),
        other => other,
    }
}

/// Prints what is added, until it cannot. Where no agent is at first, nothing would ever be added.
fn watch(args: &Stats, pause: Duration) -> u8 {
    let first = Directory::open().and_then(|agent| agent.report(&Request::Stats { run: args.run }));
    let first = first.map_err(|why| why.to_string());
    let mut before = match first.and_then(|report| narrowed(report, args.program.as_deref())) {
        Ok(report) => report,
        Err(why) => return failed(&why),
    };
    loop {
        std::thread::sleep(pause);
        let now = ask(args.run).map_err(|why| why.to_string());
        let now = match now.and_then(|report| narrowed(report, args.program.as_deref())) {
            Ok(report) => report,
            Err(why) => return failed(&why),
        };
        let added = added(&now, &before);
        let said = if args.json { format!("{}\n", completed(&added)) } else { changes(&added) };
        match print(&said) {
            0 => before = now,
            lost => return lost,
        }
    }
}

/// What describes the moment.
const MOMENTARY: [&str; 4] = [LIVE, "uptime_s", "rdma_peers", "rdma_promotion"];

/// The differences of all counters.
fn added(now: &Value, before: &Value) -> Value {
    match now {
        Value::Object(map) => {
            let of = |(name, value): (&String, &Value)| {
                let is_momentary = MOMENTARY.contains(&name.as_str());
                (
                    name.clone(),
                    if is_momentary { value.clone() } else { added(value, &before[name]) },
                )
            };
            Value::Object(map.iter().map(of).collect())
        }
        Value::Number(n) => match (n.as_u64(), before.as_u64()) {
            (Some(now), Some(before)) => now.saturating_sub(before).into(),
            _ => now.clone(),
        },
        other => other.clone(),
    }
}

/// Tables of what was added, and a blank line.
fn changes(added: &Value) -> String {
    let mut table = Table::without_heading(&[false, true]);
    let mut row = |name: &str, value: &Value| {
        if value.as_u64().is_some_and(|n| n > 0) {
            table.row(vec![name.to_owned(), value.to_string()]);
        }
    };
    row(LIVE, &added[LIVE]);
    row(ENDED, &added[ENDED]);
    for counter in Counter::ALL {
        row(counter.name(), &added[counter.name()]);
    }
    for what in ["declined", UNREGISTERED] {
        for reason in Reason::ALL {
            row(&format!("{what}.{}", reason.name()), &added[what][reason.name()]);
        }
    }
    table.render() + &waits::table(added) + "\n"
}

/// What the last agent wrote down: the same report, of ended programs only.
fn kept(run: u64) -> Value {
    let path = run_dir().and_then(|dir| {
        dir.check()?;
        dir.file(TOTALS)
    });
    let book = match path {
        Ok(path) => Book::load(Path::new(OsStr::from_bytes(path.as_bytes()))).unwrap_or_else(|e| {
            complain(&format!("{path} is not readable ({e}); its totals are lost"));
            Book::default()
        }),
        Err(_) => Book::default(),
    };
    let totals = book.get(run);
    let mut map = Map::new();
    map.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    map.insert("uptime_s".into(), 0.into());
    map.extend(totals.to_json());
    map.insert(LIVE.into(), 0.into());
    map.insert(ENDED.into(), totals.programs.into());
    if run == 0 {
        let [programs, waits] = programs::to_json(&book.programs.with(iter::empty()));
        map.insert(PROGRAMS.into(), programs);
        map.insert(WAITS_BY_PROGRAM.into(), waits);
    }
    Value::Object(map)
}

fn text(report: &Value, verbose: bool) -> String {
    let mut table = Table::without_heading(&[false, true]);
    let mut row = |name: &str, value: &Value, explain: &str| {
        let mut cells = vec![name.to_owned(), value.to_string()];
        if verbose {
            cells.push(explain.trim().to_owned());
        }
        table.row(cells);
    };
    row(LIVE, &report[LIVE], "Programs that run under Shunt now.");
    row(ENDED, &report[ENDED], "Programs that did and have ended.");
    for (state, count) in report["rdma_peers"].as_object().into_iter().flatten() {
        row(&format!("rdma_peers.{state}"), count, "Agents of other hosts in this state.");
    }
    for (judgement, count) in report["rdma_promotion"].as_object().into_iter().flatten() {
        let explained = "Agents of other hosts, by what becomes of connections with them.";
        row(&format!("rdma_promotion.{judgement}"), count, explained);
    }
    for c in Counter::ALL {
        row(c.name(), &report[c.name()], c.explain());
    }
    for what in ["declined", UNREGISTERED] {
        for r in Reason::ALL {
            let n = &report[what][r.name()];
            if verbose || n.as_u64().is_some_and(|n| n > 0) {
                row(&format!("{what}.{}", r.name()), n, r.explain());
            }
        }
    }
    let waits = waits::table(report);
    table.render() + if waits.is_empty() { "" } else { "\n" } + &waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown() {
        let mut totals = Totals::default();
        totals.counters[Counter::Shunted as usize] = 42;
        totals.declined[Reason::Remote as usize] = 1;
        totals.unregistered[Reason::NoAgent as usize] = 1;
        let mut map = totals.to_json();
        map.insert(LIVE.into(), 1.into());
        map.insert(ENDED.into(), 2.into());
        let report = Value::Object(map);
        let short = text(&report, false);
        assert!(short.contains("connections_shunted"));
        assert!(short.contains("declined.remote") && !short.contains("declined.no-agent"));
        assert!(short.contains("listeners_unregistered.no-agent"), "{short}");
        assert!(!short.contains("listeners_unregistered.remote"), "{short}");
        let long = text(&report, true);
        assert!(long.contains("declined.no-agent") && long.contains("promoted to shared memory"));
    }

    #[test]
    fn what_is_added_between_two_reports() {
        let mut totals = Totals::default();
        totals.counters[Counter::Shunted as usize] = 42;
        totals.declined[Reason::Remote as usize] = 1;
        let report = |totals: &Totals, live: u64| {
            let mut map = totals.to_json();
            map.insert(LIVE.into(), live.into());
            map.insert("version".into(), "1".into());
            Value::Object(map)
        };
        let before = report(&totals, 3);
        totals.counters[Counter::Shunted as usize] = 50;
        totals.declined[Reason::Remote as usize] = 3;
        let added = added(&report(&totals, 2), &before);
        assert_eq!((&added["connections_shunted"], &added["version"]), (&8.into(), &"1".into()));
        let said = changes(&added);
        let rows: Vec<Vec<_>> = said.lines().map(|l| l.split_whitespace().collect()).collect();
        let expected: [&[&str]; 4] =
            [&[LIVE, "2"], &["connections_shunted", "8"], &["declined.remote", "2"], &[]];
        assert_eq!(rows, expected);
        // An agent that has been started anew.
        let empty = super::added(&report(&Totals::default(), 0), &before);
        assert_eq!(changes(&empty), "\n");
    }
}

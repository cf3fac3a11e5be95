//! `shunt stats`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value};
use shunt_agent::totals::{Book, UNREGISTERED};
use shunt_sys::run_dir::TOTALS;
use shunt_wire::agent::Request;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::cli::Stats;
use crate::directory::{Directory, Unreachable, run_dir};
use crate::output::{complain, print};
use crate::table::Table;

/// Runs the subcommand.
pub fn run(args: &Stats) -> u8 {
    let request = Request::Stats { run: args.run };
    let report = match Directory::open().and_then(|agent| agent.report(&request)) {
        Ok(report) => report,
        Err(Unreachable::NotRunning(_) | Unreachable::HostNotRunning(_)) => kept(args.run),
        Err(e) => {
            complain(&e);
            return 1;
        }
    };
    print(&if args.json { format!("{report:#}\n") } else { text(&report, args.verbose) })
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
    map.insert("programs_live".into(), 0.into());
    map.insert("programs_ended".into(), totals.programs.into());
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
    row("programs_live", &report["programs_live"], "Programs that run under Shunt now.");
    row("programs_ended", &report["programs_ended"], "Programs that did and have ended.");
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
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_agent::totals::Totals;

    #[test]
    fn what_is_shown() {
        let mut totals = Totals::default();
        totals.counters[Counter::Shunted as usize] = 42;
        totals.declined[Reason::Remote as usize] = 1;
        totals.unregistered[Reason::NoAgent as usize] = 1;
        let mut map = totals.to_json();
        map.insert("programs_live".into(), 1.into());
        map.insert("programs_ended".into(), 2.into());
        let report = Value::Object(map);
        let short = text(&report, false);
        assert!(short.contains("connections_shunted"));
        assert!(short.contains("declined.remote") && !short.contains("declined.no-agent"));
        assert!(short.contains("listeners_unregistered.no-agent"), "{short}");
        assert!(!short.contains("listeners_unregistered.remote"), "{short}");
        let long = text(&report, true);
        assert!(long.contains("declined.no-agent") && long.contains("promoted to shared memory"));
    }
}

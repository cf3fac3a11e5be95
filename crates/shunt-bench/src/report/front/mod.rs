//! The figures of the README: a chart and a table, both made of one published report.

mod chart;
mod table;

use std::fmt;

use super::{Report, RowReport};
use crate::contender::Contender;

pub use chart::svg;
pub use table::markdown;

/// The rows, and their names there.
const ROWS: [(&str, &str); 16] = [
    ("memory", "idle connection, memory of both ends"),
    ("nginx.close.w1", "nginx, a connection per request"),
    ("connect", "connect, request, answer, close"),
    ("pairs.4", "4 ping-pong pairs on 2 cores"),
    ("rare", "1,000 requests/s, round trip"),
    ("postgres.prepared.c8", "PostgreSQL, pgbench -S, 8 clients"),
    ("haproxy.c32", "HAProxy in front of nginx, 32 clients"),
    ("nginx.stock.w1.c32", "nginx as it ships, 32 connections"),
    ("nginx.612.w1.c32", "nginx tuned, 32 connections"),
    ("memcached.c32", "memcached, 32 connections"),
    ("redis.get.p1", "redis GET, 50 connections"),
    ("redis.get.p16", "redis GET, pipelined by 16"),
    ("sockperf.throughput", "sockperf, sends of 64,000 B"),
    ("iperf3.1", "iperf3, one stream"),
    ("ipc.100", "request and answer of 100 B"),
    ("sockperf.ping-pong", "sockperf ping-pong, 14 B, one way"),
];

/// Rows without which the figures would flatter: the same server as it ships, and as it is tuned.
const BOTH: [&str; 2] = ["nginx.stock.w1.c32", "nginx.612.w1.c32"];

/// Where the figures begin in a document; the rest of the line names the report.
pub const BEGIN: &str = "<!-- figures of ";
/// Where they end.
pub const END: &str = "<!-- end of the figures -->";

/// Why the figures cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// The report lacks this row.
    Lacks(&'static str),
    /// No report is given.
    NoReport,
    /// The document has no marks.
    NoMarks,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lacks(row) => write!(
                f,
                "the report has no figures of {row} over kernel TCP and Shunt; both configurations of nginx are shown, \
                 or none: measure with --only {}",
                BOTH.join(",")
            ),
            Self::NoReport => f.write_str("no report is given"),
            Self::NoMarks => {
                write!(f, "there are no lines `{BEGIN}… -->` and `{END}` to write between")
            }
        }
    }
}

/// A row that is shown.
#[derive(Clone, Copy, Debug)]
struct Shown<'a> {
    name: &'static str,
    row: &'a RowReport,
    tcp: f64,
    shunt: f64,
    gain: Option<f64>,
}

/// Those that the report has figures of, the least favourable first.
fn shown(report: &Report) -> Result<Vec<Shown<'_>>, Unfit> {
    let mut all = Vec::new();
    for (id, name) in ROWS {
        let there = report.row(id).and_then(|row| {
            let (tcp, shunt) = (row.kernel_median()?, row.median(Contender::Attach)?);
            Some(Shown { name, row, tcp, shunt, gain: row.gain(shunt, tcp).filter(|_| row.ratio) })
        });
        match there {
            Some(shown) => all.push(shown),
            None if BOTH.contains(&id) => return Err(Unfit::Lacks(id)),
            None => {}
        }
    }
    // Figures whose ratio says nothing are costs.
    all.sort_by(|a, b| a.gain.unwrap_or(0.0).total_cmp(&b.gain.unwrap_or(0.0)));
    Ok(all)
}

/// A ratio in three digits.
fn times(gain: f64) -> String {
    match gain {
        g if g < 9.995 => format!("{g:.2}×"),
        g if g < 99.95 => format!("{g:.1}×"),
        g => format!("{g:.0}×"),
    }
}

/// On what, and how.
fn conditions(report: &Report) -> String {
    let m = &report.machine;
    let others = [Contender::Cubic, Contender::Reno];
    let is_there = |c: &Contender| report.rows.iter().any(|row| row.median(*c).is_some());
    let others: Vec<_> = others.into_iter().filter(is_there).map(Contender::name).collect();
    let tcp = match &others[..] {
        [] => format!("with {}", m.congestion_control),
        all => format!("with the best of {}, {}", m.congestion_control, all.join(", ")),
    };
    format!("{} cores ({}), Linux {}; kernel TCP over loopback {tcp}", m.cores, m.cpu, m.kernel)
}

/// The document with these figures between its marks.
///
/// # Errors
/// It has no marks.
pub fn replace(document: &str, figures: &str) -> Result<String, Unfit> {
    let (before, rest) = document.split_once(BEGIN).ok_or(Unfit::NoMarks)?;
    let (_, after) = rest.split_once(END).ok_or(Unfit::NoMarks)?;
    Ok([before, figures, after].concat())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::report::tests::sample;
    use crate::report::{ResultReport, RowReport};
    use crate::workload;

    /// A report that has what is shown.
    pub fn fit() -> Report {
        let mut report = sample();
        let all = workload::all();
        for (id, tcp, shunt) in [
            ("nginx.stock.w1.c32", 10_000.0, 20_000.0),
            ("nginx.612.w1.c32", 10_000.0, 45_000.0),
            ("nginx.close.w1", 10_000.0, 9_000.0),
        ] {
            let mut row = RowReport::of(all.iter().find(|row| row.id == id).unwrap());
            row.results = [(Contender::Tcp, tcp), (Contender::Attach, shunt)]
                .map(|(contender, value)| ResultReport::measured(contender, &[value]))
                .to_vec();
            row.compare();
            report.rows.push(row);
        }
        report
    }

    #[test]
    fn the_least_favourable_comes_first() {
        let report = fit();
        let names: Vec<_> = shown(&report).unwrap().iter().map(|shown| &*shown.row.id).collect();
        assert_eq!(names.first(), Some(&"memory"), "{names:?}");
        let at = |id: &str| names.iter().position(|name| *name == id).unwrap();
        assert!(at("nginx.close.w1") < at("nginx.stock.w1.c32"));
        assert!(at("nginx.stock.w1.c32") < at("nginx.612.w1.c32"));
    }

    #[test]
    fn both_configurations_of_nginx_are_shown_or_nothing_is() {
        assert_eq!(shown(&sample()).err(), Some(Unfit::Lacks("nginx.stock.w1.c32")));
    }

    #[test]
    fn names_are_of_rows() {
        let all = workload::all();
        for (id, _) in ROWS {
            assert!(all.iter().any(|row| row.id == id), "no row {id}");
        }
    }

    #[test]
    fn ratios_have_three_digits() {
        assert_eq!(
            [0.987, 2.0, 9.999, 10.04, 99.96, 161.4].map(times),
            ["0.99×", "2.00×", "10.0×", "10.0×", "100×", "161×"]
        );
    }

    #[test]
    fn figures_go_between_the_marks() {
        let text = format!("a\n{BEGIN}old.json -->\nold\n{END}\nb\n");
        assert_eq!(replace(&text, "new").as_deref(), Ok("a\nnew\nb\n"));
        assert_eq!(replace("a", "new"), Err(Unfit::NoMarks));
    }

    /// Whoever changes the README's figures by hand changes them for the reader, not for the report.
    #[test]
    fn the_readme_has_the_figures_of_the_report_that_it_names() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = fs::read_to_string(root.join("README.md")).unwrap();
        let named =
            readme.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(" -->")).unwrap().0;
        let read = |name: &str| {
            serde_json::from_str(&fs::read_to_string(root.join(name)).unwrap()).unwrap()
        };
        let reports: Vec<(String, Report)> =
            named.split(' ').map(|name| (name.to_owned(), read(name))).collect();
        let how = format!("make figures REPORT=\"{named}\"");
        let all: Vec<_> = reports.iter().map(|(name, report)| (name.clone(), report)).collect();
        let figures = markdown(&all, "docs/images/results.svg").unwrap();
        assert!(
            replace(&readme, &figures).as_ref() == Ok(&readme),
            "README.md is out of date: {how}"
        );
        let drawn = fs::read_to_string(root.join("docs/images/results.svg")).unwrap();
        assert!(
            svg(all[0].1).as_ref() == Ok(&drawn),
            "docs/images/results.svg is out of date: {how}"
        );
    }
}

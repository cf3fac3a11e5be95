//! What a run found: the JSON schema (documented in `docs/bench.md`), and its renderings.

pub mod front;
pub mod html;
pub mod judged;
pub(crate) mod row;
pub mod shapes;
pub mod table;

use serde::{Deserialize, Serialize};

use crate::limits::Limit;
use crate::machine::Machine;
use crate::targets::TargetReport;
pub use row::{ResultReport, RowLimit, RowReport, Status};

/// Changes when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// The schema's name, in each file.
pub const SCHEMA: &str = "shunt-bench";

/// A whole run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`VERSION`].
    pub version: u32,
    /// Shunt's own version.
    pub shunt: String,
    /// When it began, UTC.
    pub date: String,
    /// True for `--quick`: fewer rows, rounds and seconds.
    pub quick: bool,
    /// Rounds of each row.
    pub rounds: u32,
    /// Seconds of load per round and contender.
    pub seconds: f64,
    /// Where.
    pub machine: Machine,
    /// What the machine allows.
    pub limits: Vec<Limit>,
    /// The rows.
    pub rows: Vec<RowReport>,
    /// What Shunt is to reach, and whether it did.
    pub targets: Vec<TargetReport>,
}

impl Report {
    /// The row of this name.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<&RowReport> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// True when a row went wrong.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        let mut all = self.rows.iter().flat_map(|row| &row.results);
        all.any(|result| result.status == Status::Failed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::contender::Contender;
    use crate::failure::Failure;
    use crate::stats::Quantile;
    use crate::{targets, workload};

    /// A report with some rows of each kind.
    pub fn sample() -> Report {
        let quantiles =
            |scale: f64| [0.5, 0.9, 0.99].map(|q| Quantile { q, us: q * scale }).to_vec();
        let names = ["ipc.1", "ipc.100", "sockperf.ping-pong", "iperf3.1", "memory"];
        let all = workload::all();
        let rows = names.iter().map(|name| {
            let mut row = RowReport::of(all.iter().find(|row| row.id == *name).unwrap());
            for (contender, value) in [(Contender::Tcp, 70_000.0), (Contender::Attach, 1.5e6)] {
                row.results.push(ResultReport {
                    cpu: Some(10.0),
                    switches: Some(2.0),
                    latency: quantiles(1e6 / value),
                    ..ResultReport::measured(contender, &[value, value * 1.1, value * 0.9])
                });
            }
            let skipped = Failure::Skipped("not <here> & now".into());
            row.results.push(ResultReport::without(Contender::Sockmap, &skipped));
            row.compare();
            row
        });
        let cell = shapes::tests::row("shapes.poll.8", [1e5, 2e5, 1e5, 1.5e5]);
        let rows: Vec<_> = rows.chain([cell]).collect();
        Report {
            schema: SCHEMA.into(),
            version: VERSION,
            shunt: "0.0.0".into(),
            date: "2030-01-01T00:00:00Z".into(),
            quick: true,
            rounds: 3,
            seconds: 0.5,
            machine: Machine { cpu: "A & B <C>".into(), ..Machine::default() },
            limits: Vec::new(),
            targets: targets::judge(&rows),
            rows,
        }
    }

    #[test]
    fn json_there_and_back() {
        let report = sample();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["schema"], "shunt-bench");
        assert_eq!(json["rows"][1]["id"], "ipc.100");
        assert_eq!(json["rows"][1]["results"][0]["contender"], "tcp");
        assert_eq!(json["rows"][1]["results"][2]["status"], "skipped");
        assert_eq!(json["rows"][1]["results"][2]["why"], "not <here> & now");
    }

    #[test]
    fn gains_are_of_the_better_kind() {
        let report = sample();
        let gain = |id: &str| {
            report.row(id).and_then(|row| row.result(Contender::Attach)).and_then(|r| r.gain)
        };
        assert!(gain("ipc.100").is_some_and(|gain| gain > 20.0));
        assert!(gain("sockperf.ping-pong").is_some_and(|gain| gain < 0.05));
        assert_eq!(gain("memory"), None);
        assert!(!report.has_failures());
    }

    #[test]
    fn all_are_compared_with_the_best_congestion_control() {
        let all = workload::all();
        let gains = |id: &str, figures: [f64; 3]| {
            let mut row = RowReport::of(all.iter().find(|row| row.id == id).unwrap());
            let contenders = [Contender::Tcp, Contender::Cubic, Contender::Attach];
            row.results = contenders
                .into_iter()
                .zip(figures)
                .map(|(contender, figure)| ResultReport::measured(contender, &[figure]))
                .collect();
            row.compare();
            (row.kernel().unwrap().contender, row.results.iter().map(|r| r.gain.unwrap()).collect())
        };
        let (best, ratios): (_, Vec<_>) = gains("iperf3.1", [10.0, 20.0, 40.0]);
        assert_eq!((best, ratios), (Contender::Cubic, vec![0.5, 1.0, 2.0]));
        let (best, ratios): (_, Vec<_>) = gains("sockperf.ping-pong", [10.0, 20.0, 5.0]);
        assert_eq!((best, ratios), (Contender::Tcp, vec![1.0, 0.5, 2.0]));
    }
}

//! What a run found: the JSON schema (documented in `docs/bench.md`), and its renderings.

pub mod html;
pub mod table;

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::failure::Failure;
use crate::limits::Limit;
use crate::machine::Machine;
use crate::stats::{Quantile, Spread};
use crate::targets::TargetReport;
use crate::workload::{Better, Per, Point, Row};

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

/// A row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RowReport {
    /// Its name.
    pub id: String,
    /// For people.
    pub title: String,
    /// The family it belongs to.
    pub family: String,
    /// What its figures mean.
    pub meaning: String,
    /// Of the figures.
    pub unit: String,
    /// Of the figures.
    pub better: Better,
    /// What costs are related to.
    pub per: Per,
    /// False when times better or worse say nothing about the figure; then there is no `gain`.
    pub ratio: bool,
    /// Its place in a curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// What the machine allows, in the row's unit; none where there is no simple limit.
    pub limit: Option<RowLimit>,
    /// One for each contender.
    pub results: Vec<ResultReport>,
}

/// What the machine allows in a row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RowLimit {
    /// Which limit.
    pub id: String,
    /// For people.
    pub title: String,
    /// In the row's unit.
    pub value: f64,
}

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There are figures.
    Measured,
    /// It could not be had here.
    Skipped,
    /// It went wrong.
    Failed,
}

/// What one contender reached in a row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ResultReport {
    /// Who.
    pub contender: Contender,
    /// How it went.
    pub status: Status,
    /// Why it was skipped or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The figure, over the rounds.
    pub value: Option<Spread>,
    /// The figure of each round.
    pub samples: Vec<f64>,
    /// How many times better than kernel TCP.
    pub gain: Option<f64>,
    /// Processor time of all programs: microseconds per request (which is seconds per million
    /// requests), or seconds per 10⁹ bytes.
    pub cpu: Option<f64>,
    /// Context switches per request, or per 10⁶ bytes.
    pub switches: Option<f64>,
    /// System calls per request, or per 10⁶ bytes.
    pub syscalls: Option<f64>,
    /// The distribution of latencies, in microseconds; empty when the program gives none.
    pub latency: Vec<Quantile>,
    /// Connection ends of all rounds, under Shunt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<u64>,
    /// Those of them that were shunted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_shunted: Option<u64>,
}

impl ResultReport {
    /// Figures of so many rounds, without costs.
    #[must_use]
    pub fn measured(contender: Contender, samples: &[f64]) -> Self {
        Self {
            contender,
            status: Status::Measured,
            why: None,
            value: Spread::of(samples),
            samples: samples.to_vec(),
            gain: None,
            cpu: None,
            switches: None,
            syscalls: None,
            latency: Vec::new(),
            ends: None,
            ends_shunted: None,
        }
    }

    /// None, and why.
    #[must_use]
    pub fn without(contender: Contender, failure: &Failure) -> Self {
        let status = match failure {
            Failure::Skipped(_) => Status::Skipped,
            Failure::Failed(_) => Status::Failed,
        };
        let why = Some(failure.why().to_owned());
        Self { status, why, ..Self::measured(contender, &[]) }
    }
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

impl RowReport {
    /// An empty one.
    #[must_use]
    pub fn of(row: &Row) -> Self {
        Self {
            id: row.id.clone(),
            title: row.title.clone(),
            family: row.family.title.into(),
            meaning: row.family.meaning.into(),
            unit: row.unit.into(),
            better: row.better,
            per: row.per,
            ratio: row.ratio,
            point: row.point.clone(),
            limit: None,
            results: Vec::new(),
        }
    }

    /// Notes what these limits allow in this row.
    pub fn bound_by(&mut self, row: &Row, limits: &[Limit]) {
        self.limit = row.bound.and_then(|bound| {
            let limit = limits.iter().find(|limit| limit.id == bound.limit)?;
            let value = (bound.figure)(limit.value?.median);
            Some(RowLimit { id: limit.id.clone(), title: limit.title.clone(), value })
        });
    }

    /// What this contender reached.
    #[must_use]
    pub fn result(&self, contender: Contender) -> Option<&ResultReport> {
        self.results.iter().find(|result| result.contender == contender)
    }

    /// The median figure of this contender.
    #[must_use]
    pub fn median(&self, contender: Contender) -> Option<f64> {
        self.result(contender)?.value.map(|value| value.median)
    }

    /// How many times better `a` is than `b`, both figures of this row.
    #[must_use]
    pub fn gain(&self, a: f64, b: f64) -> Option<f64> {
        let (better, worse) = if self.better == Better::Higher { (a, b) } else { (b, a) };
        (better > 0.0 && worse > 0.0).then(|| better / worse)
    }

    /// Fills in how many times better than kernel TCP each is.
    pub fn compare(&mut self) {
        let Some(tcp) = self.median(Contender::Tcp).filter(|_| self.ratio) else { return };
        let gains: Vec<_> = self
            .results
            .iter()
            .map(|result| result.value.and_then(|value| self.gain(value.median, tcp)))
            .collect();
        for (result, gain) in self.results.iter_mut().zip(gains) {
            result.gain = gain;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
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
        let rows: Vec<_> = rows.collect();
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
}

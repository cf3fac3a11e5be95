//! What was found in one row.

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::failure::Failure;
use crate::limits::Limit;
use crate::stats::{Quantile, Spread};
use crate::workload::{Better, Cell, Per, Point, Row};

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
    /// Its place among the shapes of servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<Cell>,
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
            cell: row.cell,
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

    /// What kernel TCP reached, with the congestion control that was best.
    #[must_use]
    pub fn kernel(&self) -> Option<&ResultReport> {
        let measured = |contender| {
            let result = self.result(contender)?;
            Some((result.value?.median, result))
        };
        let all = Contender::KERNEL.into_iter().filter_map(measured);
        let best = all.max_by(|a, b| match self.better {
            Better::Higher => a.0.total_cmp(&b.0),
            Better::Lower => b.0.total_cmp(&a.0),
        });
        best.map(|(_, result)| result)
    }

    /// Its median figure.
    #[must_use]
    pub fn kernel_median(&self) -> Option<f64> {
        self.kernel()?.value.map(|value| value.median)
    }

    /// The median figure of this contender.
    #[must_use]
    pub fn median(&self, contender: Contender) -> Option<f64> {
        self.result(contender)?.value.map(|value| value.median)
    }

    /// How many times better `a` is than `b`, both figures of this row. A rate may be 0: then a
    /// contender has answered nothing in all its time.
    #[must_use]
    pub fn gain(&self, a: f64, b: f64) -> Option<f64> {
        let (better, worse) = if self.better == Better::Higher { (a, b) } else { (b, a) };
        (better >= 0.0 && worse > 0.0).then(|| better / worse)
    }

    /// Fills in how many times better than kernel TCP each is.
    pub fn compare(&mut self) {
        let Some(tcp) = self.kernel_median().filter(|_| self.ratio) else { return };
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

//! What is measured: families of rows, and how each row is run.

mod apart;
mod connections;
mod ipc;
mod iperf;
mod memory;
pub mod nginx;
mod redis;
mod sockperf;
mod zerocopy;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::failure::Result;
use crate::rig::Session;
use crate::rig::meter::Cost;
use crate::stats::{Quantile, whole};

/// Rows of one kind.
#[derive(Debug)]
pub struct Family {
    /// For people.
    pub title: &'static str,
    /// What its figures mean, in a few sentences.
    pub meaning: &'static str,
}

/// What a figure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A rate.
    Higher,
    /// A time, or bytes.
    Lower,
}

/// What costs are related to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// A request, message or connection.
    Request,
    /// 10⁹ bytes of payload.
    Gigabyte,
}

/// The place of a row in a curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Which curve.
    pub curve: String,
    /// What runs along it.
    pub axis: String,
    /// Where on it.
    pub x: f64,
}

/// How long, and how much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Budget {
    /// Seconds of load.
    pub seconds: f64,
}

impl Budget {
    /// For programs that know whole seconds only.
    #[must_use]
    pub fn whole_seconds(self) -> u64 {
        whole(self.seconds).max(1)
    }

    /// When a program that runs so long is stuck.
    #[must_use]
    pub fn patience(self) -> Duration {
        Duration::from_secs_f64(self.seconds * 3.0 + 20.0)
    }
}

/// What one run gave.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// The row's figure.
    pub value: f64,
    /// Requests, messages or connections while it was metered.
    pub operations: f64,
    /// Bytes of payload while it was metered.
    pub bytes: f64,
    /// How long they took.
    pub latency: Vec<Quantile>,
    /// What the programs used.
    pub cost: Cost,
}

/// What bounds a row, and how its figure follows from that limit.
#[derive(Clone, Copy)]
pub struct Bound {
    /// The limit's name.
    pub limit: &'static str,
    /// From the limit's figure to the row's.
    pub figure: fn(f64) -> f64,
}

/// Runs a row once.
pub type Drive = Box<dyn Fn(&Session<'_>, Budget) -> Result<Outcome>>;

/// A row of the table.
pub struct Row {
    /// Its name: the family's, and what tells it from others.
    pub id: String,
    /// Its family.
    pub family: &'static Family,
    /// For people.
    pub title: String,
    /// Of the figure.
    pub unit: &'static str,
    /// Of the figure.
    pub better: Better,
    /// What costs are related to.
    pub per: Per,
    /// Its place in a curve.
    pub point: Option<Point>,
    /// What the machine allows.
    pub bound: Option<Bound>,
    /// False when times better or worse say nothing about the figure.
    pub ratio: bool,
    /// True when its programs can talk over a UNIX socket.
    pub unix: bool,
    /// True when `--quick` runs it.
    pub quick: bool,
    /// True when servers and clients are in networks of their own.
    pub apart: bool,
    /// Runs it.
    pub drive: Drive,
}

impl Row {
    /// A row of requests whose figure is a rate.
    fn new(
        id: impl Into<String>,
        family: &'static Family,
        title: impl Into<String>,
        drive: impl Fn(&Session<'_>, Budget) -> Result<Outcome> + 'static,
    ) -> Self {
        Self {
            id: id.into(),
            family,
            title: title.into(),
            unit: "req/s",
            better: Better::Higher,
            per: Per::Request,
            point: None,
            bound: None,
            ratio: true,
            unix: false,
            quick: false,
            apart: false,
            drive: Box::new(drive),
        }
    }

    fn unit(mut self, unit: &'static str, better: Better) -> Self {
        (self.unit, self.better) = (unit, better);
        self
    }

    fn per_gigabyte(mut self) -> Self {
        self.per = Per::Gigabyte;
        self
    }

    fn bound(mut self, limit: &'static str, figure: fn(f64) -> f64) -> Self {
        self.bound = Some(Bound { limit, figure });
        self
    }

    fn no_ratio(mut self) -> Self {
        self.ratio = false;
        self
    }

    fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    fn quick(mut self, quick: bool) -> Self {
        self.quick = quick;
        self
    }

    fn point(mut self, curve: &str, axis: &str, x: f64) -> Self {
        self.point = Some(Point { curve: curve.into(), axis: axis.into(), x });
        self
    }

    /// Why this contender cannot run the row; none if it can.
    #[must_use]
    pub fn excludes(&self, contender: Contender) -> Option<&'static str> {
        match contender {
            Contender::Unix if self.apart => Some("containers share no directory"),
            Contender::Unix if !self.unix => Some("these programs have no UNIX sockets"),
            Contender::Sockmap if self.apart => Some("addresses name a connection in one network"),
            _ => None,
        }
    }
}

/// All rows, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Row> {
    together().into_iter().chain(apart::rows(together())).collect()
}

/// Those whose programs are in one network.
fn together() -> Vec<Row> {
    let mut rows = ipc::rows();
    rows.extend(sockperf::rows());
    rows.extend(ipc::stream_rows());
    rows.extend(zerocopy::rows());
    rows.extend(iperf::rows());
    rows.extend(nginx::rows());
    rows.extend(redis::rows());
    rows.extend(connections::rows());
    rows.extend(memory::rows());
    rows
}

/// The first number in the rest of the line after `label`.
fn number_after(text: &str, label: &str) -> Option<f64> {
    let (_, rest) = text.split_once(label)?;
    let line = rest.lines().next()?;
    line.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|w| w.parse().ok())
}

/// That number, or a complaint.
fn expect_number(text: &str, label: &str) -> Result<f64> {
    number_after(text, label).ok_or_else(|| {
        crate::failure::Failure::Failed(format!("no figure after {label:?} in: {}", text.trim()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own() {
        let rows = all();
        let names: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().any(|row| row.quick));
        for row in &rows {
            assert!(!row.family.meaning.is_empty() && !row.title.is_empty(), "{}", row.id);
        }
    }

    #[test]
    fn bounds_are_limits() {
        for bound in all().iter().filter_map(|row| row.bound) {
            assert!(crate::limits::NAMES.contains(&bound.limit), "{}", bound.limit);
        }
    }

    #[test]
    fn numbers_are_found() {
        assert_eq!(number_after("a: x 1.5 us\n2", "a:"), Some(1.5));
        assert_eq!(number_after("a:\n2", "a:"), None);
        assert_eq!(number_after("b", "a:"), None);
        assert!(expect_number("b", "a:").is_err());
    }
}

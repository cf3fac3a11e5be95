//! A row: what is run, and what its figure is.

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::failure::Result;
use crate::load::shapes::Shape;
use crate::rig::meter::Cost;
use crate::rig::{Budget, Place, Session};
use crate::stats::Quantile;

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

/// The place of a row of the family `shapes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// How the server waits.
    pub shape: Shape,
    /// Connections, each with one request at a time.
    pub connections: u32,
    /// Processors that server and client share.
    pub cores: u32,
    /// Microseconds of work of the server for each request.
    pub work: u32,
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
    /// Its place among the shapes of servers.
    pub cell: Option<Cell>,
    /// What the machine allows.
    pub bound: Option<Bound>,
    /// False when times better or worse say nothing about the figure.
    pub ratio: bool,
    /// True when its programs can talk over a UNIX socket.
    pub unix: bool,
    /// True when `--quick` runs it.
    pub quick: bool,
    /// True when it runs only if it is named.
    pub named_only: bool,
    /// Those that run it unless others are asked for.
    pub contenders: &'static [Contender],
    /// True when servers and clients are in networks of their own.
    pub isolated: bool,
    /// The user that programs run as where root runs the bench.
    pub user: Option<&'static str>,
    /// Why it is not run over a sockmap; none if it is.
    pub no_sockmap: Option<&'static str>,
    /// Runs it.
    pub drive: Drive,
}

impl Row {
    /// A row of requests whose figure is a rate.
    pub(super) fn new(
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
            cell: None,
            bound: None,
            ratio: true,
            unix: false,
            quick: false,
            named_only: false,
            contenders: &Contender::USUAL,
            isolated: false,
            user: None,
            no_sockmap: None,
            drive: Box::new(drive),
        }
    }

    pub(super) fn unit(mut self, unit: &'static str, better: Better) -> Self {
        (self.unit, self.better) = (unit, better);
        self
    }

    pub(super) fn per_gigabyte(mut self) -> Self {
        self.per = Per::Gigabyte;
        self
    }

    pub(super) fn bound(mut self, limit: &'static str, figure: fn(f64) -> f64) -> Self {
        self.bound = Some(Bound { limit, figure });
        self
    }

    pub(super) fn no_ratio(mut self) -> Self {
        self.ratio = false;
        self
    }

    pub(super) fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    pub(super) fn quick(mut self, quick: bool) -> Self {
        self.quick = quick;
        self
    }

    pub(super) fn point(mut self, curve: &str, axis: &str, x: f64) -> Self {
        self.point = Some(Point { curve: curve.into(), axis: axis.into(), x });
        self
    }

    pub(super) fn cell(mut self, cell: Cell) -> Self {
        self.cell = Some(cell);
        self
    }

    pub(super) fn user(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    pub(super) fn named_only(mut self, named_only: bool) -> Self {
        self.named_only = named_only;
        self
    }

    pub(super) fn contenders(mut self, contenders: &'static [Contender]) -> Self {
        self.contenders = contenders;
        self
    }

    pub(super) fn no_sockmap(mut self, why: &'static str) -> Self {
        self.no_sockmap = Some(why);
        self
    }

    /// Where its programs run.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place { isolated: self.isolated, user: self.user }
    }

    /// Why this contender cannot run the row; none if it can.
    #[must_use]
    pub fn excludes(&self, contender: Contender) -> Option<&'static str> {
        match contender {
            Contender::Unix if self.isolated => Some("containers share no directory"),
            Contender::Cubic | Contender::Reno if self.isolated => {
                Some("these networks have the system's setting")
            }
            Contender::Unix if !self.unix => Some("these programs have no UNIX sockets"),
            Contender::Sockmap if self.isolated => {
                Some("addresses name a connection in one network")
            }
            Contender::Sockmap => self.no_sockmap,
            _ => None,
        }
    }
}

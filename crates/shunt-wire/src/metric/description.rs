//! What a metric is: its name, unit, kind and labels.

use core::fmt;

/// What all names begin with.
pub const PREFIX: &str = "shunt";

/// What a value is measured in; stands at the end of the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// As in the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
        }
    }
}

/// How a value may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, but for the start of an agent that has lost the totals.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is 1, and the labels say something.
    Info,
    /// Numbers by size, each of which grows as a counter does.
    Histogram,
}

impl Kind {
    /// The name that OpenMetrics has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
            Self::Histogram => "histogram",
        }
    }

    /// What the names of its samples end with; those of a histogram have endings of their own, one for each kind of sample.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge | Self::Histogram => "",
            Self::Info => "_info",
        }
    }
}

/// A metric. Its `Display` is the name of its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The name without [`PREFIX`], unit and suffix.
    pub stem: &'static str,
    /// What it is measured in; `None`: it is a number of things.
    pub unit: Option<Unit>,
    /// How it may change.
    pub kind: Kind,
    /// The labels that its samples can have.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}_{}", self.stem)?;
        if let Some(unit) = self.unit {
            write!(f, "_{}", unit.name())?;
        }
        f.write_str(self.kind.suffix())
    }
}

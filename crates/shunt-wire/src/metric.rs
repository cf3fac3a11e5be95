//! What an agent exposes to a monitoring system, in one table that also generates the docs.
//!
//! Every [`Counter`] is a metric; the others stand here. Names are stable.

use core::fmt;

use crate::counter::Counter;

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
}

impl Kind {
    /// The name that OpenMetrics has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
        }
    }

    /// What the names of its samples end with.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
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

macro_rules! metrics {
    ($($ident:ident: $kind:ident $stem:literal $(in $unit:ident)?, $labels:expr, $help:literal;)+) => {
        $(#[doc = $help] pub const $ident: Metric = Metric {
            stem: $stem,
            unit: unit!($($unit)?),
            kind: Kind::$kind,
            labels: &$labels,
            help: $help,
        };)+
        /// The metrics that are no counters of programs.
        pub const OTHERS: &[Metric] = &[$($ident,)+];
    };
}

macro_rules! unit {
    () => {
        None
    };
    ($unit:ident) => {
        Some(Unit::$unit)
    };
}

metrics! {
    DECLINED: Counter "connections_declined", ["reason"],
        "Connection ends that were not shunted, by reason.";
    UNREGISTERED: Counter "listeners_unregistered", ["reason"],
        "Listeners that clients could not find, by reason.";
    OPEN: Gauge "open_connections", ["mode", "reason"],
        "Connection ends that are open now, by mode; those on TCP by the reason too, once there is one.";
    LINK_GROUPS: Gauge "link_groups", [],
        "Link groups that exist now.";
    LINK_GROUP_MEMORY: Gauge "link_group_memory" in Bytes, [],
        "Shared memory that link groups take now.";
    REGISTERED_MEMORY: Gauge "registered_memory" in Bytes, [],
        "Memory that programs have registered to send from without copies, as far as it is in use.";
    PROGRAMS_LIVE: Gauge "programs_live", [],
        "Processes that run under Shunt now. A fork that needs nothing of the agent counts with its parent.";
    PROGRAMS_ENDED: Counter "programs_ended", [],
        "Processes that ran under Shunt and have ended.";
    LISTENERS: Gauge "listeners", [],
        "Listening addresses that clients find now.";
    REJECTED_CLIENTS: Counter "agent_rejected_clients", [],
        "Clients that the agent turned away or dropped.";
    STUCK_INSPECTORS: Gauge "agent_stuck_inspectors", [],
        "Processes of the agent that are stuck with descriptors which clients have passed, and which the kernel does not let go of.";
    AGENT_MEMORY: Gauge "agent_resident_memory" in Bytes, [],
        "Resident memory of the agent, with what it has looked at of the shared memory.";
    AGENT_UPTIME: Gauge "agent_uptime" in Seconds, [],
        "Seconds since the agent started.";
    BUILD: Info "build", ["version"],
        "Version of the agent.";
}

/// Every metric, in the order in which they are exposed.
pub fn all() -> impl Iterator<Item = Metric> {
    Counter::ALL.iter().map(|c| c.metric()).chain(OTHERS.iter().copied())
}

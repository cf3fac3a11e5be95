//! What an agent exposes to a monitoring system, in one table that also generates the docs.
//!
//! Every [`Counter`] is a metric; the others stand here. Names are stable.

pub(crate) mod description;

use crate::counter::Counter;

pub use description::{Kind, Metric, PREFIX, Unit};

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
    WAITS: Histogram "wait" in Seconds, ["program", "ended_by"],
        "How long calls have waited until something came, by program and by what ended the wait: a spin (`spun`), other threads that ran meanwhile (`gave_way`), or a wake-up (`slept`).";
    WAKE_UPS: Histogram "wake_up" in Seconds, ["program"],
        "How long wake-ups took, from when the peer began to wake the waiter until that ran: the last part of waits that slept.";
    OPEN: Gauge "open_connections", ["mode", "reason"],
        "Connection ends that are open now, each in one sample, by mode; those on TCP by the reason too, which is `none` until there is one.";
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
    RDMA_PEERS: Gauge "rdma_peers", ["state"],
        "Agents of other hosts that are named as peers, by state: both have proved who they are (`connected`), this agent is about to connect (`connecting`), the peer has to (`awaited`), or one of both does not take the other one (`refused`).";
    RDMA_PROMOTION: Gauge "rdma_promotion", ["judgement"],
        "Agents of other hosts with which there is a link, by what becomes of connections with them: they are promoted since the link is not slower than TCP (`faster`), or whatever was measured (`always`); or they stay on TCP since the link is slower (`slower`), was not measured (`unmeasured`), or the peer does not promote them (`refused`).";
    REJECTED_CLIENTS: Counter "agent_rejected_clients", [],
        "Clients that the agent turned away or dropped.";
    OTHER_VERSION_CLIENTS: Counter "agent_other_version_clients", [],
        "Times that a library was refused because the agent does not speak its version. It asks again now and then.";
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

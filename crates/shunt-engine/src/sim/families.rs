//! What is modelled together. The oracle knows what must hold where these operations come in one history; of others, such as a liar
//! that forks, it does not, and would take for a fault what is none.

use super::{History, Op};

/// What an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Calls of a program, and its end: in all families.
    Calls,
    Signals,
    Panics,
    Stalls,
    Lies,
    Forks,
    /// The ring is left, or the connection handed over.
    Leaves,
    /// Sends without copies.
    Lends,
    /// Options of the socket, and the end of its reading.
    Sets,
    /// Both directions are ended at once.
    Shuts,
    /// Connections are made.
    Connects,
    /// The agent is gone for a while, or a program gets no more memory.
    Lacks,
    /// A program waits in an edge-triggered epoll.
    Edges,
    /// The same, and counts. It would wait for an edge that another call of its own has had.
    Counts,
}

use Kind::{
    Calls, Connects, Counts, Edges, Forks, Lacks, Leaves, Lends, Lies, Panics, Sets, Shuts,
    Signals, Stalls,
};

/// Kinds that may come together.
const FAMILIES: [&[Kind]; 9] = [
    &[Signals, Panics, Lies, Edges],
    &[Signals, Panics, Stalls, Forks, Leaves, Edges],
    &[Signals, Panics, Stalls, Forks, Lends, Edges],
    &[Signals, Panics, Forks, Sets, Shuts, Edges],
    &[Signals, Panics, Leaves, Sets, Shuts, Edges],
    &[Signals, Stalls, Connects, Lacks, Leaves, Edges],
    &[Stalls, Connects, Lacks, Leaves, Shuts, Edges],
    &[Stalls, Connects, Lacks, Counts],
    &[Signals, Stalls, Connects, Forks],
];

impl Op {
    const fn kind(self) -> Kind {
        match self {
            Self::Signal(_) => Signals,
            Self::Panic(_) => Panics,
            Self::Stall(_) => Stalls,
            Self::Lie(_) => Lies,
            Self::Fork(_) => Forks,
            Self::Urgent | Self::Leave | Self::Exec | Self::Spawn(_) => Leaves,
            Self::Grant(_)
            | Self::Pin(_)
            | Self::Parts(_)
            | Self::Hear
            | Self::HearAll
            | Self::Refuse
            | Self::Unmap
            | Self::Share
            | Self::Skip(_) => Lends,
            Self::LowWater(_) | Self::Buffers(_) | Self::ShutReading => Sets,
            Self::ShutBoth => Shuts,
            Self::Connect
            | Self::ConnectPlain
            | Self::Accept
            | Self::AcceptNow
            | Self::AcceptLate
            | Self::AcceptPlain
            | Self::Bypass
            | Self::Tire
            | Self::On(_) => Connects,
            Self::AgentDies | Self::AgentReturns | Self::Starve | Self::Feed => Lacks,
            Self::EdgeSend(_) | Self::EdgeReceive(_) => Edges,
            Self::CountReceive(_) => Counts,
            Self::Meet
            | Self::Send(_)
            | Self::Receive(_)
            | Self::ReceiveAll(_)
            | Self::Look(_)
            | Self::PollSend(_)
            | Self::PollReceive(_)
            | Self::Check
            | Self::Sleep
            | Self::Shut
            | Self::Close
            | Self::Die(_) => Calls,
        }
    }
}

impl History {
    /// The oracle knows what must hold in it.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        let programs = [&self.client, &self.server];
        let kinds = || programs.into_iter().flatten().map(|op| op.kind());
        let is_in = |family: &&[Kind]| kinds().all(|kind| kind == Calls || family.contains(&kind));
        let lies = |ops: &&&Vec<Op>| ops.iter().any(|op| op.kind() == Lies);
        // The client makes the connections, or there is one from the beginning.
        let are_made = !kinds().any(|kind| kind == Connects) || self.connects();
        // What is known from the beginning, relatives have, too.
        let shares_late = |ops: &&&Vec<Op>| ops.iter().skip(2).any(|op| *op == Op::Share);
        FAMILIES.iter().any(is_in)
            && programs.iter().filter(lies).count() < 2
            && programs.iter().filter(shares_late).count() == 0
            && are_made
    }
}

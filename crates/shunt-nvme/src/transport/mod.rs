//! What both ends of a connection share: where received bytes go, what is to be sent.

mod command;
mod framing;
mod outbox;

pub use command::Command;
pub(crate) use command::{CidMap, Slots};
pub(crate) use framing::{Framing, Step, Target};
pub use outbox::{DataRange, Piece};
pub(crate) use outbox::{Mark, Outbox};

use crate::wire::violation::FatalStatus;

/// Where the next received bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// To the machine, by `header`: at least these many until it can decide anything. What the
    /// caller has received beyond it may be passed as well; `header` says how much it took.
    Header {
        /// Bytes, at least one.
        len: usize,
    },
    /// To the memory of this command, and then `data` is told so.
    Data(DataRange),
    /// Nowhere: the command that they belong to is over. `data` is told so.
    Discard {
        /// Bytes, at least one.
        len: u32,
    },
    /// Nothing is received until some of what is to be sent was sent.
    Blocked,
    /// The connection is over. What is left in the outbox may be sent, and then it is closed.
    Closed,
}

/// The terminate request of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerTermination {
    /// FES; `None` for an unknown one.
    pub status: Option<FatalStatus>,
    /// FEI.
    pub information: u32,
}

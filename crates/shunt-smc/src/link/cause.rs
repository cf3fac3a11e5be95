//! Events of links, and reasons for their end.

use core::fmt;

use shunt_verbs::value::RemoteKey;

use crate::wire::Malformed;
use crate::wire::clc::Diagnosis;
use crate::wire::llc::Reason;

/// An event for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The server's first message has arrived: the queue pair is to be brought to where it sends.
    Confirm,
    /// The peer has taken note of a ring, or refused to.
    Announced {
        /// The ring's.
        key: RemoteKey,
        /// It has: a connection may have this ring.
        is_taken: bool,
    },
    /// The peer writes into this ring no more.
    Withdrawn(RemoteKey),
    /// A ring of the peer's is gone: a connection that still writes into it is to be reset.
    Forgotten(RemoteKey),
    /// The link has ended, and all its connections with it, once all outgoing messages were sent.
    Down(Cause),
}

/// Why a link has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// This end wanted it to.
    Left,
    /// The server says so.
    Deleted(Reason),
    /// The queue pair has failed.
    Failed,
    /// The peer does not answer.
    Silent,
    /// A message that is none.
    Malformed(Malformed),
    /// The peer would put eye catchers into rings.
    EyeCatchers,
    /// The server's first message names another queue pair than its accept.
    OtherLink,
    /// The peer asks for more than can be answered.
    Flooded,
}

impl Cause {
    /// The diagnosis to decline with, where a link ends before its first connection is established.
    #[must_use]
    pub const fn diagnosis(self) -> Diagnosis {
        match self {
            Self::Silent => Diagnosis::CONFIRM_LINK_TIMEOUT,
            Self::EyeCatchers => Diagnosis::EYE_CATCHERS,
            Self::Failed => Diagnosis::QUEUE_PAIR,
            Self::Left
            | Self::Deleted(_)
            | Self::Malformed(_)
            | Self::OtherLink
            | Self::Flooded => Diagnosis::INTERNAL,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("the link was left"),
            Self::Deleted(reason) => write!(f, "the server has deleted the link: {reason}"),
            Self::Failed => f.write_str("the queue pair has failed"),
            Self::Silent => f.write_str("the server does not answer"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::EyeCatchers => f.write_str("the server puts eye catchers into rings"),
            Self::OtherLink => f.write_str("the server confirms another link"),
            Self::Flooded => f.write_str("the server asks too much"),
        }
    }
}

//! What becomes of a link to a kernel, and of its connections.

use core::fmt;

use shunt_smc::connection::Violation;
use shunt_smc::wire::clc::Diagnosis;
use shunt_verbs::Refused;
use shunt_wire::reason::Reason;

use crate::lane::{Broken, Impossible};
use crate::link::Cause;

/// Names a connection: its place, and the token by which the kernel calls it, which is another one for each use of the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The place.
    pub slot: usize,
    /// [`shunt_smc::wire::clc::End::token`] of this end.
    pub token: u32,
}

/// What has happened on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The server has confirmed the link of a first contact: [`shunt_smc::Handshake::established`].
    Confirmed,
    /// The server has taken note of a connection's ring, or refused to. If it has, the connection may be confirmed.
    Announced {
        /// The connection.
        of: Name,
        /// It has.
        is_taken: bool,
    },
    /// A connection is reset, of which its program hears.
    Reset {
        /// The connection.
        of: Name,
        /// Why.
        why: Reset,
    },
    /// A connection is over at both ends, and its ring's key is withdrawn: its place is free.
    Free(Name),
    /// The link has ended, and so have its connections.
    Down(Cause),
}

/// Why a connection is reset. It has no way back to TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reset {
    /// Its program wants it to be.
    Program,
    /// Its program goes on over TCP: it becomes one without the library, or hands the connection to such a one, or does what
    /// the ring has not.
    Leaves,
    /// Its program wrote what cannot be.
    Broken(Broken),
    /// The server's program has aborted it, or closed it with bytes unread.
    Aborted,
    /// Its program sends to a server's program that has closed.
    PeerClosed,
    /// Bytes have come behind the end of both directions, which its program has shut.
    Deaf,
    /// An urgent byte has come, of which the ring cannot tell.
    Urgent,
    /// The server broke a rule.
    Violation(Violation),
    /// The server's words would be impossible in the region.
    Impossible(Impossible),
    /// The server has withdrawn its ring.
    Forgotten,
    /// Its link has ended.
    Link(Cause),
}

impl Reset {
    /// What its program is told.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Leaves => Reason::SmcNoWayBack,
            Self::Broken(_) => Reason::ProtocolViolation,
            Self::Program
            | Self::Aborted
            | Self::PeerClosed
            | Self::Deaf
            | Self::Urgent
            | Self::Violation(_)
            | Self::Impossible(_)
            | Self::Forgotten
            | Self::Link(_) => Reason::SmcReset,
        }
    }
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("its program has reset it"),
            Self::Leaves => f.write_str("its program would go on over TCP, which SMC-R cannot"),
            Self::Broken(broken) => broken.fmt(f),
            Self::Aborted => f.write_str("the server's program has aborted it"),
            Self::PeerClosed => f.write_str("the server's program has closed before all was sent"),
            Self::Deaf => f.write_str("bytes have come behind the end of both directions"),
            Self::Urgent => f.write_str("an urgent byte has come"),
            Self::Violation(violation) => write!(f, "the server sent {violation}"),
            Self::Impossible(impossible) => write!(f, "the server sent {impossible}"),
            Self::Forgotten => f.write_str("the server has withdrawn its ring"),
            Self::Link(cause) => write!(f, "its link has ended: {cause}"),
        }
    }
}

/// Why a connection cannot be opened on a link. It stays on TCP, as the server is told by a decline.
#[derive(Debug)]
pub enum NotOpened {
    /// There is no such place, or it is taken; or rings of this length are none of SMC's.
    Place,
    /// The link has ended.
    Link(Cause),
    /// The server means another link.
    OutOfStep,
    /// The server names a ring that it has not announced.
    UnknownRing,
    /// The link has all the connections that were agreed upon.
    Many,
    /// The device refused the memory.
    Memory(Refused),
}

impl NotOpened {
    /// What to decline with.
    #[must_use]
    pub const fn diagnosis(&self) -> Diagnosis {
        match self {
            Self::Place | Self::Many => Diagnosis::INTERNAL,
            Self::Link(_) | Self::OutOfStep => Diagnosis::OUT_OF_STEP,
            Self::UnknownRing => Diagnosis::KEY,
            Self::Memory(_) => Diagnosis::REGISTRATION,
        }
    }
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place => f.write_str("the link has no such place, or it is taken"),
            Self::Link(cause) => write!(f, "the link has ended: {cause}"),
            Self::OutOfStep => f.write_str("the server means another link"),
            Self::UnknownRing => f.write_str("the server names a ring that it has not announced"),
            Self::Many => f.write_str("the link has as many connections as were agreed upon"),
            Self::Memory(refused) => refused.fmt(f),
        }
    }
}

impl core::error::Error for NotOpened {}

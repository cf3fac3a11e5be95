//! Why a connection between agents ends.

use core::fmt;

use super::version::{NEWEST, OLDEST};
use crate::key::PublicKey;
use crate::message::{Bye, Malformed, Token};

/// How far a connection had come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing had come.
    Preamble,
    /// The other side had not proved who it is.
    Proof,
    /// It had, but had not said Hello.
    Hello,
    /// It was open.
    Open,
}

/// Why it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The other side is no agent.
    NoAgent,
    /// The other side speaks these versions.
    Version(u16, u16),
    /// The dialer looked for another agent than this one.
    OtherKey,
    /// The other side has not the key that was expected.
    Unproved,
    /// The dialer's key is no peer's.
    Stranger(PublicKey),
    /// The other side closed the connection.
    Closed(Stage),
    /// It took too long to become open.
    Late,
    /// The other side said nothing for too long.
    Silent,
    /// The other side does not read.
    Backlog,
    /// A packet of a length that none has.
    Length(usize),
    /// A packet that the other side has not sent.
    Forged,
    /// What is no message.
    Malformed(Malformed),
    /// Something before the Hello, or before it has said where it is.
    BeforeHello,
    /// A second Hello, or where it is once more.
    Twice,
    /// It has heard what was not said.
    Unsaid,
    /// It is no session: the other side would measure TCP by it, as was agreed under this token.
    Measures(Token),
    /// The other side has ended it.
    Bye(Bye),
    /// No random numbers, or no numbers for further packets.
    Exhausted,
}

impl End {
    /// True where the configuration of one of both has to be changed: it is not worth while to try again soon.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NoAgent
                | Self::Version(..)
                | Self::OtherKey
                | Self::Unproved
                | Self::Stranger(_)
                | Self::Closed(Stage::Proof)
                | Self::Bye(Bye::Removed)
        )
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent => f.write_str(
                "something else than an agent answers there: look whether address and port are those of its --rdma-listen",
            ),
            Self::Version(oldest, newest) => write!(
                f,
                "it speaks versions {oldest} to {newest} of the agents' protocol, and this one {OLDEST} to {NEWEST}: update the older one"
            ),
            Self::OtherKey => f.write_str(
                "it looked for an agent with another key at this address: give it the key that `shunt agent-key` prints here",
            ),
            Self::Unproved => f.write_str(
                "it has not the key that --peer names: compare with what `shunt agent-key` prints there",
            ),
            Self::Stranger(key) => {
                write!(f, "its key {key} is no peer's: name it by --peer if it is to be one")
            }
            Self::Closed(Stage::Preamble) => f.write_str("it closed the connection at once"),
            Self::Closed(Stage::Proof) => f.write_str(
                "it closed the connection during the proof of keys: its log says why; it may not know this agent's key, or have \
                 another one than --peer names",
            ),
            Self::Closed(Stage::Hello) => f.write_str("it closed the connection before it said Hello"),
            Self::Closed(Stage::Open) => f.write_str("it closed the connection"),
            Self::Late => f.write_str("it took too long to prove who it is"),
            Self::Silent => f.write_str("it said nothing for too long: the host or the network is down"),
            Self::Backlog => f.write_str("it does not read what it is told"),
            Self::Length(len) => write!(f, "it sent a packet of {len} bytes, which none has"),
            Self::Forged => f.write_str("a packet was changed, or made up, on its way"),
            Self::Malformed(malformed) => write!(f, "it sent {malformed}"),
            Self::BeforeHello => f.write_str("it sent something before its Hello"),
            Self::Twice => f.write_str("it sent a second Hello"),
            Self::Unsaid => f.write_str("it has heard what this agent did not say"),
            Self::Measures(_) => f.write_str("it would measure TCP by this connection, which was not agreed upon"),
            Self::Bye(bye) => write!(f, "it ended the connection: {bye}"),
            Self::Exhausted => f.write_str("the system has no random numbers"),
        }
    }
}

impl core::error::Error for End {}

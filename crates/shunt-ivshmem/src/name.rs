//! Names of the descriptors that one server leaves to the next.

use std::fmt;

use crate::message::{PeerId, Vector};

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// The [`Snapshot`](crate::snapshot::Snapshot).
    State,
    /// The shared memory.
    Memory,
    /// The socket at which clients connect.
    Listener,
    /// The control socket.
    Control,
    /// The connection of a client.
    Peer(PeerId),
    /// The eventfd of a vector of a client.
    Bell(PeerId, Vector),
}

impl Name {
    /// Reads one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('.');
        let name = match words.next()? {
            "state" => Self::State,
            "memory" => Self::Memory,
            "listener" => Self::Listener,
            "control" => Self::Control,
            "peer" => Self::Peer(words.next()?.parse().ok()?),
            "bell" => Self::Bell(words.next()?.parse().ok()?, words.next()?.parse().ok()?),
            _ => return None,
        };
        words.next().is_none().then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => f.write_str("state"),
            Self::Memory => f.write_str("memory"),
            Self::Listener => f.write_str("listener"),
            Self::Control => f.write_str("control"),
            Self::Peer(id) => write!(f, "peer.{id}"),
            Self::Bell(id, vector) => write!(f, "bell.{id}.{vector}"),
        }
    }
}

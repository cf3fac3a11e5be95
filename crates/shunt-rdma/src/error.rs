//! Why there are no peers.

use std::net::SocketAddr;
use std::{fmt, io};

use shunt_peer::KeyError;

use crate::config::PEERS;

/// Why an agent with RDMA did not start.
#[derive(Debug)]
pub enum StartError {
    /// It cannot listen there.
    Listen(SocketAddr, io::Error),
    /// There are too many peers.
    Peers(usize),
    /// A peer has this agent's own key. With its host.
    Own(String),
    /// A peer has the key of another one. With its host.
    Twice(String),
    /// Its key is none.
    Key(KeyError),
    /// It can have no thread, or no descriptors.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(at, error) => write!(
                f,
                "agents of other hosts cannot be heard at {at}: {error}; name another address by --rdma-listen"
            ),
            Self::Peers(number) => write!(f, "{number} peers are more than {PEERS}"),
            Self::Own(host) => write!(
                f,
                "the peer {host} has this agent's own key: name it by the key that `shunt agent-key` prints there"
            ),
            Self::Twice(host) => write!(
                f,
                "the peer {host} has the key of another peer: each host has a key of its own"
            ),
            Self::Key(why) => why.fmt(f),
            Self::System(error) => write!(f, "no thread for agents of other hosts: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

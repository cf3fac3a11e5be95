//! Why a server does not serve.

use std::{fmt, io};

use crate::endpoint::EndpointError;
use crate::handover::HandoverError;
use crate::memory::MemoryError;

/// Why a server did not start, or ended.
#[derive(Debug)]
pub enum Error {
    /// Its sockets.
    Endpoint(EndpointError),
    /// The shared memory.
    Memory(MemoryError),
    /// So few descriptors are allowed that not a single client could be served.
    Descriptors(u64),
    /// The server before it did not hand over.
    TakeOver(HandoverError),
    /// A system call of its own failed.
    System(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(e) => e.fmt(f),
            Self::Memory(e) => e.fmt(f),
            Self::Descriptors(limit) => write!(
                f,
                "not a single client can be served with {limit} descriptors; raise the limit \
                 (`ulimit -Hn`, LimitNOFILE= in the unit), or ask for fewer vectors"
            ),
            Self::TakeOver(e) => e.fmt(f),
            Self::System(e) => write!(f, "the server failed: {e}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<EndpointError> for Error {
    fn from(e: EndpointError) -> Self {
        Self::Endpoint(e)
    }
}

impl From<MemoryError> for Error {
    fn from(e: MemoryError) -> Self {
        Self::Memory(e)
    }
}

impl From<HandoverError> for Error {
    fn from(e: HandoverError) -> Self {
        Self::TakeOver(e)
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::System(e)
    }
}

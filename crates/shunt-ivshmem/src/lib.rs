//! The ivshmem server: shared memory and doorbells for QEMU's `ivshmem-doorbell` devices.
//!
//! Each virtual machine that connects gets an ID, the shared memory, an eventfd per interrupt vector
//! to be woken by, and those of all the others to wake them by. The server is on no data path: when it
//! dies, those that are connected go on, but learn nothing more of each other.
//!
//! Single thread, driven by epoll. [`state`] holds the rules (who is told what, in which order, which
//! ID is free) and does no I/O; [`server`] moves its messages; [`endpoint`] makes the sockets;
//! [`memory`] the memory; [`handover`] takes everything to the next server, whether that one asks for it
//! ([`control`]) or the service manager keeps it in between ([`notify`]).
//!
//! The protocol has no bytes from clients to the server. A client that sends some, does not read, or
//! goes, costs its own connection and nobody else anything.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod endpoint;
pub mod handover;
mod ids;
pub mod memory;
pub mod message;
pub mod notify;
mod peer;
pub mod reason;
pub mod report;
pub mod server;
pub mod snapshot;
pub mod state;

use std::{fmt, io};

pub use config::{Config, Limits, Start};
pub use server::Server;

/// Runs a server until SIGTERM or SIGINT, or until another one takes over.
///
/// # Errors
/// Why it cannot serve.
pub fn serve(config: Config) -> Result<(), Error> {
    // Blocked before anything else, so that no signal can leave the sockets' files behind.
    let stop = shunt_sys::signals::stop_fd()?;
    let mut notifier = notify::Notifier::from_environment();
    let passed = shunt_sys::activation::take();
    let kept = handover::names_of(&passed);
    let mut server = Server::start(config, passed, stop)?;
    // It is held here now; what is kept of it for the next start must not be mixed with it.
    notifier.forget(&kept);
    notifier.tell("READY=1");
    server.run(&mut notifier)
}

/// Why a server did not start, or ended.
#[derive(Debug)]
pub enum Error {
    /// Its sockets.
    Endpoint(endpoint::EndpointError),
    /// The shared memory.
    Memory(memory::MemoryError),
    /// So few descriptors are allowed that not a single client could be served.
    Descriptors(u64),
    /// The server before it did not hand over.
    TakeOver(handover::HandoverError),
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

impl From<endpoint::EndpointError> for Error {
    fn from(e: endpoint::EndpointError) -> Self {
        Self::Endpoint(e)
    }
}

impl From<memory::MemoryError> for Error {
    fn from(e: memory::MemoryError) -> Self {
        Self::Memory(e)
    }
}

impl From<handover::HandoverError> for Error {
    fn from(e: handover::HandoverError) -> Self {
        Self::TakeOver(e)
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::System(e)
    }
}

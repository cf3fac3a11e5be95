//! How a server is to run.

use std::path::PathBuf;
use std::time::Duration;

use crate::message::{MAX_PEERS, Vector};

/// Bytes of shared memory unless asked otherwise.
pub const DEFAULT_SIZE: u64 = 4 << 20;

/// How a server is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect. The control socket is beside it.
    pub socket: PathBuf,
    /// Access rights of that socket's file.
    pub mode: u32,
    /// Bytes of shared memory: a power of two.
    pub size: u64,
    /// A directory of a hugetlbfs file system for the memory; without, it is a sealed memfd.
    pub hugetlbfs: Option<PathBuf>,
    /// Interrupt vectors of each client.
    pub vectors: Vector,
    /// Bounds.
    pub limits: Limits,
    /// What it begins with.
    pub start: Start,
    /// At the end, leave clients with the service manager for the next server.
    pub fd_store: bool,
}

impl Config {
    /// A server at `socket`.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            mode: 0o600,
            size: DEFAULT_SIZE,
            hugetlbfs: None,
            vectors: 1,
            limits: Limits::default(),
            start: Start::Fresh,
            fd_store: false,
        }
    }
}

/// What a server begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Memory of its own and no clients, unless the service manager has kept those of the last one.
    Fresh,
    /// Memory and clients of the server that runs.
    TakeOver,
}

/// Bounds on what clients can make the server keep or do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients. Fewer where the limit on descriptors allows fewer.
    pub peers: usize,
    /// Give an ID again as soon as all have been told that its owner is gone. QEMU does not bear that.
    pub reuse_ids: bool,
    /// Messages that may wait for a client, beyond those of its introduction.
    pub queue: usize,
    /// How long a client for which messages wait may take none.
    pub stall: Duration,
    /// Connections to the control socket.
    pub controls: usize,
    /// Time for a request on the control socket.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers: MAX_PEERS,
            reuse_ids: false,
            queue: 65_536,
            // A virtual machine that is stopped for a snapshot reads nothing for a while, and one that
            // is dropped can't come back without a restart.
            stall: Duration::from_secs(60),
            controls: 16,
            request: Duration::from_secs(5),
        }
    }
}

//! What the agent and its thread have in common.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{io, mem};

use rustix::event::{EventfdFlags, eventfd};

use shunt_wire::agent::RegionId;

use crate::config::{PeerName, Promote};
use crate::memory::SharedMemory;
use crate::report::Report;

/// What the agent tells its thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) listeners: Option<Vec<SocketAddr>>,
    pub(crate) peers: Option<Vec<PeerName>>,
    pub(crate) promote: Option<Promote>,
    pub(crate) must_end: bool,
}

/// The place in a region where a socket's connection is about to be proposed.
pub(crate) type Passed = (RegionId, usize);

/// What the thread tells the agent.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) report: Report,
    /// Since when each peer is connected.
    pub(crate) since: Vec<Option<Instant>>,
}

/// What both have.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Readable when there is something in the inbox, or a connection was made.
    pub(crate) ear: Arc<OwnedFd>,
    /// Where programs of this host find those of others.
    pub(crate) memory: Arc<SharedMemory>,
    inbox: Mutex<Inbox>,
    /// Sockets of connections to servers that speak the kernel's SMC-R.
    passed: Mutex<BTreeMap<Passed, OwnedFd>>,
    board: Mutex<Option<Board>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All that is done with the lock held is to put values there, or to take them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new() -> io::Result<Self> {
        let ear = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ear = Arc::new(ear);
        let memory = Arc::new(SharedMemory::new(Arc::clone(&ear))?);
        let (inbox, passed, board) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { ear, memory, inbox, passed, board })
    }

    pub(crate) fn wake(&self) {
        // Full: it is readable, then.
        let _ = rustix::io::write(&*self.ear, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Inbox {
        let mut told = [0; 8];
        let _ = rustix::io::read(&*self.ear, &mut told[..]);
        mem::take(&mut lock(&self.inbox))
    }

    /// Before the proposal is told of. Returns the one that was passed for this place before, and never proposed.
    #[must_use]
    pub(crate) fn pass(&self, place: Passed, socket: OwnedFd) -> Option<OwnedFd> {
        lock(&self.passed).insert(place, socket)
    }

    /// Behind a look at what is told: the sockets of all proposals that were are among them.
    pub(crate) fn take_passed(&self) -> BTreeMap<Passed, OwnedFd> {
        mem::take(&mut lock(&self.passed))
    }

    pub(crate) fn show(&self, board: Board) {
        *lock(&self.board) = Some(board);
    }

    pub(crate) fn tell(&self, put: impl FnOnce(&mut Inbox)) {
        put(&mut lock(&self.inbox));
        self.wake();
    }

    pub(crate) fn report(&self) -> Option<Report> {
        let board = lock(&self.board);
        let board = board.as_ref()?;
        let mut report = board.report.clone();
        for (peer, since) in report.peers.iter_mut().zip(&board.since) {
            peer.connected_s = since.map(|since| since.elapsed().as_secs());
        }
        Some(report)
    }
}

//! The ivshmem device: link groups lie in memory that the machines of one host share, and signals are its doorbells.
//!
//! A [`Transport`] is how this machine has the device: as a peer of the server's ([`server`]), or as a PCI device of a guest
//! ([`pci`]). What lies in the memory is the same for all ([`shunt_shm::ivshmem`]).

pub mod pci;
mod place;
pub mod server;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use place::{NoPlace, Place};
use shunt_wire::agent::{EndpointId, RegionId};

/// How a machine has the device.
pub trait Transport {
    /// The shared memory.
    fn memory(&self) -> &Arc<OwnedFd>;

    /// Its length in bytes.
    fn len(&self) -> usize;

    /// True for no memory.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ID that the server has given this machine; `None` where there is no server.
    fn peer(&self) -> Option<u16>;

    /// Interrupt vectors of each peer, as far as is known; at least 1.
    fn vectors(&self) -> usize;

    /// Interrupts a peer. One that is not there hears nothing; a vector that it does not have is taken modulo those
    /// that it has.
    fn ring(&self, peer: u16, vector: usize);

    /// What a program of this machine needs to do the same by itself.
    ///
    /// # Errors
    /// Those of dup(2).
    fn means(&self, peer: u16) -> io::Result<Means>;

    /// Leads an interrupt vector of this machine to a program's own eventfd, or back to the ear. False where that cannot be
    /// done: the ear hears it then as before.
    fn lead(&mut self, _vector: usize, _to: Option<BorrowedFd<'_>>) -> bool {
        false
    }

    /// Readable when there is something to hear; `None` where nobody tells, and the memory has to be looked at.
    fn ear(&self) -> Option<BorrowedFd<'_>>;

    /// Takes what there is to hear, without waiting.
    fn hear(&mut self) -> Heard;

    /// True for a peer that may have listeners for networks, and not only at its own addresses.
    fn may_have_networks(&self, _peer: u16) -> bool {
        false
    }

    /// True where peers cannot see proposals in the memory, nor that programs are gone: they are told.
    fn wants_news(&self) -> bool {
        false
    }

    /// There are proposals in a region.
    fn proposed(&self, _region: RegionId) {}

    /// All processes that had a region from an endpoint are gone.
    fn gone(&self, _region: RegionId, _endpoint: EndpointId) {}
}

/// How a peer is interrupted.
#[derive(Debug)]
pub enum Means {
    /// It cannot be.
    None,
    /// By its eventfds, one for each vector.
    Eventfds(Vec<OwnedFd>),
    /// By the doorbell register.
    Register {
        /// The device's first BAR.
        bar: OwnedFd,
        /// Where the registers begin in the page.
        at: usize,
    },
}

/// What came in.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Heard {
    /// A peer has interrupted this machine.
    pub rung: bool,
    /// Peers that are gone, as the server says.
    pub left: Vec<u16>,
    /// The server is gone, or has broken the protocol: nothing more will be heard of who comes and goes.
    pub over: bool,
}

//! Other hosts as members of memory that machines share: their part is played by the thread that meets their agents.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use shunt_device::ivshmem::{Heard, Means, Transport};
use shunt_rdma::SharedMemory;
use shunt_wire::agent::{EndpointId, RegionId};

/// The memory, as the agent has it.
pub(crate) struct Hosts(pub(crate) Arc<SharedMemory>);

impl Transport for Hosts {
    fn memory(&self) -> &Arc<OwnedFd> {
        self.0.fd()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn peer(&self) -> Option<u16> {
        Some(self.0.agent())
    }

    fn vectors(&self) -> usize {
        self.0.lines()
    }

    fn ring(&self, _peer: u16, _vector: usize) {
        self.0.ring();
    }

    fn means(&self, _peer: u16) -> io::Result<Means> {
        self.0.means().map(Means::Eventfds)
    }

    fn lead(&mut self, vector: usize, to: Option<BorrowedFd<'_>>) -> bool {
        self.0.lead(vector, to)
    }

    fn ear(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.ear())
    }

    fn hear(&mut self) -> Heard {
        self.0.hear();
        Heard { rung: true, ..Heard::default() }
    }

    fn may_have_networks(&self, peer: u16) -> bool {
        self.0.is_kernels(peer)
    }

    fn wants_news(&self) -> bool {
        true
    }

    fn proposed(&self, region: RegionId) {
        self.0.proposed(region);
    }

    fn gone(&self, region: RegionId, endpoint: EndpointId) {
        self.0.gone(region, endpoint);
    }
}

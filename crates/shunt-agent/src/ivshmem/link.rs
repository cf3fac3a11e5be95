//! A link group between machines.

use std::collections::HashSet;
use std::rc::Rc;

use shunt_shm::ivshmem::MemberId;
use shunt_shm::region::{LANES, Region};
use shunt_shm::sync::Ordering;
use shunt_wire::agent::{EndpointId, FarBells};

use crate::held::Held;

/// A link group of which one side is here.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) extent: usize,
    /// The member that made it.
    pub(super) owner: MemberId,
    /// The member at the other end.
    pub(super) other: MemberId,
    pub(super) map: Region,
    /// Where the proposals are posted, of an own one.
    pub(super) table: Option<usize>,
    /// Programs here that use it.
    pub(super) parties: HashSet<EndpointId>,
}

impl Link {
    /// A program is gone. Its lanes are free for others.
    pub(super) fn left(&mut self, endpoint: EndpointId) {
        if self.parties.remove(&endpoint) {
            for lane in (0..LANES).map(|lane| self.map.view().lane(lane)) {
                let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = lane.owner.compare_exchange(endpoint, 0, ok, no);
            }
        }
    }
}

/// What a program is told of its link group.
pub(crate) struct Linked {
    /// Offset of the listener's proposals in the memory.
    pub(crate) table: u64,
    /// Offset of the region.
    pub(crate) region: u64,
    /// The memory, and the lease.
    pub(crate) fds: Vec<Rc<Held>>,
}

/// What an acceptor is told of a link group.
pub(crate) struct Attached {
    /// The endpoint that made it.
    pub(crate) endpoint: EndpointId,
    /// Offset of the region.
    pub(crate) region: u64,
    /// That endpoint's doorbells.
    pub(crate) bells: FarBells,
    /// The memory, the lease, and what the doorbells need.
    pub(crate) fds: Vec<Rc<Held>>,
}

//! A region: the memory of a link group.

use std::collections::HashSet;
use std::rc::Rc;

use shunt_shm::region::{self, RegionView};
use shunt_wire::agent::{EndpointId, ListenerId};

use super::offer::Claims;
use crate::held::Held;

/// The memory of a link group.
#[derive(Debug)]
pub(crate) struct Region {
    /// The client; `None` once it is gone or has let go.
    pub(super) owner: Option<EndpointId>,
    pub(super) purpose: Purpose,
    pub(super) attached: HashSet<EndpointId>,
    pub(super) memory: Rc<Held>,
    pub(super) map: region::Region,
}

/// Whose acceptors share a region with its client.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Those of a listener of the client's own party, who find proposals in its table.
    Listener(ListenerId),
    /// Those of another party, or in another network, to whom the agent gives one connection at a time.
    Claims(Claims),
}

impl Region {
    /// Its words, which nobody may trust.
    pub(super) const fn view(&self) -> RegionView {
        self.map.view()
    }

    /// Its memory.
    pub(crate) const fn memory(&self) -> &Rc<Held> {
        &self.memory
    }

    /// Those who share it.
    pub(super) fn parties(&self) -> impl Iterator<Item = EndpointId> {
        self.owner.into_iter().chain(self.attached.iter().copied())
    }

    /// True for one of them.
    pub(super) fn has_party(&self, endpoint: EndpointId) -> bool {
        self.owner == Some(endpoint) || self.attached.contains(&endpoint)
    }
}

//! A listener, and its name.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use shunt_shm::reach::WHOLE;
use shunt_shm::registry::Listing;
use shunt_shm::table::Table;
use shunt_wire::addr::Addr;
use shunt_wire::agent::{EndpointId, ListenerId};

use crate::held::Held;
use crate::party::Party;

/// By what a client finds a listener. All sockets of a `SO_REUSEPORT` group have it in common: which
/// of them will accept is the kernel's choice, so they share one table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Name {
    pub(crate) addr: Addr,
    pub(super) netns: u64,
    pub(crate) party: Party,
    pub(super) v6only: bool,
}

impl Name {
    /// As a registry has it.
    pub(super) const fn listing(&self, listener: ListenerId) -> Listing {
        let Self { addr, netns, v6only, .. } = *self;
        Listing { listener, addr, v6only, bits: WHOLE, netns }
    }
}

/// A listening socket, or a group of them with one name, whoever holds it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) name: Name,
    pub(super) table: Table,
    pub(super) table_fd: Rc<Held>,
    /// The sockets, by cookie, that each endpoint holds.
    pub(crate) holders: HashMap<EndpointId, HashSet<u64>>,
}

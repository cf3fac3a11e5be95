//! The registries that programs read, each for one party.

use std::collections::HashMap;
use std::rc::Rc;

use shunt_shm::registry::{Listing, RegistryWriter};
use shunt_wire::agent::ListenerId;

use crate::held::Held;
use crate::party::Party;

/// The registries, each for one party.
#[derive(Debug, Default)]
pub(super) struct Registries {
    pub(super) known: HashMap<Party, (RegistryWriter, Rc<Held>)>,
    /// Listeners of other machines, which stand in each of them.
    pub(super) remote: HashMap<ListenerId, Listing>,
    /// Which memory is shared with those machines.
    pub(super) memory: u32,
    /// What wake-ups take on this machine, in nanoseconds.
    pub(super) wake_ups: [u32; 2],
}

impl Registries {
    /// Enters a listener in that of its own party; `false` when there is no room.
    pub(super) fn publish(&mut self, party: Party, listing: &Listing) -> bool {
        // Without one there is nobody to see it.
        self.known.get_mut(&party).is_none_or(|(writer, _)| writer.publish(listing))
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, party: Party, listener: ListenerId) {
        if let Some((writer, _)) = self.known.get_mut(&party) {
            writer.remove(listener);
        }
    }

    /// Enters a listener of another machine. Where there is no room, its connections stay on TCP.
    pub(super) fn publish_everywhere(&mut self, listing: Listing) {
        for (writer, _) in self.known.values_mut() {
            writer.publish(&listing);
        }
        self.remote.insert(listing.listener, listing);
    }

    /// Takes it out.
    pub(super) fn remove_everywhere(&mut self, listener: ListenerId) {
        self.remote.remove(&listener);
        for (writer, _) in self.known.values_mut() {
            writer.remove(listener);
        }
    }

    /// Another memory is shared with other machines.
    pub(super) fn another_memory(&mut self) {
        self.memory = self.memory.wrapping_add(1);
        for (writer, _) in self.known.values_mut() {
            writer.set_memory(self.memory);
        }
    }

    /// No program of this party is left.
    pub(super) fn forget(&mut self, party: Party) {
        self.known.remove(&party);
    }
}

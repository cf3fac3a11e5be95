//! Connections that were offered to other parties, and those that they have claimed.

use std::collections::HashMap;

use shunt_shm::arena::ArenaView;
use shunt_shm::region::{RegionView, SLOTS, Side};
use shunt_shm::sync::{AtomicU32, Ordering};
use shunt_wire::agent::EndpointId;
use shunt_wire::clc::Proposal;
use shunt_wire::offer::Offer;

use crate::party::Party;

/// The offers that nobody has claimed, by the cookies of their sockets.
pub(super) type Offers = HashMap<u64, Offered>;

/// A connection that a client has offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub(super) client: EndpointId,
    pub(super) netns: u64,
    pub(super) record: u32,
    pub(super) number: u64,
}

/// The connections that the acceptors of one party have claimed from one client, in one region.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) acceptors: Party,
    pub(super) slots: HashMap<usize, Claimed>,
    next: usize,
}

/// A slot's connection: the cookies of both its sockets, and what its client was told where.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) accepted: u64,
    pub(super) offered: u64,
    pub(super) record: u32,
    pub(super) told: Offer,
}

impl Claims {
    pub(super) fn of(acceptors: Party) -> Self {
        Self { acceptors, slots: HashMap::new(), next: 0 }
    }

    /// True for the socket of the connection in the slot, at its acceptor.
    pub(super) fn is_acceptor(&self, slot: usize, socket: u64) -> bool {
        self.slots.get(&slot).is_some_and(|claimed| claimed.accepted == socket)
    }

    /// The same at its client.
    pub(super) fn is_client(&self, slot: usize, socket: u64) -> bool {
        self.slots.get(&slot).is_some_and(|claimed| claimed.offered == socket)
    }

    /// A slot that no connection uses.
    pub(super) fn free_slot(&mut self, view: RegionView, client: &ArenaView) -> Option<usize> {
        let is_free = |slot: &usize| {
            self.slots.get(slot).is_none_or(|claimed| claimed.is_over(*slot, view, client))
        };
        let slot = (0..SLOTS).map(|i| (self.next + i) % SLOTS).find(is_free)?;
        self.next = (slot + 1) % SLOTS;
        Some(slot)
    }
}

impl Claimed {
    /// Both ends are done with it. Their words may be false, to the harm of those who share the region.
    fn is_over(&self, slot: usize, view: RegionView, client: &ArenaView) -> bool {
        let [mine, theirs] =
            [Side::Client, Side::Server].map(|side| &view.section(slot, side).setup);
        let done = |word: &AtomicU32| word.load(Ordering::Acquire) != 0;
        // A client that was told, and had given up already, has never seen the region.
        let never_came = || {
            client.offer(self.record) != self.told
                && mine.state.load(Ordering::Acquire) == Proposal::Proposed as u32
        };
        done(&theirs.done) && (done(&mine.done) || never_came())
    }
}

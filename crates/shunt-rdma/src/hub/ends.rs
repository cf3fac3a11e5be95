//! Connections that come to nothing, or to their end: proposals that nobody takes up, or that their programs take back; programs that
//! are gone; places that are free again.

use std::sync::Arc;
use std::time::Duration;

use shunt_peer::message::Refusal;
use shunt_peer::{Message, PublicKey};
use shunt_shm::region::Side;
use shunt_shm::sync::Ordering;
use shunt_verbs::port::Port;
use shunt_wire::agent::{EndpointId, RegionId};

use super::Hub;
use super::lanes::{PROPOSAL, wire_place};
use super::machines::listeners_table;
use crate::lane::{Lane, Stage};
use crate::links::Name;

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// Nobody here has taken a proposal up: the peer is told.
    pub(super) fn take_back(&mut self, name: Name, slot: usize, now: Duration) {
        let Some(lane) = self.lanes.get(&(name, slot)) else { return };
        for side in [Side::Client, Side::Server] {
            lane.place.section(side).setup.done.store(1, Ordering::Release);
        }
        let place = wire_place(name, slot, lane.generation);
        if let Some(links) = &self.links {
            links.abandon(name, slot);
        }
        self.is_over(name, slot);
        self.say_to_key(name.0, &Message::NotOpened(place, Refusal::Unknown), now);
    }

    /// Takes proposals back for which nobody has come. An acceptor that has one answers at once, unless it is stopped or killed just then:
    /// as long again is time for that.
    pub(super) fn take_back_old(&mut self, now: Duration) {
        let is_old =
            |lane: &Lane| matches!(lane.stage, Stage::Proposed { until, .. } if now >= until);
        let old = self.lanes.iter().filter(|(_, lane)| is_old(lane)).map(|(at, _)| *at);
        for (name, slot) in old.collect::<Vec<_>>() {
            self.called(name, slot);
            let Some(lane) = self.lanes.get_mut(&(name, slot)) else { continue };
            let Stage::Proposed { ticket, until, is_taken, .. } = &mut lane.stage else { continue };
            let table = listeners_table(&self.shared.memory, lane.server);
            if table.is_none_or(|table| table.take(ticket)) {
                self.take_back(name, slot, now);
            } else if *is_taken {
                self.forget(name, slot, now);
            } else {
                (*until, *is_taken) = (now + PROPOSAL, true);
            }
        }
    }

    /// The acceptor's program has taken a proposal up, and does not answer. Nobody else gets its place in the region, where it may answer
    /// yet.
    fn forget(&mut self, name: Name, slot: usize, now: Duration) {
        let Some(lane) = self.lanes.remove(&(name, slot)) else { return };
        if let Some(links) = &mut self.links {
            links.abandon(name, slot);
            links.closed();
        }
        let place = wire_place(name, slot, lane.generation);
        self.say_to_key(name.0, &Message::NotOpened(place, Refusal::Unknown), now);
    }

    /// A program has taken its proposal back, or a place of a region is another connection's: nobody is asked for it any more.
    pub(super) fn withdraw_in(&mut self, region: RegionId, slot: usize, now: Duration) {
        self.waiting.retain(|waiting| (waiting.region, waiting.slot) != (region, slot));
        let is_there = |lane: &Lane| lane.place.name == region && lane.place.slot == slot;
        let found = self.lanes.iter().filter(|(_, lane)| is_there(lane)).map(|(at, _)| *at);
        for (name, at) in found.collect::<Vec<_>>() {
            let Some(lane) = self.lanes.get_mut(&(name, at)) else { continue };
            let is_asked = match lane.stage {
                Stage::Asked(_) => true,
                Stage::Registering(None) => false,
                _ => continue,
            };
            lane.stage = Stage::Over;
            let place = wire_place(name, at, lane.generation);
            if let Some(links) = &self.links {
                links.lets_go_of_place(name, at);
            }
            if is_asked {
                self.say_to_key(name.0, &Message::NotOpened(place, Refusal::Unknown), now);
            }
        }
    }

    /// All processes that had a region from an endpoint are gone.
    pub(super) fn programs_gone(&mut self, region: RegionId, endpoint: EndpointId, now: Duration) {
        self.kernels_gone(region);
        self.waiting.retain(|waiting| waiting.region != region);
        let concerned = self.lanes.iter().filter(|(_, lane)| {
            let own = lane.place.section(lane.place.side).setup.endpoint.load(Ordering::Relaxed);
            lane.place.name == region && (own == endpoint || lane.place.side == Side::Client)
        });
        let concerned: Vec<_> = concerned.map(|(at, _)| *at).collect();
        for (name, slot) in concerned {
            // It may have answered, of which its worker has not told yet.
            self.called(name, slot);
            let Some(lane) = self.lanes.get_mut(&(name, slot)) else { continue };
            match lane.stage {
                Stage::Asked(_) | Stage::Registering(None) => {
                    let (region, at) = (lane.place.name, lane.place.slot);
                    self.withdraw_in(region, at, now);
                }
                Stage::Attaching(_) | Stage::Open => {
                    if let Some(links) = &self.links {
                        links.end(name, slot);
                    }
                }
                Stage::Registering(Some(_)) | Stage::TakenBack | Stage::Proposed { .. } => {}
                Stage::Over | Stage::Left => {}
            }
        }
        for machine in self.machines.values_mut() {
            if let Some(held) = machine.held.get_mut(&region) {
                held.is_over = true;
                machine.let_go(region);
            }
        }
    }

    /// A connection is over: its places are free.
    pub(super) fn is_over(&mut self, name: Name, slot: usize) {
        let Some(lane) = self.lanes.remove(&(name, slot)) else { return };
        if let Some(links) = &mut self.links {
            links.closed();
        }
        self.give_back(name.0, &lane);
        let at = self.peers.iter().position(|peer| peer.name.key == name.0);
        if let (Some(next), Some(at)) = (lane.next, at) {
            // As if it came now. Of a link group that is gone meanwhile the peer expects nothing.
            let now = self.now();
            let _ = self.hear_open(at, &next, now);
        }
    }

    /// Its place in a region of this host is free.
    fn give_back(&mut self, key: PublicKey, lane: &Lane) {
        let Some(machine) = self.machines.get_mut(&key) else { return };
        match lane.place.side {
            Side::Client => {
                if let Some(held) = machine.held.get_mut(&lane.place.name) {
                    held.users = held.users.saturating_sub(1);
                    machine.let_go(lane.place.name);
                }
            }
            Side::Server => machine.give_back(lane.place.name, lane.place.slot),
        }
    }

    /// A link group is gone, with all connections in it.
    pub(super) fn group_is_over(&mut self, name: Name) {
        let memory = Arc::clone(&self.shared.memory);
        let all = self.lanes.range((name, 0)..=(name, usize::MAX)).map(|((_, slot), _)| *slot);
        for slot in all.collect::<Vec<_>>() {
            if let Some(Lane { stage: Stage::Proposed { ticket, .. }, server, .. }) =
                self.lanes.get(&(name, slot))
            {
                let _ = listeners_table(&memory, *server).is_some_and(|table| table.take(ticket));
            }
            self.is_over(name, slot);
        }
    }
}

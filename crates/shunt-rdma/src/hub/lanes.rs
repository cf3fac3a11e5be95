//! Connections: from a program's proposal here to the program that takes it up there, and back to memory that nobody uses.
//!
//! | Client's host | Acceptor's host |
//! |---|---|
//! | A program proposes; its rings are registered; `Open` | |
//! | | Rings are registered; the connection is proposed to the acceptor, as on one host |
//! | | It answers; the worker begins; `Opened` |
//! | The worker begins; the answer is written for the client | |
//!
//! From then on it is the worker's, until both sides have left it. The client's host may hear that first, and ask for another
//! connection at the same place: what it asks over TCP overtakes what its link still brings, so it waits for that. A worker whose
//! link has failed begins nothing: what is said of a connection when its link fails does not change any more, and one that is not
//! spoken of there was never opened.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use shunt_peer::message::{self, Refusal, Region};
use shunt_peer::{Message, PublicKey};
use shunt_shm::doorbell::ON_QUEUE;
use shunt_shm::region::{Geometry, Section, Side};
use shunt_shm::sync::Ordering;
use shunt_shm::table;
use shunt_verbs::port::Port;
use shunt_verbs::value::Remote;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{EndpointId, RegionId};
use shunt_wire::clc::{Answer, Proposal};
use tracing::debug;

use super::Hub;
use super::machines::listeners_table;
use crate::lane::{Lane, Stage, Waiting};
use crate::links::{Name, SLOTS};
use crate::memory::News;
use crate::mirror::Place;
use crate::peers::Peer;
use crate::report::PeerReport;

/// How long a proposal waits for an acceptor: a little longer than that looks for it.
pub(super) const PROPOSAL: Duration = Duration::from_secs(12);
/// Time between two offers of link groups for those that wait.
const OFFER: Duration = Duration::from_millis(100);
/// How long one waits for a link group.
const GROUP: Duration = Duration::from_secs(5);

fn tuple(client: SocketAddr, server: SocketAddr) -> FourTuple {
    FourTuple { local: Addr::from(client), peer: Addr::from(server) }
}

/// A connection, as both agents call it.
pub(super) fn wire_place(name: Name, slot: usize, generation: u32) -> message::Place {
    message::Place { group: name.1, slot: u16::try_from(slot).unwrap_or(u16::MAX), generation }
}

const fn length() -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "256 KiB")]
    let length = Geometry::Device.ring() as u32;
    length
}

/// What a section says before anything has come from the far side. The worker says that there is a link, when it begins.
fn begin(theirs: &Section, endpoint: EndpointId, generation: u32, code: u32) {
    theirs.setup.generation.store(generation, Ordering::Relaxed);
    theirs.setup.endpoint.store(endpoint, Ordering::Relaxed);
    theirs.ctl.queue.store(code, Ordering::Relaxed);
    theirs.ctl.tx_arm.store(ON_QUEUE, Ordering::Relaxed);
}

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// What the agent tells of programs.
    pub(super) fn hear_programs(&mut self, now: Duration) {
        for news in self.shared.memory.take_news() {
            match news {
                News::Proposed(region) => self.proposed(region, now),
                News::Gone(region, endpoint) => self.programs_gone(region, endpoint, now),
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        for Waiting { peer, region, slot, until } in waiting {
            if now < until {
                self.propose(peer, (region, slot), until, now);
            }
        }
        self.take_back_old(now);
    }

    /// When proposals are to be looked through.
    pub(super) fn proposals_at(&self) -> Option<Duration> {
        let waiting = self.waiting.first().map(|_| self.offered_at + OFFER);
        let open = self.lanes.values().filter_map(|lane| match lane.stage {
            Stage::Proposed { until, .. } => Some(until),
            _ => None,
        });
        waiting.into_iter().chain(open).min()
    }

    pub(super) fn report(&self, peer: &Peer) -> PeerReport {
        let of_it = |name: &Name| name.0 == peer.name.key;
        let open = |lane: &Lane| matches!(lane.stage, Stage::Open);
        let connections = self.lanes.iter().filter(|((name, _), lane)| of_it(name) && open(lane));
        PeerReport { connections: connections.count(), ..peer.report(self.promote) }
    }

    fn counts(&mut self, key: PublicKey) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.name.key == key) {
            peer.connections += 1;
        }
    }

    /// The peer to which a connection leads, if it is one alone.
    fn peer_at(&self, to: SocketAddr) -> Option<usize> {
        let mut found = (0..self.peers.len()).filter(|at| self.peers[*at].is_at(to.ip()));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn proposed(&mut self, region: RegionId, now: Duration) {
        if self.kernels_proposed(region) {
            return;
        }
        // The agent gives each region to connections to one peer; which one the first of them says.
        let known = self.machines.iter().find(|(_, machine)| machine.held.contains_key(&region));
        let mut machine = known.map(|(key, _)| *key);
        if machine.is_none() {
            for (key, it) in &mut self.machines {
                let Some(held) = it.hold(region) else { continue };
                let leads = (0..Geometry::Device.slots()).any(|slot| {
                    let setup = &held.region.view().section(slot, Side::Client).setup;
                    let to = SocketAddr::from(setup.tuple().peer);
                    setup.state.load(Ordering::Acquire) != 0
                        && self
                            .peers
                            .iter()
                            .any(|peer| peer.name.key == *key && peer.is_at(to.ip()))
                });
                if leads {
                    machine = Some(*key);
                    break;
                }
                held.is_over = true;
                it.let_go(region);
            }
        }
        let Some(key) = machine else { return };
        for slot in 0..Geometry::Device.slots() {
            let Some(held) = self.machines.get_mut(&key).and_then(|it| it.held.get_mut(&region))
            else {
                return;
            };
            let setup = &held.region.view().section(slot, Side::Client).setup;
            let generation = setup.generation.load(Ordering::Acquire);
            let state = setup.state.load(Ordering::Acquire);
            if setup.generation.load(Ordering::Relaxed) != generation {
                // Just now it is proposed, and that is told when it is.
                continue;
            }
            let is_open = [Proposal::Proposed as u32, Proposal::Used as u32].contains(&state);
            let is_new = held.seen[slot] != generation;
            if is_open && is_new {
                held.seen[slot] = generation;
                // Of the one before nobody will hear any more.
                self.withdraw_in(region, slot, now);
                self.propose(key, (region, slot), now + GROUP, now);
            } else if state == Proposal::Withdrawn as u32 {
                self.withdraw_in(region, slot, now);
            }
        }
    }

    /// Asks the peer's host to take up a proposal.
    fn propose(
        &mut self,
        key: PublicKey,
        (region, slot): (RegionId, usize),
        until: Duration,
        now: Duration,
    ) {
        let Some(machine) = self.machines.get_mut(&key) else { return };
        let Some(held) = machine.held.get(&region) else { return };
        let setup = &held.region.view().section(slot, Side::Client).setup;
        let tuple = setup.tuple();
        let (client, server) = (SocketAddr::from(tuple.local), SocketAddr::from(tuple.peer));
        let Some(at) = self.peer_at(server) else { return };
        let is_own = self.addresses.contains(&client.ip());
        if self.peers[at].name.key != key || !is_own {
            return;
        }
        let Some((name, lane)) = self.free_lane(at) else {
            self.waiting.push(Waiting { peer: key, region, slot, until });
            let peer = &self.peers[at];
            let (up, all) = peer.groups.count();
            // All that are up are full, or the peer's; one more is not on its way yet.
            let is_due = now >= self.offered_at + OFFER || self.offered_at == Duration::ZERO;
            if is_due {
                self.offered_at = now;
            }
            let can = peer.is_ready() && self.device().is_some();
            if is_due && up == all && can {
                let orders = self.peers[at].groups.offer();
                self.carry_out(at, orders, now);
            }
            return;
        };
        let (Some(links), Some(machine)) = (&mut self.links, self.machines.get_mut(&key)) else {
            return;
        };
        let Some(worker) = links.worker_of(name) else { return };
        let endpoint = machine.endpoint(worker);
        let Some(held) = machine.held.get_mut(&region) else { return };
        held.users += 1;
        let region_map = Arc::clone(&held.region);
        let place = Place { region: region_map, name: region, slot, side: Side::Client, endpoint };
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        links.open(name, lane, generation, place.clone());
        let stage = Stage::Registering(None);
        let use_ = place.section(Side::Client).setup.generation.load(Ordering::Relaxed);
        let opened = Lane { place, generation, use_, client, server, stage, next: None };
        self.lanes.insert((name, lane), opened);
    }

    /// Where there can be no link group with a peer now, nothing waits for one.
    pub(super) fn no_more_waits(&mut self, at: usize) {
        let peer = &self.peers[at];
        if !peer.is_reached() {
            self.waiting.retain(|waiting| waiting.peer != peer.name.key);
        }
    }

    /// A place in a link group that this side has offered.
    fn free_lane(&self, at: usize) -> Option<(Name, usize)> {
        let key = self.peers[at].name.key;
        self.peers[at].groups.own().find_map(|group| {
            let name = (key, group);
            let free = (0..SLOTS).find(|slot| !self.lanes.contains_key(&(name, *slot)))?;
            Some((name, free))
        })
    }

    /// A connection's rings are registered, or cannot be.
    pub(super) fn registered(
        &mut self,
        name: Name,
        slot: usize,
        opened: Result<(Remote, u32), Refusal>,
        now: Duration,
    ) {
        let Some(lane) = self.lanes.get_mut(&(name, slot)) else { return };
        let wire = wire_place(name, slot, lane.generation);
        let far = match lane.stage {
            Stage::Registering(far) => far,
            // It was taken back before the peer was asked.
            Stage::Over => {
                if let (Ok(_), Some(links)) = (opened, &self.links) {
                    links.abandon(name, slot);
                }
                return self.is_over(name, slot);
            }
            Stage::TakenBack => return self.take_back(name, slot, now),
            _ => return,
        };
        let (said, is_over) = match (opened, far) {
            (Ok((own, code)), None) => {
                let region = Region { at: own, length: length() };
                let (client, server) = (lane.client, lane.server);
                lane.stage = Stage::Asked(code);
                (Some(Message::Open(message::Lane { place: wire, client, server, region })), false)
            }
            (Ok((own, code)), Some(far)) => {
                match self.propose_here((name, slot), far, own, code, now) {
                    true => (None, false),
                    false => (Some(Message::NotOpened(wire, Refusal::Unknown)), true),
                }
            }
            (Err(why), None) => {
                debug!("a connection stays on TCP: {why}");
                (None, true)
            }
            (Err(why), Some(_)) => (Some(Message::NotOpened(wire, why)), true),
        };
        if is_over {
            if let (Ok(_), Some(links)) = (opened, &self.links) {
                links.abandon(name, slot);
            }
            self.is_over(name, slot);
        }
        if let Some(said) = said {
            self.say_to_key(name.0, &said, now);
        }
    }

    pub(super) fn say_to_key(&mut self, key: PublicKey, message: &Message, now: Duration) {
        if let Some(at) = self.peers.iter().position(|peer| peer.name.key == key) {
            self.say_to(at, message, now);
        }
    }

    /// Proposes a peer's connection to the program here that is to accept it. False: there is none.
    fn propose_here(
        &mut self,
        at: (Name, usize),
        far: Remote,
        own: Remote,
        code: u32,
        now: Duration,
    ) -> bool {
        let Some(lane) = self.lanes.get_mut(&at) else { return false };
        let Some(table) = listeners_table(&self.shared.memory, lane.server) else { return false };
        let tuple = tuple(lane.client, lane.server);
        let [theirs, mine] = [Side::Client, Side::Server].map(|side| lane.place.section(side));
        theirs.reset();
        mine.reset();
        let generation = theirs.setup.generation.load(Ordering::Relaxed).wrapping_add(1);
        begin(theirs, lane.place.endpoint, generation, code);
        theirs.setup.set_tuple(&tuple);
        theirs.setup.state.store(Proposal::Proposed as u32, Ordering::Release);
        let place = table::Place { region: lane.place.name, slot: lane.place.slot, generation };
        let Some(ticket) = table.post(&tuple.reversed(), place) else {
            // For the next one to use.
            [theirs, mine].iter().for_each(|side| side.setup.done.store(1, Ordering::Release));
            return false;
        };
        lane.use_ = generation;
        let until = now + PROPOSAL;
        lane.stage = Stage::Proposed { far, own, ticket, until, is_taken: false };
        true
    }

    /// The peer asks for a connection to be taken up here.
    pub(super) fn hear_open(
        &mut self,
        at: usize,
        asked: &message::Lane,
        now: Duration,
    ) -> Result<(), &'static str> {
        let key = self.peers[at].name.key;
        let (name, slot) = ((key, asked.place.group), usize::from(asked.place.slot));
        if !self.peers[at].groups.is_far(asked.place.group) || slot >= SLOTS {
            return Err("a connection in a link group that it has not offered");
        }
        if asked.region.length != length() {
            return Err("a ring of another length");
        }
        if let Some(lane) = self.lanes.get_mut(&(name, slot)) {
            if !matches!(lane.stage, Stage::Open) || lane.next.is_some() {
                return Err("a connection at a place that is taken");
            }
            lane.next = Some(*asked);
            return Ok(());
        }
        let refuses = |hub: &mut Self, why| {
            hub.say_to(at, &Message::NotOpened(asked.place, why), now);
            Ok(())
        };
        if !self.peers[at].promotes(self.promote) {
            return refuses(self, Refusal::Slower);
        }
        // It speaks for the addresses of its own host alone, and no two peers for the same one.
        let is_its = self.peer_at(asked.client) == Some(at)
            && !self.addresses.contains(&asked.client.ip())
            && self.addresses.contains(&asked.server.ip());
        if !is_its || listeners_table(&self.shared.memory, asked.server).is_none() {
            return refuses(self, Refusal::Unknown);
        }
        let Some(links) = &mut self.links else { return refuses(self, Refusal::Device) };
        let (Some(worker), Some(machine)) = (links.worker_of(name), self.machines.get_mut(&key))
        else {
            return refuses(self, Refusal::Unknown);
        };
        let Ok((region_name, region, region_slot)) = machine.take(worker, name.1) else {
            return refuses(self, Refusal::Many);
        };
        let place = Place {
            region,
            name: region_name,
            slot: region_slot,
            side: Side::Server,
            endpoint: machine.endpoint(worker),
        };
        let generation = asked.place.generation;
        links.open(name, slot, generation, place.clone());
        let stage = Stage::Registering(Some(asked.region.at));
        let (client, server) = (asked.client, asked.server);
        let opened = Lane { place, generation, use_: 0, client, server, stage, next: None };
        self.lanes.insert((name, slot), opened);
        Ok(())
    }

    /// A program here has said something on a connection that the far side has not opened: that it takes it up.
    pub(super) fn called(&mut self, name: Name, slot: usize) {
        let Some(lane) = self.lanes.get_mut(&(name, slot)) else { return };
        let Stage::Proposed { far, own, .. } = lane.stage else { return };
        let setup = &lane.place.section(Side::Server).setup;
        let has_answered = setup.state.load(Ordering::Acquire) == Answer::Accepted as u32
            && setup.generation.load(Ordering::Relaxed) == lane.use_;
        if !has_answered {
            return;
        }
        lane.stage = Stage::Attaching(Some(own));
        let generation = lane.generation;
        if let Some(links) = &self.links {
            links.attach(name, (slot, generation), far, || {});
        }
    }

    /// A worker has begun with a connection, or cannot any more. Only now the client's host may hear of it: what the link does not bring
    /// then the acceptor waits for.
    pub(super) fn attached(&mut self, name: Name, slot: usize, is_attached: bool, now: Duration) {
        let Some(lane) = self.lanes.get_mut(&(name, slot)) else { return };
        let own = match lane.stage {
            Stage::Attaching(own) => own,
            // The link has failed meanwhile, so there is nothing to leave.
            Stage::Left if !is_attached => None,
            _ => return,
        };
        let place = wire_place(name, slot, lane.generation);
        lane.stage = Stage::Open;
        let said = match is_attached {
            true => own.map(|at| Message::Opened(place, Region { at, length: length() })),
            false => own.map(|_| Message::NotOpened(place, Refusal::Failed)),
        };
        if is_attached {
            self.counts(name.0);
        } else {
            self.is_over(name, slot);
        }
        if let Some(said) = said {
            self.say_to_key(name.0, &said, now);
        }
    }

    /// The peer says that a program there has taken a connection up.
    pub(super) fn hear_opened(
        &mut self,
        at: usize,
        place: message::Place,
        region: Region,
    ) -> Result<(), &'static str> {
        let key = self.peers[at].name.key;
        let (name, slot) = ((key, place.group), usize::from(place.slot));
        let lane = self.lanes.get_mut(&(name, slot));
        let lane = lane.filter(|lane| lane.generation == place.generation);
        let lane = lane.ok_or("a connection that was not asked for")?;
        if region.length != length() {
            return Err("a ring of another length");
        }
        let (code, is_over) = match lane.stage {
            Stage::Asked(code) => (code, false),
            Stage::Over => (0, true),
            _ => return Err("a connection that was not asked for"),
        };
        let (tuple, generation) = (tuple(lane.client, lane.server), lane.use_);
        // Its program may have taken the proposal back.
        let is_taken = !is_over
            && self.machines.get(&key).is_some_and(|machine| {
                let place = &lane.place;
                let place =
                    table::Place { region: place.name, slot: place.slot, generation: lane.use_ };
                machine.takes(lane.server, &tuple, place)
            });
        lane.stage = if is_taken { Stage::Attaching(None) } else { Stage::Left };
        let (place, use_) = (lane.place.clone(), lane.generation);
        let Some(links) = &self.links else { return Ok(()) };
        if !is_taken {
            links.leave_at_once(name, (slot, use_), region.at);
            return Ok(());
        }
        links.attach(name, (slot, use_), region.at, move || {
            let theirs = place.section(Side::Server);
            begin(theirs, place.endpoint, generation, code);
            theirs.setup.state.store(Answer::Accepted as u32, Ordering::Release);
        });
        Ok(())
    }

    /// The peer says that a connection stays on TCP; or takes back that it has asked for it.
    pub(super) fn hear_not_opened(
        &mut self,
        at: usize,
        place: message::Place,
        now: Duration,
    ) -> Result<(), &'static str> {
        let name = (self.peers[at].name.key, place.group);
        let slot = usize::from(place.slot);
        let Some(lane) = self.lanes.get_mut(&(name, slot)) else { return Ok(()) };
        if lane.next.take_if(|next| next.place.generation == place.generation).is_some() {
            self.say_to(at, &Message::NotOpened(place, Refusal::Unknown), now);
            return Ok(());
        }
        if lane.generation != place.generation {
            return Ok(());
        }
        match &lane.stage {
            Stage::Asked(_) | Stage::Over => {
                if let Some(links) = &self.links {
                    // The program takes its proposal back by itself.
                    links.lets_go_of_place(name, slot);
                    links.abandon(name, slot);
                }
                self.is_over(name, slot);
            }
            Stage::Proposed { ticket, .. } => {
                let table = listeners_table(&self.shared.memory, lane.server);
                // One that is just being taken up is told of as such.
                if table.is_some_and(|table| table.take(ticket)) {
                    self.take_back(name, slot, now);
                }
            }
            Stage::Registering(Some(_)) => {
                if let Some(lane) = self.lanes.get_mut(&(name, slot)) {
                    lane.stage = Stage::TakenBack;
                }
            }
            Stage::Registering(None) | Stage::TakenBack => {}
            Stage::Attaching(_) | Stage::Open | Stage::Left => {}
        }
        Ok(())
    }
}

//! Proposals of programs to such servers: found, taken, and declined.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use shunt_shm::region::{Geometry, Region, Side};
use shunt_shm::sync::Ordering;
use shunt_shm::table;
use shunt_wire::agent::RegionId;
use shunt_wire::clc::Proposal as Proposed;
use shunt_wire::reason::Reason;

use super::servers::Servers;
use super::state::Kernels;
use super::talk::{Stage, Talk};
use crate::machine::Held;
use crate::mirror::Place;

/// How long a program that was declined may take to see it.
const ENDING: Duration = Duration::from_secs(30);

/// Whether a region holds a proposal to one of them.
fn leads(held: &Held, servers: &Servers) -> bool {
    (0..Geometry::Device.slots()).any(|slot| {
        let setup = &held.region.view().section(slot, Side::Client).setup;
        setup.state.load(Ordering::Acquire) != 0
            && servers.of(SocketAddr::from(setup.tuple().peer)).is_some()
    })
}

/// Open proposals in a region that were not `seen`: their places, and the numbers of their uses.
fn open_in(region: &Region, seen: &[u32]) -> Vec<(usize, u32)> {
    let open = seen.iter().enumerate().filter_map(|(slot, seen)| {
        let setup = &region.view().section(slot, Side::Client).setup;
        let state = setup.state.load(Ordering::Acquire);
        let use_ = setup.generation.load(Ordering::Relaxed);
        let is_open = [Proposed::Proposed as u32, Proposed::Used as u32].contains(&state);
        (is_open && *seen != use_).then_some((slot, use_))
    });
    open.collect()
}

/// True for a place whose last proposal was taken back. A socket is passed for the next one when that state is gone.
fn is_taken_back(region: &Region, slot: usize) -> bool {
    let setup = &region.view().section(slot, Side::Client).setup;
    setup.state.load(Ordering::Acquire) == Proposed::Withdrawn as u32
}

impl Kernels {
    /// Connections that a program has proposed in this region. False: it is none of this member's.
    pub(crate) fn proposed(&mut self, region: RegionId) -> bool {
        let Some(machine) = &mut self.machine else { return false };
        let is_known = machine.held.contains_key(&region);
        let endpoint = machine.endpoint(0);
        let Some(held) = machine.hold(region) else { return false };
        if !is_known && !leads(held, &self.servers) {
            held.is_over = true;
            machine.let_go(region);
            return false;
        }
        let map = Arc::clone(&held.region);
        // Of those that were taken back the server hears what the program's kernel says.
        self.passed.retain(|(of, slot), _| *of != region || !is_taken_back(&map, *slot));
        let open = open_in(&map, &held.seen);
        // A program says that it proposes before it posts that for its acceptor, and tells of it behind both.
        let is_posted = |(slot, generation): &(usize, u32)| {
            let tuple = map.view().section(*slot, Side::Client).setup.tuple();
            let place = table::Place { region, slot: *slot, generation: *generation };
            machine.has_posted(SocketAddr::from(tuple.peer), &tuple, place)
        };
        let open: Vec<_> = open.into_iter().filter(is_posted).collect();
        let Some(held) = machine.held.get_mut(&region) else { return false };
        let mut talks = Vec::new();
        for (slot, use_) in open {
            let setup = &map.view().section(slot, Side::Client).setup;
            // One whose SYN nobody marked is TCP: nobody answers. One that was marked since is told of later.
            let Some(socket) = self.passed.remove(&(region, slot)) else { continue };
            held.seen[slot] = use_;
            let server = SocketAddr::from(setup.tuple().peer);
            if self.servers.of(server).is_none() {
                continue;
            }
            held.users += 1;
            let place = Place {
                region: Arc::clone(&map),
                name: region,
                slot,
                side: Side::Client,
                endpoint,
            };
            let stage = Stage::Connecting(socket);
            let (at, waits, is_first, end, declined) = (None, None, false, None, None);
            let unanswered = None;
            let talk =
                Talk { place, use_, server, stage, unanswered, at, waits, is_first, end, declined };
            talks.push(talk);
        }
        for talk in talks {
            self.talks_with(talk);
        }
        true
    }

    /// A connection does not use its place in its program's region any more.
    pub(crate) fn let_go(&mut self, place: &Place) {
        let Some(machine) = &mut self.machine else { return };
        if let Some(held) = machine.held.get_mut(&place.name) {
            held.users = held.users.saturating_sub(1);
            machine.let_go(place.name);
        }
    }

    /// A connection that no worker has is TCP.
    pub(crate) fn declines(&mut self, talk: &Talk, why: Reason, now: Duration) {
        self.bells.decline(&talk.place, why);
        self.let_go(&talk.place);
        self.await_end(talk, now);
    }

    /// A program that was ending just as it was declined waits for the other end of its place.
    pub(crate) fn await_end(&mut self, talk: &Talk, now: Duration) {
        self.declined.push((talk.place.clone(), talk.use_, now + ENDING));
    }

    pub(crate) fn see_to_declined(&mut self, now: Duration) {
        self.declined.retain(|(place, use_, until)| {
            let mine = &place.section(Side::Client).setup;
            let is_its = mine.generation.load(Ordering::Relaxed) == *use_;
            let has_ended = is_its && mine.done.load(Ordering::Acquire) != 0;
            if has_ended {
                place.section(Side::Server).setup.done.store(1, Ordering::Release);
            }
            is_its && !has_ended && now < *until
        });
    }

    /// Takes the program's proposal, so that its place stays its. False: it has taken the proposal back.
    pub(crate) fn takes(&self, talk: &Talk) -> bool {
        let at = &talk.place;
        let tuple = at.section(Side::Client).setup.tuple();
        let place = table::Place { region: at.name, slot: at.slot, generation: talk.use_ };
        self.machine.as_ref().is_some_and(|machine| machine.takes(talk.server, &tuple, place))
    }
}

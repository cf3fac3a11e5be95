//! Link groups with servers that speak the kernel's SMC-R, and the connections in them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use shunt_far::worker::Name as LinkName;
use shunt_smc::wire::clc::{Accept, End};

use crate::mirror::Place;

/// Connections of a link group: what is proposed to the server.
pub(crate) const CONNECTIONS: u8 = 32;

/// How long a link group without connections is kept (`smc_core.c`: `SMC_LGR_FREE_DELAY_CLNT`).
const IDLE: Duration = Duration::from_secs(600);

/// Where a connection is: its link, and its place there.
pub(crate) type At = (LinkName, usize);

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Where its program has it.
    pub(crate) place: Place,
    pub(crate) server: SocketAddr,
}

/// How far a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Of a first contact, which the server has not confirmed here.
    Coming,
    /// The server has confirmed it.
    Up,
    /// It is given up: the server is to end it.
    Leaving,
    /// It has ended.
    Ended,
}

/// What becomes of a further connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joined {
    /// It has this place.
    At(At),
    /// Its link is coming: to be asked again when that is up, or has ended.
    Later,
    /// There is no such link group, or it is full.
    None,
}

/// One of them.
#[derive(Debug)]
struct Group {
    /// The server's end.
    end: End,
    phase: Phase,
    /// Its connections, by their places in it.
    lanes: BTreeMap<usize, Lane>,
    /// Since when it has had none.
    idle_since: Option<Duration>,
}

/// All of them, by the names of their links.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<LinkName, Group>);

impl Groups {
    /// A first contact: the connection has its first place.
    pub(crate) fn begin(&mut self, link: LinkName, end: End, lane: Lane) -> usize {
        let (phase, idle_since) = (Phase::Coming, None);
        let lanes = BTreeMap::from([(0, lane)]);
        self.0.insert(link, Group { end, phase, lanes, idle_since });
        0
    }

    /// The place of a further connection, in the link group that the server means: the same queue pair of the same host.
    ///
    /// A server accepts it when the link is up there, which this host may not have heard yet: TCP and the link are two ways. The kernel's
    /// client has it wait for a lock that the connection of the first contact holds (`af_smc.c`: `smc_client_lgr_pending`).
    pub(crate) fn join(&mut self, accept: &Accept, lane: Lane) -> Joined {
        let is_its = |group: &Group| {
            let (it, end) = (&group.end, &accept.end);
            it.pair == end.pair && it.host.id == end.host.id
        };
        let mut its = self.0.iter_mut().filter(|(_, group)| is_its(group));
        let Some((link, group)) =
            its.find(|(_, group)| matches!(group.phase, Phase::Coming | Phase::Up))
        else {
            return Joined::None;
        };
        if group.phase == Phase::Coming {
            return Joined::Later;
        }
        let free = |slot: &usize| !group.lanes.contains_key(slot);
        let Some(slot) = (0..usize::from(CONNECTIONS)).find(free) else { return Joined::None };
        group.lanes.insert(slot, lane);
        group.idle_since = None;
        Joined::At((*link, slot))
    }

    /// The server has confirmed the link.
    pub(crate) fn is_up(&mut self, link: LinkName) {
        if let Some(group) = self.0.get_mut(&link).filter(|group| group.phase == Phase::Coming) {
            group.phase = Phase::Up;
        }
    }

    /// A connection is over.
    pub(crate) fn leave(&mut self, (link, slot): At, now: Duration) -> Option<Lane> {
        let group = self.0.get_mut(&link)?;
        let lane = group.lanes.remove(&slot);
        if group.lanes.is_empty() {
            group.idle_since = Some(now);
        }
        lane
    }

    /// The link has ended: its connections are reset, and leave one by one.
    pub(crate) fn is_down(&mut self, link: LinkName) {
        if let Some(group) = self.0.get_mut(&link) {
            group.phase = Phase::Ended;
        }
    }

    /// Forgets one whose link has ended, with the last of its connections. True: it is forgotten.
    pub(crate) fn take_rest(&mut self, link: LinkName) -> bool {
        let is_rest = |group: &Group| group.phase == Phase::Ended && group.lanes.is_empty();
        self.0.get(&link).is_some_and(is_rest) && self.0.remove(&link).is_some()
    }

    /// Connections, with where they lie.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (At, &Lane)> {
        self.0
            .iter()
            .flat_map(|(link, group)| group.lanes.iter().map(|(slot, lane)| ((*link, *slot), lane)))
    }

    /// Those whose servers have confirmed them.
    pub(crate) fn up(&self) -> usize {
        self.0.values().filter(|group| group.phase == Phase::Up).count()
    }

    /// When the first of those that have no connections is to be given up.
    pub(crate) fn idle_at(&self) -> Option<Duration> {
        self.0.values().filter_map(|group| group.idle_since).min().map(|since| since + IDLE)
    }

    /// Those that have had none for long: they are given up, and take no connection any more.
    pub(crate) fn take_idle(&mut self, now: Duration) -> Vec<LinkName> {
        let mut idle = Vec::new();
        for (link, group) in &mut self.0 {
            if group.idle_since.take_if(|since| now >= *since + IDLE).is_some() {
                group.phase = Phase::Leaving;
                idle.push(*link);
            }
        }
        idle
    }
}

//! A path as one queue has it.

use std::time::{Duration, Instant};

use shunt_nvme::wire::log::{AnaDescriptor, AnaState};
use shunt_sys::epoll;

use crate::link::Link;
use crate::path::{Arrival, State};

/// How long a path is not tried again that was refused for an ANA group, unless its states change.
const BARRED: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) link: Option<Link>,
    /// Of the controller that the path has now.
    pub(crate) generation: u64,
    /// The last one for which a connection was made.
    pub(crate) served: u64,
    /// Most data in a capsule.
    pub(crate) in_capsule: u32,
    is_up: bool,
    ana: Vec<AnaDescriptor>,
    barred: Vec<(u32, Instant)>,
    watches_room: bool,
}

impl Lane {
    /// True if the connection is one to a controller that the path has no more.
    pub(crate) fn is_outdated(&self, state: &State) -> bool {
        self.link.is_some() && (!state.is_up || state.generation != self.generation)
    }

    /// Takes over how the path is.
    pub(crate) fn learn(&mut self, state: &State) {
        (self.generation, self.is_up) = (state.generation, state.is_up);
        if self.ana != state.ana {
            self.ana.clone_from(&state.ana);
            self.barred.clear();
        }
    }

    /// Takes a connection over.
    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        self.in_capsule = arrival.in_capsule;
        self.watches_room = false;
        self.barred.clear();
        self.link = Some(arrival.link);
    }

    /// How good the path is for an ANA group: the lower, the better. `None`: not at all.
    pub(crate) fn rank(&self, group: u32, now: Instant) -> Option<u8> {
        if !self.is_up || self.link.is_none() {
            return None;
        }
        if self.barred.iter().any(|(its, until)| *its == group && now < *until) {
            return None;
        }
        // Without ANA every path is as good as another.
        let found = self.ana.iter().find(|known| known.group == group);
        match found.map_or(Some(AnaState::Optimized), |known| AnaState::from_code(known.state)) {
            Some(AnaState::Optimized) => Some(0),
            Some(AnaState::NonOptimized) => Some(1),
            _ => None,
        }
    }

    /// The path was refused for an ANA group.
    pub(crate) fn bar(&mut self, group: u32, now: Instant) {
        self.barred.retain(|(its, until)| *its != group && now < *until);
        self.barred.push((group, now + BARRED));
    }

    /// What the connection is to be watched for, if that is something else now.
    pub(crate) fn watch(&mut self) -> Option<u32> {
        let wants_room = !self.link.as_ref()?.is_sent();
        if wants_room == self.watches_room {
            return None;
        }
        self.watches_room = wants_room;
        Some(if wants_room { epoll::IN | epoll::OUT } else { epoll::IN })
    }
}

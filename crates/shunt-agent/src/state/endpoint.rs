//! A program that runs under Shunt, as the agent knows it.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use shunt_shm::arena::ArenaView;
use shunt_sys::process::has_exited;
use shunt_wire::agent::{ExportId, ListenerId, RegionId};

use super::capture::Capturable;
use super::export::Export;
use crate::held::Held;
use crate::party::Origin;

/// A program that runs under Shunt.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) pid: i32,
    pub(crate) origin: Origin,
    pub(crate) netns: u64,
    pub(crate) program: String,
    pub(crate) run: u64,
    /// The version that it speaks with the agent.
    pub(crate) version: u32,
    pub(crate) arena: Rc<ArenaView>,
    pub(super) capturable: Capturable,
    pub(super) pidfd: Rc<Held>,
    /// Those of its completion vectors; the first is heard by all.
    pub(super) bells: Vec<Rc<Held>>,
    pub(super) holds: HashSet<ListenerId>,
    pub(super) owns: HashSet<RegionId>,
    pub(super) attached: HashSet<RegionId>,
    pub(super) exports: HashMap<ExportId, Export>,
    /// Connections that it has offered, and listeners that it has announced, by their sockets' cookies.
    pub(super) offers: HashSet<u64>,
    pub(super) awaits: HashSet<u64>,
}

impl Endpoint {
    /// The memory that it has registered, and its pipes, which have none of their own.
    pub(crate) fn exported(&self) -> impl Iterator<Item = &Rc<Held>> {
        self.exports.values().flat_map(|export| &export.fds)
    }

    /// Rings for a completion vector; one that it does not have is nobody's.
    pub(super) fn ring(&self, vector: usize) {
        if let Some(bell) = self.bells.get(vector) {
            shunt_shm::doorbell::ring_fd(bell);
        }
    }

    /// False when the process has ended, of which its relatives may still speak.
    pub(super) fn lives(&self) -> bool {
        !has_exited(&self.pidfd)
    }
}

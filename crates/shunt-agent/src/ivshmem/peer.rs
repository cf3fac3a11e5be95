//! Another member, and its listeners.

use std::collections::HashMap;
use std::time::Instant;

use shunt_shm::ivshmem::{Home, MemberId};
use shunt_wire::addr::Addr;
use shunt_wire::agent::ListenerId;

/// Another member.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) home: Home,
    /// What was last read of it.
    pub(super) news: Option<u64>,
    pub(super) beat: u64,
    pub(super) beaten: Instant,
    /// Its listeners that programs here are told of: their names, by its own names.
    pub(super) published: HashMap<u64, ListenerId>,
}

/// A listener of another member.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) member: MemberId,
    /// Where its table is in that member's home.
    pub(super) place: usize,
    /// Where it can be reached.
    pub(super) addresses: Vec<Addr>,
}

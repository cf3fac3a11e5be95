//! What a target is configured to be.

use crate::{auth::Secret, controller, wire::Nqn};
use std::collections::BTreeMap;

/// The largest controller identifier (Base 5.17.2.1).
pub(super) const MAX_CNTLID: u16 = 0xffef;

/// Bounds on what hosts can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Controllers of all hosts together.
    pub controllers: u16,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Entries of a queue.
    pub queue_depth: u16,
    /// Asynchronous Event Requests of a controller at once.
    pub async_events: u8,
    /// Data of one command: a power of two, from 4,096.
    pub max_transfer: u32,
    /// In-capsule data on I/O queues: a multiple of 16.
    pub in_capsule: u32,
    /// The largest namespace identifier.
    pub namespaces: u32,
    /// Registrants of a namespace's reservations.
    pub registrants: usize,
    /// The longest message of an authentication.
    pub authentication_message: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let transport = controller::Limits::default();
        Self {
            controllers: 1024,
            io_queues: 128,
            queue_depth: 128,
            async_events: 4,
            max_transfer: transport.max_transfer,
            in_capsule: transport.in_capsule,
            namespaces: 1024,
            registrants: 64,
            authentication_message: 4096,
        }
    }
}

impl Limits {
    /// The same for the transport: bounds that both have in common, and `others`.
    #[must_use]
    pub fn transport(&self, others: controller::Limits) -> controller::Limits {
        let limits = self.clamped();
        controller::Limits {
            in_capsule: limits.in_capsule,
            max_transfer: limits.max_transfer,
            ..others
        }
    }

    pub(super) fn clamped(self) -> Self {
        Self {
            controllers: self.controllers.min(MAX_CNTLID / 2),
            io_queues: self.io_queues.max(1),
            queue_depth: self.queue_depth.clamp(2, controller::MAX_DEPTH),
            async_events: self.async_events.max(1),
            max_transfer: self.max_transfer.clamp(4096, 1 << 30).next_power_of_two(),
            in_capsule: self.in_capsule & !15,
            ..self
        }
    }
}

/// Keys of a host (Base 8.13.5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys {
    /// The host's key, with which it proves who it is.
    pub host: Secret,
    /// The controller's key, for hosts that ask for its proof.
    pub controller: Option<Secret>,
}

/// Hosts that may connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Any, without a proof.
    Any,
    /// These; those with keys have to prove who they are.
    Listed(BTreeMap<Nqn, Option<Keys>>),
}

impl Hosts {
    pub(super) fn allow(&self, host: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(hosts) => hosts.contains_key(host),
        }
    }

    pub(super) fn keys(&self, host: &Nqn) -> Option<&Keys> {
        match self {
            Self::Any => None,
            Self::Listed(hosts) => hosts.get(host)?.as_ref(),
        }
    }
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// SN: up to 20 characters.
    pub serial: String,
    /// MN: up to 40 characters.
    pub model: String,
    /// FR: up to 8 characters.
    pub firmware: String,
    /// Who may connect.
    pub hosts: Hosts,
}

/// A namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceConfig {
    /// Blocks.
    pub blocks: u64,
    /// The size of a block as a power of two: 9 to 16.
    pub block_shift: u8,
    /// Identifies the namespace everywhere.
    pub uuid: [u8; 16],
    /// Identifies it too, unless zero.
    pub nguid: [u8; 16],
    /// Its ANA group, from 1.
    pub ana_group: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// What is written is durable after a Flush only.
    pub write_cache: bool,
    /// Dataset Management can deallocate, and what is deallocated reads as zeroes.
    pub deallocate: bool,
    /// The preferred granularity of writes, in bytes; 0 for none.
    pub preferred_write: u32,
}

impl NamespaceConfig {
    /// Bytes of a block.
    #[must_use]
    pub const fn block_len(&self) -> u32 {
        1 << self.block_shift
    }

    pub(super) fn is_valid(&self) -> bool {
        (9..=16).contains(&self.block_shift)
            && self.blocks > 0
            && self.blocks.checked_mul(u64::from(self.block_len())).is_some()
            && (1..=ANA_GROUPS).contains(&self.ana_group)
    }
}

/// ANA groups that namespaces can be in, from 1: ANAGRPMAX.
pub const ANA_GROUPS: u32 = 128;

//! What a configuration comes to.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use shunt_nvme::auth::Secret;
use shunt_nvme::wire::Nqn;
use shunt_nvme::wire::log::AnaState;
use shunt_nvme::wire::nqn::NqnError;

use super::identity::{Identity, default_identity, default_serial};
use crate::store::BlockSize;

/// The name of the subsystem that `shunt nvme target` serves without a file.
pub const QUICK_NQN: &str = "nqn.2024-01.org.shunt:target";

/// The model of a subsystem to which the file gives none.
pub(super) const MODEL: &str = "Shunt";

/// Threads that wait for a file.
pub(super) const FILE_THREADS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Where hosts connect.
    pub listen: Vec<SocketAddr>,
    /// Threads that own connections; `None`: one per core.
    pub threads: Option<NonZeroUsize>,
    /// Bounds on what hosts can make the target keep or do.
    pub limits: Limits,
    /// Other discovery services, to which hosts are referred.
    pub referrals: Vec<Referral>,
    /// What is served.
    pub subsystems: Vec<Subsystem>,
}

/// Bounds on what hosts can make the target keep or do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Those of them that have not yet completed a Connect command.
    pub unconnected: usize,
    /// Time for that.
    pub connect_timeout: Duration,
    /// I/O queues of a controller.
    pub queues: u16,
    /// Entries of a queue.
    pub queue_depth: u16,
    /// Bytes of a command's data.
    pub transfer: u32,
    /// Bytes of a write's data that hosts may send with the command, unasked: a multiple of 16.
    pub in_capsule: u32,
    /// Bytes of data that commands of all connections may have under way.
    pub in_flight: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            unconnected: 64,
            connect_timeout: Duration::from_secs(10),
            queues: 64,
            queue_depth: 128,
            transfer: 1 << 20,
            in_capsule: 8 << 10,
            in_flight: 256 << 20,
        }
    }
}

/// Another discovery service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Referral {
    /// Where it is.
    pub address: SocketAddr,
    /// Its name; `None`: the well-known one.
    pub nqn: Option<Nqn>,
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number, 20 characters at most.
    pub serial: String,
    /// Its model, 40 characters at most.
    pub model: String,
    /// Who may connect.
    pub hosts: Hosts,
    /// The states of ANA groups that are not optimized everywhere.
    pub ana: Vec<Ana>,
    /// By number, ascending.
    pub namespaces: Vec<Namespace>,
}

impl Subsystem {
    /// The state of an ANA group for hosts that come in at an address.
    #[must_use]
    pub fn ana_state(&self, address: SocketAddr, group: u32) -> AnaState {
        let of_group = || self.ana.iter().filter(|ana| ana.group == group);
        let there = of_group().find(|ana| ana.at == Some(address));
        let found = there.or_else(|| of_group().find(|ana| ana.at.is_none()));
        found.map_or(AnaState::Optimized, |ana| ana.state)
    }
}

/// The ANA states, as the file has them.
pub const ANA_STATES: [(&str, AnaState); 5] = [
    ("optimized", AnaState::Optimized),
    ("non-optimized", AnaState::NonOptimized),
    ("inaccessible", AnaState::Inaccessible),
    ("persistent-loss", AnaState::PersistentLoss),
    ("change", AnaState::Change),
];

/// The state of an ANA group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ana {
    /// The group.
    pub group: u32,
    /// For hosts that come in at this address; `None`: at every other one.
    pub at: Option<SocketAddr>,
    /// Its state.
    pub state: AnaState,
}

/// Who may connect to a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Everybody, without a key.
    Any,
    /// These.
    Listed(Vec<Host>),
}

/// A host that may connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name.
    pub nqn: Nqn,
    /// What it authenticates with; `None`: it need not.
    pub key: Option<Key>,
    /// What the controller authenticates with to this host.
    pub controller_key: Option<Key>,
    /// It may map the memory of the namespaces that it reads, where both ends run under Shunt.
    pub grant: bool,
}

/// A DH-HMAC-CHAP secret. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub(crate) Secret);

impl Key {
    /// The secret.
    #[must_use]
    pub const fn secret(&self) -> &Secret {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Its number, from 1.
    pub nsid: u32,
    /// What keeps its blocks.
    pub store: Backing,
    /// Bytes; `None`: as many as the file has.
    pub size: Option<u64>,
    /// How long its blocks are.
    pub block: BlockSize,
    /// Its names.
    pub identity: Identity,
    /// Its ANA group.
    pub ana_group: u32,
    /// Nothing can be written.
    pub read_only: bool,
}

/// What keeps a namespace's blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Nothing does.
    Null,
    /// Memory of this process.
    Memory,
    /// A file or a block device.
    File {
        /// Its path.
        path: PathBuf,
        /// Make it, or make it longer.
        create: bool,
        /// Past the page cache.
        direct: bool,
        /// Threads that wait for it.
        threads: NonZeroUsize,
    },
}

impl Backing {
    /// A file, with what is usual.
    #[must_use]
    pub const fn file(path: PathBuf, create: bool) -> Self {
        Self::File { path, create, direct: false, threads: FILE_THREADS }
    }
}

impl Config {
    /// One subsystem for everybody, with one namespace.
    ///
    /// # Errors
    /// None: [`QUICK_NQN`] is a name.
    pub fn quick(
        listen: Vec<SocketAddr>,
        store: Backing,
        size: Option<u64>,
        block: BlockSize,
    ) -> Result<Self, NqnError> {
        let identity = default_identity(QUICK_NQN, 1);
        let namespace =
            Namespace { nsid: 1, store, size, block, identity, ana_group: 1, read_only: false };
        let subsystem = Subsystem {
            nqn: Nqn::new(QUICK_NQN)?,
            serial: default_serial(QUICK_NQN),
            model: MODEL.to_owned(),
            hosts: Hosts::Any,
            ana: Vec::new(),
            namespaces: vec![namespace],
        };
        Ok(Self {
            listen,
            threads: None,
            limits: Limits::default(),
            referrals: Vec::new(),
            subsystems: vec![subsystem],
        })
    }
}

//! What a target serves, for people and programs that ask.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Addresses at which hosts can connect.
    pub listening: Vec<SocketAddr>,
    /// Connections that are open.
    pub connections: usize,
    /// By name.
    pub subsystems: Vec<Subsystem>,
}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Who may connect; `None`: everybody.
    pub hosts: Option<Vec<Host>>,
    /// By number.
    pub namespaces: Vec<Namespace>,
    /// ANA groups that are not optimized.
    pub ana: Vec<Ana>,
    /// Hosts that are connected.
    pub controllers: Vec<Controller>,
}

/// A host that may connect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// It has to prove who it is.
    pub authenticates: bool,
    /// It may map memory.
    pub grant: bool,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Namespace {
    /// Its number.
    pub nsid: u32,
    /// The kind of its store.
    pub store: String,
    /// That of a file or block device.
    pub path: Option<PathBuf>,
    /// How many bytes it has.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Its ANA group.
    pub ana_group: u32,
    /// Nothing can be written.
    pub read_only: bool,
}

/// The state of an ANA group at an address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ana {
    /// The group.
    pub group: u32,
    /// Where hosts come in.
    pub at: SocketAddr,
    /// As in the configuration.
    pub state: String,
}

/// A host's controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Controller {
    /// Its identifier.
    pub cntlid: u16,
    /// The host.
    pub host: String,
    /// I/O queues that are connected.
    pub io_queues: usize,
}

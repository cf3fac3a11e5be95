//! What the tools are told. The names are stable.

use serde::{Deserialize, Serialize};

use crate::message::{PeerId, Vector};
use crate::reason::Totals;

/// What a server does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Where clients connect.
    pub socket: String,
    /// Bytes of shared memory.
    pub size: u64,
    /// The memory consists of huge pages.
    pub huge_pages: bool,
    /// Interrupt vectors of each client.
    pub vectors: Vector,
    /// When the region was made, in seconds since 1970.
    pub since: u64,
    /// How many clients there may be.
    pub peers_max: usize,
    /// How many IDs are free.
    pub ids_left: usize,
    /// Who is connected.
    pub peers: Vec<PeerReport>,
    /// What has happened so far.
    #[serde(flatten)]
    pub totals: Totals,
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its ID.
    pub id: PeerId,
    /// Its process, 0 when that is not seen from the server's pid namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// When it connected, in seconds since 1970.
    pub since: u64,
    /// Messages that wait for it.
    pub queued: usize,
    /// Messages that it has been sent.
    pub messages: u64,
    /// The same in bytes.
    pub bytes: u64,
}

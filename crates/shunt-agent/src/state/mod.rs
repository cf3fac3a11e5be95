//! The agent's knowledge, and the policy by which it answers. No socket I/O.
//!
//! A new client has no role. Its first message makes it a library (an endpoint) or a tool. The
//! agent answers or refuses each request. A message that the protocol does not allow at all is
//! [`Misconduct`], for which the server drops the client.
//!
//! Records stand in files with names in the singular and in `registries`, below [`State`], which
//! holds them. Files with names in the plural, `policy` and `remote` act on it; `requests` is above
//! all of them.

mod answer;
mod bequest;
mod bequests;
mod capture;
mod captures;
mod endpoint;
mod endpoints;
mod export;
mod exports;
mod host;
mod listener;
mod listeners;
mod offer;
mod offers;
mod other_version;
mod peers;
mod policy;
mod region;
mod regions;
mod registries;
mod remote;
mod requests;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use shunt_rdma::Plane;
use shunt_sys::bpf::SmcMarks;
use shunt_sys::seqpacket::PeerCred;
use shunt_wire::agent::{EndpointId, ListenerId, RegionId};

use crate::book::Book;
use crate::config::{HostConfig, Limits};
use crate::held::Grave;
use crate::ivshmem::Fabric;
use crate::party::{Account, Origin, Party};
use crate::totals::Totals;
use answer::Outcome;
pub(crate) use answer::Rejection;
pub use answer::{Answer, Misconduct};
use bequest::Bequest;
use capture::Captures;
pub(crate) use endpoint::Endpoint;
use host::Host;
pub use host::HostError;
pub(crate) use listener::Listener;
use listener::Name;
use other_version::OtherVersions;
use region::Region;
use registries::Registries;

/// The kernel's facts about a client, none of them its own words.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Its control connection.
    pub socket: BorrowedFd<'a>,
    /// Its process, where the connection was not made by that.
    pub pidfd: Option<BorrowedFd<'a>>,
    /// Who made it.
    pub cred: PeerCred,
    /// Where it comes from.
    pub origin: &'a Origin,
    /// The network namespace in which it was made.
    pub netns: u64,
}

/// What a client has said it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing yet.
    Nobody,
    /// A tool.
    Tool,
    /// A tool that captures, in this place.
    Capture {
        /// The place.
        place: usize,
        /// Tells it from others that have had the place.
        number: u64,
    },
    /// A library.
    Endpoint(EndpointId),
}

/// Everything the agent knows.
#[derive(Debug)]
pub struct State {
    limits: Limits,
    pub(crate) started: Instant,
    next_id: u64,
    registries: Registries,
    /// What an agent for the host has besides.
    host: Option<Host>,
    pub(crate) endpoints: HashMap<EndpointId, Endpoint>,
    pub(crate) listeners: HashMap<ListenerId, Listener>,
    /// They are others than those that peers were last told of.
    listeners_changed: bool,
    by_cookie: HashMap<u64, ListenerId>,
    bequests: Vec<Bequest>,
    by_name: HashMap<Name, ListenerId>,
    pub(crate) regions: HashMap<RegionId, Region>,
    captures: Captures,
    pub(crate) ended: Book,
    /// Clients that were turned away, or dropped for what they sent or did not read, by why.
    pub(crate) rejected: BTreeMap<&'static str, u64>,
    /// Programs that were refused for their version.
    pub(crate) other_versions: OtherVersions,
    /// Inspectors that are stuck with what clients have passed, and descriptors that wait to be let go of.
    pub(crate) burden: (usize, usize),
    /// Where descriptors go that this lets go of.
    grave: Grave,
    /// Where the socket is, for `Status`.
    pub(crate) socket_path: String,
    /// Memory that is shared with other machines.
    pub(crate) fabric: Option<Fabric>,
    /// Memory of servers that are gone, while connections go through it.
    retired: Vec<Fabric>,
    /// Where metrics are served, for `Status`.
    pub(crate) metrics: Option<String>,
    /// Agents of other hosts.
    pub(crate) plane: Option<Plane>,
    /// What asks servers whether they speak the kernel's SMC-R.
    smc_marks: Option<Arc<SmcMarks>>,
    /// The memory that is shared is that for other hosts, and no device's.
    is_shared_with_hosts: bool,
}

impl State {
    /// Knows nothing but `ended`. What it lets go of, and others could hold up, is found in `grave`.
    ///
    /// # Errors
    /// Where it cannot be the agent of the host.
    pub fn new(
        limits: Limits,
        host: Option<&HostConfig>,
        ended: Book,
        socket_path: String,
        grave: Grave,
    ) -> Result<Self, HostError> {
        let host = host.map(Host::new).transpose()?;
        let next_id = first_id();
        Ok(Self {
            limits,
            started: Instant::now(),
            next_id,
            registries: Registries::default(),
            host,
            endpoints: HashMap::new(),
            listeners: HashMap::new(),
            listeners_changed: false,
            by_cookie: HashMap::new(),
            bequests: Vec::new(),
            by_name: HashMap::new(),
            regions: HashMap::new(),
            captures: Captures::default(),
            ended,
            rejected: BTreeMap::new(),
            other_versions: OtherVersions::default(),
            burden: (0, 0),
            grave,
            socket_path,
            fabric: None,
            retired: Vec::new(),
            metrics: None,
            plane: None,
            smc_marks: None,
            is_shared_with_hosts: false,
        })
    }

    const fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Notes that a client was turned away or dropped, and why.
    pub fn count_rejected(&mut self, why: &'static str) {
        *self.rejected.entry(why).or_default() += 1;
    }

    /// Notes that a library was refused for its version.
    pub fn note_other_version(&mut self, pid: i32, party: Party, version: u32) {
        self.other_versions.note(pid, party, version);
    }

    /// How many clients were turned away or dropped.
    pub(crate) fn rejected_clients(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// True when an account has its part of `most` by now. An agent of one user knows one account.
    fn exceeds_share(&self, of: &Account, most: usize, has: impl FnOnce() -> usize) -> bool {
        let bounded = self.host.is_some() && *of != Account::Host;
        bounded && has() >= (most / self.limits.share).max(1)
    }

    /// Ends every endpoint, so that the totals are whole: the agent is about to exit.
    pub fn end(&mut self) -> &Book {
        for (_, endpoint) in self.endpoints.drain() {
            self.ended.fold(endpoint.run, &endpoint.program, &Totals::of(&endpoint.arena));
        }
        &self.ended
    }
}

/// Names must not repeat those of an earlier agent, whose regions and tables may still be in use: they start at
/// a random multiple of 2^32, and stay exact in JSON (below 2^53).
fn first_id() -> u64 {
    let random = std::hash::RandomState::new().build_hasher().finish();
    ((random & 0xf_ffff) << 32) | 1
}

/// Above which number the names lie that go on with `next`.
const fn names_of(next: u64) -> u64 {
    next >> 32 << 32 | 1
}

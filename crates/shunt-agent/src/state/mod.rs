//! What the agent knows, and the policy by which it answers. No socket I/O.
//!
//! A client is first nobody; its first message makes it a library (an endpoint) or a tool. Each
//! request is answered or refused; what the protocol does not allow at all is [`Misconduct`], for
//! which the server drops the client.

mod elsewhere;
mod exports;
mod host;
mod listeners;
mod offers;
mod regions;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

use shunt_shm::arena::{self, ArenaView};
use shunt_sys::process::has_exited;
use shunt_sys::seqpacket::{PeerCred, peer_pidfd};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{EndpointId, ExportId, ListenerId, MAX_VECTORS, RegionId, Reply, Request};
use shunt_wire::reason::Reason;

use crate::config::{HostConfig, Limits};
use crate::held::{Grave, Held, Passed, Thing};
use crate::ivshmem::Fabric;
use crate::memory_limit;
use crate::party::{Account, Origin, Party};
use crate::report;
use crate::totals::{Book, Totals};
use exports::Export;
pub use host::HostError;
use host::{Host, Registries};
use listeners::{Listener, Name};
use regions::Region;

/// Longest program name that is kept, in bytes.
const MAX_NAME: usize = 64;

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
    /// A library.
    Endpoint(EndpointId),
}

/// A reply with its descriptors.
#[derive(Debug)]
pub struct Answer {
    /// The message.
    pub reply: Reply,
    /// What travels with it, in order.
    pub fds: Vec<Rc<Held>>,
}

impl Answer {
    fn bare(reply: Reply) -> Self {
        Self { reply, fds: Vec::new() }
    }

    /// Nothing but that it is done.
    #[must_use]
    pub fn done() -> Self {
        Self::bare(Reply::Done)
    }

    /// A refusal.
    #[must_use]
    pub fn refused(reason: Reason) -> Self {
        Self::bare(Reply::Refused { reason })
    }
}

/// What the protocol does not allow; it costs the client its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misconduct(pub &'static str);

/// Why a request gets no positive answer.
#[derive(Debug)]
pub(crate) enum No {
    Refused(Reason),
    Misconduct(&'static str),
}

impl From<io::Error> for No {
    fn from(_: io::Error) -> Self {
        // Every call that can fail here asks for memory or descriptors.
        Self::Refused(Reason::NoResources)
    }
}

type Outcome = Result<Answer, No>;

/// A program that runs under Shunt.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) pid: i32,
    pub(crate) origin: Origin,
    pub(crate) netns: u64,
    pub(crate) program: String,
    pub(crate) run: u64,
    pub(crate) arena: ArenaView,
    pidfd: Rc<Held>,
    bells: Vec<Rc<Held>>,
    holds: HashSet<ListenerId>,
    owns: HashSet<RegionId>,
    attached: HashSet<RegionId>,
    exports: HashMap<ExportId, Export>,
    /// Connections that it has offered, and listeners that it has announced, by their sockets' cookies.
    offers: HashSet<u64>,
    awaits: HashSet<u64>,
}

impl Endpoint {
    /// The memory that it has registered, and its pipes, which have none of their own.
    pub(crate) fn exported(&self) -> impl Iterator<Item = &Rc<Held>> {
        self.exports.values().flat_map(|export| &export.fds)
    }

    /// False when the process has ended, of which its relatives may still speak.
    fn lives(&self) -> bool {
        !has_exited(&self.pidfd)
    }
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
    by_cookie: HashMap<u64, ListenerId>,
    by_name: HashMap<Name, ListenerId>,
    pub(crate) regions: HashMap<RegionId, Region>,
    pub(crate) ended: Book,
    /// Clients that were turned away, or dropped for what they sent or did not read, by why.
    pub(crate) rejected: BTreeMap<&'static str, u64>,
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
            by_cookie: HashMap::new(),
            by_name: HashMap::new(),
            regions: HashMap::new(),
            ended,
            rejected: BTreeMap::new(),
            burden: (0, 0),
            grave,
            socket_path,
            fabric: None,
            retired: Vec::new(),
            metrics: None,
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

    /// How many clients were turned away or dropped.
    pub(crate) fn rejected_clients(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Answers one request of the client in `role`.
    ///
    /// # Errors
    /// When the client is to be dropped.
    pub fn handle(
        &mut self,
        role: &mut Role,
        peer: Peer<'_>,
        request: &Request<'_>,
        passed: &mut Passed,
    ) -> Result<Answer, Misconduct> {
        let outcome = match (*role, request) {
            (Role::Nobody, Request::Hello { version, program, run }) => {
                self.hello(role, peer, (*version, *run), program, passed)
            }
            (Role::Nobody, Request::Tool { version }) => tool(role, *version),
            (Role::Endpoint(me), request) => self.for_endpoint(me, request, passed),
            (Role::Tool, Request::List) => {
                report::list(self, self.limits.listed, self.shown_to(peer))
            }
            (Role::Tool, Request::Stats { run }) => report::stats(self, *run, self.shown_to(peer)),
            (Role::Tool, Request::Status) => report::status(self, self.shown_to(peer)),
            _ => Err(No::Misconduct("a request that is not for it to make")),
        };
        let unused = !passed.is_empty();
        match outcome {
            Err(No::Misconduct(what)) => Err(Misconduct(what)),
            _ if unused => Err(Misconduct("descriptors that no request asks for")),
            Ok(answer) => Ok(answer),
            Err(No::Refused(reason)) => Ok(Answer::refused(reason)),
        }
    }

    /// Whose programs a tool is shown: of an agent for the host, root sees all, and others their own.
    fn shown_to(&self, peer: Peer<'_>) -> Option<Party> {
        (self.host.is_some() && !peer.origin.is_hosts_root).then_some(peer.origin.party)
    }

    fn for_endpoint(
        &mut self,
        me: EndpointId,
        request: &Request<'_>,
        passed: &mut Passed,
    ) -> Outcome {
        if let Some(outcome) = self.elsewhere(me, request, passed) {
            return outcome;
        }
        match *request {
            Request::Listen => self.listen(me, passed).map(|answer| self.listening(answer)),
            Request::Unlisten { listener } => self.unlisten(me, listener),
            Request::Connect { listener } => self.connect(me, listener),
            Request::Attach { region, slot } => self.attach(me, region, slot, passed),
            Request::Bells { region, endpoint } => self.bells(me, region, endpoint),
            Request::Detach { region } => self.detach(me, region),
            Request::Export { what } => self.export(me, what, passed),
            Request::Import { region, slot, export } => {
                self.import(me, (region, slot), export, passed)
            }
            Request::Unexport { export } => self.unexport(me, export),
            Request::Await => self.await_clients(me, passed),
            Request::Offer { record, number } => self.offer(me, (record, number), passed),
            Request::Claim => self.claim(me, passed),
            Request::Fetch { region, slot } => self.fetch(me, region, slot, passed),
            _ => Err(No::Misconduct("a request that is not for a library to make")),
        }
    }

    fn hello(
        &mut self,
        role: &mut Role,
        peer: Peer<'_>,
        (version, run): (u32, u64),
        program: &str,
        passed: &mut Passed,
    ) -> Outcome {
        let things: Vec<_> = std::iter::from_fn(|| passed.take()).collect();
        if version != PROTOCOL_VERSION {
            return Err(No::Refused(Reason::VersionMismatch));
        }
        if things.is_empty() || things.len() > MAX_VECTORS {
            return Err(No::Misconduct("a wrong number of doorbells"));
        }
        // It is rung with write(2) by programs that did not make it: anything else could block them there.
        let bell = |thing| if let Thing::Bell(fd) = thing { Some(Rc::new(fd)) } else { None };
        let bells = things.into_iter().map(bell).collect::<Option<Vec<_>>>();
        let bells = bells.ok_or(No::Misconduct("a doorbell that is not an eventfd"))?;
        let of_account = |e: &&Endpoint| e.origin.account == peer.origin.account;
        if self.endpoints.len() >= self.limits.endpoints
            || self.exceeds_share(&peer.origin.account, self.limits.endpoints, || {
                self.endpoints.values().filter(of_account).count()
            })
        {
            return Err(No::Refused(Reason::Refused));
        }
        // Others are given it.
        let pidfd = match peer.pidfd {
            Some(pidfd) => pidfd.try_clone_to_owned()?,
            None => peer_pidfd(peer.socket).map_err(io::Error::from)?,
        };
        let pidfd = Rc::new(self.grave.keep(pidfd));
        let arena_fd = arena::create()?;
        let arena = ArenaView::map(&arena_fd)?;
        let registry = self.registry_of(peer.origin.party)?;
        let endpoint = self.new_id();
        *role = Role::Endpoint(endpoint);
        self.endpoints.insert(
            endpoint,
            Endpoint {
                pid: peer.cred.pid,
                origin: peer.origin.clone(),
                netns: peer.netns,
                program: printable(program),
                run,
                arena,
                pidfd,
                bells,
                holds: HashSet::new(),
                owns: HashSet::new(),
                attached: HashSet::new(),
                exports: HashMap::new(),
                offers: HashSet::new(),
                awaits: HashSet::new(),
            },
        );
        Ok(Answer {
            reply: Reply::Welcome { endpoint, memory: memory_limit::of_process(peer.cred.pid) },
            fds: vec![registry, Rc::new(Held::own(arena_fd))],
        })
    }

    /// The client in `role` is gone: whatever was its alone goes with it.
    pub fn gone(&mut self, role: Role) {
        let Role::Endpoint(me) = role else { return };
        let Some(endpoint) = self.endpoints.remove(&me) else { return };
        self.ended.fold(endpoint.run, &Totals::of(&endpoint.arena));
        self.forget_offers(&endpoint);
        let party = endpoint.origin.party;
        for region in endpoint.owns {
            self.owner_left(region);
        }
        for region in endpoint.attached {
            self.attacher_left(me, region);
        }
        for listener in endpoint.holds {
            self.holder_left(me, listener, None);
        }
        for fabric in self.retired.iter_mut().chain(&mut self.fabric) {
            fabric.endpoint_left(me);
        }
        if !self.endpoints.values().any(|other| other.origin.party == party) {
            self.registries.forget(party);
        }
    }

    /// True when an account has its part of `most` by now. An agent of one user knows one account.
    fn exceeds_share(&self, of: &Account, most: usize, has: impl FnOnce() -> usize) -> bool {
        let bounded = self.host.is_some() && *of != Account::Host;
        bounded && has() >= (most / self.limits.share).max(1)
    }

    /// Ends every endpoint, so that the totals are whole: the agent is about to exit.
    pub fn end(&mut self) -> &Book {
        for (_, endpoint) in self.endpoints.drain() {
            self.ended.fold(endpoint.run, &Totals::of(&endpoint.arena));
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

fn tool(role: &mut Role, version: u32) -> Outcome {
    if version != PROTOCOL_VERSION {
        return Err(No::Refused(Reason::VersionMismatch));
    }
    *role = Role::Tool;
    Ok(Answer::bare(Reply::Done))
}

/// The name as tools may print it: bounded, and without control characters.
fn printable(name: &str) -> String {
    let mut kept = String::new();
    for c in name.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if kept.len() + c.len_utf8() > MAX_NAME {
            break;
        }
        kept.push(c);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert_eq!(printable("nginx"), "nginx");
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a?[2Jb?");
        let long = printable(&"é".repeat(100));
        assert_eq!(long.len(), MAX_NAME);
        assert_eq!(printable(&format!("x{long}")).len(), MAX_NAME - 1);
    }
}

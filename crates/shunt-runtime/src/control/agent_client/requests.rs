//! The library's requests to the agent.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use shunt_sys::fds::{Fds, close};
use shunt_sys::seqpacket;
use shunt_wire::agent::{
    EndpointId, ExportId, Exported, ListenerId, MAX_MESSAGE, RegionId, Reply, Request, encode,
};
use shunt_wire::reason::Reason;
use shunt_wire::version::BEQUEATH_SINCE;

use crate::control::agent_client::{Client, SOCKET, TALKS, agreed, call, lock, with};
use crate::control::doorbells::Doorbells;
use crate::control::endpoint::Endpoint;
use crate::fds::own_fds::OwnFd;
use crate::knobs;
use crate::threads::signals::Uncancelled;

/// What the agent says of a listening socket.
pub struct Listening {
    /// The listener's name.
    pub listener: ListenerId,
    /// Its proposal table.
    pub table: OwnedFd,
    /// The proposal table of other machines' programs: a device's memory, and the offset in it.
    pub shared: Option<(OwnedFd, u64)>,
    /// Who this process is.
    pub endpoint: &'static Endpoint,
}

/// Registers a listening socket.
pub fn listen(socket: impl AsFd) -> Result<Listening, Reason> {
    with(|agent, endpoint| {
        let mut fds = Fds::new();
        let (listener, at) = match call(agent, &Request::Listen, &[socket.as_fd()], &mut fds)? {
            Reply::Listening { listener } => (listener, None),
            Reply::ListeningShared { listener, table } => (listener, Some(table)),
            Reply::Refused { reason } => return Err(reason),
            _ => return Err(Reason::VersionMismatch),
        };
        let table = fds.take().ok_or(Reason::NoResources)?;
        let shared = at.and_then(|at| Some((fds.take()?, at)));
        Ok(Listening { listener, table, shared, endpoint })
    })
}

/// The memory of a link group, as the agent gives it.
pub enum Memory {
    /// Of this machine, by itself.
    Host(OwnedFd),
    /// A part of a device's.
    Device {
        /// All of it.
        memory: OwnedFd,
        /// Where the region is.
        at: u64,
        /// To be kept as long as the region is mapped.
        lease: OwnedFd,
    },
}

/// The proposal table of a listener.
pub enum Proposals {
    /// Of this machine, by itself.
    Host(OwnedFd),
    /// At an offset of the device's memory that holds the region, too.
    Device(u64),
}

/// Gives a listener up.
pub fn unlisten(listener: ListenerId) {
    // Best effort: the agent also notices when this process ends.
    let _ = with(|agent, _| call(agent, &Request::Unlisten { listener }, &[], &mut Fds::new()));
}

/// The same where a process that this one has forked may serve it still.
pub fn bequeath(listener: ListenerId) {
    if agreed() < BEQUEATH_SINCE {
        return unlisten(listener);
    }
    let _ = with(|agent, _| call(agent, &Request::Bequeath { listener }, &[], &mut Fds::new()));
}

/// What the agent hands a client.
pub struct Linked {
    /// The region's name.
    pub region: RegionId,
    /// The listener's proposals.
    pub table: Proposals,
    /// The region.
    pub memory: Memory,
    /// The listener speaks the kernel's SMC-R: sockets are to be marked.
    pub to_kernel: bool,
}

/// A region for proposals to a listener.
pub fn connect(listener: ListenerId) -> Result<Linked, Reason> {
    with(|agent, _| {
        let mut fds = Fds::new();
        let reply = call(agent, &Request::Connect { listener }, &[], &mut fds)?;
        let (region, at) = match reply {
            Reply::Linked { region } => (region, None),
            Reply::LinkedShared { region, table, at }
            | Reply::LinkedToKernel { region, table, at } => (region, Some((table, at))),
            Reply::Refused { reason } => return Err(reason),
            _ => return Err(Reason::VersionMismatch),
        };
        let (Some(first), Some(second)) = (fds.take(), fds.take()) else {
            return Err(Reason::NoResources);
        };
        let (table, memory) = match at {
            None => (Proposals::Host(first), Memory::Host(second)),
            Some((table, at)) => {
                (Proposals::Device(table), Memory::Device { memory: first, at, lease: second })
            }
        };
        let to_kernel = matches!(reply, Reply::LinkedToKernel { .. });
        Ok(Linked { region, table, memory, to_kernel })
    })
}

/// Has the SYN of a socket marked, whose connection is to be proposed in this slot of such a region.
pub fn mark(region: RegionId, slot: usize, socket: impl AsFd) -> Result<(), Reason> {
    let slot = u32::try_from(slot).map_err(|_| Reason::Internal)?;
    ask_of(socket, &Request::Mark { region, slot })
}

/// What the agent hands an acceptor.
pub struct Attached {
    /// The region's owner.
    pub owner: EndpointId,
    /// The region.
    pub memory: Memory,
    /// The owner's process, where it is of this one's party and machine.
    pub pidfd: Option<OwnedFd>,
    /// The owner's doorbells.
    pub bells: Doorbells,
    /// Who this process is.
    pub endpoint: &'static Endpoint,
}

/// The region that holds the proposal for `socket`.
pub fn attach(region: RegionId, slot: usize, socket: impl AsFd) -> Result<Attached, Reason> {
    let slot = u32::try_from(slot).map_err(|_| Reason::ProtocolViolation)?;
    with(|agent, me| {
        let mut fds = Fds::new();
        match call(agent, &Request::Attach { region, slot }, &[socket.as_fd()], &mut fds)? {
            Reply::Attached { endpoint: owner, pidfd } => {
                let memory = Memory::Host(fds.take().ok_or(Reason::NoResources)?);
                let pidfd = if pidfd { Some(fds.take().ok_or(Reason::NoResources)?) } else { None };
                Ok(Attached { owner, memory, pidfd, bells: Doorbells::here(fds), endpoint: me })
            }
            Reply::AttachedShared { endpoint: owner, at, bells } => {
                let (Some(memory), Some(lease)) = (fds.take(), fds.take()) else {
                    return Err(Reason::NoResources);
                };
                let bells = Doorbells::far(&memory, &bells, fds)?;
                let memory = Memory::Device { memory, at, lease };
                Ok(Attached { owner, memory, pidfd: None, bells, endpoint: me })
            }
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    })
}

/// Tells the agent of one completion vector more of this process: its number. `None`: it is not to be had.
pub fn add_bell(endpoint: &'static Endpoint, bell: OwnFd) -> Option<usize> {
    let added = with(|agent, me| {
        if !core::ptr::eq(me, endpoint) {
            return Err(Reason::NoResources);
        }
        match call(agent, &Request::AddBell, &[bell.borrow()], &mut Fds::new())? {
            Reply::Added { vector } => {
                endpoint.add_vector(vector.into(), bell);
                Ok(vector.into())
            }
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    });
    added.ok()
}

/// The doorbell of a completion vector of an endpoint that shares the region with this process. `socket`: a connection
/// there, for a process that has inherited it.
pub fn bell(
    (region, slot): (RegionId, usize),
    (endpoint, vector): (EndpointId, usize),
    socket: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Reason> {
    let slot = u32::try_from(slot).map_err(|_| Reason::ProtocolViolation)?;
    let vector = u8::try_from(vector).map_err(|_| Reason::ProtocolViolation)?;
    with(|agent, _| {
        let mut fds = Fds::new();
        let request = Request::Bell { region, slot, endpoint, vector };
        match call(agent, &request, socket.as_slice(), &mut fds)? {
            Reply::Bell => fds.take().ok_or(Reason::NoResources),
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    })
}

/// Has the agent ring for a completion vector of such an endpoint. False: there is no agent to do it.
///
/// There is no answer to wait for, so a handler on top of a talk with the agent may do it, too, and a process that ends.
pub fn ring(region: RegionId, (endpoint, vector): (EndpointId, usize)) -> bool {
    let Ok(vector) = u8::try_from(vector) else { return false };
    let mut buf = [0; MAX_MESSAGE];
    let request = Request::Ring { region, endpoint, vector };
    let Ok(packet) = encode(&request, &mut buf) else { return false };
    let send =
        |socket: BorrowedFd<'_>, patience| seqpacket::send(socket, packet, &[], patience).is_ok();
    if TALKS.get() {
        let place = SOCKET.load(Ordering::Acquire).checked_sub(1);
        let Some(place) = place.and_then(|place| u16::try_from(place).ok()) else { return false };
        // SAFETY: this thread has the lock, so the socket stays as long as it is noted.
        let socket = unsafe { BorrowedFd::borrow_raw(OwnFd::raw_at(place)) };
        return send(socket, Duration::ZERO);
    }
    let _uncancelled = Uncancelled::begin();
    match &*lock() {
        Client::Here { socket, .. } => send(socket.borrow(), knobs::get().agent_timeout()),
        Client::Away { .. } => false,
    }
}

/// The doorbells of the endpoint that accepted a proposal in our region.
pub fn bells(region: RegionId, endpoint: EndpointId) -> Result<Doorbells, Reason> {
    with(|agent, _| {
        let mut fds = Fds::new();
        match call(agent, &Request::Bells { region, endpoint }, &[], &mut fds)? {
            Reply::Bells => Ok(Doorbells::here(fds)),
            Reply::BellsShared { bells } => {
                let memory = fds.take().ok_or(Reason::NoResources)?;
                let bells = Doorbells::far(&memory, &bells, fds);
                close(memory);
                bells
            }
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    })
}

/// Tells the agent that a region is no longer used here.
pub fn detach(region: RegionId) {
    let _ = with(|agent, _| call(agent, &Request::Detach { region }, &[], &mut Fds::new()));
}

/// Registers memory that peers may read: its name, and the endpoint that told the agent of it.
pub fn export(what: Exported, fds: &[BorrowedFd<'_>]) -> Result<(ExportId, EndpointId), Reason> {
    let request = Request::Export { what };
    with(|agent, me| match call(agent, &request, fds, &mut Fds::new())? {
        Reply::Exported { export } => Ok((export, me.id)),
        Reply::Refused { reason } => Err(reason),
        _ => Err(Reason::VersionMismatch),
    })
}

/// What a party of a link group has registered: its memory, or its pipes.
/// `socket`: the connection on which it was offered, if it is at hand.
pub fn import(
    (region, slot): (RegionId, usize),
    export: ExportId,
    socket: Option<BorrowedFd<'_>>,
) -> Result<Fds, Reason> {
    let slot = u32::try_from(slot).map_err(|_| Reason::ProtocolViolation)?;
    with(|agent, _| {
        let mut fds = Fds::new();
        let request = Request::Import { region, slot, export };
        match call(agent, &request, socket.as_slice(), &mut fds)? {
            Reply::Imported => Ok(fds),
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    })
}

/// Memory is not registered any more.
pub fn unexport(export: ExportId) {
    let _ = with(|agent, _| call(agent, &Request::Unexport { export }, &[], &mut Fds::new()));
}

/// Asks a question about a socket to which the answer is yes or no.
fn ask_of(socket: impl AsFd, request: &Request<'_>) -> Result<(), Reason> {
    with(|agent, _| match call(agent, request, &[socket.as_fd()], &mut Fds::new())? {
        Reply::Done => Ok(()),
        Reply::Refused { reason } => Err(reason),
        _ => Err(Reason::VersionMismatch),
    })
}

/// Announces a socket that is about to listen.
pub fn await_clients(socket: impl AsFd) -> Result<(), Reason> {
    ask_of(socket, &Request::Await)
}

/// Offers a socket that is about to connect; the answer comes in its record.
pub fn offer(record: u32, number: u64, socket: impl AsFd) -> Result<(), Reason> {
    ask_of(socket, &Request::Offer { record, number })
}

/// What the agent tells the acceptor of an offered connection.
pub struct Claimed {
    /// The region's owner.
    pub owner: EndpointId,
    /// The region.
    pub region: RegionId,
    /// The slot in it.
    pub slot: usize,
    /// Number of the slot's use.
    pub generation: u32,
    /// The region, when this process does not have it.
    pub memory: Option<OwnedFd>,
    /// The owner's doorbells, with it.
    pub bells: Doorbells,
    /// Who this process is.
    pub endpoint: &'static Endpoint,
}

/// The place of an accepted connection, if it was offered.
pub fn claim(socket: impl AsFd) -> Result<Claimed, Reason> {
    with(|agent, me| {
        let mut fds = Fds::new();
        match call(agent, &Request::Claim, &[socket.as_fd()], &mut fds)? {
            Reply::Claimed { endpoint: owner, region, slot, generation } => {
                let slot = usize::try_from(slot).map_err(|_| Reason::VersionMismatch)?;
                let memory = fds.take();
                let bells = Doorbells::here(fds);
                Ok(Claimed { owner, region, slot, generation, memory, bells, endpoint: me })
            }
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    })
}

/// The region in which an offered connection was claimed.
pub fn fetch(
    region: RegionId,
    slot: usize,
    socket: impl AsFd,
) -> Result<(OwnedFd, &'static Endpoint), Reason> {
    let slot = u32::try_from(slot).map_err(|_| Reason::Internal)?;
    with(|agent, me| {
        let mut fds = Fds::new();
        match call(agent, &Request::Fetch { region, slot }, &[socket.as_fd()], &mut fds)? {
            Reply::Fetched => Ok((fds.take().ok_or(Reason::NoResources)?, me)),
            Reply::Refused { reason } => Err(reason),
            _ => Err(Reason::VersionMismatch),
        }
    })
}

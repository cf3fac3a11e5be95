//! Messages between a library or tool and the agent.
//!
//! One message is one packet on a `SOCK_SEQPACKET` UNIX socket, encoded with postcard; the file
//! descriptors it speaks of travel with it as `SCM_RIGHTS`, in the order named here. Every request but
//! [`Request::Ring`] has exactly one reply. The agent takes the sender's uid, gid and pid from `SO_PEERCRED`, or from
//! `SCM_CREDENTIALS` on a conversation that it has made itself, never from the message.

use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// Longest message in bytes, both ways.
pub const MAX_MESSAGE: usize = 1024;

/// Most file descriptors in one message: doorbells, a region, a pidfd.
pub const MAX_FDS: usize = 16;

/// Most completion vectors (and so doorbells) of one endpoint.
pub const MAX_VECTORS: usize = 64;

/// Names an endpoint (a process) to its agent. Never reused by one agent.
pub type EndpointId = u64;
/// Names a listener (a listening socket, whoever holds it).
pub type ListenerId = u64;
/// Names a link group's region. It is the token of the DMB that the region is.
pub type RegionId = u64;
/// Names memory that an endpoint has registered.
pub type ExportId = u64;

/// How the doorbells of an endpoint of another machine are rung: by a note in that machine's home, and an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FarBells {
    /// Where the home is in the device's memory, in bytes.
    pub home: u64,
    /// The endpoint's place there.
    pub place: u32,
    /// How the machine is told.
    pub interrupt: Interrupt,
}

/// How another machine is interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Interrupt {
    /// Not at all: it looks for itself. No fds.
    Nobody,
    /// By its eventfds, one for each vector. fds: these, 9 at the most.
    Eventfds,
    /// By the doorbell register of this machine's device. fds: the device's first BAR.
    Register {
        /// Where the registers begin in the page.
        at: u16,
        /// The machine's ID with the ivshmem server.
        peer: u16,
        /// Its interrupt vectors.
        vectors: u8,
    },
}

/// What an endpoint has for others to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Exported {
    /// Memory that the program has asked for. fds: a memfd that nobody can cut short, opened for reading.
    Asked,
    /// The same, of the program's own, which has not asked for it to be shown: so it is shown only to those who could reach
    /// into the program anyway.
    Found,
    /// Pipes in which it pins private memory, as [`LANES`] say, for one connection: shown to the other end of that alone, if each
    /// of the two could reach into the other. fds: their reading ends.
    Pipes {
        /// The connection's region.
        region: RegionId,
        /// Its slot there.
        slot: u32,
    },
}

/// Pipes in which an endpoint pins memory for one connection. It uses them in turn: the kernel lets one process at a time
/// look into a pipe, and sender and receiver do so at once.
pub const LANES: usize = 2;

/// What a library or a tool asks of the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request<'a> {
    /// First message of a library. fds: the doorbell (an eventfd) of its first completion vector, which all its threads hear
    /// that wait in the kernel. The others follow as they are needed: [`Self::AddBell`].
    Hello {
        /// One that the sender speaks: [`crate::PROTOCOL_VERSION`], or, where the agent has refused that, an older one
        /// ([`crate::version`]).
        version: u32,
        /// Name of the program (the last part of its path), cut to 64 bytes.
        program: &'a str,
        /// `SHUNT_RUN_ID`, or 0.
        run: u64,
    },
    /// First message of a tool. No fds.
    Tool {
        /// The same.
        version: u32,
    },
    /// "I hold this listening socket." fds: the socket. Asked after `listen`, and once by every
    /// process that inherited the socket before its first accept.
    Listen,
    /// "The listening socket is closed here."
    Unlisten {
        /// Which.
        listener: ListenerId,
    },
    /// "I connect to this listener and need a (further) region for it."
    Connect {
        /// Which, as found in the registry.
        listener: ListenerId,
    },
    /// "A proposal for this connection of mine lies in a region that I do not have." fds: the
    /// connected socket. The agent compares its addresses with the proposal in the slot: who holds
    /// the socket is a party, also a process that forked after accept and holds no listener.
    Attach {
        /// The region that the proposal names.
        region: RegionId,
        /// The slot in it.
        slot: u32,
    },
    /// "The acceptor of a proposal in my region is an endpoint that I do not know."
    Bells {
        /// A region that the asker owns.
        region: RegionId,
        /// An endpoint that has attached it.
        endpoint: EndpointId,
    },
    /// "I no longer use this region."
    Detach {
        /// Which.
        region: RegionId,
    },
    /// Tool: live connections.
    List,
    /// Tool: totals. 0: of everything since the agent started; else of one run.
    Stats {
        /// `SHUNT_RUN_ID`, or 0 for all.
        run: u64,
    },
    /// Tool: the agent's own state.
    Status,
    /// "This memory of mine is for others to read, who share a link group with me." fds: those of `what`.
    Export {
        /// What it is.
        what: Exported,
    },
    /// "A party of this link group offers me this memory." fds: a connected socket of the group, for who is a party by
    /// holding it alone, as a child of one is that forked after the connection was made; or none.
    Import {
        /// A region that the asker shares with who has registered the memory.
        region: RegionId,
        /// The connection's slot there.
        slot: u32,
        /// Which memory.
        export: ExportId,
    },
    /// "I don't lend this memory any more."
    Unexport {
        /// Which.
        export: ExportId,
    },
    /// "I am about to listen at this socket: clients elsewhere on this host may find me." fds: the socket.
    Await,
    /// "I am about to connect this socket, maybe to a program elsewhere on this host." fds: the socket.
    Offer {
        /// Index of the connection's record in the asker's arena, in which the agent answers: see [`crate::offer`].
        record: u32,
        /// The number of the offer there.
        number: u64,
    },
    /// "Was the other end of this connection, which I have accepted, offered?" fds: the socket.
    Claim,
    /// "This connection of mine lies in a region that I do not have." fds: the socket, which was offered.
    Fetch {
        /// The region.
        region: RegionId,
        /// The slot in it.
        slot: u32,
    },
    /// "I am about to fork a child that may need a conversation, and could not begin one." Asked also on a conversation
    /// that was made for the asker, before [`Self::Arrive`]. No fds.
    Invite,
    /// "This conversation was made for me": first message there, before `Hello`. No fds. Nothing else is sent before
    /// the reply has come.
    Arrive,
    /// "I have one completion vector more." fds: its doorbell.
    AddBell,
    /// "I am to ring for the first time for this vector of an endpoint with which I share a link group." fds: a connected
    /// socket of the group, for who is a party by holding it alone, as for [`Self::Import`]; or none.
    Bell {
        /// The region.
        region: RegionId,
        /// The connection's slot there.
        slot: u32,
        /// The endpoint.
        endpoint: EndpointId,
        /// The completion vector.
        vector: u8,
    },
    /// "Ring this for me: I have no descriptor for it." There is no reply, and none but a party is heard.
    Ring {
        /// A region that the asker shares with the endpoint.
        region: RegionId,
        /// The endpoint.
        endpoint: EndpointId,
        /// The completion vector.
        vector: u8,
    },
    /// Tool: "I capture what the programs send that I may see, as long as this conversation lasts." No fds.
    Capture {
        /// Most bytes of a packet's data.
        snap: u32,
        /// A port of either end; 0: any.
        port: u16,
    },
    /// Tool that captures: programs that have come since it last asked, and those that have ended. No fds.
    Captured,
    /// Tool: what was decided about connections and listeners, and what has become of them. No fds.
    Explain {
        /// The port of one end of a connection, or a listener's.
        port: u16,
        /// The port of a connection's other end; 0: any.
        other: u16,
    },
    /// "The listening socket is closed here; a process that I have forked may have it still, and serve it." No fds.
    /// Since [`crate::version::BEQUEATH_SINCE`].
    Bequeath {
        /// Which.
        listener: ListenerId,
    },
    /// "I am about to connect this socket to a server that speaks the kernel's SMC-R, and to propose that in my region." fds: the
    /// socket. Its SYN is marked from now on: so no byte may go over TCP before the agent has answered the proposal.
    /// Since [`crate::version::MARKS_SINCE`].
    Mark {
        /// The region, of [`Reply::LinkedToKernel`].
        region: RegionId,
        /// The slot in it.
        slot: u32,
    },
}

/// What the agent answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To `Hello`. fds: the registry (read-only), the asker's arena, its
    /// capture rings.
    Welcome {
        /// The asker's name from now on.
        endpoint: EndpointId,
        /// Bytes of memory that its control groups let it have; `u64::MAX`: no limit.
        memory: u64,
    },
    /// To `Tool`, `Unlisten`, `Bequeath`, `Detach`, `Unexport`, `Await`, `Offer`, `Arrive`, `Mark`. No fds.
    Done,
    /// To `Listen`. fds: the listener's proposal table.
    Listening {
        /// Its name.
        listener: ListenerId,
    },
    /// To `Connect`. fds: the listener's proposal table, the new region.
    Linked {
        /// The region's name.
        region: RegionId,
    },
    /// To `Attach`. fds: the region, a pidfd of its owner if that is of the asker's party, the owner's first doorbell.
    Attached {
        /// The region's owner (the client).
        endpoint: EndpointId,
        /// There is a pidfd.
        pidfd: bool,
    },
    /// To `Bells`. fds: the first doorbell.
    Bells,
    /// To `List`, `Stats`, `Status`, `Captured`, `Explain`. fds: a memfd that holds `len` bytes of JSON; to `Captured` besides the
    /// capture rings of the programs that it names first, in their order.
    Report {
        /// Bytes in the memfd.
        len: u32,
    },
    /// The request is refused, for this reason. No fds.
    Refused {
        /// Why.
        reason: Reason,
    },
    /// To `Export`. No fds.
    Exported {
        /// The memory's name.
        export: ExportId,
    },
    /// To `Import`. fds: those of the `Export`.
    Imported,
    /// To `Claim`: it was, and both are a link group from now on. fds, unless the asker has attached the region: the
    /// region, the owner's first doorbell.
    Claimed {
        /// The region's owner (the client).
        endpoint: EndpointId,
        /// The region.
        region: RegionId,
        /// The slot in it.
        slot: u32,
        /// Number of the slot's use.
        generation: u32,
    },
    /// To `Fetch`. fds: the region.
    Fetched,
    /// To `Listen`, of a listener that other machines reach through a device's memory. fds: the listener's proposal
    /// table, the device's memory.
    ListeningShared {
        /// Its name.
        listener: ListenerId,
        /// Where the proposals of other machines' programs are in the memory, in bytes.
        table: u64,
    },
    /// To `Connect` to a listener of another machine. fds: a device's memory, a lease on the region: a descriptor that
    /// is kept as long as the region is mapped.
    LinkedShared {
        /// The region's name.
        region: RegionId,
        /// Where the listener's proposal table is in the memory, in bytes.
        table: u64,
        /// Where the region is.
        at: u64,
    },
    /// To `Attach` of a region that a program of another machine owns. fds: a device's memory, a lease on the region,
    /// those of `bells`.
    AttachedShared {
        /// The region's owner (the client).
        endpoint: EndpointId,
        /// Where the region is in the memory, in bytes.
        at: u64,
        /// The owner's doorbells.
        bells: FarBells,
    },
    /// To `Bells` of an endpoint of another machine. fds: a device's memory, those of `bells`.
    BellsShared {
        /// Its doorbells.
        bells: FarBells,
    },
    /// To `Invite`. fds: the child's end of the conversation.
    Invited,
    /// To `AddBell`. No fds.
    Added {
        /// Which vector it is: they are numbered as they come.
        vector: u8,
    },
    /// To `Bell`. fds: the doorbell.
    Bell,
    /// To `Capture`. No fds.
    Capturing {
        /// The capture's place among the rings of each program.
        place: u8,
    },
    /// As [`Self::LinkedShared`], to a server that speaks the kernel's SMC-R: sockets are to be marked before they connect
    /// ([`Request::Mark`]).
    LinkedToKernel {
        /// The region's name.
        region: RegionId,
        /// Where the listener's proposal table is in the memory, in bytes.
        table: u64,
        /// Where the region is.
        at: u64,
    },
}

/// Why a packet is not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("malformed message")
    }
}

impl core::error::Error for Malformed {}

/// Encodes `message` into `buf`.
///
/// # Errors
/// [`Malformed`] when `buf` is too small.
pub fn encode<'b, T: Serialize>(message: &T, buf: &'b mut [u8]) -> Result<&'b [u8], Malformed> {
    postcard::to_slice(message, buf).map(|s| &*s).map_err(|_| Malformed)
}

/// Decodes a whole packet; trailing bytes make it malformed.
///
/// # Errors
/// [`Malformed`] when the bytes are not one message of type `T`.
pub fn decode<'b, T: Deserialize<'b>>(packet: &'b [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(packet) {
        Ok((value, [])) => Ok(value),
        _ => Err(Malformed),
    }
}

/// True for the first message of a library, of whatever version.
#[must_use]
pub fn is_hello(packet: &[u8]) -> bool {
    packet.first() == Some(&0)
}

/// The version that a first message states, also when the rest of it cannot be decoded: every
/// version begins `Hello` and `Tool` with their number and the version.
#[must_use]
pub fn stated_version(packet: &[u8]) -> Option<u32> {
    let (kind, rest) = postcard::take_from_bytes::<u32>(packet).ok()?;
    let (version, _) = postcard::take_from_bytes::<u32>(rest).ok()?;
    (kind <= 1).then_some(version)
}

//! What goes over the port: addresses, states, work requests and completions.
//!
//! Terms are those of the InfiniBand Architecture Specification, volume 1 (IBTA), which verbs follow; sections are given as
//! *IBTA 9.2.1*.

use core::fmt;
use std::net::Ipv6Addr;

/// Address of a port: an IPv6 address as a rule, with an IPv4 one mapped into it on RoCE (IBTA 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// True for an empty entry of a port's table.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }

    /// True for an address that no router passes on.
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        Ipv6Addr::from_octets(self.0).is_unicast_link_local()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// By which packets a GID is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet without IP.
    RoceV1,
    /// UDP, which routers pass on.
    RoceV2,
    /// The library cannot tell, or names another kind.
    Unknown,
}

/// Names a queue pair on its port; 24 bits (IBTA 3.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PairNumber(pub u32);

/// Number of a packet, modulo 2^24 (IBTA 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketNumber(u32);

impl PacketNumber {
    /// Of any number, of which the low 24 bits count.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// Below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Bytes of a message in one packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1,024 bytes.
    B1024,
    /// 2,048 bytes.
    B2048,
    /// 4,096 bytes.
    B4096,
}

/// State of a port (IBTA 14.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// Without a cable, or switched off.
    Down,
    /// On its way to being active.
    Starting,
    /// Moves packets.
    Active,
}

/// State of a queue pair (IBTA 10.3.1). Only those that a reliable connection comes through here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairState {
    /// Fresh; nothing may be posted.
    Reset,
    /// Receives may be posted; nothing arrives.
    Initialized,
    /// Messages arrive. Sends are refused.
    ReadyToReceive,
    /// All moves.
    ReadyToSend,
    /// All that is outstanding, and all that is posted, is flushed.
    Error,
    /// A state that no call of this crate leads to.
    Other,
}

/// What may be done with registered memory; the device reads it in any case (IBTA 10.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Sent from.
    Local,
    /// Also received into.
    LocalWrite,
    /// Also written by the peer, with the remote key.
    RemoteWrite,
}

/// By which own work requests name registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalKey(pub u32);

/// By which the peer's work requests name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteKey(pub u32);

/// A piece of own registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Address in this process.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Of the registration that it lies in.
    pub key: LocalKey,
}

/// A place in the peer's registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address in the peer's process.
    pub address: u64,
    /// Of the registration that it lies in.
    pub key: RemoteKey,
}

/// What a send request does (IBTA 10.8.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Puts a message into the memory of the peer's next receive request.
    Send,
    /// Puts bytes into the peer's memory, of which the peer is not told.
    Write(Remote),
    /// The same; the peer is told by a completion of its next receive request, with these 32 bits.
    WriteWithImmediate(Remote, u32),
}

impl Operation {
    /// True when it takes a receive request of the peer's.
    #[must_use]
    pub const fn is_told(self) -> bool {
        !matches!(self, Self::Write(_))
    }
}

/// A send request.
///
/// The memory that it names belongs to the device until its completion, or that of a later request of the same queue, has been
/// polled: the device reads it at any time in between, and again when a packet is lost.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// The bytes, one piece after another.
    pub pieces: &'a [Piece],
    /// It has a completion when it succeeds, too.
    pub signaled: bool,
    /// The peer's completion queue tells of it also where it was armed for solicited ones alone.
    pub solicited: bool,
}

/// A receive request. The memory belongs to the device until its completion.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// Room for a message.
    pub piece: Piece,
}

/// A request that has come to its end.
///
/// Those of one work queue come in the order of their requests. A completion of [`Done::Received`] says also that all bytes which
/// the peer's earlier requests wrote on this queue pair are in memory (IBTA 9.5, o9-20); nothing else says so, not even the
/// completion of the write at the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's.
    pub id: u64,
    /// Whose request it was.
    pub pair: PairNumber,
    /// What has become of it.
    pub outcome: Result<Done, Failure>,
}

/// What a request has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// A [`Operation::Send`], or one of the writes.
    Sent,
    /// A message of so many bytes has arrived in the memory of the receive request.
    Received(u32),
    /// The peer has written so many bytes with [`Operation::WriteWithImmediate`]; the memory of the receive request is as it was.
    Written {
        /// Bytes.
        length: u32,
        /// What the peer said.
        immediate: u32,
    },
}

/// Why a request failed (IBTA 11.6.2). The queue pair is in [`PairState::Error`] then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The message is longer than the room for it.
    Length,
    /// A piece does not lie in memory that was registered for this.
    LocalAccess,
    /// It was outstanding when the queue pair failed: whether the peer has it is not known.
    Flushed,
    /// The peer found the request to be none.
    RemoteRequest,
    /// The place does not lie in memory that the peer lets be written.
    RemoteAccess,
    /// The peer failed at it.
    RemoteOperation,
    /// The peer did not answer for as long, and as often, as it was asked.
    Retries,
    /// The peer had no receive request for as often as it was asked.
    ReceiverNotReady,
    /// The device failed.
    Device,
    /// Another status, by its number in `enum ibv_wc_status`.
    Other(u32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("a message is longer than the receiver's buffer"),
            Self::LocalAccess => f.write_str("a request names memory that is not registered here"),
            Self::Flushed => f.write_str("the queue pair had failed before"),
            Self::RemoteRequest => f.write_str("the peer refused the request as malformed"),
            Self::RemoteAccess => f.write_str("the peer does not let that memory be written"),
            Self::RemoteOperation => f.write_str("the peer failed to carry the request out"),
            Self::Retries => f.write_str("the peer's device does not answer"),
            Self::ReceiverNotReady => f.write_str("the peer had no buffer for a message"),
            Self::Device => f.write_str("the device failed"),
            Self::Other(status) => write!(f, "the device reports status {status}"),
        }
    }
}

impl core::error::Error for Failure {}

/// Requests that a queue pair has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Send requests that may be outstanding.
    pub send: u32,
    /// Receive requests that may be posted.
    pub receive: u32,
    /// Pieces of a send request.
    pub pieces: u32,
}

/// The other end of a connection, as it describes itself out of band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerPair {
    /// Its port.
    pub gid: Gid,
    /// Its queue pair.
    pub number: PairNumber,
    /// The number of the first packet that it sends.
    pub first_packet: PacketNumber,
    /// The longest packet that its port takes.
    pub mtu: Mtu,
}

/// What tells of something else than requests (IBTA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A queue pair has failed.
    Pair(PairNumber),
    /// A completion queue has overrun, and lost completions.
    Queue,
    /// The device has failed with all that belongs to it.
    Device,
    /// A port has come up.
    PortActive(u8),
    /// A port has gone down.
    PortDown(u8),
    /// A port has other addresses.
    Addresses(u8),
    /// Another event, by its number in `enum ibv_event_type`.
    Other(u32),
}

/// Why a device that was opened cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// It is being removed, and waits for the programs that have it open.
    Removed,
    /// It has failed with all that belongs to it.
    Failed,
    /// Its port moves no packets.
    PortDown,
    /// Its port has another address.
    Address,
    /// A completion queue has overrun.
    Overrun,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "the RDMA device is removed",
            Self::Failed => "the RDMA device has failed",
            Self::PortDown => "the RDMA device's port has gone down",
            Self::Address => "the RDMA device's port has another address",
            Self::Overrun => "a completion queue of the RDMA device has overrun",
        })
    }
}

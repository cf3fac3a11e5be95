//! Descriptors that strangers pass, received, looked at and let go of in processes of their own.
//!
//! A descriptor that comes by `SCM_RIGHTS` may be anything. Asking what it is can block: fstat(2) on a file system that
//! a program serves (FUSE) or that is far away (NFS), getsockname(2) on a socket whose lock another thread of the
//! sender's holds. So can letting go of it: a socket lingers (`SO_LINGER`), a file system is told of each close, a FIFO,
//! or an epoll instance that watches the descriptor, is locked by a thread that waits for memory which its own process
//! serves. Most of that no signal ends. It can even be begun without receiving anything: descriptors in an unread packet
//! are let go of by whoever throws the packet, or its socket, away. And the end of a process closes what it has.
//!
//! So a process that serves others never receives such a packet, and never closes a socket in whose queue one may lie.
//! It looks at the packet in the queue ([`shunt_sys::seqpacket::peek`]). If descriptors come with it an *inspector* receives it:
//! a process of its own, which says what they are and passes on those that cannot block whoever has them. Whatever is to be
//! let go of is *buried*: sent to an inspector, which never receives it.
//!
//! [`Inspectors`] has inspectors made as they are needed, gives each one thing to do at a time, kills those that take
//! too long, and bounds how many are stuck on account of one process, of one account, and in all. It never waits. A process that
//! the kernel does not let end, though killed, holds nothing but what it is stuck with.

mod inspector;
mod pool;
mod said;
mod spawner;

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shunt_wire::addr::Addr;

pub use pool::Inspectors;

/// On whose account something is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimant<A> {
    /// The process; 0: not known.
    pub process: i32,
    /// Whoever can make as many processes as they like.
    pub account: A,
}

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Inspectors that may be stuck on account of one process.
    pub of_process: usize,
    /// The same of one account.
    pub of_account: usize,
    /// Inspectors.
    pub inspectors: usize,
    /// How long one may take before it counts as stuck, and others are served by another one.
    pub hurry: Duration,
    /// How long one may take, or a packet may wait for one, at the most.
    pub patience: Duration,
}

/// What came of a packet that was to be inspected.
#[derive(Debug)]
pub enum Outcome {
    /// It was received.
    Seen(Message),
    /// It was not, and never will be: the connection is over.
    Lost(Loss),
}

/// Why a packet was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Its descriptors are not let go of in time.
    Stuck,
    /// No inspector was free in time.
    Late,
    /// The inspector has died.
    Died,
}

/// A packet that was received.
#[derive(Debug)]
pub struct Message {
    /// Its bytes; `None`: it has more of them, or more descriptors, than any message.
    pub packet: Option<Vec<u8>>,
    /// What came with it, in order.
    pub things: Vec<Thing>,
}

/// What a descriptor is, of those that came with a packet. Whoever has one of those that were passed on must not let
/// go of it by themselves, but have it buried.
#[derive(Debug)]
pub enum Thing {
    /// A TCP socket. It is closed by now.
    Socket(Socket),
    /// A TCP socket on which is to be spoken ([`shunt_wire::agent::Request::Mark`]).
    Kept(Socket, OwnedFd),
    /// An eventfd.
    Bell(OwnedFd),
    /// Memory that nobody can cut short.
    Memory(OwnedFd),
    /// One end of a pipe that is in no file system.
    Pipe(OwnedFd),
    /// Anything else. It is closed by now.
    Other,
}

/// A TCP socket, as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Socket {
    /// By which the kernel knows it.
    pub cookie: u64,
    /// Its network namespace's cookie.
    pub netns: u64,
    /// It listens.
    pub listens: bool,
    /// It takes no IPv4 connections.
    pub v6only: bool,
    /// Its own address.
    pub local: Option<Addr>,
    /// Its peer's.
    pub peer: Option<Addr>,
}

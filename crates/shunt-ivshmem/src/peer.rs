//! A client's connection. Nothing here waits.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use shunt_inspector::Claimant;
use shunt_sys::seqpacket::{self, Peeked, PeerCred};

use crate::message::{MESSAGE, Message, Vector};
use crate::reason::Fault;

/// Bytes of socket buffer asked for: room for some ten messages, of which each takes hundreds of bytes
/// in the kernel. What waits longer than those waits here, where it is counted and can be taken back;
/// and a client that does not read keeps few descriptors in flight, which the kernel limits per user.
const BUFFER: usize = 4 << 10;

/// How a client's connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It closed, or ended.
    Left,
    /// It is dropped.
    Dropped(Fault),
}

/// Why a message has not gone out.
pub(crate) enum Unsent {
    /// There is no room: the client does not read.
    Full,
    /// The kernel has no room, which is not this client's fault.
    Starved,
    /// The connection has ended.
    Ended(End),
}

/// What keeps a client's messages from going out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Nothing.
    None,
    /// [`Unsent::Full`], until epoll says otherwise.
    Full,
    /// [`Unsent::Starved`], for a while.
    Starved,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) socket: OwnedFd,
    pub(crate) cred: PeerCred,
    /// When it connected, in seconds since 1970.
    pub(crate) since: u64,
    /// By vector.
    pub(crate) bells: Vec<OwnedFd>,
    pub(crate) pause: Pause,
}

impl Peer {
    pub(crate) fn new(socket: OwnedFd, cred: PeerCred, since: u64, bells: Vec<OwnedFd>) -> Self {
        // Without it the kernel's own size holds, which is well, too.
        let _ = sockopt::set_socket_send_buffer_size(&socket, BUFFER);
        Self { socket, cred, since, bells, pause: Pause::None }
    }

    /// Looks whether it is gone, or has sent what it must not. That is left where it is: descriptors may come with it.
    pub(crate) fn look(&self) -> Result<(), End> {
        match seqpacket::peek(&self.socket, &mut [0]) {
            Ok(Peeked { len: 0, has_fds: false, .. }) | Err(Errno::CONNRESET) => Err(End::Left),
            Ok(_) => Err(End::Dropped(Fault::Sent)),
            Err(Errno::AGAIN) => Ok(()),
            Err(_) => Err(End::Dropped(Fault::Failed)),
        }
    }

    /// All that it has, to be buried, and on whose account.
    pub(crate) fn leave(self) -> (Claimant<u32>, Vec<OwnedFd>) {
        let mut fds = self.bells;
        fds.push(self.socket);
        (claimant(&self.cred), fds)
    }

    /// Sends a message with what is attached to it.
    pub(crate) fn send(
        &self,
        message: &Message,
        attached: Option<BorrowedFd<'_>>,
    ) -> Result<(), Unsent> {
        let bytes = message.bytes();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if let Some(fd) = &attached {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags) {
            // The kernel does not tear so few bytes apart.
            Ok(MESSAGE) => Ok(()),
            Err(Errno::AGAIN | Errno::INTR) => Err(Unsent::Full),
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => Err(Unsent::Starved),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(Unsent::Ended(End::Left)),
            Ok(_) | Err(_) => Err(Unsent::Ended(End::Dropped(Fault::Failed))),
        }
    }
}

/// On whose account a client's descriptors are let go of.
pub(crate) const fn claimant(cred: &PeerCred) -> Claimant<u32> {
    Claimant { process: cred.pid, account: cred.uid }
}

/// The eventfds of a new client.
pub(crate) fn bells(vectors: Vector) -> io::Result<Vec<OwnedFd>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    (0..vectors).map(|_| Ok(eventfd(0, flags)?)).collect()
}

//! Accepts clients, also when descriptors have run out.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use shunt_sys::fds::close;
use shunt_sys::seqpacket;

/// What accept(2) has brought.
pub(crate) enum Accepted {
    /// A connection.
    Connection(OwnedFd),
    /// None: the one that waited has ended.
    Aborted,
    /// One that cannot be served, for want of descriptors or memory. It is to be turned away, if it
    /// could be accepted.
    Exhausted(Option<OwnedFd>),
    /// None: no connection waits.
    Nothing,
}

/// Accepts connections. Where descriptors run out it turns them away in good order.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// Given up for a moment when descriptors run out.
    spare: Option<OwnedFd>,
}

impl Acceptor {
    pub(crate) fn new() -> Self {
        Self { spare: spare() }
    }

    /// The next connection that waits at `listener`.
    pub(crate) fn accept(&mut self, listener: impl AsFd) -> Accepted {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&listener, flags) {
            Ok(socket) => Accepted::Connection(socket),
            Err(Errno::CONNABORTED) => Accepted::Aborted,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                // Else the connection would wait, and epoll would report it again and again.
                self.restore_spare();
                let Some(spare) = self.spare.take() else { return Accepted::Exhausted(None) };
                close(spare);
                Accepted::Exhausted(accept_with(&listener, flags).ok())
            }
            Err(_) => Accepted::Nothing,
        }
    }

    /// Opens the spare descriptor anew, once the connection that was turned away is closed.
    pub(crate) fn restore_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = spare();
        }
    }
}

fn spare() -> Option<OwnedFd> {
    seqpacket::socket().ok()
}

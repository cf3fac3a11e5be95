//! Accepting, also when descriptors have run out.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use shunt_sys::fds::close;
use shunt_sys::seqpacket;

/// Who is at the door.
pub(crate) enum Knock {
    /// Somebody.
    Came(OwnedFd),
    /// Somebody who has left again.
    Left,
    /// Somebody for whom there is no descriptor or memory, and who is to be turned away: the connection, if it could be had.
    TurnedAway(Option<OwnedFd>),
    /// Nobody.
    Nobody,
}

/// Lets people in, or turns them away in good order.
#[derive(Debug)]
pub(crate) struct Door {
    /// Given up for a moment when descriptors run out.
    spare: Option<OwnedFd>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { spare: spare() }
    }

    /// The next one who wants to come in at `listener`.
    pub(crate) fn open(&mut self, listener: impl AsFd) -> Knock {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&listener, flags) {
            Ok(socket) => Knock::Came(socket),
            Err(Errno::CONNABORTED) => Knock::Left,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                // Without this they would wait and epoll would report it again and again.
                self.restore();
                let Some(spare) = self.spare.take() else { return Knock::TurnedAway(None) };
                close(spare);
                Knock::TurnedAway(accept_with(&listener, flags).ok())
            }
            Err(_) => Knock::Nobody,
        }
    }

    /// Whoever was turned away is gone.
    pub(crate) fn restore(&mut self) {
        if self.spare.is_none() {
            self.spare = spare();
        }
    }
}

fn spare() -> Option<OwnedFd> {
    seqpacket::socket().ok()
}

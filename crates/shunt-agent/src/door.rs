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
    /// Somebody for whom there is no descriptor or memory, and who was turned away.
    TurnedAway,
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
                if let Some(spare) = self.spare.take() {
                    close(spare);
                    if let Ok(socket) = accept_with(&listener, flags) {
                        close(socket);
                    }
                }
                self.spare = spare();
                Knock::TurnedAway
            }
            Err(_) => Knock::Nobody,
        }
    }
}

fn spare() -> Option<OwnedFd> {
    seqpacket::socket().ok()
}

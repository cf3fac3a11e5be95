//! A connection to the control socket.

use std::os::fd::OwnedFd;
use std::time::Instant;

use shunt_sys::seqpacket::{self, PeerCred};

use crate::control::{MAX_REQUEST, Request};

/// Somebody who may ask something.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) socket: OwnedFd,
    pub(super) cred: PeerCred,
    pub(super) since: Instant,
}

impl Asker {
    /// Takes the request; `None`: what has come is none.
    pub(super) fn request(&self) -> Option<Request> {
        let mut packet = [0; MAX_REQUEST];
        // No descriptor comes with a request, and of one that does this process knows no more than that.
        let peeked = seqpacket::peek(&self.socket, &mut packet).ok().filter(|it| !it.has_fds)?;
        let _ = seqpacket::discard(&self.socket, &mut []);
        Request::parse(packet.get(..peeked.len)?)
    }
}

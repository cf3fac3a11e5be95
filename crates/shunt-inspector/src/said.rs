//! What a process and its inspectors say to each other. They are one program, so there are no versions.

use serde::{Deserialize, Serialize};
use shunt_wire::agent::{MAX_FDS, MAX_MESSAGE};

use crate::Socket;

/// "Receive what is next on this socket." fds: the socket.
pub const INSPECT: u8 = b'i';
/// "Let go of what comes with the next packet in your grave."
pub const BURY: u8 = b'b';

/// Longest thing that is said.
pub const MAX_SAID: usize = MAX_MESSAGE + MAX_FDS * 128;

/// What an inspector says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Said<'a> {
    /// It is there. fds: a pidfd of it.
    Ready,
    /// What it has received. fds: those that are passed on. Unless there are none, [`Said::Done`] follows.
    Seen {
        /// The bytes; `None`: too many, or of descriptors.
        packet: Option<&'a [u8]>,
        /// What came with them.
        things: Vec<Kind>,
    },
    /// It has nothing left of what it was given.
    Done,
}

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A TCP socket.
    Socket(Socket),
    /// One that the packet asks to be kept, passed on.
    Kept(Socket),
    /// An eventfd, passed on.
    Bell,
    /// Sealed memory, passed on.
    Memory,
    /// A pipe, passed on.
    Pipe,
    /// Anything else.
    Other,
}

impl Kind {
    /// True for what is passed on.
    pub const fn is_passed_on(self) -> bool {
        matches!(self, Self::Kept(_) | Self::Bell | Self::Memory | Self::Pipe)
    }
}

#[cfg(test)]
mod tests {
    use shunt_wire::addr::Addr;
    use shunt_wire::agent::{decode, encode};

    use super::*;

    #[test]
    fn the_longest_answer_fits() {
        let addr = Some(Addr { ip: [0xff; 16], port: u16::MAX });
        let (cookie, netns) = (u64::MAX, u64::MAX);
        let socket = Socket { cookie, netns, listens: true, v6only: true, local: addr, peer: addr };
        let packet = [0xff; MAX_MESSAGE];
        let things = vec![Kind::Socket(socket); MAX_FDS];
        let said = Said::Seen { packet: Some(&packet), things };
        let mut room = [0; MAX_SAID];
        let bytes = encode(&said, &mut room).unwrap();
        assert_eq!(decode::<Said<'_>>(bytes), Ok(said));
    }
}

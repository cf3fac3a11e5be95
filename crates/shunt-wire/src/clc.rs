//! The handshake (RFC 7609 section 3.5 calls its messages CLC): states of a proposal.
//!
//! Shunt's proposal lies in shared memory instead of going over the TCP connection, so that no
//! byte that the application did not write ever appears there (property P2).

/// State of a connection slot, as its client writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Proposal {
    /// The slot is not in use.
    Free = 0,
    /// The client proposes: it watches the ring beside the kernel socket from now on.
    Proposed = 1,
    /// The client takes the proposal back; an acceptor must not take it up any more.
    Withdrawn = 2,
    /// The same as `Proposed`, and the client has been seen to use the connection through the library: what
    /// lies in the ring will be read.
    Used = 3,
    /// The same as `Used`, and the client has the acceptor's doorbells: it can tell of room.
    Active = 4,
}

impl Proposal {
    /// True for the code of a state in which what lies in the ring will be read.
    #[must_use]
    pub const fn is_read(code: u32) -> bool {
        code == Self::Used as u32 || code == Self::Active as u32
    }
}

/// State of a connection slot, as its acceptor writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Answer {
    /// No acceptor has answered.
    None = 0,
    /// Accepted: both directions may move to the ring.
    Accepted = 1,
    /// There is no acceptor: the connection stays on TCP. Only where the agent is the acceptor: the server does not speak the
    /// kernel's SMC-R.
    Declined = 2,
}

impl Answer {
    /// The answer with this code; `None` for a value that the protocol does not know.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Accepted),
            2 => Some(Self::Declined),
            _ => None,
        }
    }
}

//! What one side of a connection writes for the other.

use shunt_wire::addr::FourTuple;
use shunt_wire::clc::Proposal;
use shunt_wire::reason::Reason;

use crate::reset::resets;
use crate::ring::{ConsLine, ProdLine};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tuple;

/// The handshake's words (CLC). The client fills in the tuple and sets `state` to a
/// [`shunt_wire::clc::Proposal`], the acceptor to a [`shunt_wire::clc::Answer`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Setup {
    /// Proposal or answer.
    pub state: AtomicU32,
    /// Number of the slot's use, so that a late answer to an earlier use is noticed.
    pub generation: AtomicU32,
    /// Endpoint of the writer: whose doorbells to ring. Changes when a fork takes over.
    pub endpoint: AtomicU64,
    /// Not 0: the writer has let go of the slot.
    pub done: AtomicU32,
    ports: AtomicU32,
    ips: [AtomicU64; 4],
    /// Why the writer, an agent that is the acceptor, has declined the connection, or has broken it: the code of a
    /// [`shunt_wire::reason::Reason`]. Written before that; 0: not said.
    pub why: AtomicU32,
}

/// A value of [`Ctl::closed`].
pub const CLOSED: u32 = 1;
/// A value of [`Ctl::closed`]: the kernel sends RST.
pub const RESET: u32 = 2;
/// A value of [`Ctl::closed`]: both directions are shut down. What is there may still be read; to more the kernel
/// answers with RST.
pub const DEAF: u32 = 3;

/// What the other side wants to be told, and how.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Ctl {
    /// The writer waits for bytes to read ([`crate::doorbell`]).
    pub rx_arm: AtomicU32,
    /// The writer waits for room to write.
    pub tx_arm: AtomicU32,
    /// Whose doorbells are to be rung then: completion vectors, a bit each.
    pub rx_bells: AtomicU64,
    /// The same for room.
    pub tx_bells: AtomicU64,
    /// Where completions go ([`super::queue_code`]); 0: nowhere, the arm words say all.
    pub queue: AtomicU32,
    /// Not 0: the writer takes no more bytes (no half-close): [`CLOSED`], or [`RESET`] when bytes for it were left
    /// unread or its program wants no other end (`SO_LINGER`), or [`DEAF`].
    pub closed: AtomicU32,
    /// [`crate::handover::LEFT`]: the writer's end goes to a program that may not run under Shunt. It takes
    /// nothing from the ring any more: what is left there is to be sent once more, over TCP. [`crate::handover::STAYS`]: it
    /// does, and drops what it has had.
    pub handed_over: AtomicU32,
    /// Bytes that the writer's receive buffer should hold (`SO_RCVBUF`), 0: not said.
    pub window: AtomicU32,
    /// The registered region that the writer was offered last, once it has mapped it; [`DECLINED`] with it when
    /// it will not. 0: none.
    pub accepted: AtomicU64,
    /// What copies out of the ring take at the writer's end, and out of the peer's pipes: two halves of a word, in nanoseconds
    /// per MiB; 0: not known.
    pub costs: AtomicU64,
    /// When the writer last began to wake somebody at the other end, and on which processor ([`Waker`](crate::waker::Waker)).
    pub rang: AtomicU64,
}

/// Bit of [`Ctl::accepted`].
pub const DECLINED: u64 = 1 << 63;

/// What one side writes for the other, per connection.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Section {
    /// Cursors of the writer's sending direction.
    pub prod: ProdLine,
    /// Cursors of the writer's receiving direction.
    pub cons: ConsLine,
    /// Waiting.
    pub ctl: Ctl,
    /// Handshake.
    pub setup: Setup,
}

impl Setup {
    /// Writes the connection's name (as the writer sees it).
    pub fn set_tuple(&self, t: &FourTuple) {
        tuple::store(&self.ips, &self.ports, t);
    }

    /// Reads the connection's name; as untrusted as the rest.
    #[must_use]
    pub fn tuple(&self) -> FourTuple {
        tuple::load(&self.ips, &self.ports)
    }

    /// Why the writer has declined the connection, or has broken it; `None`: it has not said.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        u8::try_from(self.why.load(Ordering::Acquire)).ok().and_then(Reason::from_code)
    }

    /// True when the writer, a client, proposes this very connection, as its acceptor sees it. The table that leads to
    /// the slot says less: it is open to all clients of the listener.
    #[must_use]
    pub fn proposes(&self, generation: u32, to_acceptor: &FourTuple) -> bool {
        let state = self.state.load(Ordering::Acquire);
        [Proposal::Proposed as u32, Proposal::Used as u32].contains(&state)
            && self.generation.load(Ordering::Relaxed) == generation
            && self.tuple().reversed() == *to_acceptor
    }
}

// The number of the slot's use goes on, so that a late answer to an earlier use is noticed.
resets! { Setup { state, endpoint, done, ports, ips, why } keeps { generation } }
resets! { Ctl { rx_arm, tx_arm, rx_bells, tx_bells, queue, closed, handed_over, window, accepted, costs, rang } }
resets! { Section { prod, cons, ctl, setup } }

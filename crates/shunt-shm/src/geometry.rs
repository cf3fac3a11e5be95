//! The sizes of a link group: how many connections it has, how long their rings are, and its two
//! sides.

use crate::ring::{REWIND_AFTER, Shape};

/// Most connections in one link group (SMC's limit, RFC 7609 section 4.5.1).
pub const SLOTS: usize = 255;

/// Length of one direction's buffer in bytes (a power of two): the longest ring, of a sender that grants. So much
/// may be granted at a time; what is not copied there takes no memory.
pub const RING: usize = 2 * 1024 * 1024;
/// Length of a ring as a rule.
pub const LONG_RING: usize = 512 * 1024;
/// Length of a ring where a sender has many: so they stay in the processors' caches (1 MB files from
/// nginx to 50 connections: half as fast again as with the longest).
pub const SHORT_RING: usize = 128 * 1024;

const _: () =
    assert!(RING.is_power_of_two() && LONG_RING.is_power_of_two() && SHORT_RING.is_power_of_two());
const _: () = assert!(SHORT_RING < LONG_RING && LONG_RING < RING);
const _: () = assert!(REWIND_AFTER == 4096 / 2);

/// Which side of a link group: the one that connected or the one that accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Side {
    /// Made the proposal; owns the region.
    Client = 0,
    /// Accepted it.
    Server = 1,
}

impl Side {
    /// The opposite side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    /// From its code in the arena.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        if code == 0 { Self::Client } else { Self::Server }
    }
}

/// The part of its buffer that a ring of `cap` bytes takes. The two rings of a connection begin back to
/// back in the middle of a page, so that a connection of small messages takes one page and not two.
#[must_use]
pub const fn shape(receiver: Side, cap: u64) -> Shape {
    Shape { cap, late: matches!(receiver, Side::Client) }
}

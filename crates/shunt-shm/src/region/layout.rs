//! Where the parts of a region lie.

use shunt_wire::agent::MAX_VECTORS;

use crate::cq::{ArmLine, CqLine};
use crate::geometry::{RING, SLOTS};
use crate::grants::Grants;
use crate::region::section::Section;
use crate::rings;
use crate::sync::{AtomicU32, AtomicU64};

/// What a region begins with.
#[repr(C, align(64))]
pub(super) struct Header {
    pub magic: AtomicU64,
    pub region: AtomicU64,
    /// [`RegionView::gone`](super::RegionView::gone).
    pub gone: AtomicU32,
}

/// [`Header::gone`] at the start.
pub(super) const NONE_GONE: u32 = 1;

/// A completion vector.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Vector {
    /// The queue: pushed by the peer.
    pub queue: CqLine,
    /// Armed by the owner.
    pub arm: ArmLine,
}

/// Processes that can have completion queues in one region: the client (lane 0) and, where a group
/// of workers shares a listening socket, the first so many of them; the rest watch each connection.
pub const LANES: usize = 32;

pub(super) const OWNERS_AT: usize = 64;
pub(super) const VECTORS_AT: usize = OWNERS_AT + LANES * size_of::<AtomicU64>();
pub(super) const SECTIONS_AT: usize = VECTORS_AT + LANES * MAX_VECTORS * size_of::<Vector>();
/// Half a page behind a page's start: see [`crate::geometry::shape`].
pub(super) const DATA_AT: usize =
    (SECTIONS_AT + SLOTS * 2 * size_of::<Section>()).next_multiple_of(4096) + 4096 / 2;
/// Length of a region of this machine in bytes; only what is touched takes memory.
pub const LEN: usize = Geometry::Host.size();

/// How large the parts of a region are. Who maps one knows it from the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Geometry {
    /// Memory of this machine, which is had for the asking.
    Host,
    /// An extent of a device's memory.
    Device,
}

impl Geometry {
    /// Connections that there is room for.
    #[inline]
    #[must_use]
    pub const fn slots(self) -> usize {
        match self {
            Self::Host => SLOTS,
            Self::Device => 15,
        }
    }

    /// Length of one direction's buffer in bytes, a power of two.
    #[inline]
    #[must_use]
    pub const fn ring(self) -> usize {
        match self {
            Self::Host => RING,
            Self::Device => 256 * 1024,
        }
    }

    /// Where the RMBs end.
    #[must_use]
    pub const fn data_end(self) -> usize {
        DATA_AT + self.slots() * 2 * self.ring()
    }

    pub(super) const fn rings(self) -> rings::Layout {
        rings::Layout { at: DATA_AT, of_slot: 2 * self.ring(), slots: self.slots() }
    }

    pub(super) const fn grants_at(self) -> usize {
        self.data_end().next_multiple_of(4096)
    }

    /// Length of a region.
    #[must_use]
    pub const fn size(self) -> usize {
        self.grants_at() + self.slots() * 2 * size_of::<Grants>()
    }
}

const _: () = assert!(Geometry::Device.size() <= crate::ivshmem::EXTENT);
const _: () = assert!(Geometry::Device.ring().is_power_of_two());

const _: () = assert!(size_of::<Section>() == 256 && align_of::<Section>() == 64);
const _: () = assert!(size_of::<Vector>() == 128 && VECTORS_AT.is_multiple_of(64));
const _: () = assert!(LANES.is_multiple_of(2));

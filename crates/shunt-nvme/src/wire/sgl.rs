//! SGL descriptors as NVMe/TCP knows them (Base 4.1.2, TCP 3.3.2).

use super::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SGL Data Block with an offset in the capsule: type 0h, sub type 1h.
const IN_CAPSULE: u8 = 0x01;
/// Transport SGL Data Block: type 5h, sub type Ah.
const TRANSPORT: u8 = 0x5a;

/// An SGL descriptor: SGL1 of a submission queue entry.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Sgl {
    /// Address, or offset in the capsule.
    pub address: U64,
    /// Bytes.
    pub length: U32,
    reserved: [u8; 3],
    /// Type and sub type.
    pub identifier: u8,
}

/// Where a command's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SglKind {
    /// In the capsule, at this offset behind the queue entry (plus ICDOFF).
    InCapsule {
        /// The offset.
        offset: u64,
    },
    /// Moved by data PDUs.
    Transport,
    /// A type that NVMe/TCP does not have.
    Other(u8),
}

impl Sgl {
    /// Data in the capsule, right behind the queue entry.
    #[must_use]
    pub fn in_capsule(len: u32) -> Self {
        Self { length: len.into(), identifier: IN_CAPSULE, ..Self::default() }
    }

    /// Data moved by data PDUs.
    #[must_use]
    pub fn transport(len: u32) -> Self {
        Self { length: len.into(), identifier: TRANSPORT, ..Self::default() }
    }

    /// What the descriptor says.
    #[must_use]
    pub const fn kind(&self) -> SglKind {
        match self.identifier {
            IN_CAPSULE => SglKind::InCapsule { offset: self.address.get() },
            TRANSPORT => SglKind::Transport,
            other => SglKind::Other(other),
        }
    }
}

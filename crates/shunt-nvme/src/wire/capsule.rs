//! Capsules: what carries queue entries (TCP 3.6.2.6, 3.6.2.7).

use super::{
    Cqe, PduType, Sqe,
    pdu::{CommonHeader, Rules},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Command Capsule: header of the PDU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// The common header.
    pub header: CommonHeader,
    /// The submission queue entry.
    pub sqe: Sqe,
}

impl CapsuleCmd {
    /// A capsule with `data_len` bytes of data.
    #[must_use]
    pub fn new(sqe: Sqe, data_len: u32, rules: &Rules) -> Self {
        Self { header: CommonHeader::new(PduType::CapsuleCmd, 0, data_len, rules), sqe }
    }
}

/// Response Capsule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// The common header.
    pub header: CommonHeader,
    /// The completion queue entry.
    pub cqe: Cqe,
}

impl CapsuleResp {
    /// A capsule.
    #[must_use]
    pub fn new(cqe: Cqe, rules: &Rules) -> Self {
        Self { header: CommonHeader::new(PduType::CapsuleResp, 0, 0, rules), cqe }
    }
}

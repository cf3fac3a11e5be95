//! H2CTermReq and C2HTermReq: what ends a connection after a violation (TCP 3.6.2.4, 3.6.2.5).

use super::{
    PduType, Receiver, U16, U32,
    pdu::CommonHeader,
    violation::{FatalStatus, Violation},
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most bytes of the header at fault that a request carries.
pub const MAX_DATA: usize = 128;

/// The header of a terminate request; the header of the PDU at fault follows it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TermReq {
    /// The common header.
    pub header: CommonHeader,
    /// FES: Fatal Error Status.
    pub fes: U16,
    /// FEI: Fatal Error Information.
    pub fei: U32,
    reserved: [u8; 10],
}

impl TermReq {
    /// The request to `receiver` after `violation` by a header of which `faulty` bytes follow.
    #[must_use]
    pub fn new(receiver: Receiver, violation: Violation, faulty: usize) -> Self {
        let pdu = match receiver {
            Receiver::Controller => PduType::H2cTermReq,
            Receiver::Host => PduType::C2hTermReq,
        };
        let (fes, fei) = violation.fatal();
        let plen = 24 + u32::try_from(faulty.min(MAX_DATA)).unwrap_or(0);
        Self {
            header: CommonHeader {
                pdu_type: pdu as u8,
                flags: 0,
                hlen: 24,
                pdo: 0,
                plen: plen.into(),
            },
            fes: (fes as u16).into(),
            fei: fei.into(),
            ..Self::new_zeroed()
        }
    }

    /// The status, if it is a known one.
    #[must_use]
    pub const fn status(&self) -> Option<FatalStatus> {
        FatalStatus::from_code(self.fes.get())
    }
}

//! H2CData, C2HData and R2T: data outside of capsules (TCP 3.6.2.8 to 3.6.2.10).

use super::{
    PduType, U16, U32,
    pdu::{CommonHeader, LAST_PDU, Layout, Rules, SUCCESS},
    violation::Violation,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Host to Controller Data: header of the PDU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct H2cData {
    /// The common header.
    pub header: CommonHeader,
    /// CCCID: the command's identifier.
    pub cccid: U16,
    /// TTAG: the tag of the R2T.
    pub ttag: U16,
    /// DATAO: offset in the command's data.
    pub datao: U32,
    /// DATAL: bytes of data.
    pub datal: U32,
    reserved: [u8; 4],
}

impl H2cData {
    /// A PDU with the bytes from `offset`, `len` long.
    #[must_use]
    pub fn new(cccid: u16, ttag: u16, offset: u32, len: u32, last: bool, rules: &Rules) -> Self {
        let flags = if last { LAST_PDU } else { 0 };
        Self {
            header: CommonHeader::new(PduType::H2cData, flags, len, rules),
            cccid: cccid.into(),
            ttag: ttag.into(),
            datao: offset.into(),
            datal: len.into(),
            ..Self::new_zeroed()
        }
    }

    /// True if it is the last PDU of its transfer.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.header.flags & LAST_PDU != 0
    }

    /// Checks DATAL against the length of the PDU.
    ///
    /// # Errors
    ///
    /// They differ.
    pub fn check(&self, layout: &Layout) -> Result<(), Violation> {
        same_length(self.datal.get(), layout)
    }
}

/// Controller to Host Data: header of the PDU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct C2hData {
    /// The common header.
    pub header: CommonHeader,
    /// CCCID: the command's identifier.
    pub cccid: U16,
    reserved0: [u8; 2],
    /// DATAO: offset in the command's data.
    pub datao: U32,
    /// DATAL: bytes of data.
    pub datal: U32,
    reserved1: [u8; 4],
}

impl C2hData {
    /// A PDU with the bytes from `offset`, `len` long. `flags` are [`LAST_PDU`] and [`SUCCESS`].
    #[must_use]
    pub fn new(cccid: u16, offset: u32, len: u32, flags: u8, rules: &Rules) -> Self {
        Self {
            header: CommonHeader::new(PduType::C2hData, flags, len, rules),
            cccid: cccid.into(),
            datao: offset.into(),
            datal: len.into(),
            ..Self::new_zeroed()
        }
    }

    /// True if it is the last PDU of its command.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.header.flags & LAST_PDU != 0
    }

    /// True if the command has succeeded and no response follows.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.header.flags & SUCCESS != 0
    }

    /// Checks DATAL against the length of the PDU, and the flags.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn check(&self, layout: &Layout) -> Result<(), Violation> {
        if self.is_success() && !self.is_last() {
            return Err(Violation::SuccessFlag);
        }
        same_length(self.datal.get(), layout)
    }
}

fn same_length(datal: u32, layout: &Layout) -> Result<(), Violation> {
    if datal == layout.data_len { Ok(()) } else { Err(Violation::PduLength(layout.pdu)) }
}

/// Ready to Transfer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct R2t {
    /// The common header.
    pub header: CommonHeader,
    /// CCCID: the command's identifier.
    pub cccid: U16,
    /// TTAG: the tag that the data has to carry.
    pub ttag: U16,
    /// R2TO: offset in the command's data.
    pub r2to: U32,
    /// R2TL: bytes asked for.
    pub r2tl: U32,
    reserved: [u8; 4],
}

impl R2t {
    /// A request for the bytes from `offset`, `len` long.
    #[must_use]
    pub fn new(cccid: u16, ttag: u16, offset: u32, len: u32, rules: &Rules) -> Self {
        Self {
            header: CommonHeader::new(PduType::R2t, 0, 0, rules),
            cccid: cccid.into(),
            ttag: ttag.into(),
            r2to: offset.into(),
            r2tl: len.into(),
            ..Self::new_zeroed()
        }
    }
}

//! ICReq and ICResp: what begins a connection (TCP 3.6.2.2, 3.6.2.3).

use super::{
    PduType, Receiver, U16, U32,
    pdu::{CommonHeader, Rules},
    violation::Violation,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// DGST: header digests.
pub const HEADER_DIGEST: u8 = 1 << 0;
/// DGST: data digests.
pub const DATA_DIGEST: u8 = 1 << 1;
/// The largest alignment: 32 dwords, zero's based.
pub const MAX_ALIGNMENT: u8 = 31;
/// The least MAXH2CDATA.
pub const MIN_H2C_DATA: u32 = 4096;

/// Initialize Connection Request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcReq {
    /// The common header.
    pub header: CommonHeader,
    /// PFV: version of the format, 0.
    pub pfv: U16,
    /// HPDA: alignment of data to the host, in dwords, zero's based.
    pub hpda: u8,
    /// DGST: digests that the host asks for.
    pub dgst: u8,
    /// MAXR2T: R2Ts that may be open for one command, zero's based.
    pub maxr2t: U32,
    reserved: [u8; 112],
}

impl IcReq {
    /// A request.
    #[must_use]
    pub fn new(hpda: u8, dgst: u8, maxr2t: u32) -> Self {
        Self {
            header: CommonHeader::new(PduType::IcReq, 0, 0, &Rules::initial(Receiver::Controller)),
            hpda,
            dgst,
            maxr2t: maxr2t.into(),
            ..Self::new_zeroed()
        }
    }

    /// Checks what the common header doesn't hold.
    ///
    /// # Errors
    ///
    /// A version or an alignment that this crate doesn't know.
    pub const fn check(&self) -> Result<(), Violation> {
        if self.pfv.get() != 0 {
            return Err(Violation::FormatVersion(self.pfv.get()));
        }
        if self.hpda > MAX_ALIGNMENT {
            return Err(Violation::Alignment(self.hpda));
        }
        Ok(())
    }
}

/// Initialize Connection Response.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcResp {
    /// The common header.
    pub header: CommonHeader,
    /// PFV: version of the format, 0.
    pub pfv: U16,
    /// CPDA: alignment of data to the controller, in dwords, zero's based.
    pub cpda: u8,
    /// DGST: digests that are on.
    pub dgst: u8,
    /// MAXH2CDATA: the most data in one H2CData PDU.
    pub maxh2cdata: U32,
    reserved: [u8; 112],
}

impl IcResp {
    /// A response.
    #[must_use]
    pub fn new(cpda: u8, dgst: u8, maxh2cdata: u32) -> Self {
        Self {
            header: CommonHeader::new(PduType::IcResp, 0, 0, &Rules::initial(Receiver::Host)),
            cpda,
            dgst,
            maxh2cdata: maxh2cdata.into(),
            ..Self::new_zeroed()
        }
    }

    /// Checks the response to a request for the digests `requested`.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub const fn check(&self, requested: u8) -> Result<(), Violation> {
        let max = self.maxh2cdata.get();
        if self.pfv.get() != 0 {
            return Err(Violation::FormatVersion(self.pfv.get()));
        }
        if self.cpda > MAX_ALIGNMENT {
            return Err(Violation::Alignment(self.cpda));
        }
        if self.dgst & (HEADER_DIGEST | DATA_DIGEST) & !requested != 0 {
            return Err(Violation::DigestNotRequested);
        }
        if max < MIN_H2C_DATA || !max.is_multiple_of(4) {
            return Err(Violation::MaxH2cData(max));
        }
        Ok(())
    }
}

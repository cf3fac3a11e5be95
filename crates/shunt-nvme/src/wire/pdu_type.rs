//! Types of PDUs, and which way they go (TCP 3.6.2).

/// Types of PDUs (TCP 3.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request, host to controller.
    IcReq = 0x00,
    /// Initialize Connection Response, controller to host.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule, host to controller.
    CapsuleCmd = 0x04,
    /// Response Capsule, controller to host.
    CapsuleResp = 0x05,
    /// Host to Controller Data.
    H2cData = 0x06,
    /// Controller to Host Data.
    C2hData = 0x07,
    /// Ready to Transfer, controller to host.
    R2t = 0x09,
}

impl PduType {
    /// All types.
    pub const ALL: [Self; 9] = [
        Self::IcReq,
        Self::IcResp,
        Self::H2cTermReq,
        Self::C2hTermReq,
        Self::CapsuleCmd,
        Self::CapsuleResp,
        Self::H2cData,
        Self::C2hData,
        Self::R2t,
    ];

    /// The type for a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|pdu| *pdu as u8 == code)
    }

    /// HLEN: bytes of the header, without its digest.
    #[must_use]
    pub const fn header_len(self) -> u8 {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Which end receives it.
    #[must_use]
    pub const fn receiver(self) -> Receiver {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData => {
                Receiver::Controller
            }
            _ => Receiver::Host,
        }
    }

    /// True if it may carry data.
    pub(super) const fn carries_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }

    /// True if digests never apply: before they are negotiated, and when the connection ends.
    pub(super) const fn without_digest(self) -> bool {
        matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }
}

/// The end that receives a PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// The controller: the target's side.
    Controller,
    /// The host: the initiator.
    Host,
}

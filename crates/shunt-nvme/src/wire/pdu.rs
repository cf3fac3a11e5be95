//! The common header of PDUs, and the rules that hold for it (TCP 3.6.2.1).

use super::{U32, digest, violation::Violation};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Flag: a header digest follows the header.
pub const HDGSTF: u8 = 1 << 0;
/// Flag: a data digest follows the data.
pub const DDGSTF: u8 = 1 << 1;
/// Flag: the last PDU of a transfer (H2CData, C2HData).
pub const LAST_PDU: u8 = 1 << 2;
/// Flag: the command has succeeded, and no response follows (C2HData).
pub const SUCCESS: u8 = 1 << 3;

/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// The longest header with digest and padding: PDO is a byte.
pub const MAX_HEAD: usize = 256;
/// The longest terminate request: header and 128 bytes (TCP 3.6.2.4).
pub const MAX_TERM_LEN: u32 = 152;

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
    const fn carries_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }

    /// True if digests never apply: before they are negotiated, and when the connection ends.
    const fn without_digest(self) -> bool {
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

/// The common header.
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
pub struct CommonHeader {
    /// PDU-Type.
    pub pdu_type: u8,
    /// FLAGS.
    pub flags: u8,
    /// HLEN: bytes of the header.
    pub hlen: u8,
    /// PDO: where the data begins, counted from the start of the PDU.
    pub pdo: u8,
    /// PLEN: bytes of the PDU.
    pub plen: U32,
}

/// What was negotiated for a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The end that receives.
    pub receiver: Receiver,
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
    /// Alignment of the data that this end asked for (CPDA or HPDA): dwords, zero's based.
    pub alignment: u8,
    /// The most data that a PDU may carry.
    pub max_data: u32,
}

impl Rules {
    /// The rules before anything is negotiated.
    #[must_use]
    pub const fn initial(receiver: Receiver) -> Self {
        Self { receiver, header_digest: false, data_digest: false, alignment: 0, max_data: 0 }
    }

    /// Alignment of the data in bytes.
    #[must_use]
    pub const fn alignment_bytes(&self) -> usize {
        (self.alignment as usize + 1) * 4
    }

    /// Bytes of a header digest.
    const fn header_digest_len(&self) -> usize {
        if self.header_digest { digest::LEN } else { 0 }
    }
}

/// How a checked PDU lies in the stream of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The type.
    pub pdu: PduType,
    /// Bytes of the header.
    pub header_len: usize,
    /// A header digest follows the header.
    pub header_digest: bool,
    /// Bytes before the data: header, its digest and padding.
    pub head_len: usize,
    /// Bytes of data.
    pub data_len: u32,
    /// A data digest follows the data.
    pub data_digest: bool,
}

impl CommonHeader {
    /// The header for a PDU with `data_len` bytes of data.
    #[must_use]
    pub fn new(pdu: PduType, flags: u8, data_len: u32, rules: &Rules) -> Self {
        let hlen = pdu.header_len();
        let digests = !pdu.without_digest();
        let mut flags = flags;
        let mut head_len = usize::from(hlen);
        if digests && rules.header_digest {
            flags |= HDGSTF;
            head_len += digest::LEN;
        }
        let mut pdo = 0;
        let mut digest_len = 0;
        if pdu.carries_data() && data_len > 0 {
            head_len = head_len.next_multiple_of(rules.alignment_bytes());
            // At most 128: an alignment is at most 32 dwords, a header with digest 76 bytes.
            pdo = u8::try_from(head_len).unwrap_or(u8::MAX);
            if rules.data_digest {
                flags |= DDGSTF;
                digest_len = 4;
            }
        }
        // No header is longer than 128 bytes.
        let plen = u32::try_from(head_len).unwrap_or(u32::MAX) + data_len + digest_len;
        Self { pdu_type: pdu as u8, flags, hlen, pdo, plen: plen.into() }
    }

    /// Checks the header against what was negotiated.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn check(&self, rules: &Rules) -> Result<Layout, Violation> {
        let pdu = PduType::from_code(self.pdu_type).ok_or(Violation::UnknownType(self.pdu_type))?;
        if pdu.receiver() != rules.receiver {
            return Err(Violation::Unexpected(pdu));
        }
        if self.hlen != pdu.header_len() {
            return Err(Violation::HeaderLength(pdu));
        }
        let plen = self.plen.get();
        let header_len = usize::from(self.hlen);
        let plain = Layout {
            pdu,
            header_len,
            header_digest: false,
            head_len: header_len,
            data_len: 0,
            data_digest: false,
        };
        match pdu {
            PduType::IcReq | PduType::IcResp => {
                return if plen == u32::from(self.hlen) {
                    Ok(plain)
                } else {
                    Err(Violation::PduLength(pdu))
                };
            }
            // What follows the header is that of the PDU at fault (3.6.2.4).
            PduType::H2cTermReq | PduType::C2hTermReq => {
                return match plen.checked_sub(u32::from(self.hlen)) {
                    Some(data_len) if plen <= MAX_TERM_LEN => Ok(Layout { data_len, ..plain }),
                    _ => Err(Violation::PduLength(pdu)),
                };
            }
            _ => {}
        }
        if (self.flags & HDGSTF != 0) != rules.header_digest {
            return Err(Violation::DigestFlags(pdu));
        }
        let bare = header_len + rules.header_digest_len();
        let bare_plen = u32::try_from(bare).unwrap_or(u32::MAX);
        let plain = Layout { header_digest: rules.header_digest, head_len: bare, ..plain };
        if !pdu.carries_data() || (pdu == PduType::CapsuleCmd && plen == bare_plen) {
            return if plen == bare_plen { Ok(plain) } else { Err(Violation::PduLength(pdu)) };
        }
        let pdo = usize::from(self.pdo);
        if pdo < bare || !pdo.is_multiple_of(rules.alignment_bytes()) {
            return Err(Violation::DataOffset(pdu));
        }
        if (self.flags & DDGSTF != 0) != rules.data_digest {
            return Err(Violation::DigestFlags(pdu));
        }
        let digest_len = if rules.data_digest { 4 } else { 0 };
        match plen.checked_sub(u32::from(self.pdo) + digest_len) {
            None | Some(0) => Err(Violation::PduLength(pdu)),
            Some(data_len) if data_len > rules.max_data => Err(Violation::TooMuchData(pdu)),
            Some(data_len) => {
                Ok(Layout { head_len: pdo, data_len, data_digest: rules.data_digest, ..plain })
            }
        }
    }
}

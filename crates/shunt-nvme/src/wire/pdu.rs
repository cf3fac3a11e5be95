//! The common header of PDUs, and the rules that hold for it (TCP 3.6.2.1).

use super::{PduType, Receiver, U32, Violation, digest};
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

//! What a peer can do wrong on a connection so that the connection has to end.

use super::PduType;

/// Fatal Error Status of a terminate request (TCP 3.6.2.4, 3.6.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum FatalStatus {
    /// A field of a PDU header has a value that it must not have; the information is its offset.
    InvalidHeaderField = 0x01,
    /// A PDU came at a time or in a direction in which it must not.
    SequenceError = 0x02,
    /// The header digest is wrong; the information is the digest received.
    HeaderDigest = 0x03,
    /// Data outside of the range of the command, or of the R2T.
    DataOutOfRange = 0x04,
    /// More R2Ts than MAXR2T allows (sent by a host), or more data than allowed (by a controller).
    LimitExceeded = 0x05,
    /// A parameter that the receiver doesn't support; the information is the field's offset.
    UnsupportedParameter = 0x06,
}

impl FatalStatus {
    /// The status for a code, if it is a known one.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0x01 => Self::InvalidHeaderField,
            0x02 => Self::SequenceError,
            0x03 => Self::HeaderDigest,
            0x04 => Self::DataOutOfRange,
            0x05 => Self::LimitExceeded,
            0x06 => Self::UnsupportedParameter,
            _ => return None,
        })
    }
}

/// A rule that the peer broke. Each ends the connection with a terminate request (TCP 3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Violation {
    /// No PDU has this type (3.6.2.1).
    UnknownType(u8),
    /// The PDU does not go in this direction, or not in this state of the connection (3.6.2).
    Unexpected(PduType),
    /// A digest flag disagrees with what was negotiated (3.6.2.1).
    DigestFlags(PduType),
    /// SUCCESS without LAST_PDU, or where a response must follow (3.6.2.9).
    SuccessFlag,
    /// HLEN is not that of the PDU's type (3.6.2.1).
    HeaderLength(PduType),
    /// PDO points into the header, or is not aligned as negotiated (3.6.2.2, 3.6.2.3).
    DataOffset(PduType),
    /// PLEN disagrees with the type, or with the length of the data (3.6.2.1).
    PduLength(PduType),
    /// More data than the receiver takes in one PDU (IOCCSZ, MAXH2CDATA: 3.6.2.3).
    TooMuchData(PduType),
    /// The header digest doesn't match (3.3.1.1).
    HeaderDigest(u32),
    /// A version of the format other than 0 (3.6.2.2).
    FormatVersion(u16),
    /// An alignment beyond 31 dwords (3.6.2.2, 3.6.2.3).
    Alignment(u8),
    /// The controller turned on a digest that the host hadn't asked for (3.6.2.3).
    DigestNotRequested,
    /// MAXH2CDATA is below 4,096, or no multiple of four (3.6.2.3).
    MaxH2cData(u32),
    /// No command with this identifier waits for this PDU.
    UnknownCommand(PduType),
    /// No transfer with this tag is open (3.6.2.8).
    UnknownTransfer(u16),
    /// The offset isn't where the last PDU of this transfer ended (3.3.2).
    DataSequence(PduType),
    /// Data beyond the end of the command or of the R2T (3.3.2).
    DataRange(PduType),
    /// LAST_PDU is missing at the end of a transfer, or set before it (3.6.2.8).
    LastFlag(PduType),
    /// More R2Ts are open than MAXR2T allows (3.6.2.2).
    TooManyR2t,
    /// An R2T for no bytes (3.6.2.10).
    EmptyR2t,
    /// More commands than the queue has entries (Base 3.3.1).
    QueueOverflow,
}

impl Violation {
    /// Status and information for the terminate request.
    #[must_use]
    pub const fn fatal(self) -> (FatalStatus, u32) {
        use FatalStatus as S;
        match self {
            Self::UnknownType(_) => (S::InvalidHeaderField, 0),
            Self::DigestFlags(_) | Self::SuccessFlag | Self::LastFlag(_) => {
                (S::InvalidHeaderField, 1)
            }
            Self::HeaderLength(_) => (S::InvalidHeaderField, 2),
            Self::DataOffset(_) => (S::InvalidHeaderField, 3),
            Self::PduLength(_) => (S::InvalidHeaderField, 4),
            Self::UnknownCommand(PduType::CapsuleResp) => (S::InvalidHeaderField, 20),
            Self::UnknownCommand(_) => (S::InvalidHeaderField, 8),
            Self::UnknownTransfer(_) => (S::InvalidHeaderField, 10),
            Self::EmptyR2t => (S::InvalidHeaderField, 16),
            Self::DigestNotRequested => (S::InvalidHeaderField, 11),
            Self::MaxH2cData(_) => (S::InvalidHeaderField, 12),
            Self::Unexpected(_) | Self::QueueOverflow => (S::SequenceError, 0),
            Self::DataSequence(_) | Self::DataRange(_) => (S::DataOutOfRange, 0),
            Self::TooMuchData(_) | Self::TooManyR2t => (S::LimitExceeded, 0),
            Self::HeaderDigest(received) => (S::HeaderDigest, received),
            Self::FormatVersion(_) => (S::UnsupportedParameter, 8),
            Self::Alignment(_) => (S::UnsupportedParameter, 10),
        }
    }
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::UnknownType(code) => write!(f, "unknown PDU type {code:#04x}"),
            Self::Unexpected(pdu) => write!(f, "unexpected {pdu:?}"),
            Self::DigestFlags(pdu) => write!(f, "{pdu:?}: digest flags not as negotiated"),
            Self::SuccessFlag => f.write_str("C2HData: SUCCESS where it is not allowed"),
            Self::HeaderLength(pdu) => write!(f, "{pdu:?}: wrong header length"),
            Self::DataOffset(pdu) => write!(f, "{pdu:?}: wrong data offset"),
            Self::PduLength(pdu) => write!(f, "{pdu:?}: wrong length"),
            Self::TooMuchData(pdu) => write!(f, "{pdu:?}: more data than allowed"),
            Self::HeaderDigest(received) => write!(f, "wrong header digest {received:#010x}"),
            Self::FormatVersion(version) => write!(f, "unknown PDU format version {version}"),
            Self::Alignment(dwords) => write!(f, "data alignment {dwords} is beyond 31"),
            Self::DigestNotRequested => f.write_str("ICResp: digest was not requested"),
            Self::MaxH2cData(bytes) => write!(f, "ICResp: MAXH2CDATA {bytes} is not allowed"),
            Self::UnknownCommand(pdu) => write!(f, "{pdu:?}: no such command"),
            Self::UnknownTransfer(tag) => write!(f, "no transfer has the tag {tag:#06x}"),
            Self::DataSequence(pdu) => write!(f, "{pdu:?}: data out of sequence"),
            Self::DataRange(pdu) => write!(f, "{pdu:?}: data out of range"),
            Self::LastFlag(pdu) => write!(f, "{pdu:?}: wrong LAST_PDU flag"),
            Self::TooManyR2t => f.write_str("more R2Ts than MAXR2T allows"),
            Self::EmptyR2t => f.write_str("R2T for no data"),
            Self::QueueOverflow => f.write_str("more commands than the queue has entries"),
        }
    }
}

impl core::error::Error for Violation {}

//! Connection layer control: the handshake on the TCP connection (RFC 7609 section 3.5 and appendix
//! A.2).
//!
//! A client sends a [`Proposal`]. A server answers with an [`Accept`], and the client with a
//! [`Confirm`]; or either says [`Decline`], and all that follows on TCP is the program's.

mod accept;
mod decline;
mod proposal;

pub use accept::{Accept, Confirm, End, FirstContact};
pub use decline::{Decline, Diagnosis};
pub use proposal::Proposal;

use shunt_verbs::value::Gid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, U16};

/// Bytes that say how long a message is.
pub const HEADER: usize = 8;

/// Bytes of the longest message that this side takes: a proposal with all that it may hold
/// (`smc_clc.h`: `smc_clc_msg_proposal_area`).
pub const LONGEST: usize = 40 + 40 + 8 + 8 * 17 + 40 + 8 * 32 + 48 + 8 * 10 + 4;

/// *SMCR* in EBCDIC, in front of messages and at their end; also the TCP option's magic number (RFC
/// 7609 A.1, A.2).
pub const EYE_CATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// The only version that this crate speaks.
const VERSION: u8 = 2;

/// In the field for the kinds of version 2, of accept, confirm and decline: a first contact; links
/// are out of step.
const FIRST_CONTACT: u8 = 0b10 << 2;

/// Type of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// [`Proposal`].
    Proposal = 1,
    /// [`Accept`].
    Accept = 2,
    /// [`Confirm`].
    Confirm = 3,
    /// [`Decline`].
    Decline = 4,
}

/// The beginning of each message (RFC 7609 A.2).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    eye_catcher: [u8; 4],
    kind: u8,
    length: U16,
    /// Version, kinds of version 2, kinds of version 1: 4, 2 and 2 bits.
    flags: u8,
}

impl Header {
    fn new(kind: Kind, length: usize, flags: u8) -> Self {
        // No message is longer than `LONGEST`.
        let length = u16::try_from(length).unwrap_or(u16::MAX).into();
        Self { eye_catcher: EYE_CATCHER, kind: kind as u8, length, flags: VERSION << 4 | flags }
    }

    const fn version(self) -> u8 {
        self.flags >> 4
    }

    const fn is_first_contact(self) -> bool {
        self.flags & FIRST_CONTACT != 0
    }
}

/// Reads a message's header: its kind and its length in bytes.
///
/// # Errors
/// The eye catcher is missing; the type is none; the length cannot be.
pub fn header(bytes: &[u8; HEADER]) -> Result<(Kind, usize), Malformed> {
    let (header, _) = Header::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
    if header.eye_catcher != EYE_CATCHER {
        return Err(Malformed::EyeCatcher);
    }
    let kind = match header.kind {
        1 => Kind::Proposal,
        2 => Kind::Accept,
        3 => Kind::Confirm,
        4 => Kind::Decline,
        kind => return Err(Malformed::Kind(kind)),
    };
    let length = usize::from(header.length.get());
    if length < HEADER + EYE_CATCHER.len() || length > LONGEST {
        return Err(Malformed::Length);
    }
    Ok((kind, length))
}

/// A whole message of this kind: its header, and the bytes between it and the eye catcher at the
/// end.
fn body(bytes: &[u8], wanted: Kind) -> Result<(Header, &[u8]), Malformed> {
    let first = bytes.first_chunk().ok_or(Malformed::Length)?;
    let (kind, length) = header(first)?;
    if kind != wanted {
        return Err(Malformed::Kind(kind as u8));
    }
    if length != bytes.len() {
        return Err(Malformed::Length);
    }
    let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
    let (body, end) = rest.split_last_chunk().ok_or(Malformed::Length)?;
    if *end != EYE_CATCHER {
        return Err(Malformed::EyeCatcher);
    }
    Ok((header, body))
}

/// The host and port that sends a message (RFC 7609 A.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Names the host: two bytes that it chose, and a MAC address of its.
    pub id: [u8; 8],
    /// Address of its port.
    pub gid: Gid,
    /// MAC address of its port.
    pub mac: [u8; 6],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HostBytes {
    id: [u8; 8],
    gid: [u8; 16],
    mac: [u8; 6],
}

impl From<Host> for HostBytes {
    fn from(host: Host) -> Self {
        Self { id: host.id, gid: host.gid.0, mac: host.mac }
    }
}

impl From<HostBytes> for Host {
    fn from(bytes: HostBytes) -> Self {
        Self { id: bytes.id, gid: Gid(bytes.gid), mac: bytes.mac }
    }
}

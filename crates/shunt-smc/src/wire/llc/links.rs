//! CONFIRM LINK, DELETE LINK and TEST LINK (RFC 7609 A.3; `smc_llc.c`).

use core::fmt;

use shunt_verbs::value::{Gid, PairNumber};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Malformed, U32, of_24_bits, pair};
use super::flags::{ANSWER, flag};

/// Both bits: of the sender, and of the receiver (`smc_llc.c`: `SMC_LLC_FLAG_NO_RMBE_EYEC`).
const NO_EYE_CATCHERS: u8 = 0x03;
const ALL: u8 = 0x40;
const ORDERLY: u8 = 0x20;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ConfirmBytes {
    mac: [u8; 6],
    gid: [u8; 16],
    pair: [u8; 3],
    link: u8,
    id: [u8; 4],
    max_links: u8,
    max_connections: u8,
    reserved: [u8; 8],
}

/// The server asks on a link that is new, and the client answers: both directions work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmLink {
    /// The client says so.
    pub is_answer: bool,
    /// The sender puts no eye catcher into rings: their first byte is the stream's.
    pub is_plain: bool,
    /// MAC address of the sender's port.
    pub mac: [u8; 6],
    /// Address of it.
    pub gid: Gid,
    /// Queue pair.
    pub pair: PairNumber,
    /// The link's number in its group, which the server chooses.
    pub link: u8,
    /// A name of the link that the sender chose.
    pub id: [u8; 4],
    /// Most links of the group.
    pub max_links: u8,
    /// Most connections of the group; from release 1 on.
    pub max_connections: u8,
}

impl ConfirmLink {
    pub(super) const fn flags(self) -> u8 {
        flag(self.is_answer, ANSWER) | flag(self.is_plain, NO_EYE_CATCHERS)
    }

    pub(super) fn body(self) -> Vec<u8> {
        let bytes = ConfirmBytes {
            mac: self.mac,
            gid: self.gid.0,
            pair: of_24_bits(self.pair.0),
            link: self.link,
            id: self.id,
            max_links: self.max_links,
            max_connections: self.max_connections,
            ..ConfirmBytes::new_zeroed()
        };
        bytes.as_bytes().to_vec()
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let (bytes, _) = ConfirmBytes::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        Ok(Self {
            is_answer: flags & ANSWER != 0,
            // Linux looks whether either is set.
            is_plain: flags & NO_EYE_CATCHERS != 0,
            mac: bytes.mac,
            gid: Gid(bytes.gid),
            pair: pair(bytes.pair),
            link: bytes.link,
            id: bytes.id,
            max_links: bytes.max_links,
            max_connections: bytes.max_connections,
        })
    }
}

/// Why a link is deleted (RFC 7609 A.3; `smc_llc.h`: `SMC_LLC_DEL_*`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// The path is lost.
    pub const LOST_PATH: Self = Self(0x0001_0000);
    /// An operator ends it.
    pub const OPERATOR: Self = Self(0x0002_0000);
    /// The program ends it.
    pub const PROGRAM: Self = Self(0x0003_0000);
    /// The peer has broken a rule.
    pub const VIOLATION: Self = Self(0x0004_0000);
    /// In an answer: there is no such link.
    pub const NO_LINK: Self = Self(0x0010_0000);
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::LOST_PATH => "the path is lost",
            Self::OPERATOR => "an operator ends it",
            Self::PROGRAM => "the program ends it",
            Self::VIOLATION => "a rule was broken",
            Self::NO_LINK => "there is no such link",
            _ => "another reason",
        };
        write!(f, "{text} ({:#010x})", self.0)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reason({:#010x})", self.0)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeleteBytes {
    link: u8,
    reason: U32,
}

/// A link ends. The server says so; a client asks for it, and the server then says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeleteLink {
    /// The client has heard it.
    pub is_answer: bool,
    /// All links of the group, which ends.
    pub is_all: bool,
    /// Nothing has failed.
    pub is_orderly: bool,
    /// The link, where it is one.
    pub link: u8,
    /// Why.
    pub reason: Reason,
}

impl DeleteLink {
    pub(super) const fn flags(self) -> u8 {
        flag(self.is_answer, ANSWER) | flag(self.is_all, ALL) | flag(self.is_orderly, ORDERLY)
    }

    pub(super) fn body(self) -> Vec<u8> {
        DeleteBytes { link: self.link, reason: self.reason.0.into() }.as_bytes().to_vec()
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let (bytes, _) = DeleteBytes::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        Ok(Self {
            is_answer: flags & ANSWER != 0,
            is_all: flags & ALL != 0,
            is_orderly: flags & ORDERLY != 0,
            link: bytes.link,
            reason: Reason(bytes.reason.get()),
        })
    }
}

/// Asks whether the link lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLink {
    /// It does.
    pub is_answer: bool,
    /// Comes back.
    pub data: [u8; 16],
}

impl TestLink {
    pub(super) const fn flags(self) -> u8 {
        flag(self.is_answer, ANSWER)
    }

    pub(super) fn body(self) -> Vec<u8> {
        self.data.to_vec()
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let data = *body.first_chunk().ok_or(Malformed::Length)?;
        Ok(Self { is_answer: flags & ANSWER != 0, data })
    }
}

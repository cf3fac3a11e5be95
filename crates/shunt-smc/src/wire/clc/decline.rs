//! Decline: the connection stays on TCP (RFC 7609 A.2; `smc_clc.h`).

use core::fmt;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Malformed, U32};
use super::{EYE_CATCHER, HEADER};
use super::{FIRST_CONTACT, Header, Kind, body};

const LINUX: u8 = 2 << 4;

/// Without the part of version 2: four more codes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Short {
    id: [u8; 8],
    diagnosis: U32,
    system: u8,
    reserved: [u8; 3],
}

/// Why a connection stays on TCP: a code, as `smc_diag` shows it (`smc_clc.h`: `SMC_CLC_DECL_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Diagnosis(pub u32);

impl Diagnosis {
    /// No memory.
    pub const MEMORY: Self = Self(0x0101_0000);
    /// CONFIRM LINK did not come in time.
    pub const CONFIRM_LINK_TIMEOUT: Self = Self(0x0201_0000);
    /// The configuration does not allow it, for a reason that has no code of its own.
    pub const CONFIGURATION: Self = Self(0x0300_0000);
    /// The peer has said nothing of SMC.
    pub const NO_SMC_AT_PEER: Self = Self(0x0301_0000);
    /// No device; of a server also: no EID in common.
    pub const NO_DEVICE: Self = Self(0x0303_0000);
    /// No device for SMC-R.
    pub const NO_RDMA_DEVICE: Self = Self(0x0303_0002);
    /// The proposal has no EID.
    pub const NO_EID: Self = Self(0x0303_0008);
    /// No release in common.
    pub const RELEASE: Self = Self(0x0303_0009);
    /// The number of connections of a link group cannot be.
    pub const MAX_CONNECTIONS: Self = Self(0x0303_000a);
    /// The number of links of a link group cannot be.
    pub const MAX_LINKS: Self = Self(0x0303_000b);
    /// The peer would put eye catchers into rings.
    pub const EYE_CATCHERS: Self = Self(0x0305_0000);
    /// The link that the server names is not known.
    pub const UNKNOWN_LINK: Self = Self(0x030b_0000);
    /// No version in common.
    pub const VERSION: Self = Self(0x030c_0000);
    /// The server would go on with a link group that the client has not.
    pub const OUT_OF_STEP: Self = Self(0x0400_0000);
    /// The peer has declined. In `smc_diag` alone, beside the peer's own code.
    pub const PEER: Self = Self(0x0500_0000);
    /// An internal error.
    pub const INTERNAL: Self = Self(0x0999_0000);
    /// The key of a ring was not taken.
    pub const KEY: Self = Self(0x0999_0001);
    /// The queue pair could not be made ready.
    pub const QUEUE_PAIR: Self = Self(0x0999_0002);
    /// Memory could not be registered.
    pub const REGISTRATION: Self = Self(0x0999_0003);

    const fn text(self) -> &'static str {
        match self {
            Self::MEMORY => "no memory",
            Self::CONFIRM_LINK_TIMEOUT => "the link was not confirmed in time",
            Self::CONFIGURATION => "the configuration does not allow it",
            Self::NO_SMC_AT_PEER => "the peer has said nothing of SMC",
            Self::NO_DEVICE => "no device, or no EID in common",
            Self::NO_RDMA_DEVICE => "no RDMA device",
            Self::NO_EID => "the client has no EID",
            Self::RELEASE => "no release in common",
            Self::MAX_CONNECTIONS => "no number of connections in common",
            Self::MAX_LINKS => "no number of links in common",
            Self::EYE_CATCHERS => "eye catchers in rings",
            Self::UNKNOWN_LINK => "the server's link is not known",
            Self::VERSION => "no version in common",
            Self::OUT_OF_STEP => "the server has a link group that the client has not",
            Self::PEER => "the peer has declined",
            Self::INTERNAL => "an internal error",
            Self::KEY => "the key of a ring was not taken",
            Self::QUEUE_PAIR => "the queue pair is not ready",
            Self::REGISTRATION => "memory cannot be registered",
            _ => "another reason",
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010x})", self.text(), self.0)
    }
}

impl fmt::Debug for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Diagnosis({:#010x})", self.0)
    }
}

/// A decline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decline {
    /// The host that declines; zeroes where it has no device.
    pub id: [u8; 8],
    /// Why.
    pub diagnosis: Diagnosis,
    /// The link group that the receiver named is to be given up.
    pub is_out_of_step: bool,
}

impl Decline {
    /// As it is sent, in the form of version 2.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let more = [0; 16];
        let length = HEADER + size_of::<Short>() + more.len() + EYE_CATCHER.len();
        let flags = if self.is_out_of_step { FIRST_CONTACT } else { 0 };
        let header = Header::new(Kind::Decline, length, flags);
        let body = Short {
            id: self.id,
            diagnosis: self.diagnosis.0.into(),
            system: LINUX,
            ..Short::new_zeroed()
        };
        [header.as_bytes(), body.as_bytes(), &more, &EYE_CATCHER].concat()
    }

    /// Reads one, in the form of either version: a server that knows no version 2 has the shorter
    /// one.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, body) = body(bytes, Kind::Decline)?;
        let (short, rest) = Short::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        if rest.len() != if header.version() == 1 { 0 } else { 16 } {
            return Err(Malformed::Length);
        }
        Ok(Self {
            id: short.id,
            diagnosis: Diagnosis(short.diagnosis.get()),
            is_out_of_step: header.is_first_contact(),
        })
    }
}

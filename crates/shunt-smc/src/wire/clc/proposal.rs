//! Proposal: the client says by which device and in which groups it would go on (RFC 7609 A.2;
//! `smc_clc.h`).

use core::mem::offset_of;

use shunt_verbs::value::Gid;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Eid, Malformed, U16};
use super::{EYE_CATCHER, HEADER, Header, Host, HostBytes, Kind, body};

/// In the header: neither kind of version 1.
const NONE_OF_VERSION_1: u8 = 2;
/// In the header, of either version: SMC-D alone, and none. The others include SMC-R.
const WITHOUT_R: [u8; 2] = [1, 2];

/// Most EIDs of a proposal (`smc_clc.h`: `SMC_CLC_MAX_UEID`).
pub(crate) const MOST_EIDS: usize = 8;

/// The fixed part, behind the header: the client; where the part of version 1 would be; that of
/// SMC-D, and in it where the part of version 2 is, counted from behind that field.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    host: HostBytes,
    prefixes_at: U16,
    smc_d: [u8; 10],
    extension_at: U16,
    reserved: [u8; 28],
}

/// The part of version 2; EIDs follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Extension {
    eids: u8,
    smc_d_gids: u8,
    reserved: u8,
    /// Release, 3 reserved bits, whether there is a system's EID.
    release: u8,
    reserved2: [u8; 2],
    smc_d_at: U16,
    gid: [u8; 16],
    max_connections: u8,
    max_links: u8,
    features: U16,
    reserved3: [u8; 12],
}

/// Where the extension is counted from.
const COUNTED_FROM: usize = offset_of!(Fixed, reserved);

/// A proposal of SMC-R version 2. Parts of SMC-D, and of version 1, are neither sent nor looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The client.
    pub host: Host,
    /// Address of its port for version 2, which routers pass on: an IPv4 address mapped into IPv6.
    pub gid: Gid,
    /// Groups in which it is, one to eight.
    pub eids: Vec<Eid>,
    /// Release of version 2 that it speaks: 0, or 1 from Linux 6.6 on.
    pub release: u8,
    /// Most connections of a link group. From release 1 on; a server wants 16 at least.
    pub max_connections: u8,
    /// Most links of a link group. From release 1 on: 1 or 2.
    pub max_links: u8,
}

impl Proposal {
    /// As it is sent. EIDs behind the eighth are left out.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let eids = &self.eids[..self.eids.len().min(MOST_EIDS)];
        let length = HEADER
            + size_of::<Fixed>()
            + size_of::<Extension>()
            + eids.len() * Eid::LEN
            + EYE_CATCHER.len();
        // Both fit.
        let extension_at = u16::try_from(size_of::<Fixed>() - COUNTED_FROM).unwrap_or(0).into();
        let count = u8::try_from(eids.len()).unwrap_or(0);
        let header = Header::new(Kind::Proposal, length, NONE_OF_VERSION_1);
        let fixed = Fixed { host: self.host.into(), extension_at, ..Fixed::new_zeroed() };
        let extension = Extension {
            eids: count,
            release: self.release << 4,
            gid: self.gid.0,
            max_connections: self.max_connections,
            max_links: self.max_links,
            ..Extension::new_zeroed()
        };
        let mut bytes = [header.as_bytes(), fixed.as_bytes(), extension.as_bytes()].concat();
        eids.iter().for_each(|eid| bytes.extend(eid.bytes()));
        bytes.extend(EYE_CATCHER);
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or none of SMC-R version 2.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, body) = body(bytes, Kind::Proposal)?;
        if header.version() < 2 || WITHOUT_R.contains(&(header.flags >> 2 & 3)) {
            return Err(Malformed::Version(header.version()));
        }
        let (fixed, _) = Fixed::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        let at = usize::from(fixed.extension_at.get());
        let rest = body.get(COUNTED_FROM..).and_then(|rest| rest.get(at..));
        // Else it would lie in the fixed part.
        let rest = rest.filter(|_| COUNTED_FROM + at >= size_of::<Fixed>());
        let rest = rest.ok_or(Malformed::Field("place of the extension"))?;
        let (extension, rest) = Extension::read_from_prefix(rest).map_err(|_| Malformed::Length)?;
        let count = usize::from(extension.eids);
        if !(1..=MOST_EIDS).contains(&count) {
            return Err(Malformed::Field("number of EIDs"));
        }
        let eids = rest.get(..count * Eid::LEN).ok_or(Malformed::Length)?;
        let (eids, _) = eids.as_chunks::<{ Eid::LEN }>();
        let eids = eids.iter().map(|eid| Eid::of_bytes(*eid).ok_or(Malformed::Field("EID")));
        Ok(Self {
            host: fixed.host.into(),
            gid: Gid(extension.gid),
            eids: eids.collect::<Result<_, _>>()?,
            release: extension.release >> 4,
            max_connections: extension.max_connections,
            max_links: extension.max_links,
        })
    }
}

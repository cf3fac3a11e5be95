//! Accept and confirm: each end says where its ring is (RFC 7609 A.2; `smc_clc.h`).

use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, PeerPair, Remote, RemoteKey};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Eid, Malformed, RmbSize, U16, U32, U64};
use super::super::{mtu, mtu_code, of_24_bits, packet, pair};
use super::{EYE_CATCHER, FIRST_CONTACT, HEADER, Header, Host, HostBytes, Kind, body};

/// The operating system, in a first contact (`smc_clc.h`: `SMC_CLC_OS_LINUX`).
const LINUX: u8 = 2;
/// Most addresses of a confirm; Linux sends two (`smc_core.h`: `struct smc_gidlist`).
const MOST_GIDS: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EndBytes {
    host: HostBytes,
    pair: [u8; 3],
    key: U32,
    index: u8,
    token: U32,
    /// Size of the ring and longest packet, 4 bits each.
    size_and_mtu: u8,
    reserved: u8,
    address: U64,
    reserved2: u8,
    first_packet: [u8; 3],
    eid: [u8; Eid::LEN],
    reserved3: [u8; 8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ContactBytes {
    direct: u8,
    /// Operating system and release, 4 bits each.
    system: u8,
    reserved: [u8; 2],
    name: [u8; 32],
}

/// From release 1 on.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ContactMore {
    max_connections: u8,
    max_links: u8,
    features: U16,
    vendor: U32,
    reserved: [u8; 8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Gids {
    count: u8,
    reserved: [u8; 3],
}

const DIRECT: u8 = 0x80;

/// One end of a connection: its link and its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The host and its port.
    pub host: Host,
    /// Its queue pair.
    pub pair: PairNumber,
    /// Its first packet.
    pub first_packet: PacketNumber,
    /// The longest packet that its port takes; of a confirm, that both take.
    pub mtu: Mtu,
    /// The RMB, with the key by which the other end writes into it.
    pub rmb: Remote,
    /// Which element of the RMB is the connection's, from 1 on; Linux has one per RMB.
    pub index: u8,
    /// Bytes of an element.
    pub size: RmbSize,
    /// Names the connection in messages to this end.
    pub token: u32,
}

impl End {
    /// The element that is the connection's ring: where its first byte is.
    #[must_use]
    pub fn ring(&self) -> Remote {
        let before = u64::from(self.index - 1) * u64::from(self.size.bytes());
        // `parse` has looked that it does not go beyond the last address.
        Remote { address: self.rmb.address.wrapping_add(before), ..self.rmb }
    }

    /// The queue pair as the device wants it described.
    #[must_use]
    pub const fn peer_pair(&self) -> PeerPair {
        let Self { host, pair, first_packet, mtu, .. } = *self;
        PeerPair { gid: host.gid, number: pair, first_packet, mtu }
    }

    fn bytes(&self, eid: Eid) -> EndBytes {
        EndBytes {
            host: self.host.into(),
            pair: of_24_bits(self.pair.0),
            key: self.rmb.key.0.into(),
            index: self.index,
            token: self.token.into(),
            size_and_mtu: self.size.exponent() << 4 | mtu_code(self.mtu),
            address: self.rmb.address.into(),
            first_packet: of_24_bits(self.first_packet.get()),
            eid: *eid.bytes(),
            ..EndBytes::new_zeroed()
        }
    }

    fn of(bytes: &EndBytes) -> Result<Self, Malformed> {
        // Four bits are a size.
        let size = RmbSize::of_exponent(bytes.size_and_mtu >> 4).unwrap_or(RmbSize::LARGEST);
        let mtu = mtu(bytes.size_and_mtu & 15).ok_or(Malformed::Field("MTU"))?;
        let address = bytes.address.get();
        if bytes.index == 0 {
            return Err(Malformed::Field("index of the ring"));
        }
        let end = u64::from(bytes.index) * u64::from(size.bytes());
        if address.checked_add(end).is_none() {
            return Err(Malformed::Field("address of the ring"));
        }
        Ok(Self {
            host: bytes.host.into(),
            pair: pair(bytes.pair),
            first_packet: packet(bytes.first_packet),
            mtu,
            rmb: Remote { address, key: RemoteKey(bytes.key.get()) },
            index: bytes.index,
            size,
            token: bytes.token.get(),
        })
    }
}

/// Description of a host that has no link with the other one yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstContact {
    /// No router lies between the ports.
    pub is_direct: bool,
    /// The release that both speak.
    pub release: u8,
    /// Name of the host, filled up with blanks.
    pub name: [u8; 32],
    /// Most connections of the link group; 0 in release 0.
    pub max_connections: u8,
    /// Most links of the link group; 0 in release 0.
    pub max_links: u8,
}

impl FirstContact {
    fn bytes(&self) -> Vec<u8> {
        let base = ContactBytes {
            direct: if self.is_direct { DIRECT } else { 0 },
            system: LINUX << 4 | self.release & 15,
            name: self.name,
            ..ContactBytes::new_zeroed()
        };
        let more = ContactMore {
            max_connections: self.max_connections,
            max_links: self.max_links,
            ..ContactMore::new_zeroed()
        };
        [base.as_bytes(), more.as_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (base, rest) = ContactBytes::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
        let release = base.system & 15;
        // Linux before 6.6, which knows of release 0 only, ends here.
        let (more, rest) = match ContactMore::read_from_prefix(rest) {
            Ok(more) => more,
            Err(_) if release == 0 && rest.is_empty() => (ContactMore::new_zeroed(), rest),
            Err(_) => return Err(Malformed::Length),
        };
        let contact = Self {
            is_direct: base.direct & DIRECT != 0,
            release,
            name: base.name,
            max_connections: more.max_connections,
            max_links: more.max_links,
        };
        Ok((contact, rest))
    }
}

/// The server's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Its link and ring.
    pub end: End,
    /// The group that both hosts are in.
    pub eid: Eid,
    /// Its link is a new one.
    pub first_contact: Option<FirstContact>,
}

/// The client's end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confirm {
    /// Its link and ring.
    pub end: End,
    /// As in the accept.
    pub eid: Eid,
    /// Its link is a new one; addresses of its ports, by which there could be more links.
    pub first_contact: Option<(FirstContact, Vec<Gid>)>,
}

fn message(kind: Kind, end: &End, eid: Eid, contact: Option<Vec<u8>>) -> Vec<u8> {
    let flags = if contact.is_some() { FIRST_CONTACT } else { 0 };
    let contact = contact.unwrap_or_default();
    let length = HEADER + size_of::<EndBytes>() + contact.len() + EYE_CATCHER.len();
    let header = Header::new(kind, length, flags);
    [header.as_bytes(), end.bytes(eid).as_bytes(), &contact, &EYE_CATCHER].concat()
}

/// End, EID, whether it is a first contact, and the rest.
fn parse(bytes: &[u8], kind: Kind) -> Result<(End, Eid, bool, &[u8]), Malformed> {
    let (header, body) = body(bytes, kind)?;
    if header.version() != 2 {
        return Err(Malformed::Version(header.version()));
    }
    // SMC-D, which has another layout.
    if header.flags & 3 != 0 {
        return Err(Malformed::Field("kind of SMC"));
    }
    let (end, rest) = EndBytes::read_from_prefix(body).map_err(|_| Malformed::Length)?;
    let eid = Eid::of_bytes(end.eid).ok_or(Malformed::Field("EID"))?;
    Ok((End::of(&end)?, eid, header.is_first_contact(), rest))
}

impl Accept {
    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let contact = self.first_contact.map(|contact| contact.bytes());
        message(Kind::Accept, &self.end, self.eid, contact)
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or none of SMC-R version 2.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (end, eid, is_first, rest) = parse(bytes, Kind::Accept)?;
        let first_contact = match is_first {
            // More may follow in later releases.
            true => Some(FirstContact::parse(rest)?.0),
            false => None,
        };
        Ok(Self { end, eid, first_contact })
    }
}

impl Confirm {
    /// As it is sent. Addresses behind the eighth are left out.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let contact = self.first_contact.as_ref().map(|(contact, gids)| {
            let gids = &gids[..gids.len().min(MOST_GIDS)];
            // It fits.
            let count = u8::try_from(gids.len()).unwrap_or(0);
            let head = Gids { count, ..Gids::new_zeroed() };
            let mut bytes = [&contact.bytes(), head.as_bytes()].concat();
            gids.iter().for_each(|gid| bytes.extend(gid.0));
            bytes
        });
        message(Kind::Confirm, &self.end, self.eid, contact)
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or none of SMC-R version 2.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (end, eid, is_first, rest) = parse(bytes, Kind::Confirm)?;
        if !is_first {
            return Ok(Self { end, eid, first_contact: None });
        }
        let (contact, rest) = FirstContact::parse(rest)?;
        let (head, rest) = Gids::read_from_prefix(rest).map_err(|_| Malformed::Length)?;
        let count = usize::from(head.count);
        if count > MOST_GIDS {
            return Err(Malformed::Field("number of addresses"));
        }
        let gids = rest.get(..count * 16).ok_or(Malformed::Length)?;
        let gids = gids.as_chunks().0.iter().map(|gid| Gid(*gid)).collect();
        Ok(Self { end, eid, first_contact: Some((contact, gids)) })
    }
}

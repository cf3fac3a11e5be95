//! ADD LINK and REQUEST ADD LINK (RFC 7609 A.3; `smc_llc.c`).

use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Malformed, mtu, mtu_code, of_24_bits, packet, pair};
use super::flags::{ANSWER, flag};

const REJECTED: u8 = 0x40;
/// Most addresses that fit into the room that the kernel has for messages (`smc_wr.h`: 8 KiB).
const MOST_GIDS: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddBytes {
    mac: [u8; 6],
    reserved: [u8; 2],
    gid: [u8; 16],
    pair: [u8; 3],
    link: u8,
    mtu: u8,
    first_packet: [u8; 3],
    reserved2: [u8; 8],
}

/// The server offers another link, and the client takes it or not. The keys of all rings for the
/// new link follow in version 2; they are not read, since this side has one link per group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLink {
    /// The client says so.
    pub is_answer: bool,
    /// Of an answer: there will be no other link.
    pub is_rejected: bool,
    /// MAC address of the sender's port.
    pub mac: [u8; 6],
    /// Address of it.
    pub gid: Gid,
    /// Queue pair.
    pub pair: PairNumber,
    /// The link's number.
    pub link: u8,
    /// The longest packet; `None`: a client that only says that it has another port.
    pub mtu: Option<Mtu>,
    /// The first packet.
    pub first_packet: PacketNumber,
}

impl AddLink {
    /// The answer of a client that takes no other link.
    #[must_use]
    pub const fn rejection(self) -> Self {
        Self { is_answer: true, is_rejected: true, ..self }
    }

    pub(super) const fn flags(self) -> u8 {
        flag(self.is_answer, ANSWER) | flag(self.is_rejected, REJECTED)
    }

    pub(super) fn body(self) -> Vec<u8> {
        let bytes = AddBytes {
            mac: self.mac,
            gid: self.gid.0,
            pair: of_24_bits(self.pair.0),
            link: self.link,
            mtu: self.mtu.map_or(0, mtu_code),
            first_packet: of_24_bits(self.first_packet.get()),
            ..AddBytes::new_zeroed()
        };
        bytes.as_bytes().to_vec()
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let (bytes, _) = AddBytes::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        let mtu = match bytes.mtu & 15 {
            0 => None,
            code => Some(mtu(code).ok_or(Malformed::Field("MTU"))?),
        };
        Ok(Self {
            is_answer: flags & ANSWER != 0,
            is_rejected: flags & REJECTED != 0,
            mac: bytes.mac,
            gid: Gid(bytes.gid),
            pair: pair(bytes.pair),
            link: bytes.link,
            mtu,
            first_packet: packet(bytes.first_packet),
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestBytes {
    reserved: [u8; 20],
    count: u8,
    reserved2: [u8; 3],
}

/// A client that has another port asks for an ADD LINK. The server's answer says that there will be
/// none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestAddLink {
    /// The server says so.
    pub is_answer: bool,
    /// Addresses of the client's ports, eight at most.
    pub gids: Vec<Gid>,
}

impl RequestAddLink {
    pub(super) fn flags(&self) -> u8 {
        flag(self.is_answer, ANSWER)
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let gids = &self.gids[..self.gids.len().min(MOST_GIDS)];
        // It fits.
        let count = u8::try_from(gids.len()).unwrap_or(0);
        let mut bytes = RequestBytes { count, ..RequestBytes::new_zeroed() }.as_bytes().to_vec();
        gids.iter().for_each(|gid| bytes.extend(gid.0));
        bytes
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let (bytes, rest) = RequestBytes::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        let count = usize::from(bytes.count);
        if count > MOST_GIDS {
            return Err(Malformed::Field("number of addresses"));
        }
        let gids = rest.get(..count * 16).ok_or(Malformed::Length)?;
        let gids = gids.as_chunks().0.iter().map(|gid| Gid(*gid)).collect();
        Ok(Self { is_answer: flags & ANSWER != 0, gids })
    }
}

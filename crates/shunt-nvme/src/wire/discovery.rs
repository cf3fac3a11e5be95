//! The discovery log page (Base 5.16.1.23).

use super::{Nqn, U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Port of discovery services (TCP 3.1).
pub const PORT: u16 = 8009;

/// TRTYPE of TCP.
pub const TRTYPE_TCP: u8 = 3;
/// ADRFAM of IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// ADRFAM of IPv6.
pub const ADRFAM_IPV6: u8 = 2;

/// SUBTYPE: what an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SubsystemType {
    /// A referral to another discovery service.
    Referral = 1,
    /// An NVM subsystem.
    Nvm = 2,
    /// This discovery service.
    CurrentDiscovery = 3,
}

/// Header of the log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// GENCTR: changes with each change of the log.
    pub genctr: U64,
    /// NUMREC: entries.
    pub numrec: U64,
    /// RECFMT: 0.
    pub recfmt: U16,
    reserved: [u8; 1006],
}

/// An entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Entry {
    /// TRTYPE.
    pub trtype: u8,
    /// ADRFAM.
    pub adrfam: u8,
    /// SUBTYPE.
    pub subtype: u8,
    /// TREQ: bits 1:0 secure channel (2: not required), bit 2 SQ flow control may be turned off.
    pub treq: u8,
    /// PORTID.
    pub portid: U16,
    /// CNTLID.
    pub cntlid: U16,
    /// ASQSZ: the largest Admin Queue.
    pub asqsz: U16,
    /// EFLAGS.
    pub eflags: U16,
    reserved12: [u8; 20],
    /// TRSVCID: port, as text, padded with spaces.
    pub trsvcid: [u8; 32],
    reserved64: [u8; 192],
    /// SUBNQN, ended by a zero.
    pub subnqn: [u8; 256],
    /// TRADDR: address, as text, padded with spaces.
    pub traddr: [u8; 256],
    /// TSAS: its first byte is SECTYPE, 0 for none.
    pub tsas: [u8; 256],
}

/// What an entry says, as values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it leads to.
    pub kind: SubsystemType,
    /// The subsystem.
    pub subnqn: Nqn,
    /// Where it listens.
    pub address: core::net::SocketAddr,
    /// The port's number in the subsystem.
    pub portid: u16,
    /// The largest Admin Queue.
    pub max_admin_queue: u16,
}

impl Record {
    /// The entry.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let ip = self.address.ip();
        Entry {
            trtype: TRTYPE_TCP,
            adrfam: if ip.is_ipv4() { ADRFAM_IPV4 } else { ADRFAM_IPV6 },
            subtype: self.kind as u8,
            treq: 1 << 2 | 2,
            portid: self.portid.into(),
            cntlid: super::fabrics::DYNAMIC_CONTROLLER.into(),
            asqsz: self.max_admin_queue.into(),
            trsvcid: super::identify::padded(&self.address.port().to_string()),
            subnqn: self.subnqn.field(),
            traddr: super::identify::padded(&ip.to_string()),
            ..Entry::new_zeroed()
        }
    }

    /// What an entry says, if it is one of TCP that this crate understands.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        let kind = match entry.subtype {
            1 => SubsystemType::Referral,
            2 => SubsystemType::Nvm,
            3 => SubsystemType::CurrentDiscovery,
            _ => return None,
        };
        if entry.trtype != TRTYPE_TCP {
            return None;
        }
        let ip: core::net::IpAddr = text(&entry.traddr)?.parse().ok()?;
        let port: u16 = text(&entry.trsvcid)?.parse().ok()?;
        Some(Self {
            kind,
            subnqn: Nqn::from_field(&entry.subnqn).ok()?,
            address: (ip, port).into(),
            portid: entry.portid.get(),
            max_admin_queue: entry.asqsz.get(),
        })
    }
}

/// The text of a field that spaces or zeros pad.
fn text(field: &[u8]) -> Option<&str> {
    let text = core::str::from_utf8(field).ok()?;
    Some(text.trim_end_matches([' ', '\0']))
}

/// The log.
#[must_use]
pub fn log(genctr: u64, records: &[Record]) -> Vec<u8> {
    let header = Header {
        genctr: genctr.into(),
        numrec: (records.len() as u64).into(),
        ..Header::new_zeroed()
    };
    let mut log = header.as_bytes().to_vec();
    for record in records {
        log.extend_from_slice(record.entry().as_bytes());
    }
    log
}

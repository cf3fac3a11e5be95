//! Reservations: fields of commands, and the status structure (Base 7.2 to 7.5, 8.19).

use super::{Sqe, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RTYPE: who may read and write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Type {
    /// Write Exclusive: the holder alone writes.
    WriteExclusive = 1,
    /// Exclusive Access: the holder alone reads and writes.
    ExclusiveAccess = 2,
    /// Write Exclusive - Registrants Only: registrants write.
    WriteExclusiveRegistrants = 3,
    /// Exclusive Access - Registrants Only: registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// Write Exclusive - All Registrants: as 3, and all registrants hold it.
    WriteExclusiveAll = 5,
    /// Exclusive Access - All Registrants: as 4, and all registrants hold it.
    ExclusiveAccessAll = 6,
}

impl Type {
    /// The type for a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            2 => Self::ExclusiveAccess,
            3 => Self::WriteExclusiveRegistrants,
            4 => Self::ExclusiveAccessRegistrants,
            5 => Self::WriteExclusiveAll,
            6 => Self::ExclusiveAccessAll,
            _ => return None,
        })
    }

    /// True if others than those it names must not read either.
    #[must_use]
    pub const fn excludes_reads(self) -> bool {
        (self as u8).is_multiple_of(2)
    }

    /// True if registrants may do what the holder may.
    #[must_use]
    pub const fn for_registrants(self) -> bool {
        self as u8 >= 3
    }

    /// True if every registrant is a holder.
    #[must_use]
    pub const fn for_all(self) -> bool {
        self as u8 >= 5
    }
}

/// What hosts are told of (Base 8.19): the type of a Reservation Notification log page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Notification {
    /// The host's registration was preempted.
    RegistrationPreempted = 1,
    /// A reservation was released, and the host is a registrant.
    ReservationReleased = 2,
    /// Another host has cleared the host's registration, and the reservation with it.
    ReservationPreempted = 3,
}

impl Notification {
    /// Its bit in the Reservation Notification Mask feature (Base 5.27.1): REGPRE, RESREL, RESPRE.
    #[must_use]
    pub const fn mask(self) -> u32 {
        1 << self as u8
    }

    /// All bits of the feature.
    pub const MASKS: u32 = 0b1110;
}

/// CDW10 of Register, Acquire and Release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields {
    /// RREGA, RACQA or RRELA.
    pub action: u8,
    /// IEKEY: the current key is not looked at.
    pub ignore_key: bool,
    /// RTYPE.
    pub rtype: u8,
    /// CPTPL of Register: 0 nothing changes, 2 off, 3 on.
    pub persist: u8,
}

impl Fields {
    /// The fields of an entry.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a dword")]
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            action: cdw10 as u8 & 7,
            ignore_key: cdw10 & 1 << 3 != 0,
            rtype: (cdw10 >> 8) as u8,
            persist: (cdw10 >> 30) as u8,
        }
    }
}

/// Data of Register (CRKEY, NRKEY) and Acquire (CRKEY, PRKEY).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Keys {
    /// The current key.
    pub current: U64,
    /// The new key, or that of those who are preempted.
    pub other: U64,
}

/// Header of the Reservation Status structures (Base 7.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StatusHeader {
    /// GEN.
    pub generation: U32,
    /// RTYPE, 0 for none.
    pub rtype: u8,
    /// REGSTRNT: registrants that follow.
    pub registrants: U16,
    reserved7: [u8; 2],
    /// PTPLS.
    pub ptpls: u8,
    reserved10: [u8; 14],
}

/// A registrant with a host identifier of 128 bits.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedRegistrant {
    /// CNTLID.
    pub cntlid: U16,
    /// RCSTS: bit 0 holds the reservation.
    pub rcsts: u8,
    reserved3: [u8; 5],
    /// RKEY.
    pub rkey: U64,
    /// HOSTID.
    pub hostid: [u8; 16],
    reserved32: [u8; 32],
}

/// The extended status structure for registrants: controller, holder, key, host.
#[must_use]
pub fn extended_status(
    generation: u32,
    rtype: Option<Type>,
    registrants: &[(u16, bool, u64, [u8; 16])],
) -> Vec<u8> {
    let header = StatusHeader {
        generation: generation.into(),
        rtype: rtype.map_or(0, |rtype| rtype as u8),
        registrants: u16::try_from(registrants.len()).unwrap_or(u16::MAX).into(),
        ..StatusHeader::new_zeroed()
    };
    let mut status = header.as_bytes().to_vec();
    // The extended header has 40 bytes more, all reserved.
    status.resize(64, 0);
    for (cntlid, holder, key, hostid) in registrants {
        let registrant = ExtendedRegistrant {
            cntlid: (*cntlid).into(),
            rcsts: u8::from(*holder),
            rkey: (*key).into(),
            hostid: *hostid,
            ..ExtendedRegistrant::new_zeroed()
        };
        status.extend_from_slice(registrant.as_bytes());
    }
    status
}

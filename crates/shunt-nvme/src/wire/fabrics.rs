//! Fabrics commands (Base 6), as views of a submission queue entry and as builders of one.

use super::{Sgl, Sqe, U16, queue_entry::low};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Types of Fabrics commands: FCTYPE.
pub mod fctype {
    /// Property Set (Base 6.6).
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect (Base 6.3).
    pub const CONNECT: u8 = 0x01;
    /// Property Get (Base 6.5).
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send (Base 6.2).
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive (Base 6.1).
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect (Base 6.4).
    pub const DISCONNECT: u8 = 0x08;
}

/// Bytes of Connect's data.
pub const CONNECT_DATA_LEN: u32 = 1024;
/// CNTLID of a host that takes any controller.
pub const DYNAMIC_CONTROLLER: u16 = 0xffff;
/// AUTHREQ in the result of Connect: authentication is required (ATR).
pub const AUTHENTICATION_REQUIRED: u32 = 1 << 17;

/// Fields of a Connect command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// RECFMT: format of command and data, 0.
    pub recfmt: u16,
    /// QID: 0 is the Admin Queue.
    pub qid: u16,
    /// SQSIZE: entries, zero's based.
    pub sqsize: u16,
    /// CATTR bit 2: SQ flow control is off.
    pub no_flow_control: bool,
    /// KATO in milliseconds.
    pub kato: u32,
}

impl Connect {
    /// The fields of an entry that is a Connect command.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a dword")]
    pub const fn of(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Self {
            recfmt: cdw10 as u16,
            qid: (cdw10 >> 16) as u16,
            sqsize: cdw11 as u16,
            no_flow_control: cdw11 & 1 << 18 != 0,
            kato: sqe.cdw12.get(),
        }
    }

    /// The command. Its data goes into the capsule.
    #[must_use]
    pub fn sqe(&self) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype::CONNECT);
        sqe.sgl = Sgl::in_capsule(CONNECT_DATA_LEN);
        sqe.cdw10 = (u32::from(self.recfmt) | u32::from(self.qid) << 16).into();
        sqe.cdw11 = (u32::from(self.sqsize) | u32::from(self.no_flow_control) << 18).into();
        sqe.cdw12 = self.kato.into();
        sqe
    }
}

/// Data of a Connect command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// HOSTID.
    pub hostid: [u8; 16],
    /// CNTLID.
    pub cntlid: U16,
    reserved0: [u8; 238],
    /// SUBNQN, ended by a zero.
    pub subnqn: [u8; 256],
    /// HOSTNQN, ended by a zero.
    pub hostnqn: [u8; 256],
    reserved1: [u8; 256],
}

impl ConnectData {
    /// The data for these names.
    #[must_use]
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &super::Nqn, hostnqn: &super::Nqn) -> Self {
        Self {
            hostid,
            cntlid: cntlid.into(),
            subnqn: subnqn.field(),
            hostnqn: hostnqn.field(),
            ..Self::new_zeroed()
        }
    }
}

/// Offsets of fields in Connect's command and data, for the result of a refusal (Base 6.3).
pub mod connect_field {
    /// Set in the result where the offset is one of the data.
    pub const IN_DATA: u32 = 1 << 16;
    /// RECFMT.
    pub const RECFMT: u32 = 40;
    /// QID.
    pub const QID: u32 = 42;
    /// SQSIZE.
    pub const SQSIZE: u32 = 44;
    /// HOSTID.
    pub const HOSTID: u32 = IN_DATA;
    /// CNTLID.
    pub const CNTLID: u32 = IN_DATA | 16;
    /// SUBNQN.
    pub const SUBNQN: u32 = IN_DATA | 256;
    /// HOSTNQN.
    pub const HOSTNQN: u32 = IN_DATA | 512;
}

/// A property, of a Property Get or Set command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Property {
    /// OFST: see [`super::registers`].
    pub offset: u32,
    /// ATTRIB: eight bytes instead of four.
    pub wide: bool,
    /// VALUE, of Property Set.
    pub value: u64,
}

impl Property {
    /// The fields of an entry, if ATTRIB is a known size.
    #[must_use]
    pub const fn of(sqe: &Sqe) -> Option<Self> {
        let wide = match sqe.cdw10.get() & 7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        let value = sqe.cdw12.get() as u64 | (sqe.cdw13.get() as u64) << 32;
        Some(Self { offset: sqe.cdw11.get(), wide, value })
    }

    /// A Property Get.
    #[must_use]
    pub fn get(offset: u32, wide: bool) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype::PROPERTY_GET);
        sqe.cdw10 = u32::from(wide).into();
        sqe.cdw11 = offset.into();
        sqe
    }

    /// A Property Set.
    #[must_use]
    pub fn set(offset: u32, wide: bool, value: u64) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype::PROPERTY_SET);
        sqe.cdw10 = u32::from(wide).into();
        sqe.cdw11 = offset.into();
        sqe.cdw12 = low(value).into();
        sqe.cdw13 = low(value >> 32).into();
        sqe
    }
}

/// Security protocol of NVMe in-band authentication: SECP (Base 8.13).
pub const SECURITY_PROTOCOL: u8 = 0xe9;

/// Fields of Authentication Send and Receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Authentication {
    /// SECP.
    pub secp: u8,
    /// SPSP0 and SPSP1, lower byte first.
    pub spsp: u16,
    /// TL or AL: bytes of the message, or room for it.
    pub len: u32,
}

impl Authentication {
    /// The fields of an entry.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a dword")]
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self { secp: (cdw10 >> 24) as u8, spsp: (cdw10 >> 8) as u16, len: sqe.cdw11.get() }
    }

    /// True if protocol and protocol specific fields are those of NVMe.
    #[must_use]
    pub const fn is_nvme(&self) -> bool {
        self.secp == SECURITY_PROTOCOL && self.spsp == 0x0101
    }

    /// An Authentication Send of a message of `len` bytes, in the capsule.
    #[must_use]
    pub fn send(len: u32) -> Sqe {
        Self::sqe(fctype::AUTHENTICATION_SEND, Sgl::in_capsule(len), len)
    }

    /// An Authentication Receive with room for `len` bytes.
    #[must_use]
    pub fn receive(len: u32) -> Sqe {
        Self::sqe(fctype::AUTHENTICATION_RECEIVE, Sgl::transport(len), len)
    }

    fn sqe(kind: u8, sgl: Sgl, len: u32) -> Sqe {
        let mut sqe = Sqe::fabrics(kind);
        sqe.sgl = sgl;
        sqe.cdw10 = (u32::from(SECURITY_PROTOCOL) << 24 | 0x0101 << 8).into();
        sqe.cdw11 = len.into();
        sqe
    }
}

/// A Disconnect.
#[must_use]
pub fn disconnect() -> Sqe {
    Sqe::fabrics(fctype::DISCONNECT)
}

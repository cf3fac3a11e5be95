//! Submission and completion queue entries (Base 3.3.3).

use super::{Sgl, Status, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Opcode of all Fabrics commands (Base 6).
pub const FABRICS_OPCODE: u8 = 0x7f;

/// Flags: data by SGL, metadata by address (PSDT 01b), which Fabrics commands and NVMe/TCP use.
const PSDT_SGL: u8 = 1 << 6;

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// No data.
    None,
    /// Host to controller.
    ToController,
    /// Controller to host.
    ToHost,
    /// Both ways, which no command of NVMe/TCP does.
    Both,
}

/// Place in a fused operation (Base 3.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fuse {
    /// Not fused.
    No,
    /// The first command.
    First,
    /// The second command.
    Second,
    /// A value that is reserved.
    Reserved,
}

/// Submission queue entry.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// OPC.
    pub opcode: u8,
    /// FUSE and PSDT.
    pub flags: u8,
    /// CID.
    pub cid: U16,
    /// NSID; FCTYPE in its first byte for Fabrics commands.
    pub nsid: U32,
    /// CDW2 and CDW3.
    pub cdw2: [U32; 2],
    /// MPTR.
    pub mptr: U64,
    /// DPTR: SGL1.
    pub sgl: Sgl,
    /// CDW10.
    pub cdw10: U32,
    /// CDW11.
    pub cdw11: U32,
    /// CDW12.
    pub cdw12: U32,
    /// CDW13.
    pub cdw13: U32,
    /// CDW14.
    pub cdw14: U32,
    /// CDW15.
    pub cdw15: U32,
}

impl Sqe {
    /// An entry with this opcode and namespace, and zeros.
    #[must_use]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, flags: PSDT_SGL, nsid: nsid.into(), ..Self::new_zeroed() }
    }

    /// A Fabrics command of this type.
    #[must_use]
    pub fn fabrics(fctype: u8) -> Self {
        Self::new(FABRICS_OPCODE, u32::from(fctype))
    }

    /// FCTYPE, if it is a Fabrics command.
    #[must_use]
    pub fn fctype(&self) -> Option<u8> {
        (self.opcode == FABRICS_OPCODE).then(|| self.nsid.as_bytes()[0])
    }

    /// Which way the command's data goes: by the lowest bits of its opcode or FCTYPE (Base 3.3.3.1).
    #[must_use]
    pub fn direction(&self) -> Direction {
        match self.fctype().unwrap_or(self.opcode) & 3 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }

    /// FUSE.
    #[must_use]
    pub const fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::No,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Sets FUSE.
    pub const fn set_fuse(&mut self, fuse: Fuse) {
        self.flags = self.flags & !3 | fuse as u8;
    }

    /// DPTR as PRP1 and PRP2: data of a controller on PCIe.
    #[must_use]
    pub fn prps(&self) -> [u64; 2] {
        let (entries, _) = self.sgl.as_bytes().as_chunks::<8>();
        [0, 1].map(|n| entries.get(n).map_or(0, |entry| u64::from_le_bytes(*entry)))
    }

    /// True where DPTR is PRP1 and PRP2: PSDT 00b.
    #[must_use]
    pub const fn has_prps(&self) -> bool {
        self.flags >> 6 == 0
    }

    /// CDW10 and CDW11 as one number: SLBA of I/O commands.
    #[must_use]
    pub const fn cdw10_64(&self) -> u64 {
        self.cdw10.get() as u64 | (self.cdw11.get() as u64) << 32
    }

    /// Sets CDW10 and CDW11.
    pub fn set_cdw10_64(&mut self, value: u64) {
        self.cdw10 = low(value).into();
        self.cdw11 = low(value >> 32).into();
    }
}

/// The lower half.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is asked for")]
pub(crate) const fn low(value: u64) -> u32 {
    value as u32
}

/// Completion queue entry.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// DW0 and DW1: specific to the command.
    pub result: U64,
    /// SQHD.
    pub sqhd: U16,
    /// SQID: not used by Fabrics.
    pub sqid: U16,
    /// CID.
    pub cid: U16,
    /// Status field; its lowest bit, the phase tag, is not used by Fabrics.
    pub status_field: U16,
}

impl Cqe {
    /// An entry.
    #[must_use]
    pub fn new(cid: u16, status: Status, result: u64, sqhd: u16) -> Self {
        Self {
            result: result.into(),
            sqhd: sqhd.into(),
            sqid: 0.into(),
            cid: cid.into(),
            status_field: (status.bits() << 1).into(),
        }
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_field.get() >> 1)
    }
}

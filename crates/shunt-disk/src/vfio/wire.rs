//! Messages of vfio-user (docs/interop/vfio-user of QEMU, and rust-vmm's `vfio_user`), as a device has to do with them.
//! Structures are those of `linux/vfio.h`. Numbers are in the machine's order, which is little-endian on all that Shunt runs on.

use shunt_nvme::wire::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::message::Framing;

/// The longest read or write of a region.
pub const MAX_ACCESS: u32 = 1 << 20;

/// How messages are told apart.
pub const FRAMING: Framing = Framing {
    header: size_of::<Header>(),
    size_at: 4,
    counts_header: true,
    most: MAX_ACCESS as usize + 64,
    // One for each interrupt, and more than any other message has.
    fds: 128,
};

/// Commands.
pub mod command {
    /// The first one.
    pub const VERSION: u16 = 1;
    /// Memory comes.
    pub const DMA_MAP: u16 = 2;
    /// Memory goes.
    pub const DMA_UNMAP: u16 = 3;
    /// What the device is.
    pub const GET_INFO: u16 = 4;
    /// What a region is.
    pub const GET_REGION_INFO: u16 = 5;
    /// What a kind of interrupts is.
    pub const GET_IRQ_INFO: u16 = 7;
    /// How interrupts are told.
    pub const SET_IRQS: u16 = 8;
    /// Read of a region.
    pub const REGION_READ: u16 = 9;
    /// Write to a region.
    pub const REGION_WRITE: u16 = 10;
    /// Reset.
    pub const RESET: u16 = 13;
}

/// Flags of a header.
pub mod flag {
    /// The kind of the message.
    pub const KIND: u32 = 0xf;
    /// The kind that answers a command, which is zero.
    pub const REPLY: u32 = 1;
    /// No answer is wanted.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The command has failed.
    pub const ERROR: u32 = 1 << 5;
}

/// What each message begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The sender's number for it.
    pub id: U16,
    /// One of [`command`].
    pub command: U16,
    /// Bytes, with these.
    pub size: U32,
    /// See [`flag`].
    pub flags: U32,
    /// An errno(3).
    pub error: U32,
}

/// Capabilities, with the zero at their end: as many descriptors as QEMU allows, and the longest access.
pub const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576}}\0";

/// Version: major and minor number; capabilities follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Version {
    /// 0.
    pub major: U16,
    /// 0.
    pub minor: U16,
}

/// `DMA_MAP`: a descriptor comes with it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this.
    pub argsz: U32,
    /// See [`Self::READ_WRITE`].
    pub flags: U32,
    /// Where the memory begins in the file.
    pub offset: U64,
    /// Where it begins for the guest.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

impl DmaMap {
    /// The device may read and write the memory.
    pub const READ_WRITE: u32 = 3;
}

/// `DMA_UNMAP`, and its answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this.
    pub argsz: U32,
    /// Dirty pages are asked for, or all memory goes.
    pub flags: U32,
    /// Where it begins for the guest.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

/// `GET_INFO`, and its answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this.
    pub argsz: U32,
    /// `VFIO_DEVICE_FLAGS_`.
    pub flags: U32,
    /// Regions.
    pub regions: U32,
    /// Kinds of interrupts.
    pub irqs: U32,
}

/// `GET_REGION_INFO`, and its answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// Bytes of this.
    pub argsz: U32,
    /// `VFIO_REGION_INFO_FLAG_`.
    pub flags: U32,
    /// Which.
    pub index: U32,
    /// Nothing follows.
    pub capabilities: U32,
    /// Bytes.
    pub size: U64,
    /// Where it is in a file; there is none.
    pub offset: U64,
}

/// `GET_IRQ_INFO`, and its answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this.
    pub argsz: U32,
    /// `VFIO_IRQ_INFO_`.
    pub flags: U32,
    /// Which kind.
    pub index: U32,
    /// How many.
    pub count: U32,
}

/// `SET_IRQS`: descriptors may come with it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetIrqs {
    /// Bytes of this.
    pub argsz: U32,
    /// See the constants.
    pub flags: U32,
    /// Which kind.
    pub index: U32,
    /// The first one.
    pub start: U32,
    /// How many.
    pub count: U32,
}

impl SetIrqs {
    /// No data: interrupts are raised, or, none of them, forgotten.
    pub const NONE: u32 = 1;
    /// Data are eventfds.
    pub const EVENTFD: u32 = 1 << 2;
    /// What is done with them: they are raised from now on.
    pub const TRIGGER: u32 = 1 << 5;
}

/// `REGION_READ` and `REGION_WRITE`, and their answers; data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionAccess {
    /// Where in the region.
    pub offset: U64,
    /// Which.
    pub region: U32,
    /// Bytes.
    pub count: U32,
}

/// Regions of a PCI device (`VFIO_PCI_BAR0_REGION_INDEX` and so on).
pub mod region {
    /// BAR0.
    pub const BAR0: u32 = 0;
    /// The configuration space.
    pub const CONFIG: u32 = 7;
    /// How many.
    pub const COUNT: u32 = 9;
}

/// Kinds of interrupts of a PCI device.
pub mod irq {
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// How many.
    pub const COUNT: u32 = 5;
}

/// The answer to a message: `parts` are what follows the header.
#[must_use]
pub fn reply(to: &Header, parts: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<Header>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let size = u32::try_from(len).unwrap_or(u32::MAX).into();
    let header = Header { size, flags: flag::REPLY.into(), error: 0.into(), ..*to };
    [&[header.as_bytes()], parts].concat().concat()
}

/// The answer that a message has failed.
#[must_use]
pub fn refusal(to: &Header, error: u32) -> Vec<u8> {
    let size = u32::try_from(size_of::<Header>()).unwrap_or(u32::MAX).into();
    let flags = (flag::REPLY | flag::ERROR).into();
    Header { size, flags, error: error.into(), ..*to }.as_bytes().to_vec()
}

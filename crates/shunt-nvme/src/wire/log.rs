//! Log pages (Base 5.16.1), but for the discovery log, which is [`super::discovery`].

use super::{Sqe, U16, U32, U64, U128, reservation::Notification};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Log page identifiers.
pub mod lid {
    /// Supported Log Pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Error Information.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information.
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access.
    pub const ANA: u8 = 0x0c;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation Notification.
    pub const RESERVATION: u8 = 0x80;
}

/// Fields of a Get Log Page command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetLogPage {
    /// LID.
    pub lid: u8,
    /// LSP.
    pub lsp: u8,
    /// RAE: the event stays.
    pub retain: bool,
    /// Bytes asked for: NUMD is dwords, zero's based.
    pub len: u64,
    /// LPO: offset in bytes.
    pub offset: u64,
    /// OT: the offset is an index, which no page of this crate has.
    pub by_index: bool,
}

impl GetLogPage {
    /// The fields of an entry.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a dword")]
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        let numd = (cdw10 >> 16) as u64 | ((sqe.cdw11.get() & 0xffff) as u64) << 16;
        Self {
            lid: cdw10 as u8,
            lsp: (cdw10 >> 8) as u8 & 0x7f,
            retain: cdw10 & 1 << 15 != 0,
            len: (numd + 1) * 4,
            offset: sqe.cdw12.get() as u64 | (sqe.cdw13.get() as u64) << 32,
            by_index: sqe.cdw14.get() & 1 << 23 != 0,
        }
    }

    /// The command for `len` bytes (a multiple of four) of a page.
    #[must_use]
    pub fn sqe(lid: u8, nsid: u32, offset: u64, len: u32) -> Sqe {
        let mut sqe = Sqe::new(super::opcode::admin::GET_LOG_PAGE, nsid);
        let numd = (len / 4).saturating_sub(1);
        sqe.sgl = super::Sgl::transport(len);
        sqe.cdw10 = (u32::from(lid) | numd << 16).into();
        sqe.cdw11 = (numd >> 16).into();
        sqe.cdw12 = super::queue_entry::low(offset).into();
        sqe.cdw13 = super::queue_entry::low(offset >> 32).into();
        sqe
    }
}

/// SMART / Health Information (Base 5.16.1.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Smart {
    /// Critical Warning.
    pub critical_warning: u8,
    /// Composite Temperature in kelvins.
    pub temperature: U16,
    /// Available Spare in percent.
    pub available_spare: u8,
    /// Available Spare Threshold.
    pub spare_threshold: u8,
    /// Percentage Used.
    pub percentage_used: u8,
    reserved6: [u8; 26],
    /// Data Units Read: thousands of 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written: the same.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time in minutes.
    pub busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries.
    pub error_entries: U128,
    reserved192: [u8; 320],
}

impl Smart {
    /// All zero.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

/// A Reservation Notification log page (Base 5.16.1.24). All zero where nothing is to be told.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ReservationPage {
    /// Log Page Count, from 1. Of the last page before others were lost it is that of the last one lost.
    pub count: U64,
    /// Reservation Notification Log Page Type.
    pub kind: u8,
    /// Number of Available Log Pages: so many more can be read.
    pub available: u8,
    reserved10: [u8; 2],
    /// Namespace ID.
    pub nsid: U32,
    reserved16: [u8; 48],
}

impl ReservationPage {
    /// One of a namespace.
    #[must_use]
    pub fn new(count: u64, kind: Notification, nsid: u32) -> Self {
        Self { count: count.into(), kind: kind as u8, nsid: nsid.into(), ..Self::new_zeroed() }
    }

    /// The empty one.
    #[must_use]
    pub fn empty() -> Self {
        Self::new_zeroed()
    }
}

/// An entry of the Error Information log (Base 5.16.1.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error Count, from 1.
    pub count: U64,
    /// Submission Queue ID.
    pub sqid: U16,
    /// Command ID.
    pub cid: U16,
    /// Status Field.
    pub status_field: U16,
    /// Parameter Error Location.
    pub location: U16,
    /// LBA.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    reserved28: [u8; 36],
}

impl ErrorEntry {
    /// An entry for a command that has failed.
    #[must_use]
    pub fn new(count: u64, sqid: u16, sqe: &Sqe, status: super::Status) -> Self {
        Self {
            count: count.into(),
            sqid: sqid.into(),
            cid: sqe.cid,
            status_field: (status.bits() << 1).into(),
            location: 0xffff.into(),
            nsid: sqe.nsid,
            ..Self::new_zeroed()
        }
    }
}

/// Commands Supported and Effects: CSUPP, the command is supported (Base 5.16.1.6).
pub const EFFECT_SUPPORTED: u32 = 1;
/// The same: LBCC, the command may change blocks.
pub const EFFECT_CHANGES_BLOCKS: u32 = 1 << 1;

/// ANA states (Base 8.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AnaState {
    /// Optimized.
    Optimized = 0x1,
    /// Non-Optimized.
    NonOptimized = 0x2,
    /// Inaccessible.
    Inaccessible = 0x3,
    /// Persistent Loss.
    PersistentLoss = 0x4,
    /// Change: it will be another soon.
    Change = 0xf,
}

impl AnaState {
    /// The state for a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x1 => Self::Optimized,
            0x2 => Self::NonOptimized,
            0x3 => Self::Inaccessible,
            0x4 => Self::PersistentLoss,
            0xf => Self::Change,
            _ => return None,
        })
    }
}

/// Header of the ANA log (Base 5.16.1.13).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// Change Count.
    pub change_count: U64,
    /// Groups that follow.
    pub groups: U16,
    reserved: [u8; 6],
}

/// An ANA group; its namespaces follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    /// ANA Group ID.
    pub group: U32,
    /// Namespaces that follow.
    pub namespaces: U32,
    /// Change Count.
    pub change_count: U64,
    /// State.
    pub state: u8,
    reserved: [u8; 15],
}

/// A group of the ANA log, as values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnaDescriptor {
    /// The group.
    pub group: u32,
    /// Its state: [`AnaState`].
    pub state: u8,
    /// Its namespaces, ascending.
    pub namespaces: Vec<u32>,
}

/// The ANA log. `groups_only` is LSP's RGO bit.
#[must_use]
pub fn ana(change_count: u64, groups: &[AnaDescriptor], groups_only: bool) -> Vec<u8> {
    let number = u16::try_from(groups.len()).unwrap_or(u16::MAX);
    let header =
        AnaHeader { change_count: change_count.into(), groups: number.into(), reserved: [0; 6] };
    let mut log = header.as_bytes().to_vec();
    for group in groups.iter().take(usize::from(number)) {
        let namespaces: &[u32] = if groups_only { &[] } else { &group.namespaces };
        let descriptor = AnaGroup {
            group: group.group.into(),
            namespaces: u32::try_from(namespaces.len()).unwrap_or(u32::MAX).into(),
            change_count: change_count.into(),
            state: group.state,
            reserved: [0; 15],
        };
        log.extend_from_slice(descriptor.as_bytes());
        log.extend(namespaces.iter().flat_map(|nsid| nsid.to_le_bytes()));
    }
    log
}

/// Change count and groups of an ANA log; `None` if it ends before its last group does.
#[must_use]
pub fn parse_ana(log: &[u8]) -> Option<(u64, Vec<AnaDescriptor>)> {
    let (header, mut rest) = AnaHeader::ref_from_prefix(log).ok()?;
    let mut groups = Vec::new();
    for _ in 0..header.groups.get() {
        let (group, behind) = AnaGroup::ref_from_prefix(rest).ok()?;
        let number = usize::try_from(group.namespaces.get()).ok()?;
        let (nsids, behind) = behind.split_at_checked(number.checked_mul(4)?)?;
        let (nsids, _) = nsids.as_chunks::<4>();
        let namespaces = nsids.iter().map(|nsid| u32::from_le_bytes(*nsid)).collect();
        groups.push(AnaDescriptor { group: group.group.get(), state: group.state, namespaces });
        rest = behind;
    }
    Some((header.change_count.get(), groups))
}

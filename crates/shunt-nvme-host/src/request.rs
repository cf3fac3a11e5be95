//! Commands for namespaces.

use shunt_nvme::wire::identify::{self, nidt};
use shunt_nvme::wire::opcode::io;
use shunt_nvme::wire::{Direction, Fuse, Sqe};

use crate::memory::Data;

/// CDW12: Force Unit Access.
const FUA: u32 = 1 << 30;
/// CDW12 of Write Zeroes: Deallocate.
const DEAC: u32 = 1 << 25;
/// CDW11 of Dataset Management: Attribute - Deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;
/// Ranges of a Dataset Management command.
pub const MAX_RANGES: usize = 256;
/// Blocks of a command: NLB has 16 bits.
const MAX_BLOCKS: u32 = 1 << 16;

/// Blocks in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first one.
    pub start: u64,
    /// How many.
    pub blocks: u32,
}

/// A disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Its number.
    pub nsid: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Its ANA group; 0 without ANA.
    pub ana_group: u32,
    /// It cannot be written.
    pub read_only: bool,
    /// NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// UUID, if it has one.
    pub uuid: Option<[u8; 16]>,
}

impl Namespace {
    /// What the controller has said. `None` for one that is not active, or whose blocks have
    /// metadata between them, which this host does not do.
    pub(crate) fn of(nsid: u32, data: &identify::Namespace, descriptors: &[u8]) -> Option<Self> {
        let format = data.format();
        let with_metadata = format.ms.get() > 0 && data.flbas & 1 << 4 != 0;
        if data.nsze.get() == 0 || !(9..=20).contains(&format.lbads) || with_metadata {
            return None;
        }
        let uuid = identify::parse_descriptors(descriptors)
            .find(|(kind, _)| *kind == nidt::UUID)
            .and_then(|(_, id)| id.try_into().ok());
        Some(Self {
            nsid,
            blocks: data.nsze.get(),
            block_size: 1 << format.lbads,
            ana_group: data.anagrpid.get(),
            read_only: data.nsattr & 1 != 0,
            nguid: Some(data.nguid).filter(|id| *id != [0; 16]),
            uuid,
        })
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size as u64)
    }

    /// Never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    fn with_blocks(&self, opcode: u8, start: u64, blocks: u32) -> Request {
        let mut sqe = Sqe::new(opcode, self.nsid);
        sqe.set_cdw10_64(start);
        let blocks = blocks.clamp(1, MAX_BLOCKS);
        sqe.cdw12 = (blocks - 1).into();
        let has_data = sqe.direction() != Direction::None;
        let len = if has_data { blocks.saturating_mul(self.block_size) } else { 0 };
        Request { sqe, len, ana_group: self.ana_group }
    }

    /// Reads blocks, from 1 to 65,536.
    #[must_use]
    pub fn read(&self, start: u64, blocks: u32) -> Request {
        self.with_blocks(io::READ, start, blocks)
    }

    /// Writes blocks.
    #[must_use]
    pub fn write(&self, start: u64, blocks: u32) -> Request {
        self.with_blocks(io::WRITE, start, blocks)
    }

    /// Compares blocks with the data: *Compare Failure* where they differ.
    #[must_use]
    pub fn compare(&self, start: u64, blocks: u32) -> Request {
        self.with_blocks(io::COMPARE, start, blocks)
    }

    /// Writes zeroes; `deallocate`: the space may be given up.
    #[must_use]
    pub fn write_zeroes(&self, start: u64, blocks: u32, deallocate: bool) -> Request {
        // Its direction by the opcode is none.
        let mut request = self.with_blocks(io::WRITE_ZEROES, start, blocks);
        if deallocate {
            request.sqe.cdw12 = (request.sqe.cdw12.get() | DEAC).into();
        }
        request
    }

    /// Reads blocks at the target alone.
    #[must_use]
    pub fn verify(&self, start: u64, blocks: u32) -> Request {
        self.with_blocks(io::VERIFY, start, blocks)
    }

    /// Makes what was written durable.
    #[must_use]
    pub fn flush(&self) -> Request {
        Request { sqe: Sqe::new(io::FLUSH, self.nsid), len: 0, ana_group: self.ana_group }
    }

    /// Gives up the space of blocks; the data to submit it with. At most [`MAX_RANGES`] are taken.
    #[must_use]
    pub fn discard(&self, ranges: &[Range]) -> (Request, Data) {
        let ranges = &ranges[..ranges.len().min(MAX_RANGES)];
        let mut data = Vec::with_capacity(ranges.len() * 16);
        for range in ranges {
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&range.blocks.to_le_bytes());
            data.extend_from_slice(&range.start.to_le_bytes());
        }
        let count = u32::try_from(ranges.len()).unwrap_or(0);
        let mut sqe = Sqe::new(io::DATASET_MANAGEMENT, self.nsid);
        sqe.cdw10 = count.saturating_sub(1).into();
        sqe.cdw11 = ATTRIBUTE_DEALLOCATE.into();
        (Request { sqe, len: count * 16, ana_group: self.ana_group }, data.into())
    }
}

/// A command for a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub(crate) sqe: Sqe,
    /// Bytes of data.
    pub(crate) len: u32,
    pub(crate) ana_group: u32,
}

impl Request {
    /// Any I/O command, with so many bytes of data; which way they go is the opcode's to say. CID
    /// and SGL are set when it is submitted.
    #[must_use]
    pub const fn of(sqe: Sqe, len: u32, ana_group: u32) -> Self {
        Self { sqe, len, ana_group }
    }

    /// It has completed when it is durable (FUA).
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.sqe.cdw12 = (self.sqe.cdw12.get() | FUA).into();
        self
    }

    /// The same as a half of a fused operation, or as none.
    pub(crate) fn fused(mut self, half: Fuse) -> Self {
        self.sqe.set_fuse(half);
        self
    }

    /// True for a half of a fused operation.
    pub(crate) fn is_fused(&self) -> bool {
        self.sqe.fuse() != Fuse::No
    }

    /// Bytes of data that it takes or gives.
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        self.len
    }

    /// True if doing it twice is doing it once: what is unanswered on a connection that is lost may
    /// then be sent again.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        !self.is_fused()
            && matches!(
                self.sqe.opcode,
                io::FLUSH
                    | io::WRITE
                    | io::READ
                    | io::COMPARE
                    | io::WRITE_ZEROES
                    | io::DATASET_MANAGEMENT
                    | io::VERIFY
                    | io::RESERVATION_REPORT
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Namespace {
        Namespace {
            nsid: 3,
            blocks: 1000,
            block_size: 512,
            ana_group: 2,
            read_only: false,
            nguid: None,
            uuid: None,
        }
    }

    #[test]
    fn commands() {
        let write = disk().write(0x1_0000_0002, 8).durable();
        let sqe = write.sqe;
        assert_eq!((sqe.opcode, sqe.nsid.get(), sqe.cdw10_64()), (1, 3, 0x1_0000_0002));
        assert_eq!((sqe.cdw12.get(), write.len), (7 | 1 << 30, 4096));
        assert_eq!(disk().read(0, 0).len, 512);
        let zeroes = disk().write_zeroes(5, 65536, true);
        assert_eq!((zeroes.len, zeroes.sqe.cdw12.get()), (0, 0xffff | 1 << 25));
        assert_eq!(disk().verify(1, 1).len, 0);
        let (discard, data) = disk().discard(&[Range { start: 7, blocks: 9 }; 2]);
        assert_eq!((discard.len, discard.sqe.cdw10.get(), discard.sqe.cdw11.get()), (32, 1, 4));
        assert_eq!(data.bytes()[16..], [0, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert!(write.is_repeatable() && discard.is_repeatable());
        let mut acquire = Request::of(Sqe::new(io::RESERVATION_ACQUIRE, 1), 16, 0);
        assert!(!acquire.is_repeatable());
        acquire = disk().compare(0, 1);
        acquire.sqe.set_fuse(Fuse::First);
        assert!(!acquire.is_repeatable());
    }
}

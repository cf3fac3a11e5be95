//! I/O commands (NVM 3.2), checked: what they are to do with the disk.

use std::sync::Arc;

use shunt_nvme::wire::opcode::io;
use shunt_nvme::wire::{Fuse, Sqe, Status};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::identify::{ALL, MAX_DATA, NSID};
use super::prp;
use crate::port::{Buffers, Extent, Geometry, Memory, Op};

/// CDW12: Force Unit Access.
const FUA: u32 = 1 << 30;
/// CDW12 of Write Zeroes: Deallocate.
const DEALLOCATE: u32 = 1 << 25;
/// CDW11 of Dataset Management: Attribute - Deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// A range of Dataset Management.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Range {
    attributes: U32,
    blocks: U32,
    start: U64,
}

/// What is to be done for a command.
#[derive(Debug)]
pub enum Work {
    /// This by the disk; and it is durable before the command completes.
    Submit {
        /// What.
        op: Op,
        /// Its data.
        data: Buffers,
        /// A flush follows.
        durable: bool,
    },
    /// Nothing more.
    Nothing,
}

/// Understands a command. `old` are buffers whose room may be used again.
///
/// # Errors
/// How it completes.
pub fn understand(
    sqe: &Sqe,
    memory: &Arc<Memory>,
    disk: &Geometry,
    old: Buffers,
) -> Result<Work, Status> {
    let is_flush = sqe.opcode == io::FLUSH;
    if sqe.fuse() != Fuse::No || !sqe.has_prps() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let known = matches!(sqe.opcode, io::FLUSH | io::READ | io::WRITE)
        || sqe.opcode == io::COMPARE && disk.compare
        || sqe.opcode == io::WRITE_ZEROES && disk.write_zeroes
        || sqe.opcode == io::DATASET_MANAGEMENT && disk.discard;
    if !known {
        return Err(Status::INVALID_OPCODE.dnr());
    }
    if sqe.nsid.get() != NSID && !(is_flush && sqe.nsid.get() == ALL) {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    if disk.read_only && !matches!(sqe.opcode, io::FLUSH | io::READ | io::COMPARE) {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    let none = Buffers::reusing(Arc::clone(memory), Buffers::default());
    match sqe.opcode {
        io::READ | io::WRITE | io::COMPARE => {
            let extent = extent(sqe, disk)?;
            let len = extent.blocks * u64::from(disk.block_size);
            if len > MAX_DATA {
                return Err(Status::INVALID_FIELD.dnr());
            }
            let data = prp::buffers(memory, sqe, len, old)?;
            let block = extent.block;
            let is_write = sqe.opcode == io::WRITE;
            let op = match sqe.opcode {
                io::WRITE => Op::Write { block },
                io::COMPARE => Op::Compare { block },
                _ => Op::Read { block },
            };
            Ok(Work::Submit { op, data, durable: is_write && sqe.cdw12.get() & FUA != 0 })
        }
        io::WRITE_ZEROES => {
            let deallocate = sqe.cdw12.get() & DEALLOCATE != 0;
            let op = Op::WriteZeroes { extents: vec![extent(sqe, disk)?], deallocate };
            Ok(Work::Submit { op, data: none, durable: sqe.cdw12.get() & FUA != 0 })
        }
        io::DATASET_MANAGEMENT => {
            let extents = ranges(sqe, memory, disk)?;
            // Hints of other kinds are taken, and nothing becomes of them.
            if extents.is_empty() || sqe.cdw11.get() & ATTRIBUTE_DEALLOCATE == 0 {
                return Ok(Work::Nothing);
            }
            Ok(Work::Submit { op: Op::Discard(extents), data: none, durable: false })
        }
        _ => Ok(Work::Submit { op: Op::Flush, data: none, durable: false }),
    }
}

fn inside(block: u64, blocks: u64, disk: &Geometry) -> Result<Extent, Status> {
    match block.checked_add(blocks) {
        Some(end) if end <= disk.blocks => Ok(Extent { block, blocks }),
        _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
    }
}

/// SLBA and NLB.
fn extent(sqe: &Sqe, disk: &Geometry) -> Result<Extent, Status> {
    inside(sqe.cdw10_64(), u64::from(sqe.cdw12.get() & 0xffff) + 1, disk)
}

/// The ranges of Dataset Management, without those that are empty.
fn ranges(sqe: &Sqe, memory: &Memory, disk: &Geometry) -> Result<Vec<Extent>, Status> {
    let count = (sqe.cdw10.get() & 0xff) as usize + 1;
    let mut ranges = vec![Range::new_zeroed(); count];
    prp::read(memory, sqe, ranges.as_mut_bytes())?;
    let some = ranges.iter().filter(|range| range.blocks.get() > 0);
    some.map(|range| inside(range.start.get(), range.blocks.get().into(), disk)).collect()
}

//! A guest's request (VIRTIO 1.2, 5.2.6), out of its chain of descriptors. All that it says is the guest's, so it is copied
//! once and checked: what is wrong becomes an error of that request, and of nothing else.

use std::sync::Arc;

use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, VolatileMemory};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::config::{MAX_DATA, MAX_RANGE, MAX_RANGES, MAX_SEGMENTS};
use crate::port::{Buffers, Extent, Geometry, Memory, Op, Outcome};

/// Descriptors of the longest request: its buffers, its header and its status.
const MAX_DESCRIPTORS: usize = MAX_SEGMENTS as usize + 2;

/// What a request begins with.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

/// A range that is to be given up or made zero.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Range {
    sector: U64,
    sectors: U32,
    flags: U32,
}

/// What is to be done for a request.
#[derive(Debug)]
pub enum Work {
    /// This by the disk.
    Submit(Op, Buffers),
    /// Nothing: the disk's serial number was put into the guest's memory, so many bytes of it.
    Identified(u32),
    /// Nothing but to say this.
    Refuse(Outcome),
}

/// A request with the place for its status. `None` where the chain is so broken that the place cannot be told.
#[derive(Debug)]
pub struct Parsed {
    /// What to do.
    pub work: Work,
    /// Where its status goes.
    pub status: Option<GuestAddress>,
}

impl Parsed {
    const fn refused(status: Option<GuestAddress>) -> Self {
        Self { work: Work::Refuse(Outcome::Failed), status }
    }
}

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug)]
struct Part {
    at: GuestAddress,
    len: u32,
}

/// Takes so many bytes off the front of `parts`.
fn take(memory: &Memory, parts: &mut &mut [Part], room: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < room.len() {
        let (first, _) = parts.split_first_mut()?;
        let n = (first.len as usize).min(room.len() - done);
        memory.read_slice(&mut room[done..done + n], first.at).ok()?;
        done += n;
        let step = u32::try_from(n).ok()?;
        first.at = first.at.checked_add(u64::from(step))?;
        first.len -= step;
        if first.len == 0 {
            *parts = std::mem::take(parts).split_first_mut()?.1;
        }
    }
    Some(())
}

/// Takes the header off the front of `parts`.
fn header(memory: &Memory, parts: &mut &mut [Part]) -> Option<Header> {
    let mut header = Header::default();
    // Drivers put it into a descriptor of its own.
    if let Some(first) = parts.first()
        && first.len as usize == size_of::<Header>()
        && let Ok(slice) = memory.get_slice(first.at, size_of::<Header>())
        && let Ok(place) = slice.get_ref::<[u8; size_of::<Header>()]>(0)
    {
        header.as_mut_bytes().copy_from_slice(&place.load());
        *parts = std::mem::take(parts).split_first_mut()?.1;
    } else {
        take(memory, parts, header.as_mut_bytes())?;
    }
    Some(header)
}

fn total(parts: &[Part]) -> u64 {
    parts.iter().map(|part| u64::from(part.len)).sum()
}

/// Understands a request. `old` are buffers whose room may be used again.
pub fn parse(
    chain: impl Iterator<Item = Descriptor>,
    memory: &Arc<Memory>,
    disk: &Geometry,
    old: Buffers,
) -> Parsed {
    let none = Part { at: GuestAddress(0), len: 0 };
    let mut parts = [none; MAX_DESCRIPTORS];
    let (mut all, mut readable, mut open) = (0, 0, true);
    for descriptor in chain {
        let Some(part) = parts.get_mut(all) else { return Parsed::refused(None) };
        *part = Part { at: descriptor.addr(), len: descriptor.len() };
        // Those that the device writes come last (2.7.4.2).
        match (descriptor.is_write_only(), readable == all) {
            (false, true) => readable += 1,
            (true, _) => {}
            (false, false) => return Parsed::refused(None),
        }
        all += 1;
        open = descriptor.has_next();
    }
    // The chain's iterator ends early where a descriptor cannot be read, or has no next one.
    if open {
        return Parsed::refused(None);
    }
    let (mut readable, writable) = parts[..all].split_at_mut(readable);
    let Some(last) = writable.iter_mut().rev().find(|part| part.len > 0) else {
        return Parsed::refused(None);
    };
    last.len -= 1;
    let Some(status) = last.at.checked_add(u64::from(last.len)) else {
        return Parsed::refused(None);
    };
    let work = header(memory, &mut readable)
        .and_then(|header| understand(header, memory, disk, readable, writable, old));
    Parsed { work: work.unwrap_or(Work::Refuse(Outcome::Failed)), status: Some(status) }
}

/// `None` is an error of the guest's.
fn understand(
    header: Header,
    memory: &Arc<Memory>,
    disk: &Geometry,
    mut readable: &mut [Part],
    writable: &[Part],
    old: Buffers,
) -> Option<Work> {
    let sector = header.sector.get();
    match header.kind.get() {
        VIRTIO_BLK_T_IN => {
            let (block, data) = data(memory, disk, sector, writable, old)?;
            Some(Work::Submit(Op::Read { block }, data))
        }
        VIRTIO_BLK_T_OUT if !disk.read_only => {
            let (block, data) = data(memory, disk, sector, readable, old)?;
            Some(Work::Submit(Op::Write { block }, data))
        }
        VIRTIO_BLK_T_FLUSH => {
            Some(Work::Submit(Op::Flush, Buffers::reusing(Arc::clone(memory), old)))
        }
        VIRTIO_BLK_T_GET_ID => identify(memory, disk, writable),
        kind @ (VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) if !disk.read_only => {
            let zero = kind == VIRTIO_BLK_T_WRITE_ZEROES;
            if !(if zero { disk.write_zeroes } else { disk.discard }) {
                return Some(Work::Refuse(Outcome::Unsupported));
            }
            let ranges = ranges(memory, &mut readable)?;
            let known = if zero { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
            // 5.2.6.2: flags that are not known, and unmap for a discard.
            if ranges.iter().any(|range| range.flags.get() & !known != 0) {
                return Some(Work::Refuse(Outcome::Unsupported));
            }
            // Blocks that are given up need not read as zero, so all ranges have to allow it.
            let deallocate = ranges.iter().all(|range| range.flags.get() & known != 0);
            let extents = ranges.iter().map(|range| extent(disk, range)).collect::<Option<_>>()?;
            let op =
                if zero { Op::WriteZeroes { extents, deallocate } } else { Op::Discard(extents) };
            Some(Work::Submit(op, Buffers::reusing(Arc::clone(memory), old)))
        }
        VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => None,
        _ => Some(Work::Refuse(Outcome::Unsupported)),
    }
}

/// The block of a sector, where sectors are whole blocks and inside of the disk.
fn block(disk: &Geometry, sector: u64, sectors: u64) -> Option<u64> {
    let per_block = disk.sectors_per_block();
    let inside = sector.checked_add(sectors)? <= disk.sectors();
    let whole = sector.is_multiple_of(per_block) && sectors.is_multiple_of(per_block);
    (inside && whole && sectors > 0).then(|| sector / per_block)
}

/// The buffers of a request, and the block at which they begin.
fn data(
    memory: &Arc<Memory>,
    disk: &Geometry,
    sector: u64,
    parts: &[Part],
    old: Buffers,
) -> Option<(u64, Buffers)> {
    let len = total(parts);
    if len > MAX_DATA || !len.is_multiple_of(u64::from(disk.block_size)) {
        return None;
    }
    let block = block(disk, sector, len / crate::port::SECTOR)?;
    let mut data = Buffers::reusing(Arc::clone(memory), old);
    for part in parts.iter().filter(|part| part.len > 0) {
        data.push(part.at, part.len as usize).ok()?;
    }
    Some((block, data))
}

fn ranges(memory: &Memory, readable: &mut &mut [Part]) -> Option<Vec<Range>> {
    let len = usize::try_from(total(readable)).ok()?;
    let count = len / size_of::<Range>();
    if count == 0 || count > MAX_RANGES as usize || !len.is_multiple_of(size_of::<Range>()) {
        return None;
    }
    let mut ranges = vec![Range::default(); count];
    take(memory, readable, ranges.as_mut_bytes())?;
    Some(ranges)
}

fn extent(disk: &Geometry, range: &Range) -> Option<Extent> {
    let sectors = range.sectors.get();
    let block = block(disk, range.sector.get(), u64::from(sectors))?;
    (sectors <= MAX_RANGE)
        .then(|| Extent { block, blocks: u64::from(sectors) / disk.sectors_per_block() })
}

/// Puts the serial number where the guest wants it.
fn identify(memory: &Memory, disk: &Geometry, writable: &[Part]) -> Option<Work> {
    let mut left = &disk.serial[..];
    debug_assert_eq!(left.len(), VIRTIO_BLK_ID_BYTES as usize);
    for part in writable {
        let n = left.len().min(part.len as usize);
        memory.write_slice(&left[..n], part.at).ok()?;
        left = &left[n..];
    }
    let written = disk.serial.len() - left.len();
    Some(Work::Identified(u32::try_from(written).ok()?))
}

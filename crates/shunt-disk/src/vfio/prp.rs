//! Where a command has its data (Base 4.1.1): pages, of which the first one begins anywhere, named by the command or by lists
//! in the guest's memory. A list is the guest's: each piece of it is copied once, and each step leads to more data, so that
//! none goes on for ever.

use std::sync::Arc;

use shunt_nvme::wire::{Sqe, Status};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::IntoBytes;

use crate::port::{Buffers, Memory};

/// Bytes of a page: CC.MPS has no other.
pub const PAGE: u64 = 4096;
/// Entries of a list that fills its page.
const ENTRIES: usize = 512;

/// A page in a list, or the next list.
const fn page(entry: u64) -> Result<u64, Status> {
    if entry.is_multiple_of(PAGE) { Ok(entry) } else { Err(Status::PRP_OFFSET_INVALID.dnr()) }
}

/// Adds up pages in a row.
struct Runs<F> {
    at: u64,
    len: u64,
    each: F,
}

impl<F: FnMut(GuestAddress, usize) -> Result<(), Status>> Runs<F> {
    fn add(&mut self, at: u64, len: u64) -> Result<(), Status> {
        if self.at.checked_add(self.len) == Some(at) && self.len > 0 {
            self.len += len;
            return Ok(());
        }
        self.end()?;
        (self.at, self.len) = (at, len);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Status> {
        let len = usize::try_from(self.len).map_err(|_| Status::INVALID_FIELD.dnr())?;
        if len > 0 { (self.each)(GuestAddress(self.at), len) } else { Ok(()) }
    }
}

/// Calls `each` with the ranges of `len` bytes of data.
fn ranges(
    memory: &Memory,
    sqe: &Sqe,
    len: u64,
    each: impl FnMut(GuestAddress, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    let mut runs = Runs { at: 0, len: 0, each };
    if !sqe.has_prps() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let [first, second] = sqe.prps();
    if !first.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET_INVALID.dnr());
    }
    let in_first = len.min(PAGE - first % PAGE);
    runs.add(first, in_first)?;
    let mut left = len - in_first;
    if left == 0 {
        return runs.end();
    }
    if left <= PAGE {
        runs.add(page(second)?, left)?;
        return runs.end();
    }
    let mut list = second;
    if !list.is_multiple_of(8) {
        return Err(Status::PRP_OFFSET_INVALID.dnr());
    }
    loop {
        // Up to the end of its page.
        let room = usize::try_from((PAGE - list % PAGE) / 8).unwrap_or(ENTRIES);
        let pages = usize::try_from(left.div_ceil(PAGE)).unwrap_or(usize::MAX);
        let mut entries = [0u64; ENTRIES];
        let entries = &mut entries[..room.min(pages)];
        let read = memory.read_slice(entries.as_mut_bytes(), GuestAddress(list));
        read.map_err(|_| Status::DATA_TRANSFER_ERROR.dnr())?;
        // The last one names the next list, where one more page would not fit.
        let (here, next) = if pages > room {
            entries.split_last().map_or((&[][..], None), |(next, here)| (here, Some(*next)))
        } else {
            (&*entries, None)
        };
        for entry in here {
            let len = left.min(PAGE);
            runs.add(page(u64::from_le(*entry))?, len)?;
            left -= len;
        }
        let Some(next) = next else { return runs.end() };
        // At the beginning of its page: so it has more than the name of another one.
        list = page(u64::from_le(next))?;
    }
}

/// The buffers of a command with so many bytes of data. `old` are some whose room may be used again.
///
/// # Errors
/// What is wrong with their description.
pub fn buffers(memory: &Arc<Memory>, sqe: &Sqe, len: u64, old: Buffers) -> Result<Buffers, Status> {
    let mut data = Buffers::reusing(Arc::clone(memory), old);
    ranges(memory, sqe, len, |at, len| {
        data.push(at, len).map_err(|_| Status::DATA_TRANSFER_ERROR.dnr())
    })?;
    Ok(data)
}

/// Copies a command's data.
///
/// # Errors
/// What is wrong with its description.
pub fn read(memory: &Memory, sqe: &Sqe, room: &mut [u8]) -> Result<(), Status> {
    let mut at = 0;
    ranges(memory, sqe, room.len() as u64, |from, len| {
        let part = &mut room[at..at + len];
        at += len;
        memory.read_slice(part, from).map_err(|_| Status::DATA_TRANSFER_ERROR.dnr())
    })
}

/// Puts a command's data into the guest's memory.
///
/// # Errors
/// What is wrong with its description; part of the data may be there.
pub fn write(memory: &Memory, sqe: &Sqe, data: &[u8]) -> Result<(), Status> {
    let mut at = 0;
    ranges(memory, sqe, data.len() as u64, |to, len| {
        let part = &data[at..at + len];
        at += len;
        memory.write_slice(part, to).map_err(|_| Status::DATA_TRANSFER_ERROR.dnr())
    })
}

#[cfg(test)]
mod tests {
    use shunt_nvme::wire::opcode::io;
    use zerocopy::FromBytes;

    use super::*;

    const LEN: usize = 1 << 20;

    fn memory() -> Arc<Memory> {
        Arc::new(Memory::from_ranges(&[(GuestAddress(0), LEN)]).unwrap())
    }

    fn command(first: u64, second: u64) -> Sqe {
        let mut sqe = Sqe::new(io::READ, 1);
        sqe.flags = 0;
        let entries = [first.to_le_bytes(), second.to_le_bytes()];
        sqe.sgl = FromBytes::read_from_bytes(entries.as_flattened()).unwrap();
        sqe
    }

    fn list(memory: &Memory, at: u64, entries: &[u64]) {
        memory.write_slice(entries.as_bytes(), GuestAddress(at)).unwrap();
    }

    fn found(memory: &Memory, sqe: &Sqe, len: u64) -> Result<Vec<(u64, usize)>, Status> {
        let mut all = Vec::new();
        ranges(memory, sqe, len, |at, len| {
            all.push((at.0, len));
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn data_is_where_entries_say() {
        let memory = memory();
        let one = command(0x5004, 0xdead);
        assert_eq!(found(&memory, &one, 4092).unwrap(), [(0x5004, 4092)]);
        let two = command(0x5e00, 0x9000);
        assert_eq!(found(&memory, &two, 4096).unwrap(), [(0x5e00, 512), (0x9000, 3584)]);
        // Pages in a row are one piece.
        list(&memory, 0x2010, &[0x6000, 0x7000, 0x4000]);
        let many = command(0x5800, 0x2010);
        assert_eq!(found(&memory, &many, 2048 + 9000).unwrap(), [(0x5800, 10240), (0x4000, 808)]);
        assert_eq!(found(&memory, &one, 0).unwrap(), []);
    }

    #[test]
    fn lists_go_on_in_other_lists() {
        let memory = memory();
        // Two pages, and then the next list; a list that just fits has no next one.
        list(&memory, 0x2fe8, &[0x10000, 0x30000, 0x3000]);
        let pages: Vec<u64> = (0..512).map(|n| 0x50000 + n % 2 * 0x2000).collect();
        list(&memory, 0x3000, &pages);
        let sqe = command(0x5000, 0x2fe8);
        let all = found(&memory, &sqe, (3 + 512) * PAGE).unwrap();
        assert_eq!(all[..4], [(0x5000, 4096), (0x10000, 4096), (0x30000, 4096), (0x50000, 4096)]);
        assert_eq!((all.len(), all[514]), (515, (0x52000, 4096)));
        // One page more than the list has entries.
        let five = found(&memory, &sqe, 5 * PAGE).unwrap();
        assert_eq!(five[..3], all[..3]);
        assert_eq!(five[3..], [(0x50000, 4096), (0x52000, 4096)]);
        let three = found(&memory, &sqe, 4 * PAGE).unwrap();
        // The third page is the list's last entry, which names no list then.
        assert_eq!(three[3], (0x3000, 4096));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let memory = memory();
        list(&memory, 0x2000, &[0x6000, 0x7800]);
        // A list that is nothing but its own continuation.
        list(&memory, 0x3ff8, &[0x3ff8]);
        list(&memory, 0x8000, &[0x8000; 512]);
        let transfer = Status::DATA_TRANSFER_ERROR.dnr();
        let offset = Status::PRP_OFFSET_INVALID.dnr();
        for (sqe, len, why) in [
            (command(0x5001, 0), 1, offset),
            (command(0x5000, 0x9008), 8192, offset),
            (command(0x5000, 0x2004), 3 * PAGE, offset),
            (command(0x5000, 0x2000), 3 * PAGE, offset),
            (command(0x5000, 0x3ff8), 3 * PAGE, offset),
            (command(0x5000, LEN as u64), 3 * PAGE, transfer),
            (command(0x5000, u64::MAX - 7), 3 * PAGE, transfer),
            (Sqe::new(io::READ, 1), 512, Status::INVALID_FIELD.dnr()),
        ] {
            assert_eq!(found(&memory, &sqe, len), Err(why), "{:x?}", sqe.prps());
        }
        // One that goes round ends with the data.
        assert!(found(&memory, &command(0x5000, 0x8000), 4096 * PAGE).is_ok());
        for first in [LEN as u64, LEN as u64 - 4, u64::MAX - 3, u64::MAX - 4095] {
            let sqe = command(first, LEN as u64);
            let all = buffers(&memory, &sqe, 8, Buffers::default());
            assert_eq!(all.unwrap_err(), transfer, "{first:#x}");
            assert_eq!(write(&memory, &sqe, &[0; 8]), Err(transfer));
            assert_eq!(read(&memory, &sqe, &mut [0; 8]), Err(transfer));
        }
    }

    #[test]
    fn copies_go_both_ways() {
        let memory = memory();
        let data: Vec<u8> = (0..5000u32).map(|n| n.to_le_bytes()[0]).collect();
        let sqe = command(0x5ff0, 0x2000);
        list(&memory, 0x2000, &[0x9000, 0x7000]);
        write(&memory, &sqe, &data).unwrap();
        let mut back = vec![0; 5000];
        read(&memory, &sqe, &mut back).unwrap();
        assert_eq!(back, data);
        memory.read_slice(&mut back[..888], GuestAddress(0x7000)).unwrap();
        assert_eq!(back[..888], data[4112..]);
    }
}

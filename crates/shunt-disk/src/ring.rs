//! A guest's split ring (VIRTIO 1.2, 2.7), looked at for one round: where its parts are is found once, and then it costs a few
//! loads and stores to take a chain or to give one back. `virtio-queue` looks every word up anew. All that is read is the
//! guest's, so each index is bounded before it is used.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::desc::split::{Descriptor, VirtqUsedElem};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, VolatileMemory, VolatileSlice};

use crate::port::Memory;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = size_of::<Descriptor>();
/// Bytes of an entry of the used ring.
const USED: usize = size_of::<VirtqUsedElem>();
/// Where the entries of the available ring and of the used ring begin, behind flags and index.
const ENTRIES: usize = 4;
/// Where the index of either is.
const INDEX: usize = 2;

/// A ring that cannot be read, or says more than it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no memory of the guest's, or has more entries than places")
    }
}

impl From<vm_memory::VolatileMemoryError> for Broken {
    fn from(_: vm_memory::VolatileMemoryError) -> Self {
        Self
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Round<'m> {
    memory: &'m Memory,
    table: VolatileSlice<'m>,
    available: VolatileSlice<'m>,
    used: VolatileSlice<'m>,
    size: u16,
    event_idx: bool,
}

impl<'m> Round<'m> {
    /// A ring in this memory.
    ///
    /// # Errors
    /// One of its parts is not in one piece of it. No front end can have such a ring: it says where each part begins in its own
    /// address space.
    pub fn of(queue: &Queue, memory: &'m Memory) -> Result<Self, Broken> {
        let (size, event_idx) = (queue.size(), queue.event_idx_enabled());
        let event = if event_idx { 2 } else { 0 };
        let part = |at, entry, more| {
            let len = usize::from(size) * entry + more;
            memory.get_slice(GuestAddress(at), len).map_err(|_| Broken)
        };
        Ok(Self {
            memory,
            table: part(queue.desc_table(), DESCRIPTOR, 0)?,
            available: part(queue.avail_ring(), 2, ENTRIES + event)?,
            used: part(queue.used_ring(), USED, ENTRIES + event)?,
            size,
            event_idx,
        })
    }

    /// Chains that can be taken.
    ///
    /// # Errors
    /// More than the ring has places.
    pub fn ready(&self, queue: &Queue) -> Result<u16, Broken> {
        // SYNC POINT ring-available: with the driver's store behind its entries.
        let index = u16::from_le(self.available.load(INDEX, Ordering::Acquire)?);
        let ready = index.wrapping_sub(queue.next_avail());
        if ready > self.size { Err(Broken) } else { Ok(ready) }
    }

    /// Takes the next chain, of which `ready` has said that there is one; its head.
    ///
    /// # Errors
    /// None, as the place is the ring's.
    pub fn take(&self, queue: &mut Queue) -> Result<u16, Broken> {
        let next = queue.next_avail();
        let at = ENTRIES + usize::from(next % self.size) * 2;
        let head = self.available.get_ref::<u16>(at)?.load();
        queue.set_next_avail(next.wrapping_add(1));
        Ok(u16::from_le(head))
    }

    /// The descriptors of a chain.
    #[must_use]
    pub const fn chain(&self, head: u16) -> Chain<'m> {
        Chain {
            memory: self.memory,
            table: Table::Found(self.table),
            count: self.size,
            next: Some(head),
            left: self.size,
            is_indirect: false,
        }
    }

    /// Gives a chain back, in which so much was written. The driver sees it after [`Self::publish`]. A head that is none of the
    /// ring's is left out.
    pub fn put(&self, queue: &mut Queue, head: u16, written: u32) {
        if head >= self.size {
            return;
        }
        let next = queue.next_used();
        let at = ENTRIES + usize::from(next % self.size) * USED;
        if let Ok(entry) = self.used.get_ref::<u64>(at) {
            // The head's 32 bits, and then how much was written.
            entry.store((u64::from(head) | u64::from(written) << 32).to_le());
            queue.set_next_used(next.wrapping_add(1));
        }
    }

    /// Shows the driver what was put there since the index was `before`; true if it wants to be told.
    #[must_use]
    pub fn publish(&self, queue: &Queue, before: u16) -> bool {
        let index = queue.next_used();
        if index == before {
            return false;
        }
        // SYNC POINT ring-used: with the driver's load before it reads entries. The place is the ring's, and even.
        let _stored = self.used.store(index.to_le(), INDEX, Ordering::Release);
        // The driver says what it wants to be told of, and then looks at the index once more (2.7.7.2).
        fence(Ordering::SeqCst);
        if self.event_idx {
            let at = ENTRIES + usize::from(self.size) * 2;
            let Ok(event) = self.available.load::<u16>(at, Ordering::Relaxed) else { return true };
            let behind = index.wrapping_sub(u16::from_le(event)).wrapping_sub(1);
            behind < index.wrapping_sub(before)
        } else {
            let flags = self.available.load::<u16>(0, Ordering::Relaxed).unwrap_or(0);
            u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0
        }
    }
}

/// Where descriptors are.
#[derive(Debug)]
enum Table<'m> {
    Found(VolatileSlice<'m>),
    /// In several pieces of the guest's memory.
    At(GuestAddress),
}

/// The descriptors of a chain, in order. It ends early, with one that has a next one, where that cannot be read or breaks a
/// rule.
#[derive(Debug)]
pub struct Chain<'m> {
    memory: &'m Memory,
    table: Table<'m>,
    /// Descriptors of the table.
    count: u16,
    next: Option<u16>,
    /// Descriptors that may follow: a chain without an end has one here.
    left: u16,
    is_indirect: bool,
}

impl Chain<'_> {
    fn read(&self, index: u16) -> Option<Descriptor> {
        let offset = usize::from(index) * DESCRIPTOR;
        match &self.table {
            Table::Found(slice) => Some(slice.get_ref::<Descriptor>(offset).ok()?.load()),
            Table::At(at) => self.memory.read_obj(at.checked_add(offset as u64)?).ok(),
        }
    }

    /// Goes on in another table (2.7.5.3).
    fn enter(&mut self, descriptor: Descriptor) -> Option<()> {
        let len = descriptor.len() as usize;
        if self.is_indirect || !len.is_multiple_of(DESCRIPTOR) {
            return None;
        }
        self.count = u16::try_from(len / DESCRIPTOR).ok()?;
        let found = self.memory.get_slice(descriptor.addr(), len);
        self.table = found.map_or_else(|_| Table::At(descriptor.addr()), Table::Found);
        (self.next, self.left, self.is_indirect) = (Some(0), self.count, true);
        Some(())
    }

    fn step(&mut self) -> Option<Descriptor> {
        let index = self.next.take().filter(|index| *index < self.count && self.left > 0)?;
        let descriptor = self.read(index)?;
        if descriptor.refers_to_indirect_table() {
            self.enter(descriptor)?;
            return self.step();
        }
        self.left -= 1;
        self.next = descriptor.has_next().then(|| descriptor.next());
        Some(descriptor)
    }
}

impl Iterator for Chain<'_> {
    type Item = Descriptor;

    fn next(&mut self) -> Option<Descriptor> {
        self.step()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two regions in a row are one piece to the guest: tables and buffers may reach over their border.
    #[test]
    fn what_reaches_over_the_border_of_regions() {
        let (at, len) = (GuestAddress(0x1000), 0x1000);
        let memory = Memory::from_ranges(&[(GuestAddress(0), len), (at, len)]).unwrap();
        let mut queue = Queue::new(16).unwrap();
        queue.set_desc_table_address(Some(0x400), None);
        queue.set_avail_ring_address(Some(0x600), None);
        queue.set_used_ring_address(Some(0x700), None);
        let describe = |table: u64, n: u16, descriptor: Descriptor| {
            memory.write_obj(descriptor, GuestAddress(table + u64::from(n) * 16)).unwrap();
        };
        // Half of the table's second descriptor is in the other region.
        let table = 0x1000 - 24;
        describe(0x400, 3, Descriptor::new(table, 32, 4, 0));
        describe(table, 0, Descriptor::new(0xf00, 0x200, 1, 1));
        describe(table, 1, Descriptor::new(0x800, 1, 2, 0));
        let round = Round::of(&queue, &memory).unwrap();
        let parts: Vec<_> = round.chain(3).map(|part| (part.addr().0, part.len())).collect();
        assert_eq!(parts, [(0xf00, 0x200), (0x800, 1)]);
        let mut buffers = crate::port::Buffers::of(std::sync::Arc::new(memory.clone()));
        buffers.push(GuestAddress(0xf00), 0x200).unwrap();
        let pieces: Vec<_> = buffers.segments().iter().map(|piece| piece.len).collect();
        assert_eq!((pieces, buffers.len()), (vec![0x100, 0x100], 0x200));
        // The device was told of each part of the ring at one address of the front end's.
        queue.set_used_ring_address(Some(0xf80), None);
        assert_eq!(Round::of(&queue, &memory).unwrap_err(), Broken);
    }
}

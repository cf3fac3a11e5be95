//! Buffers for data of commands: one sealed memory, given out in blocks of powers of two (a buddy allocator).
//!
//! Each thread has one of its own. How much it has is what bounds data in flight.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::memory::{Memory, Piece};

/// Bytes of the smallest block: what direct input and output asks for as alignment.
const LEAST: usize = 4096;

#[derive(Debug)]
struct Free {
    /// Offsets of free blocks, by the logarithm of their length in units of [`LEAST`].
    blocks: Vec<BTreeSet<usize>>,
    /// Some has come back, and somebody was sent away before.
    freed: bool,
    wanted: bool,
}

impl Free {
    fn take(&mut self, order: usize) -> Option<usize> {
        let found = (order..self.blocks.len()).find(|o| !self.blocks[*o].is_empty())?;
        let offset = self.blocks[found].pop_first()?;
        for smaller in (order..found).rev() {
            self.blocks[smaller].insert(offset + (LEAST << smaller));
        }
        Some(offset)
    }

    fn give(&mut self, mut offset: usize, mut order: usize) {
        while order + 1 < self.blocks.len() && self.blocks[order].remove(&(offset ^ LEAST << order))
        {
            offset &= !(LEAST << order);
            order += 1;
        }
        self.blocks[order].insert(offset);
        self.freed |= self.wanted;
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Buffers {
    memory: Arc<Memory>,
    free: Rc<RefCell<Free>>,
}

impl Buffers {
    /// With at least so many bytes, and blocks of at most `largest` bytes.
    ///
    /// # Errors
    /// Those of making the memory.
    pub fn new(bytes: usize, largest: usize) -> io::Result<Self> {
        let largest = largest.next_power_of_two().max(LEAST);
        let count = bytes.div_ceil(largest).max(1);
        let memory = Memory::new("shunt-nvme-data", count * largest)?;
        let orders = (largest / LEAST).ilog2() as usize + 1;
        let mut blocks = vec![BTreeSet::new(); orders];
        blocks[orders - 1] = (0..count).map(|n| n * largest).collect();
        Ok(Self {
            memory,
            free: Rc::new(RefCell::new(Free { blocks, freed: false, wanted: false })),
        })
    }

    /// A buffer of so many bytes, with what somebody left in it; `None` where there is no room now, or never is.
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Buffer> {
        let order = len.div_ceil(LEAST).next_power_of_two().ilog2() as usize;
        let found = self.free.borrow_mut().take(order);
        let Some(offset) = found else {
            self.free.borrow_mut().wanted = true;
            return None;
        };
        let piece = self.memory.piece(offset..offset + len)?;
        Some(Buffer { piece, home: Some((order, Rc::clone(&self.free))) })
    }

    /// A buffer of so many bytes that is none of these: for data that has to be taken off the stream before what others
    /// wait for. There can be as much as hosts may send unasked.
    #[must_use]
    pub fn apart(len: usize) -> Option<Buffer> {
        let piece = Memory::new("shunt-nvme-data", len).ok()?.piece(0..len)?;
        Some(Buffer { piece, home: None })
    }

    /// True if something has come back since somebody found nothing: time to ask again.
    #[must_use]
    pub fn take_freed(&self) -> bool {
        let mut free = self.free.borrow_mut();
        let freed = std::mem::take(&mut free.freed);
        free.wanted &= !freed;
        freed
    }
}

/// A buffer, which goes back on drop. Whoever has copies of its piece must be done with them.
#[derive(Debug)]
pub struct Buffer {
    piece: Piece,
    /// Its order, and where it goes back to.
    home: Option<(usize, Rc<RefCell<Free>>)>,
}

impl Buffer {
    /// Its bytes.
    #[must_use]
    pub const fn piece(&self) -> &Piece {
        &self.piece
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some((order, free)) = &self.home {
            free.borrow_mut().give(self.piece.place().1, *order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_come_back() {
        let buffers = Buffers::new(1 << 20, 256 << 10).unwrap();
        for _ in 0..3 {
            let mut taken: Vec<Buffer> = Vec::new();
            for len in [1, 4096, 4097, 65536, 200_000, 12288].into_iter().cycle() {
                match buffers.take(len) {
                    Some(buffer) => taken.push(buffer),
                    None => break,
                }
            }
            let mut ranges: Vec<_> = taken
                .iter()
                .map(|buffer| (buffer.piece().place().1, buffer.piece().len()))
                .collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(ranges.iter().all(|(start, len)| start % 4096 == 0 && start + len <= 1 << 20));
        }
        // All of it is whole again.
        let whole: Vec<_> = (0..4).map(|_| buffers.take(256 << 10).unwrap()).collect();
        let _earlier = buffers.take_freed();
        assert!(buffers.take(1).is_none() && !buffers.take_freed());
        drop(whole);
        assert!(buffers.take_freed() && !buffers.take_freed());
        assert!(buffers.take((256 << 10) + 1).is_none());
        assert!(buffers.take(1).is_some());
    }
}

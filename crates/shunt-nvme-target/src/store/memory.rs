//! A store in memory: one sealed memfd, mapped once, whose pieces sockets read and write without a copy in between.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::{FallocateFlags, fallocate};

use super::{
    BlockSize, Blocks, Error, Geometry, Mailbox, Outcome, Request, Store, Submitted, checked,
};
use crate::memory::{Memory, Piece};

/// Zeroes below this length are written; above, their pages go back to the system.
const PUNCH: u64 = 64 << 10;

/// See the module's description.
#[derive(Debug)]
pub struct MemoryStore {
    block: BlockSize,
    extent: RwLock<Extent>,
    /// Held by who compares and writes.
    exchange: Mutex<()>,
}

/// The memory, and how much of it is the store's now: it never shrinks, as peers may have it mapped.
#[derive(Clone, Debug)]
struct Extent {
    memory: Arc<Memory>,
    blocks: u64,
}

impl MemoryStore {
    /// Of so many blocks, all zero.
    ///
    /// # Errors
    /// What the system has against it: no memory, mostly.
    pub fn new(geometry: Geometry) -> io::Result<Self> {
        let memory = Memory::new("shunt-nvme", length(geometry.bytes())?)?;
        let extent = RwLock::new(Extent { memory, blocks: geometry.blocks });
        Ok(Self { block: geometry.block, extent, exchange: Mutex::new(()) })
    }

    fn extent(&self) -> Extent {
        self.extent.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn geometry_of(&self, extent: &Extent) -> Geometry {
        Geometry { block: self.block, blocks: extent.blocks }
    }

    fn place(&self, blocks: Blocks, piece: &Piece) -> Result<Piece, Error> {
        let extent = self.extent();
        let range = checked(self.geometry_of(&extent), blocks, piece)?;
        piece_of(&extent, &range)
    }

    fn zero(&self, blocks: Blocks, deallocate: bool) -> Outcome {
        let extent = self.extent();
        let range = self.geometry_of(&extent).range(blocks).ok_or(Error::OutOfRange)?;
        let len = range.end - range.start;
        if deallocate && len >= PUNCH {
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(extent.memory.memfd(), holes, range.start, len).is_ok() {
                return Ok(());
            }
        }
        piece_of(&extent, &range)?.clear();
        Ok(())
    }

    fn run(&self, request: &Request) -> Outcome {
        match request {
            Request::Read(blocks, to) => to.copy_from(&self.place(*blocks, to)?),
            Request::Write { blocks, data, .. } => self.place(*blocks, data)?.copy_from(data),
            Request::Flush => {}
            Request::Zero { blocks, deallocate, .. } => self.zero(*blocks, *deallocate)?,
            Request::Discard(ranges) => {
                let geometry = self.geometry();
                if ranges.iter().any(|blocks| geometry.range(*blocks).is_none()) {
                    return Err(Error::OutOfRange);
                }
                for blocks in ranges.iter().filter(|blocks| blocks.count > 0) {
                    self.zero(*blocks, true)?;
                }
            }
            Request::Verify(blocks) => {
                self.geometry().range(*blocks).ok_or(Error::OutOfRange)?;
            }
            Request::Compare(blocks, expected) => {
                return same(&self.place(*blocks, expected)?, expected);
            }
            Request::CompareAndWrite { blocks, expected, data, .. } => {
                let _alone = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
                let there = self.place(*blocks, expected)?;
                let to = self.place(*blocks, data)?;
                same(&there, expected)?;
                to.copy_from(data);
            }
        }
        Ok(())
    }
}

fn same(there: &Piece, expected: &Piece) -> Outcome {
    there.differs_at(expected).map_or(Ok(()), |_| Err(Error::Differs))
}

fn length(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

fn piece_of(extent: &Extent, range: &Range<u64>) -> Result<Piece, Error> {
    let bound = |at| usize::try_from(at).map_err(|_| Error::OutOfRange);
    extent.memory.piece(bound(range.start)?..bound(range.end)?).ok_or(Error::OutOfRange)
}

impl Store for MemoryStore {
    fn geometry(&self) -> Geometry {
        self.geometry_of(&self.extent())
    }

    fn submit(&self, request: Request, _tag: u64, _mailbox: &Arc<Mailbox>) -> Submitted {
        Submitted::Done(self.run(&request))
    }

    fn lend(&self, blocks: Blocks) -> Option<Piece> {
        let extent = self.extent();
        let range = self.geometry_of(&extent).range(blocks)?;
        piece_of(&extent, &range).ok()
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    fn resize(&self, blocks: Option<u64>) -> Result<(), String> {
        let Some(blocks) = blocks else { return Ok(()) };
        let mut extent = self.extent.write().unwrap_or_else(PoisonError::into_inner);
        let now = self.geometry_of(&extent).bytes();
        let bytes = Geometry { block: self.block, blocks }.bytes();
        let wanted = length(bytes).map_err(|e| e.to_string())?;
        // What is cut off must not come back; nor what still arrived in it after that.
        let cut = now.min(bytes)..extent.memory.len() as u64;
        if cut.start < cut.end {
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(extent.memory.memfd(), holes, cut.start, cut.end - cut.start)
                .map_err(|e| format!("the memory cannot be given back: {e}"))?;
        }
        if wanted > extent.memory.len() {
            let grown = extent.memory.grown(wanted);
            extent.memory = grown.map_err(|e| format!("the memory cannot grow: {e}"))?;
        }
        extent.blocks = blocks;
        Ok(())
    }
}

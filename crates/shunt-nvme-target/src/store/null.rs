//! A store that keeps nothing: writes vanish, reads give zero. For measurements of everything else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BlockSize, Blocks, Error, Geometry, Mailbox, Request, Store, Submitted, checked};
use crate::memory::{Memory, Piece};

/// See the module's description.
#[derive(Debug)]
pub struct NullStore {
    block: BlockSize,
    blocks: AtomicU64,
    /// What all reads give. Nobody writes to it, as writes are dropped.
    zero: Arc<Memory>,
}

/// Bytes that are lent at once: as many as the longest transfer can have.
const LENT: usize = 16 << 20;

impl NullStore {
    /// Of so many blocks.
    ///
    /// # Errors
    /// Those of making the memory that reads come from.
    pub fn new(geometry: Geometry) -> io::Result<Self> {
        let zero = Memory::new("shunt-nvme-zero", LENT)?;
        Ok(Self { block: geometry.block, blocks: AtomicU64::new(geometry.blocks), zero })
    }

    fn check(&self, blocks: Blocks, piece: &Piece) -> Result<(), Error> {
        checked(self.geometry(), blocks, piece).map(drop)
    }

    fn run(&self, request: &Request) -> Result<(), Error> {
        let geometry = self.geometry();
        let inside = |blocks: &Blocks| geometry.range(*blocks).map(drop).ok_or(Error::OutOfRange);
        let is_zero = |piece: &Piece| {
            let mut bytes = vec![0; piece.len()];
            piece.copy_out(&mut bytes);
            if bytes.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Error::Differs) }
        };
        match request {
            Request::Read(blocks, piece) => {
                self.check(*blocks, piece)?;
                piece.clear();
                Ok(())
            }
            Request::Write { blocks, data, .. } => self.check(*blocks, data),
            Request::Flush => Ok(()),
            Request::Zero { blocks, .. } | Request::Verify(blocks) => inside(blocks),
            Request::Discard(ranges) => ranges.iter().try_for_each(inside),
            Request::Compare(blocks, piece) => {
                self.check(*blocks, piece)?;
                is_zero(piece)
            }
            Request::CompareAndWrite { blocks, expected, data, .. } => {
                self.check(*blocks, expected)?;
                self.check(*blocks, data)?;
                is_zero(expected)
            }
        }
    }
}

impl Store for NullStore {
    fn geometry(&self) -> Geometry {
        Geometry { block: self.block, blocks: self.blocks.load(Ordering::Relaxed) }
    }

    fn submit(&self, request: Request, _tag: u64, _mailbox: &Arc<Mailbox>) -> Submitted {
        Submitted::Done(self.run(&request))
    }

    fn lend(&self, blocks: Blocks) -> Option<Piece> {
        let range = self.geometry().range(blocks)?;
        self.zero.piece(0..usize::try_from(range.end - range.start).ok()?)
    }

    fn drops_writes(&self) -> bool {
        true
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    fn resize(&self, blocks: Option<u64>) -> Result<(), String> {
        if let Some(blocks) = blocks {
            self.blocks.store(blocks, Ordering::Relaxed);
        }
        Ok(())
    }
}

//! A store that keeps nothing: writes vanish, reads give zero. For measurements of everything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BlockSize, Blocks, Error, Geometry, Mailbox, Request, Store, Submitted, checked};
use crate::memory::Piece;

/// See the module's description.
#[derive(Debug)]
pub struct NullStore {
    block: BlockSize,
    blocks: AtomicU64,
}

impl NullStore {
    /// Of so many blocks.
    #[must_use]
    pub const fn new(geometry: Geometry) -> Self {
        Self { block: geometry.block, blocks: AtomicU64::new(geometry.blocks) }
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

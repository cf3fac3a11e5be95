//! What namespaces keep their blocks in: one port, and the stores behind it.
//!
//! A store never makes the thread wait that submits to it. What it cannot do at once it completes later, into
//! the [`Mailbox`] of that thread.

mod device;
mod file;
mod mailbox;
mod memory;
mod null;
mod outcome;
mod pool;
#[cfg(test)]
mod suite;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use file::{FileStore, Opening};
pub use mailbox::{Done, Mailbox};
pub use memory::MemoryStore;
pub use null::NullStore;
pub use outcome::{Error, Outcome};

use crate::memory::Piece;

/// How long a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    #[default]
    B4096,
}

impl BlockSize {
    /// Its logarithm, as LBA formats have it.
    #[must_use]
    pub const fn shift(self) -> u8 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.shift()
    }

    /// That of so many bytes, if there is one.
    #[must_use]
    pub const fn of(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// What a store looks like to hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// How long a block is.
    pub block: BlockSize,
    /// How many there are.
    pub blocks: u64,
}

impl Geometry {
    /// Bytes of all blocks.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks << self.block.shift()
    }

    /// The bytes of these blocks; `None` where they go beyond the end.
    #[must_use]
    pub fn range(&self, blocks: Blocks) -> Option<Range<u64>> {
        let end = blocks.first.checked_add(blocks.count)?;
        let shift = self.block.shift();
        (end <= self.blocks).then(|| blocks.first << shift..end << shift)
    }
}

/// Blocks of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// The first one.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// What a store is asked for. Pieces are as long as the blocks that they are for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Fill the piece.
    Read(Blocks, Piece),
    /// Keep the piece; on stable storage before it completes, if `fua` is set (Force Unit Access).
    Write {
        /// Where.
        blocks: Blocks,
        /// What.
        data: Piece,
        /// Force Unit Access.
        fua: bool,
    },
    /// Everything whose write has completed goes to stable storage.
    Flush,
    /// Make blocks read as zero; give their room back, if `deallocate` is set and the store can.
    Zero {
        /// Which.
        blocks: Blocks,
        /// Their room is not needed.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// The room of these blocks is not needed. They read as zero.
    Discard(Vec<Blocks>),
    /// Whether these blocks can be read.
    Verify(Blocks),
    /// Whether blocks hold these bytes: else [`Error::Differs`].
    Compare(Blocks, Piece),
    /// Compare, and if they are equal, write, with no other request of this kind in between.
    CompareAndWrite {
        /// Which.
        blocks: Blocks,
        /// What must be there.
        expected: Piece,
        /// What is to be there.
        data: Piece,
        /// Force Unit Access.
        fua: bool,
    },
}

/// The store's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// It is done.
    Done(Outcome),
    /// The mailbox will tell.
    Pending,
}

/// The port.
pub trait Store: Send + Sync + fmt::Debug {
    /// What it looks like now.
    fn geometry(&self) -> Geometry;

    /// Starts a request. If it is not done at once, `mailbox` gets its outcome under `tag`, once.
    fn submit(&self, request: Request, tag: u64, mailbox: &Arc<Mailbox>) -> Submitted;

    /// The memory of these blocks, where the store is memory: to be sent from without a copy, or received into unless
    /// it drops writes.
    fn lend(&self, blocks: Blocks) -> Option<Piece> {
        let _ = blocks;
        None
    }

    /// True if what is written is nowhere: it is to be dropped on arrival, and never put into lent memory.
    fn drops_writes(&self) -> bool {
        false
    }

    /// True if it refuses whatever would change it.
    fn is_read_only(&self) -> bool {
        false
    }

    /// True if a write can be lost until a flush has completed.
    fn has_volatile_cache(&self) -> bool;

    /// Gives it another number of blocks; `None`: as many as what it is on has by now. Blocks that come new, or
    /// come back, read as zero unless the store is a file or device that keeps them.
    ///
    /// # Errors
    /// That the store cannot have so many, and what to do, for people.
    fn resize(&self, blocks: Option<u64>) -> Result<(), String>;
}

/// The bytes of blocks for which a piece was passed.
fn checked(geometry: Geometry, blocks: Blocks, piece: &Piece) -> Result<Range<u64>, Error> {
    let range = geometry.range(blocks).ok_or(Error::OutOfRange)?;
    let fits = range.end - range.start == piece.len() as u64;
    if fits { Ok(range) } else { Err(Error::Length) }
}

/// What the kernel's error means for hosts.
fn error(e: &io::Error, reading: bool) -> Error {
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Error::NoSpace,
        Some(libc::EROFS | libc::EPERM | libc::EBADF) if !reading => Error::ReadOnly,
        Some(libc::ENOMEM | libc::EAGAIN) => Error::Busy,
        _ if e.kind() == io::ErrorKind::UnexpectedEof && reading => Error::OutOfRange,
        _ if reading => Error::Unreadable,
        _ => Error::Unwritable,
    }
}

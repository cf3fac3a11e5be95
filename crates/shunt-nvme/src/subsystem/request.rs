//! Requests to the caller's store.

use crate::wire::Fuse;

/// What the store has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Give the blocks.
    Read,
    /// Take the blocks. FUA: they are durable before the response.
    Write {
        /// FUA.
        fua: bool,
    },
    /// Compare the host's data with the blocks, and respond with
    /// [`COMPARE_FAILURE`](crate::wire::Status::COMPARE_FAILURE) if they differ.
    Compare,
    /// Make what was written durable.
    Flush,
    /// Zero the blocks; they may be deallocated with DEAC, where that makes them read as zeroes.
    WriteZeroes {
        /// FUA.
        fua: bool,
        /// DEAC.
        deallocate: bool,
    },
    /// Read the blocks and give nothing.
    Verify,
    /// Deallocate the ranges that the reply lists.
    Deallocate,
}

/// A request to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// What to do.
    pub operation: Operation,
    /// The namespace.
    pub nsid: u32,
    /// The first block.
    pub slba: u64,
    /// Blocks.
    pub blocks: u32,
    /// The size of a block as a power of two.
    pub block_shift: u8,
    /// [`Fuse::First`]: a Compare whose Write follows as the next command. [`Fuse::Second`]: the
    /// Write, to be done only if the Compare succeeds, and nothing on these blocks in between; else
    /// the Compare ends with its status and the Write with
    /// [`FUSED_FAILED`](crate::wire::Status::FUSED_FAILED).
    pub fuse: Fuse,
}

impl Io {
    /// Bytes of the blocks.
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.blocks as u64) << self.block_shift
    }

    /// True for operations without blocks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0
    }
}

/// A range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first block.
    pub slba: u64,
    /// Blocks.
    pub blocks: u32,
}

/// The most blocks of a fused operation: ACWU, one's based.
pub(super) const MAX_FUSED: u32 = 128;

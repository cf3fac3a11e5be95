//! The port behind the emulated disk: a disk, and lanes of requests to it.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shunt_nvme::wire::Status;
use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, Permissions, VolatileSlice,
};

/// Bytes of a sector, in which virtio counts (VIRTIO 1.2, 5.2.4).
pub const SECTOR: u64 = 512;

/// The memory of a guest, as it was at some time.
pub type Memory = GuestMemoryMmap<()>;

/// What a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block, a power of two of at least [`SECTOR`].
    pub block_size: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// What guests are told as its serial number; zeros at the end are filled up.
    pub serial: [u8; 20],
    /// NGUID of a namespace, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// UUID, if it has one.
    pub uuid: Option<[u8; 16]>,
    /// Blocks can be compared with data.
    pub compare: bool,
    /// Blocks can be given up.
    pub discard: bool,
    /// Blocks can be made zero without sending zeros.
    pub write_zeroes: bool,
}

impl Geometry {
    /// Sectors of the disk.
    #[must_use]
    pub const fn sectors(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size as u64 / SECTOR)
    }

    /// Sectors of a block.
    #[must_use]
    pub const fn sectors_per_block(&self) -> u64 {
        self.block_size as u64 / SECTOR
    }
}

/// How many blocks a disk has while it is served. Copies are the same one.
#[derive(Clone, Debug)]
pub struct Size(Arc<AtomicU64>);

impl Size {
    /// So many at first.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self(Arc::new(blocks.into()))
    }

    /// How many now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// So many from now on.
    pub fn set(&self, blocks: u64) {
        self.0.store(blocks, Ordering::Relaxed);
    }
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first.
    pub block: u64,
    /// How many.
    pub blocks: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the buffers from this block on.
    Read {
        /// The first block.
        block: u64,
    },
    /// Write the buffers from this block on.
    Write {
        /// The first block.
        block: u64,
    },
    /// Fail unless the buffers are what the disk has from this block on.
    Compare {
        /// The first block.
        block: u64,
    },
    /// What has completed is on stable storage afterwards.
    Flush,
    /// Give blocks up.
    Discard(Vec<Extent>),
    /// Make blocks read as zero.
    WriteZeroes {
        /// Which.
        extents: Vec<Extent>,
        /// They may be given up, too.
        deallocate: bool,
    },
}

/// Bytes of a guest, where this process has them mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first byte.
    pub address: *mut u8,
    /// How many.
    pub len: usize,
}

// SAFETY: an address by itself does nothing; whoever uses it relies on the `Buffers` that it is from.
unsafe impl Send for Segment {}

/// Buffers in a guest's memory. The memory stays mapped while they live: a lane that hands an address on keeps them until
/// nobody uses it any more. The guest may change the bytes at any time, so no reference may ever point at them.
#[derive(Default)]
pub struct Buffers {
    segments: Vec<Segment>,
    len: u64,
    memory: Option<Arc<Memory>>,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Buffers");
        f.field("segments", &self.segments.len()).field("len", &self.len).finish_non_exhaustive()
    }
}

/// An address that is not the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl Buffers {
    /// None yet, of such memory.
    #[must_use]
    pub const fn of(memory: Arc<Memory>) -> Self {
        Self { segments: Vec::new(), len: 0, memory: Some(memory) }
    }

    /// The same with room that another request's buffers have left.
    #[must_use]
    pub fn reusing(memory: Arc<Memory>, old: Self) -> Self {
        let mut segments = old.segments;
        segments.clear();
        Self { segments, len: 0, memory: Some(memory) }
    }

    /// Adds a range of the guest's addresses.
    ///
    /// # Errors
    /// Part of it is not the guest's memory.
    pub fn push(&mut self, at: GuestAddress, len: usize) -> Result<(), OutOfMemory> {
        let Some(memory) = &self.memory else { return Err(OutOfMemory) };
        if let Ok(slice) = memory.get_slice(at, len) {
            Self::add(&mut self.segments, &mut self.len, &slice);
            return Ok(());
        }
        // In several pieces of it, or not all in any.
        let slices = GuestMemory::get_slices(&**memory, at, len, Permissions::ReadWrite);
        let slices = slices.map_err(|_| OutOfMemory)?;
        for slice in slices {
            Self::add(&mut self.segments, &mut self.len, &slice.map_err(|_| OutOfMemory)?);
        }
        Ok(())
    }

    fn add(segments: &mut Vec<Segment>, len: &mut u64, slice: &VolatileSlice<'_>) {
        let segment = Segment { address: slice.ptr_guard_mut().as_ptr(), len: slice.len() };
        segments.push(segment);
        *len += segment.len as u64;
    }

    /// The memory in which they are.
    #[must_use]
    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_deref()
    }

    /// Where they are, in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Bytes of all.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True without any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets go of the memory.
    #[must_use]
    pub fn released(self) -> Self {
        Self {
            memory: None,
            len: 0,
            segments: {
                let mut s = self.segments;
                s.clear();
                s
            },
        }
    }
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// What is to be done, inside of the disk's bounds.
    pub op: Op,
    /// Whole blocks of data; none but for reads, writes and comparisons.
    pub data: Buffers,
    /// The caller's number for it.
    pub tag: usize,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was not, or not wholly.
    Failed,
    /// The disk does not do such things.
    Unsupported,
}

/// A request that is over.
#[derive(Debug)]
pub struct Completed {
    /// Its number.
    pub tag: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// The target's word for that, where it had one.
    pub why: Option<Status>,
    /// Its buffers, that nobody uses any more.
    pub data: Buffers,
}

/// A descriptor that a lane waits for, to be readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// The descriptor.
    pub fd: RawFd,
    /// Another number for each descriptor that the lane opens, so that one with the number of another that was closed is known
    /// for a new one. One that is not named any more was closed.
    pub generation: u64,
    /// It is waited for to be writable, too.
    pub writable: bool,
}

/// What a lane waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// One of these.
    pub interests: Vec<Interest>,
    /// This time to have come.
    pub until: Option<Instant>,
}

impl Wait {
    /// Waits for the interests of `wanted` from now on: `leave` forgets a descriptor, `join` adds one.
    ///
    /// # Errors
    /// Those of `join`.
    pub fn follow(
        &mut self,
        wanted: &Self,
        mut leave: impl FnMut(RawFd),
        mut join: impl FnMut(&Interest) -> io::Result<()>,
    ) -> io::Result<()> {
        // One that was closed has left by itself, and another one may have its number.
        self.interests.retain(|old| {
            let same = |new: &&Interest| (new.fd, new.generation) == (old.fd, old.generation);
            match wanted.interests.iter().find(same) {
                Some(new) if new == old => true,
                Some(_) => {
                    leave(old.fd);
                    false
                }
                None => false,
            }
        });
        for new in &wanted.interests {
            if !self.interests.contains(new) {
                join(new)?;
                self.interests.push(*new);
            }
        }
        Ok(())
    }
}

/// What a lane has sent for its requests, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of guests' memory that the target may read in place.
    pub offered: u64,
    /// Bytes that were copied into a connection.
    pub copied: u64,
    /// Times that part of a request had to wait for a connection anew.
    pub repeated: u64,
}

/// Requests of one thread on their way. A lane outlives lost connections: requests wait until there is one again, and
/// are only failed by an answer.
pub trait Lane: Send {
    /// Takes another request now.
    fn has_room(&self) -> bool;

    /// Takes a request. Called only where there is room.
    fn submit(&mut self, request: Request);

    /// Moves on what can be moved without waiting, and adds what is over.
    fn poll(&mut self, completed: &mut Vec<Completed>);

    /// When to poll again: fills `wait`, which is empty.
    fn wait(&self, wait: &mut Wait);

    /// What it has sent.
    fn traffic(&self) -> Traffic;
}

/// A disk.
pub trait Disk: Send + Sync {
    /// What it is now. Only the number of its blocks changes.
    fn geometry(&self) -> Geometry;

    /// An eventfd(2) that does not block, rung when it may have changed.
    fn changes(&self) -> BorrowedFd<'_>;

    /// Another lane to it.
    ///
    /// # Errors
    /// Why there is none.
    fn lane(&self) -> io::Result<Box<dyn Lane>>;
}

//! A DMB by itself: sealed memory that a peer moves bytes into, or attaches.
//!
//! Its length is the length of its memory, which nobody can change, so there is no field to lie
//! about it. Never trusted beyond that: what is read from it is copied out first.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::memfd::{self, Map};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = 0x5348_554e_545f_4442; // "SHUNT_DB"

/// In front of the bytes, which begin on a page of their own.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    ended: AtomicU32,
}

const DATA_AT: usize = size_of::<Header>().next_multiple_of(4096);

/// A mapped DMB.
#[derive(Debug)]
pub struct Dmb {
    map: Map,
}

impl Dmb {
    /// Makes a DMB of `len` zero bytes, and the descriptor by which others map it.
    ///
    /// # Errors
    /// `ENOMEM` for a length that no address space holds, else those of [`memfd::create_sealed`] and
    /// [`Map::new`].
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let whole = len.checked_add(DATA_AT).ok_or(io::ErrorKind::OutOfMemory)?;
        let fd = memfd::create_sealed("shunt-dmb", whole)?;
        let dmb = Self { map: Map::new(&fd, whole, true)? };
        dmb.header().magic.store(MAGIC, Ordering::Release);
        Ok((dmb, fd))
    }

    /// Maps a DMB.
    ///
    /// # Errors
    /// `EINVAL` when it is not a DMB, else those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let whole = memfd::size(&fd)?;
        if whole < DATA_AT {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let dmb = Self { map: Map::new(fd, whole, true)? };
        if dmb.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(dmb)
    }

    fn header(&self) -> &Header {
        // SAFETY: every map is at least DATA_AT bytes long, of which the first are the header;
        // atomics only.
        unsafe { self.map.base().cast().as_ref() }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.map.len() - DATA_AT
    }

    /// True for a DMB of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `data` to `offset`. `None`: it does not fit, and nothing is copied.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        self.map.write(offset.checked_add(DATA_AT)?, data)
    }

    /// Copies the bytes at `offset` out. `None`: not all of them are inside, and nothing is copied.
    #[must_use]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        self.map.read(offset.checked_add(DATA_AT)?, into)
    }

    /// Says to all who have it mapped that its owner has unregistered it.
    pub fn end(&self) {
        self.header().ended.store(1, Ordering::Release);
    }

    /// True once the owner has unregistered it. Who forges this ends only its own connection.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.header().ended.load(Ordering::Acquire) != 0
    }
}

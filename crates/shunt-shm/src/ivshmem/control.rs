//! The control area: the first extent, with the tables of members and extents.

use std::io;
use std::os::fd::AsFd;

use super::extent::{EXTENT, Extent};
use super::member::{MEMBERS, Member};
use crate::memfd::Map;
use crate::sync::{AtomicU64, Ordering};

/// Version of the layout: machines whose versions differ share nothing.
pub const VERSION: u64 = 3;

const MAGIC: u64 = 0x5348_4e54_4956_0000 | VERSION; // "SHNTIV", version

const MEMBERS_AT: usize = 4096;
const EXTENTS_AT: usize = MEMBERS_AT + MEMBERS * size_of::<Member>();
/// More would not fit into the control area.
const MOST_EXTENTS: usize = (EXTENT - EXTENTS_AT) / size_of::<Extent>();

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
}

/// The control area of a device's memory, mapped.
#[derive(Debug)]
pub struct Control {
    map: Map,
    extents: usize,
}

impl Control {
    /// Maps the control area of a device's memory, `len` bytes in all; the first one that comes makes it.
    ///
    /// # Errors
    /// `EINVAL` for memory that is too short, or that holds something else; those of mmap(2).
    pub fn map(memory: impl AsFd, len: usize) -> io::Result<Self> {
        let control = Self::of(memory, len)?;
        let header = control.header();
        let (ok, no) = (Ordering::AcqRel, Ordering::Acquire);
        match header.magic.compare_exchange(0, MAGIC, ok, no) {
            Ok(_) | Err(MAGIC) => Ok(control),
            Err(other) => {
                let what = if other & !0xffff == MAGIC & !0xffff {
                    "the shared memory is in use by another version of Shunt"
                } else {
                    "the shared memory is in use by another program"
                };
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }

    /// Maps it where it has been made; `None` for memory that holds something else, or nothing.
    #[must_use]
    pub fn look(memory: impl AsFd, len: usize) -> Option<Self> {
        let control = Self::of(memory, len).ok()?;
        (control.header().magic.load(Ordering::Acquire) == MAGIC).then_some(control)
    }

    fn of(memory: impl AsFd, len: usize) -> io::Result<Self> {
        let extents = (len / EXTENT).min(MOST_EXTENTS);
        if extents < 3 {
            let what = "the shared memory is too small: it takes 32 MiB at the least";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let whole = (EXTENTS_AT + extents * size_of::<Extent>()).next_multiple_of(4096);
        Ok(Self { map: Map::device(memory, 0, whole)?, extents })
    }

    fn header(&self) -> &Header {
        // SAFETY: the map begins with the header; atomics only.
        unsafe { self.map.base().cast().as_ref() }
    }

    /// Extents that can be taken: from 1 up to this, exclusive.
    #[must_use]
    pub const fn extents(&self) -> usize {
        self.extents
    }

    /// An extent's entry; the index is taken modulo [`Self::extents`].
    #[must_use]
    pub fn extent(&self, index: usize) -> &Extent {
        let at = EXTENTS_AT + index % self.extents * size_of::<Extent>();
        // SAFETY: the index is bounded, so the entry lies in the map; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    /// A member's entry; the index is taken modulo [`MEMBERS`].
    #[must_use]
    pub fn member(&self, index: usize) -> &Member {
        let at = MEMBERS_AT + index % MEMBERS * size_of::<Member>();
        // SAFETY: the index is bounded, so the entry lies in the map; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }
}

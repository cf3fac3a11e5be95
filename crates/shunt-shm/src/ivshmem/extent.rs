//! An entry of the table of extents.

use super::member::MEMBERS;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Length of an extent in bytes.
pub const EXTENT: usize = 8 * 1024 * 1024;

/// Where an extent begins, in bytes.
#[must_use]
pub const fn offset(extent: usize) -> usize {
    extent * EXTENT
}

/// An entry of the table of extents.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Extent {
    /// The owner's name; 0: nobody.
    pub(super) owner: AtomicU64,
    /// A bit for each member that has it mapped, besides the owner.
    pub(super) holders: AtomicU64,
    /// What others find it by: the region that it is; 0: nothing that is to be found.
    pub(super) name: AtomicU64,
    /// The endpoint on whose behalf the owner made it.
    pub(super) endpoint: AtomicU64,
    /// Bytes of it that are in use.
    pub(super) len: AtomicU64,
    /// A [`Kind`], also of what it was before it was free.
    pub(super) kind: AtomicU32,
}

/// What an extent is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// It was never used.
    Fresh = 0,
    /// A member's home.
    Home = 1,
    /// A link group's region.
    Region = 2,
}

impl Kind {
    const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Fresh,
            2 => Self::Region,
            // The kind of which all is wiped.
            _ => Self::Home,
        }
    }
}

impl Extent {
    /// The owner's name.
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.owner.load(Ordering::Acquire)
    }

    /// What others find it by.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.name.load(Ordering::Acquire)
    }

    /// The endpoint for which it was made.
    #[must_use]
    pub fn endpoint(&self) -> u64 {
        self.endpoint.load(Ordering::Relaxed)
    }

    /// Bytes in use, at most an extent's length.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(EXTENT).min(EXTENT)
    }

    /// True when nothing of it is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is, or was.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::from_code(self.kind.load(Ordering::Relaxed))
    }

    /// A bit for each member that holds it.
    #[must_use]
    pub fn holders(&self) -> u64 {
        self.holders.load(Ordering::SeqCst)
    }

    /// The member at `index` does not hold it any more.
    pub fn release(&self, index: usize) {
        let bit = 1 << (index % MEMBERS);
        if self.holders.load(Ordering::Relaxed) & bit != 0 {
            self.holders.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

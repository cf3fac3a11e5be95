//! An entry of the table of members.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Members that there can be at once.
pub const MEMBERS: usize = 64;

/// An entry of the table of members.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Member {
    /// A random number that this member alone ever has; 0: nobody was here yet.
    pub(super) name: AtomicU64,
    /// The name of the member that is known to have gone last from here.
    pub(super) gone: AtomicU64,
    /// Counts up as long as the member lives.
    pub(super) beat: AtomicU64,
    /// Above which its names of endpoints, listeners and regions lie.
    pub(super) ids: AtomicU64,
    /// Its ID with the ivshmem server, plus 1; 0: it has none.
    pub(super) peer: AtomicU32,
    /// Its interrupt vectors.
    pub(super) vectors: AtomicU32,
    /// The extent that is its home; 0: none yet.
    pub(super) home: AtomicU32,
}

const _: () = assert!(size_of::<Member>() == 64);

/// A member, as private memory knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemberId {
    /// Its place in the table.
    pub index: usize,
    /// Its name.
    pub name: u64,
}

impl Member {
    /// Who is here; 0: nobody.
    #[must_use]
    pub fn live(&self) -> u64 {
        let name = self.name.load(Ordering::Acquire);
        if name != 0 && self.gone.load(Ordering::Acquire) != name { name } else { 0 }
    }

    /// Its ID with the ivshmem server.
    #[must_use]
    pub fn peer(&self) -> Option<u16> {
        u16::try_from(self.peer.load(Ordering::Acquire).checked_sub(1)?).ok()
    }

    /// Its interrupt vectors.
    #[must_use]
    pub fn vectors(&self) -> u32 {
        self.vectors.load(Ordering::Relaxed)
    }

    /// Its names lie above this.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.ids.load(Ordering::Relaxed)
    }

    /// What changes as long as it lives.
    #[must_use]
    pub fn beat(&self) -> u64 {
        self.beat.load(Ordering::Relaxed)
    }

    /// Its home.
    #[must_use]
    pub fn home(&self) -> usize {
        self.home.load(Ordering::Acquire) as usize
    }
}

//! A sender that grants, as a value.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::ring::Span;
use shunt_shm::zerocopy::{Open, ZeroCopy};

use crate::conn::End;

/// The sending direction of an end, and what is kept of its grants. With the lock of the direction held, but for questions.
#[derive(Clone, Copy, Debug)]
pub struct Granting<'a> {
    /// The end.
    pub end: End<'a>,
    /// What it keeps, and shares with its own forks: trusted.
    pub state: &'a ZeroCopy,
}

impl Granting<'_> {
    /// How far the receiver has come in the ring. Never back, whatever it says: the program's memory may be gone when it
    /// was told that it is its own again.
    #[must_use]
    pub fn taken(&self) -> u64 {
        let cursor = &self.end.record.tx.cursor;
        // What is impossible is not heeded here, and ends the connection elsewhere.
        let _ = cursor.refresh(&self.end.theirs.cons);
        cursor.taken()
    }

    /// True for what is granted from pipes.
    #[must_use]
    pub fn is_pinned(&self, open: &Open) -> bool {
        open.region == self.state.pinned.name.load(Relaxed)
    }

    /// The place of granted bytes in the ring.
    #[must_use]
    pub fn place_of(&self, open: &Open) -> Span {
        let cursor = &self.end.record.tx.cursor;
        let behind = cursor.pos().saturating_sub(open.at);
        let len = usize::try_from(open.len).unwrap_or(0);
        cursor.last(behind, self.end.ring).split(len).0
    }
}

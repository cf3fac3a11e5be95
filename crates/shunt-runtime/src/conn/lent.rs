//! What is lent of a connection's bytes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What a process has borrowed of a connection. With the lock of the receiving direction held.
#[derive(Debug, Default)]
pub struct Lent {
    /// Position in the ring of its first byte.
    pub at: AtomicU64,
    /// Bytes; 0: nothing.
    pub len: AtomicU64,
    /// Marks that were passed at that time.
    pub marks: AtomicU32,
    /// The number behind the last entry of the sender's that lies in it.
    pub entries: AtomicU32,
    /// Which of them were granted, a bit each.
    pub granted: AtomicU64,
}

impl Lent {
    /// Forgets it.
    pub fn clear(&self) {
        self.len.store(0, Relaxed);
    }

    /// So many of its bytes were given back.
    pub fn advance(&self, n: usize) {
        let len = self.len.load(Relaxed);
        self.at.store(self.at.load(Relaxed).wrapping_add(n as u64), Relaxed);
        self.len.store(len.saturating_sub(n as u64), Relaxed);
    }
}

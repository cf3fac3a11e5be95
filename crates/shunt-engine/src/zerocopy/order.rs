//! The order in which a grant changes hands.
//!
//! The sender notes an entry before it shows it, and shows it before its cursor covers the bytes. It takes an entry back by
//! copying the bytes to their place in the ring, then saying so, and only then may the program change them. A receiver copies
//! first, and then looks whether the bytes were granted still.

use shunt_shm::grants::{Grants, Part};
use shunt_shm::ring::ProdLine;
use shunt_shm::zerocopy::Granted;

/// The sender's entries: its own copy, and what the receiver sees. With the lock of the direction held.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    /// The sender's own copy: trusted.
    pub granted: &'a Granted,
    /// What the receiver sees.
    pub shown: &'a Grants,
    /// Counts those that are shown.
    pub mine: &'a ProdLine,
}

impl Entries<'_> {
    /// Makes the entry of this number, for which there is a [`Granted::place`]. The bytes lie at `address` in this process.
    #[inline]
    pub fn put(&self, number: u32, part: &Part, address: u64, now: u32) {
        self.write(number, part, address, now);
        self.show(number);
    }

    /// The same of an entry that the receiver is not shown yet.
    #[inline]
    pub fn write(&self, number: u32, part: &Part, address: u64, now: u32) {
        self.granted.note(number, part, address, now);
        self.shown.write(number, part);
    }

    /// The receiver may look at the entries up to this number: those were written.
    #[inline]
    pub fn show(&self, number: u32) {
        Grants::show(self.mine, number);
    }

    /// Takes an entry back, if `restore` has copied its bytes to their place in the ring. False if it has not.
    pub fn take_back(&self, number: u32, restore: impl FnOnce() -> bool) -> bool {
        if !restore() {
            return false;
        }
        // SYNC POINT taken back: in `shown`, after the copy and before the program hears of it.
        self.shown.take_back(number);
        self.granted.take_back(number);
        true
    }

    /// Forgets what was granted in front of the cursor, at `pos`, by a process that was killed before the cursor covered it.
    #[inline]
    pub fn withdraw(&self, pos: u64) {
        withdraw(self.granted, self.mine, pos);
    }
}

/// The same without a look at what is shown.
#[inline]
pub fn withdraw(granted: &Granted, mine: &ProdLine, pos: u64) {
    if granted.is_ahead(pos) {
        granted.withdraw(mine, pos);
    }
}

/// A receiver's copy of bytes that are granted. True when what was copied counts; false: the sender took the bytes back
/// meanwhile, and they are in the ring.
#[inline]
pub fn copy(shown: &Grants, number: u32, copy: impl FnOnce()) -> bool {
    copy();
    shown.is_granted(number)
}

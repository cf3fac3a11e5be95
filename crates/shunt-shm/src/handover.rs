//! The end of a receiver's reading from the ring, told by a word of its own ([`crate::region::Ctl::handed_over`]),
//! beside a sender that may be setting the mark at which it leaves the ring just then.
//!
//! The sender repeats over TCP what the receiver has not taken; the receiver drops of that what it has taken
//! since the sender looked. One who leaves can drop nothing later: the program that takes over knows of no
//! ring. So both have to agree whether the mark was seen in time. Each stores its word, then looks at the
//! other's (Dekker): one of them sees the other.

use crate::ring::ConsLine;
use crate::sync::{AtomicU32, Ordering, store_load_fence};

/// The writer looks at the marks for the last time.
pub const LEAVING: u32 = 1;
/// It has looked, and takes nothing from the ring any more.
pub const LEFT: u32 = 2;

/// Where a sender that has set a mark begins with what it sends once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeats {
    /// At the mark: the receiver sees it, or has seen it, and drops what it has had.
    FromMark,
    /// Where the receiver has stopped, as `cons` says for good: it drops nothing.
    FromRest,
    /// The receiver is about to say.
    Unknown,
}

/// The receiver leaves: `look` passes a mark that is there.
pub fn leave(handed_over: &AtomicU32, look: impl FnOnce()) {
    handed_over.store(LEAVING, Ordering::Relaxed);
    // SYNC POINT handover: the sender's is in `repeats`.
    store_load_fence();
    look();
    // Release: whoever sees this sees the marks passed and `cons`.
    handed_over.store(LEFT, Ordering::Release);
}

/// Asked by a sender that has set so many marks. `cons`: what the receiver says.
#[must_use]
pub fn repeats(handed_over: &AtomicU32, cons: &ConsLine, marks: u32) -> Repeats {
    // SYNC POINT handover: the receiver's is in `leave`.
    store_load_fence();
    match handed_over.load(Ordering::Acquire) {
        0 => Repeats::FromMark,
        LEAVING => Repeats::Unknown,
        _ if cons.marks_passed.load(Ordering::Acquire) == marks => Repeats::FromMark,
        _ => Repeats::FromRest,
    }
}

/// True when the writer of the word takes nothing from the ring any more.
#[inline]
#[must_use]
pub fn has_left(handed_over: &AtomicU32) -> bool {
    handed_over.load(Ordering::Acquire) > LEAVING
}

//! The end of a receiver's reading from the ring, told by a word of its own ([`crate::region::Ctl::handed_over`]),
//! beside a sender that may be setting the mark at which it leaves the ring just then.
//!
//! The sender repeats over TCP what the receiver has not taken; the receiver drops of that what it has taken
//! since the sender looked. One who leaves can drop nothing later: the program that takes over knows of no
//! ring. So both have to agree whether the mark was seen in time. Each stores its word, then looks at the
//! other's (Dekker): one of them sees the other.
//!
//! A process may keep the descriptor as well (it has only run another program), and read before the sender comes to
//! repeat anything. It reads the ring and drops what it has had, as if it had not left; but the sender is to leave still,
//! for the other program's sake. So the receiver says that it stays, unless the sender's mark is there: the same handshake.

use crate::sync::{AtomicU32, Ordering, store_load_fence};

/// The writer looks at the marks for the last time.
pub const LEAVING: u32 = 1;
/// It has looked, and takes nothing from the ring any more. The bits above say how many marks it had passed by then.
pub const LEFT: u32 = 2;
/// It has left, and reads on nevertheless: the sender is to leave, and begins at its mark.
pub const STAYS: u32 = 3;
/// The bits of these.
const STATE: u32 = 3;

/// [`LEFT`], with so many marks passed: one that is passed later was not seen in time.
const fn left_at(marks: u32) -> u32 {
    marks.wrapping_mul(STATE + 1) | LEFT
}

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

/// The receiver leaves: `look` passes a mark that is there, and says how many it has passed.
pub fn leave(handed_over: &AtomicU32, look: impl FnOnce() -> u32) {
    handed_over.store(LEAVING, Ordering::Relaxed);
    // SYNC POINT handover: the sender's is in `repeats`.
    store_load_fence();
    let marks = look();
    // Release: whoever sees this sees `cons`.
    handed_over.store(left_at(marks), Ordering::Release);
}

/// As [`leave`], in two steps, by an agent for a receiver that will get no more through the ring: how many marks the sender has set,
/// of which one that is set later waits for [`has_left_for_good`].
#[must_use]
pub fn begins_to_leave(handed_over: &AtomicU32, marks: &AtomicU32) -> u32 {
    handed_over.store(LEAVING, Ordering::Relaxed);
    // SYNC POINT handover: the sender's is in `repeats`.
    store_load_fence();
    marks.load(Ordering::Acquire)
}

/// The second one, with what [`begins_to_leave`] has found; where it stops is stored already.
pub fn has_left_for_good(handed_over: &AtomicU32, marks: u32) {
    handed_over.store(left_at(marks), Ordering::Release);
}

/// A receiver that has left, and has passed no mark since, wants to read on. `is_marked` looks whether there is one. False: then
/// the sender may have begun where this receiver has stopped, and nothing must be read in the ring.
pub fn stay(handed_over: &AtomicU32, is_marked: impl FnOnce() -> bool) -> bool {
    let left = handed_over.load(Ordering::Relaxed);
    handed_over.store(LEAVING, Ordering::Relaxed);
    // SYNC POINT handover: as in `leave`.
    store_load_fence();
    let stays = !is_marked();
    handed_over.store(if stays { STAYS } else { left }, Ordering::Release);
    stays
}

/// Asked by a sender that has set so many marks.
#[must_use]
pub fn repeats(handed_over: &AtomicU32, marks: u32) -> Repeats {
    // SYNC POINT handover: the receiver's is in `leave`.
    store_load_fence();
    match handed_over.load(Ordering::Acquire) {
        0 | STAYS => Repeats::FromMark,
        LEAVING => Repeats::Unknown,
        left if left == left_at(marks) => Repeats::FromMark,
        _ => Repeats::FromRest,
    }
}

/// True when the writer of the word has left, and reads on.
#[must_use]
pub fn stays(handed_over: &AtomicU32) -> bool {
    handed_over.load(Ordering::Relaxed) == STAYS
}

/// True while the writer of the word is about to say where it stops.
#[must_use]
pub fn is_leaving(handed_over: &AtomicU32) -> bool {
    handed_over.load(Ordering::Acquire) == LEAVING
}

/// True when the writer of the word wants the bytes over TCP, though it may read on in the ring.
#[inline]
#[must_use]
pub fn has_left(handed_over: &AtomicU32) -> bool {
    handed_over.load(Ordering::Acquire) & STATE > LEAVING
}

//! Grants: bytes of a direction that lie in memory of the sender's instead of in the ring.
//!
//! A grant has its place in the ring like bytes that were copied there; only the bytes are elsewhere, in a
//! registered region that the receiver maps read-only. So all that is said of positions (cursors, marks, room,
//! readiness) holds for granted bytes as for others, and a grant can be *taken back* at any time: the sender
//! copies the bytes to the place that was theirs all along.
//!
//! One [`Grants`] per direction lies in the region of the link group: entries that the sender writes, in the
//! order of the stream. An entry without length is an *offer*: the sender wants to grant from that region and asks
//! whether the receiver can map it. Both are counted in [`ProdLine::grants`](crate::ring::ProdLine::grants).
//!
//! The sender's program may change the bytes as soon as the receiver has passed them, or they were taken back.
//! A receiver that copies granted bytes therefore looks afterwards whether they were still granted, and
//! begins anew from the ring if not.

use crate::Violation;
use crate::ring::ProdLine;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Entries that can be open at once.
pub const GRANTS: usize = if cfg!(loom) { 2 } else { 64 };

/// [`Grant::state`]: the bytes are in the sender's region.
const GRANTED: u32 = 1;
/// The same, after they were copied into the ring.
const TAKEN_BACK: u32 = 2;

/// An entry.
#[repr(C)]
#[derive(Debug, Default)]
struct Grant {
    /// Position in the ring of the first byte.
    at: AtomicU64,
    /// Name of the registered region.
    region: AtomicU64,
    /// Offset in it.
    from: AtomicU64,
    /// Bytes; 0: an offer.
    len: AtomicU32,
    /// [`GRANTED`] or [`TAKEN_BACK`].
    state: AtomicU32,
}

/// The entries of one direction.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Grants([Grant; GRANTS]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Grants>() == 2048);

impl Default for Grants {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Grant::default()))
    }
}

/// What an entry says: a private copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Position in the ring of the first byte.
    pub at: u64,
    /// Bytes; 0: an offer.
    pub len: u64,
    /// Name of the registered region.
    pub region: u64,
    /// Offset in it.
    pub from: u64,
}

impl Part {
    /// The position after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.at.wrapping_add(self.len)
    }
}

/// Where bytes of a region begin that an entry places `from` there, if the region is `room` bytes long and has all `len` of
/// them.
#[inline]
#[must_use]
pub fn place_in(room: usize, from: u64, len: u64) -> Option<usize> {
    let end = from.checked_add(len)?;
    usize::try_from(from).ok().filter(|_| end <= room as u64)
}

/// Where the next bytes are that a receiver copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// So many in the ring.
    Ring(u64),
    /// So many of this entry from its region, `skip` after its beginning.
    Granted {
        /// The entry's number.
        number: u32,
        /// What it says.
        part: Part,
        /// Bytes of it in front of the receiver's position.
        skip: u64,
        /// Bytes from there on.
        len: u64,
    },
}

impl Grants {
    fn entry(&self, number: u32) -> &Grant {
        &self.0[number as usize % GRANTS]
    }

    /// Where an entry is, for [`prefetch`](crate::sync::prefetch).
    #[inline]
    #[must_use]
    pub fn place(&self, number: u32) -> *const u8 {
        core::ptr::from_ref(self.entry(number)).cast()
    }

    /// The sender's next entry, which is the `number`th; the caller knows that its place is free.
    pub fn put(&self, mine: &ProdLine, number: u32, part: &Part) {
        let entry = self.entry(number);
        entry.at.store(part.at, Ordering::Relaxed);
        entry.region.store(part.region, Ordering::Relaxed);
        entry.from.store(part.from, Ordering::Relaxed);
        entry.len.store(u32::try_from(part.len).unwrap_or(0), Ordering::Relaxed);
        entry.state.store(GRANTED, Ordering::Relaxed);
        // SYNC POINT grants: pairs with the Acquire load in `source`; and before the cursor that covers it.
        mine.grants.store(number.wrapping_add(1), Ordering::Release);
    }

    /// The sender has copied the bytes of an entry to their place in the ring.
    pub fn take_back(&self, number: u32) {
        // SYNC POINT taken back: the bytes in the ring before it, the program's changes after it.
        self.entry(number).state.store(TAKEN_BACK, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// True when the bytes that a receiver has just copied were those of the sender still.
    #[must_use]
    pub fn is_granted(&self, number: u32) -> bool {
        // SYNC POINT taken back: the copy before this look.
        fence(Ordering::Acquire);
        self.entry(number).state.load(Ordering::Acquire) == GRANTED
    }

    /// False when a receiver that has `passed` so many would find more than there can be.
    #[inline]
    #[must_use]
    pub fn are_possible(theirs: &ProdLine, passed: u32) -> bool {
        theirs.grants.load(Ordering::Relaxed).wrapping_sub(passed) as usize <= GRANTS
    }

    /// Where the receiver's next bytes are, up to `len` from `pos` on, all of which were sent. `passed` counts the
    /// entries that are behind it, and moves on. `offered` hears of regions that the sender wants to use.
    ///
    /// # Errors
    /// [`Violation::Grants`] when the entries cannot be.
    pub fn source(
        &self,
        theirs: &ProdLine,
        passed: &AtomicU32,
        (pos, len): (u64, u64),
        mut offered: impl FnMut(u64),
    ) -> Result<Source, Violation> {
        for _ in 0..4 * GRANTS {
            let number = passed.load(Ordering::Relaxed);
            // SYNC POINT grants: pairs with the Release store in `put`.
            let put = theirs.grants.load(Ordering::Acquire);
            if !Self::are_possible(theirs, number) {
                return Err(Violation::Grants);
            }
            if put == number {
                return Ok(Source::Ring(len));
            }
            let entry = self.entry(number);
            let part = Part {
                at: entry.at.load(Ordering::Relaxed),
                len: u64::from(entry.len.load(Ordering::Relaxed)),
                region: entry.region.load(Ordering::Relaxed),
                from: entry.from.load(Ordering::Relaxed),
            };
            if part.at > pos {
                return Ok(Source::Ring(len.min(part.at - pos)));
            }
            if part.len == 0 {
                offered(part.region);
            }
            if part.end() <= pos {
                passed.store(number.wrapping_add(1), Ordering::Relaxed);
                continue;
            }
            let skip = pos - part.at;
            let len = len.min(part.len - skip);
            return Ok(if entry.state.load(Ordering::Acquire) == GRANTED {
                Source::Granted { number, part, skip, len }
            } else {
                Source::Ring(len)
            });
        }
        // No honest sender puts so many while its receiver stands still.
        Err(Violation::Grants)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn part(at: u64, len: u64, from: u64) -> Part {
        Part { at, len, region: 7, from }
    }

    #[test]
    fn bytes_come_from_the_ring_and_from_grants_in_their_order() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        let none = |_| panic!("no offer was made");
        assert_eq!(grants.source(&prod, &passed, (0, 50), none), Ok(Source::Ring(50)));
        let (first, second) = (part(100, 1000, 5), part(1100, 10, 5000));
        grants.put(&prod, 0, &first);
        grants.put(&prod, 1, &second);
        assert_eq!(grants.source(&prod, &passed, (40, 500), none), Ok(Source::Ring(60)));
        let of = |number, part, skip, len| Ok(Source::Granted { number, part, skip, len });
        assert_eq!(grants.source(&prod, &passed, (100, 500), none), of(0, first, 0, 500));
        assert_eq!(grants.source(&prod, &passed, (600, 5000), none), of(0, first, 500, 500));
        assert_eq!(grants.source(&prod, &passed, (1100, 5000), none), of(1, second, 0, 10));
        assert_eq!(passed.load(Ordering::Relaxed), 1);
        assert_eq!(grants.source(&prod, &passed, (1110, 5), none), Ok(Source::Ring(5)));
        assert_eq!(passed.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_was_taken_back_is_in_the_ring() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        grants.put(&prod, 0, &part(0, 100, 0));
        assert!(grants.is_granted(0));
        grants.take_back(0);
        assert!(!grants.is_granted(0));
        let from = grants.source(&prod, &passed, (10, 500), |_| {});
        assert_eq!(from, Ok(Source::Ring(90)));
    }

    #[test]
    fn an_offer_is_heard_once() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        let mut heard = Vec::new();
        grants.put(&prod, 0, &part(10, 0, 0));
        assert_eq!(grants.source(&prod, &passed, (9, 5), |r| heard.push(r)), Ok(Source::Ring(1)));
        for _ in 0..2 {
            let from = grants.source(&prod, &passed, (10, 5), |r| heard.push(r));
            assert_eq!(from, Ok(Source::Ring(5)));
        }
        assert_eq!(heard, [7]);
    }

    #[test]
    fn more_entries_than_there_can_be_are_a_violation() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        for count in [u32::try_from(GRANTS).unwrap() + 1, u32::MAX] {
            prod.grants.store(count, Ordering::Relaxed);
            let from = grants.source(&prod, &passed, (0, 5), |_| {});
            assert_eq!(from, Err(Violation::Grants));
        }
    }

    #[test]
    fn whatever_is_written_the_length_is_bounded() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        for at in [0, 5, u64::MAX, u64::MAX - 3] {
            passed.store(0, Ordering::Relaxed);
            grants.put(&prod, 0, &part(at, u64::from(u32::MAX), u64::MAX));
            match grants.source(&prod, &passed, (5, 8), |_| {}) {
                Ok(Source::Ring(len) | Source::Granted { len, .. }) => assert!(len <= 8),
                Err(_) => {}
            }
        }
    }
}

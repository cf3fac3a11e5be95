//! Grants: bytes of a direction that lie in memory of the sender's instead of in the ring.
//!
//! A grant has its place in the ring like bytes that were copied there; only the bytes are elsewhere, in a
//! registered region that the receiver maps read-only. So all that is said of positions (cursors, marks, room,
//! readiness) holds for granted bytes as for others, and a grant can be *taken back* at any time: the sender
//! copies the bytes to the place that was theirs all along.
//!
//! What lies in memory that nobody can map is *pinned* by the sender in pipes, [`LANES`] per direction, from which the
//! receiver reads it: a copy, but one instead of two, and the pages stay as long as the pipe has them, whatever becomes of
//! the sender. Reading takes the bytes out, so the receiver counts them ([`PipeReads`]), and has those in the ring that it has read
//! before somebody wanted to have them. A sender that takes such a grant back reads what is left in the pipes itself, and
//! uses them no more.
//!
//! One [`Grants`] per direction lies in the region of the link group: entries that the sender writes, in the
//! order of the stream. An entry without length is an *offer*: the sender wants to grant from that region and asks
//! whether the receiver can map it. Both are counted in [`ProdLine::grants`](crate::ring::ProdLine::grants).
//!
//! The sender's program may change the bytes as soon as the receiver has passed them, or they were taken back.
//! A receiver that copies granted bytes therefore looks afterwards whether they were still granted, and
//! begins anew from the ring if not.

use shunt_wire::agent::LANES;

use crate::Violation;
use crate::reset::resets;
use crate::ring::ProdLine;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Entries that can be open at once.
pub const GRANTS: usize = if cfg!(loom) { 2 } else { 64 };

/// [`Grant::state`]: the bytes are in the sender's region.
const GRANTED: u32 = 1;
/// The same, after they were copied into the ring.
const TAKEN_BACK: u32 = 2;
/// The same, while the sender reads what is left of them in a pipe.
const TAKING: u32 = 3;

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
    /// Offset in it, or [`Lane::to_word`] of what is pinned.
    pub from: u64,
}

/// Bit of [`Lane::to_word`].
const SECOND: u64 = 1 << 63;
const _: () = assert!(LANES == 2);

/// A place in what goes through a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Which pipe, below [`LANES`].
    pub index: usize,
    /// Bytes that went through it before.
    pub at: u64,
}

impl Lane {
    /// As a word, to which bytes can be added.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        if self.index == 0 { self.at } else { self.at | SECOND }
    }

    /// What a word says, whatever it is.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self { index: (word >> 63) as usize, at: word & !SECOND }
    }
}

/// What a receiver has read from the pipes of a direction. Private to the process and its forks; with the lock of the
/// receiving direction held.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PipeReads {
    /// Bytes ever read from each, and those that the sender has read itself before the next ones.
    lanes: [AtomicU64; LANES],
    /// Not 0 from the first such byte of a call to when the cursor has passed it: who comes then comes after a process that
    /// was killed, and cannot know what it has read.
    open: AtomicU32,
}

resets! { PipeReads { lanes, open } }

impl PipeReads {
    /// Bytes are about to be read.
    ///
    /// # Errors
    /// [`Violation::Grants`] when somebody was killed in the middle of it.
    pub fn begin(&self) -> Result<(), Violation> {
        if self.open.swap(1, Ordering::Relaxed) != 0 {
            return Err(Violation::Grants);
        }
        Ok(())
    }

    /// True between the two.
    #[must_use]
    pub fn are_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0
    }

    /// They are in the ring, or the cursor has passed them.
    pub fn end(&self) {
        self.open.store(0, Ordering::Relaxed);
    }

    /// Which pipe a part is in, and how many of its bytes were read already: those after the first `skip` of them lie in
    /// the ring.
    ///
    /// # Errors
    /// [`Violation::Grants`] when the part cannot be where it says.
    pub fn of(&self, part: &Part, skip: u64) -> Result<(usize, u64), Violation> {
        let Lane { index, at } = Lane::from_word(part.from);
        let lane = &self.lanes[index];
        // What lies between them the sender has read.
        let read = lane.load(Ordering::Relaxed).max(at);
        // Of those behind it some may be in the ring, too.
        let pulled = (read - at).min(part.len);
        if pulled < skip {
            return Err(Violation::Grants);
        }
        lane.store(read, Ordering::Relaxed);
        Ok((index, pulled))
    }

    /// So many more were read.
    pub fn add(&self, lane: usize, n: u64) {
        let lane = &self.lanes[lane];
        lane.store(lane.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// Where the bytes of an entry are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Where it says.
    Granted,
    /// The sender is reading what is left of them in a pipe.
    Taking,
    /// In the ring.
    TakenBack,
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
        self.write(number, part);
        Self::show(mine, number);
    }

    /// Writes such an entry, which no receiver looks at before it is [shown](Self::show).
    pub fn write(&self, number: u32, part: &Part) {
        let entry = self.entry(number);
        entry.at.store(part.at, Ordering::Relaxed);
        entry.region.store(part.region, Ordering::Relaxed);
        entry.from.store(part.from, Ordering::Relaxed);
        entry.len.store(u32::try_from(part.len).unwrap_or(0), Ordering::Relaxed);
        entry.state.store(GRANTED, Ordering::Relaxed);
    }

    /// The receiver may look at all entries up to the `number`th: those were written.
    pub fn show(mine: &ProdLine, number: u32) {
        // SYNC POINT grants: pairs with the Acquire load in `source`; and before the cursor that covers them.
        mine.grants.store(number.wrapping_add(1), Ordering::Release);
    }

    /// There are so many entries, and no more: those behind them are of bytes that no cursor covers, so that no receiver has
    /// passed them.
    pub fn withdraw(mine: &ProdLine, count: u32) {
        // SYNC POINT grants: before the cursor that covers other bytes in their place.
        mine.grants.store(count, Ordering::Release);
    }

    /// The sender has copied the bytes of an entry to their place in the ring.
    pub fn take_back(&self, number: u32) {
        // SYNC POINT taken back: the bytes in the ring before it, the program's changes after it.
        self.entry(number).state.store(TAKEN_BACK, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The sender is about to read what is left of an entry in a pipe.
    pub fn begin_to_take(&self, number: u32) {
        // SYNC POINT taking: before the sender's read. The pipe's own lock has a receiver that finds it empty see this.
        self.entry(number).state.store(TAKING, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Where the bytes of an entry are, for a receiver that has found its pipe empty.
    #[must_use]
    pub fn held(&self, number: u32) -> Held {
        fence(Ordering::Acquire);
        // SYNC POINT taken back: what is in the ring before this.
        match self.entry(number).state.load(Ordering::Acquire) {
            GRANTED => Held::Granted,
            TAKING => Held::Taking,
            _ => Held::TakenBack,
        }
    }

    /// The position behind the bytes of the `number`th entry, if the sender has shown it: where a receiver may find the next ones that
    /// are in the ring. To be used for hints alone, as nothing of it is checked.
    #[inline]
    #[must_use]
    pub fn end_of(&self, theirs: &ProdLine, number: u32) -> Option<u64> {
        let entry = self.entry(number);
        let is_shown = theirs.grants.load(Ordering::Relaxed) != number;
        is_shown.then(|| {
            let len = u64::from(entry.len.load(Ordering::Relaxed));
            entry.at.load(Ordering::Relaxed).wrapping_add(len)
        })
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
            // SYNC POINT grants: pairs with the Release store in `show`.
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
            return Ok(if matches!(entry.state.load(Ordering::Acquire), GRANTED | TAKING) {
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
    fn what_is_written_is_seen_when_it_is_shown() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        let (first, second) = (part(10, 5, 0), part(15, 6, 0));
        grants.write(0, &first);
        grants.write(1, &second);
        assert_eq!(grants.source(&prod, &passed, (10, 50), |_| {}), Ok(Source::Ring(50)));
        assert_eq!(grants.end_of(&prod, 0), None);
        Grants::show(&prod, 1);
        let of = |number, part, len| Ok(Source::Granted { number, part, skip: 0, len });
        assert_eq!(grants.source(&prod, &passed, (10, 50), |_| {}), of(0, first, 5));
        assert_eq!(grants.source(&prod, &passed, (15, 50), |_| {}), of(1, second, 6));
        assert_eq!([0, 1, 2].map(|n| grants.end_of(&prod, n)), [Some(15), Some(21), None]);
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
    fn what_was_read_from_a_pipe_is_known() {
        let pipe_reads = PipeReads::default();
        let part = |index, at| Part { from: Lane { index, at }.to_word(), ..part(1000, 100, 0) };
        assert_eq!(pipe_reads.of(&part(1, 0), 0), Ok((1, 0)));
        pipe_reads.add(1, 60);
        assert_eq!(pipe_reads.of(&part(1, 0), 20), Ok((1, 60)), "of which 40 are in the ring");
        assert_eq!(pipe_reads.of(&part(1, 0), 61), Err(Violation::Grants), "nobody has read them");
        assert_eq!(
            pipe_reads.of(&part(0, 500), 0),
            Ok((0, 0)),
            "the sender has read what was before"
        );
        assert_eq!(pipe_reads.of(&part(0, 400), 100), Ok((0, 100)));
        pipe_reads.add(0, 130);
        assert_eq!(pipe_reads.of(&part(0, 500), 30), Ok((0, 100)), "and 30 of the next one");
        assert_eq!(pipe_reads.of(&part(0, 600), 0), Ok((0, 30)));
        assert_eq!(pipe_reads.of(&part(0, u64::MAX >> 1), 1), Err(Violation::Grants));
        assert_eq!(pipe_reads.of(&part(0, 600), 0), Ok((0, 30)), "what cannot be changes nothing");
    }

    #[test]
    fn who_comes_after_a_reader_that_was_killed_reads_nothing() {
        let pipe_reads = PipeReads::default();
        assert_eq!(pipe_reads.begin(), Ok(()));
        assert_eq!(pipe_reads.begin(), Err(Violation::Grants));
        pipe_reads.end();
        assert_eq!(pipe_reads.begin(), Ok(()));
        pipe_reads.reset();
        assert_eq!(pipe_reads.begin(), Ok(()));
    }

    #[test]
    fn a_lane_is_what_its_word_says() {
        for lane in [Lane { index: 0, at: 7 }, Lane { index: 1, at: 0 }] {
            assert_eq!(Lane::from_word(lane.to_word()), lane);
            assert_eq!(Lane::from_word(lane.to_word() + 5), Lane { at: lane.at + 5, ..lane });
        }
        assert!(Lane::from_word(u64::MAX).index < LANES);
    }

    #[test]
    fn what_is_being_taken_is_still_to_be_looked_for() {
        let (grants, prod, passed) = (Grants::default(), ProdLine::default(), AtomicU32::new(0));
        let whole = part(0, 100, 0);
        grants.put(&prod, 0, &whole);
        assert_eq!(grants.held(0), Held::Granted);
        grants.begin_to_take(0);
        assert!(!grants.is_granted(0));
        assert_eq!(grants.held(0), Held::Taking);
        let granted = Source::Granted { number: 0, part: whole, skip: 0, len: 100 };
        assert_eq!(grants.source(&prod, &passed, (0, 100), |_| {}), Ok(granted));
        grants.take_back(0);
        assert_eq!(grants.held(0), Held::TakenBack);
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

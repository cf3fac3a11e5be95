//! What a sender keeps of a connection on which it sends without copies: the completions, and what it has
//! granted. Private to the process and its forks; whoever uses it holds the lock of the sending direction.

use shunt_wire::agent::LANES;
use shunt_wire::counter::Counter;

use crate::completions::Completions;
use crate::grants::{GRANTS, Grants, Lane, Part};
use crate::reset::{Word, resets};
use crate::ring::ProdLine;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const R: Ordering = Ordering::Relaxed;

/// Registered regions per connection that the receiver is known to have mapped.
const KNOWN: usize = 4;

/// All of it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ZeroCopy {
    /// How its calls have come out.
    pub tally: Tally,
    /// Calls that are numbered.
    pub completions: Completions,
    /// Bytes that are granted.
    pub granted: Granted,
    /// Pipes in which private memory is pinned.
    pub pinned: Pinned,
}

/// [`Pinned::over`].
const OVER: u32 = 1;
/// See above.
const TAKING: u32 = 2;

/// What a sender and its relatives keep of the pipes of a connection, of which those have them who are told of by whoever made
/// them.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Pinned {
    /// Their name, 0: there are none yet.
    pub name: AtomicU64,
    /// [`OVER`]: they are not used any more. [`TAKING`]: what is left in them is being taken back.
    over: AtomicU32,
    /// Not 0 from when bytes are put into them to when the cursor covers these: who comes then comes after a process that was
    /// killed.
    open: AtomicU32,
    /// Pieces for which it was decided whether they are pinned.
    pub turn: AtomicU32,
    /// What copies to the ring take here, and pinning, in nanoseconds per MiB; 0: not known.
    pub costs: [AtomicU32; 2],
    /// Bytes ever put into each.
    put: [AtomicU64; LANES],
}

resets! { Pinned { name, over, open, turn, costs, put } }

impl Pinned {
    /// False when the pipes are used no more.
    #[must_use]
    pub fn may_be_used(&self) -> bool {
        self.over.load(R) == 0 && self.open.load(R) == 0
    }

    /// They are used no more.
    pub fn end(&self) {
        self.over.store(OVER, R);
    }

    /// What is left in them is about to be taken back, after which comes [`Self::end`]. False when it is not known what is
    /// there, after a process that was killed, or in a signal handler above one that puts something there.
    #[must_use]
    pub fn begin_to_take(&self) -> bool {
        self.open.load(R) == 0 && self.over.swap(TAKING, R) != TAKING
    }

    /// Where the next bytes go: to the pipe of which the receiver has read the less, as far as that depends on the sender.
    #[must_use]
    pub fn lane(&self) -> Lane {
        let puts = self.put.each_ref().map(|put| put.load(R));
        let index = usize::from(puts[1] < puts[0]);
        Lane { index, at: puts[index] }
    }

    /// Bytes are put there by `put`, which says how many. If it is any, [`Self::are_covered`] comes next.
    pub fn put(&self, lane: Lane, put: impl FnOnce() -> Option<usize>) -> Option<usize> {
        self.open.store(1, R);
        let n = put();
        self.put[lane.index].store(lane.at + n.unwrap_or(0) as u64, R);
        if n.is_none() {
            self.are_covered();
        }
        n
    }

    /// The receiver can come to all that was put there.
    pub fn are_covered(&self) {
        self.open.store(0, R);
    }

    /// Which bytes of a pipe are still in it, of which so many were left: the position of the first one.
    #[must_use]
    pub fn first_of(&self, lane: usize, left: u64) -> u64 {
        self.put[lane].load(R).saturating_sub(left)
    }
}

/// What is counted per connection; it is added to the totals like a connection's bytes.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Tally([AtomicU64; Tally::COUNTERS.len()]);

impl Tally {
    /// Which counters.
    pub const COUNTERS: [Counter; 8] = [
        Counter::ZerocopySent,
        Counter::ZerocopySuccess,
        Counter::ZerocopyFail,
        Counter::GrantOverflows,
        Counter::GrantsTakenBack,
        Counter::GrantsTimedOut,
        Counter::BytesGranted,
        Counter::BytesPinned,
    ];

    /// Adds to one of them.
    #[inline]
    pub fn add(&self, which: Counter, n: u64) {
        if let Some(at) = Self::COUNTERS.iter().position(|counter| *counter == which) {
            // There is one writer at a time, and a locked addition takes ten times as long.
            self.0[at].store(self.0[at].load(R).wrapping_add(n), R);
        }
    }

    /// In the order of [`Self::COUNTERS`].
    #[must_use]
    pub fn read(&self) -> Tallied {
        self.0.each_ref().map(|word| word.load(R))
    }

    /// Begins anew.
    pub fn reset(&self) {
        let Self(counters) = self;
        Word::reset(counters);
    }
}

/// The counters of a [`Tally`], in the order of [`Tally::COUNTERS`].
pub type Tallied = [u64; Tally::COUNTERS.len()];

/// The sender's own copy of its grants.
#[repr(C)]
#[derive(Debug)]
pub struct Granted {
    /// Entries ever made, and those of them whose place is free again.
    made: AtomicU32,
    freed: AtomicU32,
    /// When the last one was made, in units of 1024 ns.
    since: AtomicU32,
    /// Which of `known` is replaced next.
    turn: AtomicU32,
    /// The position after the last byte of the last entry.
    until: AtomicU64,
    /// The region that was offered last, 0: none.
    offered: AtomicU64,
    known: [AtomicU64; KNOWN],
    entries: [Entry; GRANTS],
}

#[repr(C)]
#[derive(Debug, Default)]
struct Entry {
    at: AtomicU64,
    /// Bytes; 0: an offer.
    len: AtomicU64,
    /// Where they are in the memory of the process that granted them; 0: they were taken back.
    address: AtomicU64,
    /// The registered region, and the offset there.
    region: AtomicU64,
    from: AtomicU64,
}

/// A grant that the receiver has not passed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Open {
    /// The entry's number.
    pub number: u32,
    /// Position in the ring of the first byte that is left.
    pub at: u64,
    /// Bytes that are left.
    pub len: u64,
    /// Where they are in the memory of the process that granted them, which may be a relative.
    pub address: u64,
    /// The registered region.
    pub region: u64,
    /// Offset there.
    pub from: u64,
}

impl Default for Granted {
    fn default() -> Self {
        Self {
            made: AtomicU32::new(0),
            freed: AtomicU32::new(0),
            since: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            until: AtomicU64::new(0),
            offered: AtomicU64::new(0),
            known: Default::default(),
            entries: core::array::from_fn(|_| Entry::default()),
        }
    }
}

// An entry is written before it is read.
resets! { Granted { made, freed, since, turn, until, offered, known } keeps { entries } }

impl Granted {
    fn entry(&self, number: u32) -> &Entry {
        &self.entries[number as usize % GRANTS]
    }

    /// A place for an entry, with the receiver at `taken`: its number.
    pub fn place(&self, taken: u64) -> Option<u32> {
        let made = self.made.load(R);
        let mut freed = self.freed.load(R);
        while freed != made {
            let entry = self.entry(freed);
            // Who is at an offer may not have seen it yet.
            let end = entry.at.load(R) + entry.len.load(R).max(1);
            if taken < end {
                break;
            }
            freed = freed.wrapping_add(1);
        }
        self.freed.store(freed, R);
        ((made.wrapping_sub(freed) as usize) < GRANTS).then_some(made)
    }

    /// Notes the entry of this [`Self::place`], made `now`.
    pub fn note(&self, number: u32, part: &Part, address: u64, now: u32) {
        let entry = self.entry(number);
        entry.at.store(part.at, R);
        entry.len.store(part.len, R);
        entry.address.store(address, R);
        entry.region.store(part.region, R);
        entry.from.store(part.from, R);
        self.since.store(now, R);
        self.until.store(part.end(), R);
        // After all else, so that it is whole whenever somebody is killed; see `withdraw`.
        self.made.store(number.wrapping_add(1), Ordering::Release);
    }

    /// True when the last entry is of bytes that the sender's cursor, at `pos`, has not come to. Whoever finds that before
    /// it sends something comes after a process that was killed in between, and has to [withdraw](Self::withdraw) it, and those
    /// that were made with it.
    #[inline]
    #[must_use]
    pub fn is_ahead(&self, pos: u64) -> bool {
        self.until.load(R) > pos
    }

    /// Forgets the entries of bytes that the cursor, at `pos`, has not come to, and one that was noted and not put: what is sent
    /// next has their places. No receiver has passed them.
    #[cold]
    pub fn withdraw(&self, mine: &ProdLine, pos: u64) {
        let (freed, made) = (self.freed.load(R), self.made.load(R));
        let put = mine.grants.load(R);
        let mut count = if made == put.wrapping_add(1) { put } else { made };
        while count != freed {
            let last = self.entry(count.wrapping_sub(1));
            if last.at.load(R) + last.len.load(R) <= pos {
                break;
            }
            count = count.wrapping_sub(1);
        }
        // In this order: who is killed between them leaves entries that are ahead still, or one that was noted and not put.
        Grants::withdraw(mine, count);
        self.made.store(count, Ordering::Release);
        self.until.store(pos, R);
    }

    /// Entries ever made.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made.load(R)
    }

    /// When the last entry was made.
    #[must_use]
    pub fn since(&self) -> u32 {
        self.since.load(R)
    }

    /// The bytes of an entry were copied: they are not granted any more.
    pub fn take_back(&self, number: u32) {
        self.entry(number).address.store(0, R);
    }

    /// What is granted still, with the receiver at `taken`.
    pub fn open(&self, taken: u64) -> impl Iterator<Item = Open> {
        let (freed, made) = (self.freed.load(R), self.made.load(R));
        (0..made.wrapping_sub(freed)).filter_map(move |n| {
            let number = freed.wrapping_add(n);
            let entry = self.entry(number);
            let (at, len) = (entry.at.load(R), entry.len.load(R));
            let gone = taken.saturating_sub(at).min(len);
            let address = entry.address.load(R);
            let open = Open {
                number,
                at: at + gone,
                len: len - gone,
                address: address + gone,
                region: entry.region.load(R),
                from: entry.from.load(R) + gone,
            };
            (gone < len && address != 0).then_some(open)
        })
    }

    /// True when something [`Self::open`] lies between these addresses.
    #[must_use]
    pub fn is_open_in(&self, taken: u64, from: u64, to: u64) -> bool {
        self.open(taken).any(|open| open.address < to && from < open.address + open.len)
    }

    /// The region that was offered last, 0: none.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.offered.load(R)
    }

    /// Notes an offer.
    pub fn offer(&self, region: u64) {
        self.offered.store(region, R);
    }

    /// True when the receiver has this region; `accepted` is what it says.
    #[must_use]
    pub fn is_known(&self, region: u64, accepted: u64) -> bool {
        if self.known.iter().any(|known| known.load(R) == region) {
            return true;
        }
        let is = accepted == region && self.offered.load(R) == region;
        if is {
            let turn = self.turn.load(R);
            self.turn.store(turn.wrapping_add(1), R);
            self.known[turn as usize % KNOWN].store(region, R);
        }
        is
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::grants::Source;

    #[test]
    fn pipes_are_used_in_turn_and_no_more_after_something_went_wrong() {
        let pinned = Pinned::default();
        for (index, at) in [(0, 0), (1, 0), (0, 100), (1, 100)] {
            let lane = pinned.lane();
            assert_eq!(lane, Lane { index, at });
            assert_eq!(pinned.put(lane, || Some(100)), Some(100));
            assert!(!pinned.may_be_used() && !pinned.begin_to_take(), "not covered yet");
            pinned.are_covered();
            assert!(pinned.may_be_used());
        }
        assert_eq!(pinned.put(pinned.lane(), || None), None);
        assert!(pinned.may_be_used());
        assert_eq!((pinned.first_of(1, 30), pinned.first_of(1, 300)), (170, 0));
        assert!(pinned.begin_to_take() && !pinned.may_be_used());
        assert!(!pinned.begin_to_take(), "after a process that was killed in the middle of it");
        pinned.end();
        assert!(!pinned.may_be_used() && pinned.begin_to_take());
        pinned.reset();
        assert!(pinned.may_be_used() && pinned.lane() == Lane { index: 0, at: 0 });
    }

    fn part(at: u64, len: u64) -> Part {
        Part { at, len, region: 9, from: 7 }
    }

    #[test]
    fn what_the_receiver_has_passed_is_not_open() {
        let granted = Granted::default();
        for n in 0..3 {
            let number = granted.place(0).unwrap();
            granted.note(number, &part(100 * n, 100), 10_000 + 1000 * n, 7);
        }
        let open: Vec<_> = granted.open(150).collect();
        assert_eq!(
            open[0],
            Open { number: 1, at: 150, len: 50, address: 11_050, region: 9, from: 57 }
        );
        assert_eq!(
            open[1],
            Open { number: 2, at: 200, len: 100, address: 12_000, region: 9, from: 7 }
        );
        assert_eq!(open.len(), 2);
        assert!(
            granted.is_open_in(150, 11_099, 11_200) && !granted.is_open_in(150, 11_100, 12_000)
        );
        assert!(granted.open(300).next().is_none());
        granted.take_back(1);
        assert_eq!(granted.open(150).map(|open| open.number).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn places_come_back_in_their_order_and_those_of_offers_after_the_next_byte() {
        let granted = Granted::default();
        for n in 0..GRANTS as u64 {
            let number = granted.place(0).unwrap();
            granted.note(number, &part(n * 10, if n == 0 { 0 } else { 10 }), 0, 0);
        }
        let all = u32::try_from(GRANTS).unwrap();
        assert_eq!(granted.place(0), None);
        assert_eq!(granted.place(1), Some(all));
        granted.note(all, &part(640, 10), 0, 0);
        assert_eq!(granted.place(19), None);
        assert_eq!(granted.place(20), Some(all + 1));
    }

    /// Notes an entry, and puts it there, too, if that is wanted.
    fn begin(granted: &Granted, shown: Option<(&Grants, &ProdLine)>, part: &Part) -> u32 {
        let number = granted.place(0).unwrap();
        granted.note(number, part, 10_000, 0);
        if let Some((grants, prod)) = shown {
            grants.put(prod, number, part);
        }
        number
    }

    #[test]
    fn what_was_granted_and_never_sent_is_not_taken_for_what_is_sent_next() {
        let (granted, grants, prod) = (Granted::default(), Grants::default(), ProdLine::default());
        let shown = Some((&grants, &prod));
        let (passed, none) = (AtomicU32::new(0), |_| panic!("no offer was made"));
        begin(&granted, shown, &part(0, 100));
        assert!(granted.is_ahead(99) && !granted.is_ahead(100), "the cursor has come to it");
        // Whoever has made these was killed before the cursor came to them.
        for shown in [shown, None] {
            begin(&granted, shown, &part(100, 50));
            assert!(granted.is_ahead(100));
            granted.withdraw(&prod, 100);
            assert!(!granted.is_ahead(100));
            let ahead = || granted.open(0).any(|open| open.at >= 100);
            assert!(!ahead() && granted.open(0).count() == 1);
            // A relative has copied 30 bytes to the same place.
            let source = grants.source(&prod, &passed, (100, 30), none);
            assert_eq!(source, Ok(Source::Ring(30)), "{}", shown.is_some());
            passed.store(0, R);
        }
        // And then it grants.
        let next = part(130, 7);
        assert_eq!(begin(&granted, shown, &next), 1);
        assert_eq!(grants.source(&prod, &passed, (100, 37), none), Ok(Source::Ring(30)));
        let granted = Source::Granted { number: 1, part: next, skip: 0, len: 7 };
        assert_eq!(grants.source(&prod, &passed, (130, 7), none), Ok(granted));
    }

    #[test]
    fn all_that_was_granted_together_and_never_sent_is_withdrawn() {
        let (first, passed) = (part(0, 100), AtomicU32::new(0));
        let together = [part(130, 50), part(200, 7), part(207, 9)];
        // It was killed when so many were noted, and all of them shown or none; or in the middle of withdrawing them.
        for (noted, shows, is_again) in [
            (3, true, false),
            (3, true, true),
            (3, false, false),
            (2, false, false),
            (1, false, true),
        ] {
            let (granted, grants, prod) =
                (Granted::default(), Grants::default(), ProdLine::default());
            begin(&granted, Some((&grants, &prod)), &first);
            let shown = shows.then_some((&grants, &prod));
            together[..noted].iter().for_each(|part| _ = begin(&granted, shown, part));
            if is_again {
                Grants::withdraw(&prod, 1);
            }
            assert!(granted.is_ahead(130), "the last one is");
            granted.withdraw(&prod, 100);
            let case = (noted, shows, is_again);
            assert_eq!((granted.made(), prod.grants.load(R)), (1, 1), "{case:?}");
            assert!(!granted.is_ahead(100) && granted.open(0).count() == 1, "{case:?}");
            // Other bytes have their places.
            let source = grants.source(&prod, &passed, (100, 500), |_| {});
            assert_eq!(source, Ok(Source::Ring(500)), "{case:?}");
            passed.store(0, R);
        }
    }

    #[test]
    fn withdrawing_leaves_what_was_sent_and_what_is_offered() {
        let (granted, grants, prod) = (Granted::default(), Grants::default(), ProdLine::default());
        let shown = Some((&grants, &prod));
        granted.withdraw(&prod, 0);
        assert_eq!(granted.place(0), Some(0));
        begin(&granted, shown, &part(0, 100));
        begin(&granted, shown, &part(100, 0));
        granted.withdraw(&prod, 100);
        assert_eq!((granted.place(0), prod.grants.load(R)), (Some(2), 2));
        // An offer of which the receiver was not told.
        begin(&granted, None, &part(100, 0));
        granted.withdraw(&prod, 100);
        assert_eq!((granted.place(0), prod.grants.load(R)), (Some(2), 2));
        // What the receiver has passed does not count, whatever it was.
        assert_eq!(granted.place(200), Some(2));
        granted.withdraw(&prod, 0);
        assert_eq!(granted.place(200), Some(2));
        granted.reset();
        assert!(!granted.is_ahead(0));
    }

    #[test]
    fn a_region_is_known_once_it_was_accepted() {
        let granted = Granted::default();
        assert!(!granted.is_known(5, 5), "never offered");
        granted.offer(5);
        assert!(!granted.is_known(5, 0) && !granted.is_known(5, 4));
        assert!(granted.is_known(5, 5));
        granted.offer(6);
        assert!(granted.is_known(5, 0), "and stays so");
        assert!(granted.is_known(6, 6));
    }
}

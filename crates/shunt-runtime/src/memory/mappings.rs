//! Where registered memory is mapped in this process. Looked at without a lock, by every sending call that is not to
//! copy; changed with that of [`crate::memory::exports`].

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

const R: Ordering = Ordering::Relaxed;

/// Windows that a process can have.
const MOST: usize = 128;

/// Binary logarithm of a huge page's length.
const HUGE: u32 = 21;

/// What was found for addresses of so many huge pages: a page has one place here, which it shares with others.
const PAGES: usize = 256;

/// Where the windows of a huge page are: the page, [`MOST`] for none or the one place in which one is, and how often the table had
/// been changed by then. One word, so that nobody sees a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known(u64);

impl Known {
    /// Bits of a huge page's number, and of a place.
    const PAGE: u32 = 26;
    const PLACE: u32 = 8;

    /// What is to be remembered, of a page of the program's half of the address space.
    const fn new(page: usize, place: usize, changes: u32) -> Option<Self> {
        let word = (changes as u64) << (Self::PAGE + Self::PLACE)
            | (place as u64) << Self::PAGE
            | page as u64;
        if page >> Self::PAGE == 0 { Some(Self(word)) } else { None }
    }

    /// The place, if this is of the page and of the table as it is.
    const fn place(self, page: usize, changes: u32) -> Option<usize> {
        let place = (self.0 >> Self::PAGE) as usize & ((1 << Self::PLACE) - 1);
        match Self::new(page, place, changes) {
            Some(same) if same.0 == self.0 => Some(place),
            _ => None,
        }
    }
}

const _: () = assert!(MOST < 1 << Known::PLACE);

/// A mapping of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its first address.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// Which memory.
    pub export: usize,
    /// Offset of the first byte there.
    pub from: usize,
}

impl Window {
    const fn end(&self) -> usize {
        self.base.saturating_add(self.len)
    }

    const fn overlaps(&self, range: &Range<usize>) -> bool {
        self.base < range.end && range.start < self.end()
    }

    /// The part of it that lies in `range`.
    fn within(self, range: Range<usize>) -> Option<Self> {
        let (base, end) = (self.base.max(range.start), self.end().min(range.end));
        (base < end).then(|| Self {
            base,
            len: end - base,
            from: self.from + (base - self.base),
            ..self
        })
    }

    /// Both as one, where `other` goes on from here.
    fn joined(self, other: Self) -> Option<Self> {
        let follows = self.end() == other.base
            && self.from + self.len == other.from
            && self.export == other.export;
        follows.then(|| Self { len: self.len + other.len, ..self })
    }
}

/// A window as it stands in the table. Odd turns: it is being changed.
struct Place {
    turn: AtomicU32,
    base: AtomicUsize,
    /// 0: none here.
    len: AtomicUsize,
    export: AtomicUsize,
    from: AtomicUsize,
}

impl Place {
    const fn new() -> Self {
        let (base, len) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (export, from) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { turn: AtomicU32::new(0), base, len, export, from }
    }

    /// What is there; `Err` in the middle of a change.
    fn look(&self) -> Result<Option<Window>, ()> {
        // SYNC POINT window: pairs with the Release store in `set`; the fences with each other.
        let turn = self.turn.load(Ordering::Acquire);
        let window = self.read();
        fence(Ordering::Acquire);
        if !turn.is_multiple_of(2) || self.turn.load(R) != turn {
            return Err(());
        }
        Ok(window)
    }

    /// The part of the window that is there which these bytes are, if it has all of them.
    #[inline]
    fn part(&self, range: Range<usize>) -> Option<Window> {
        let window = self.look().ok()??;
        (window.base <= range.start && range.end <= window.end()).then_some(window)?.within(range)
    }

    /// What is there, for who changes the table.
    fn read(&self) -> Option<Window> {
        let (base, len) = (self.base.load(R), self.len.load(R));
        let window = Window { base, len, export: self.export.load(R), from: self.from.load(R) };
        (len > 0).then_some(window)
    }

    fn set(&self, window: Option<Window>) {
        let turn = self.turn.load(R);
        self.turn.store(turn.wrapping_add(1), R);
        fence(Ordering::Release);
        let window = window.unwrap_or(Window { base: 0, len: 0, export: 0, from: 0 });
        self.base.store(window.base, R);
        self.len.store(window.len, R);
        self.export.store(window.export, R);
        self.from.store(window.from, R);
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }
}

/// The windows of a process. All but the looks are for one thread at a time.
pub struct Windows {
    places: [Place; MOST],
    /// Places that were ever used.
    used: AtomicUsize,
    /// How often they were changed; the first look is at a table that was.
    changes: AtomicU32,
    /// [`Known`].
    pages: [AtomicU64; PAGES],
}

impl Default for Windows {
    fn default() -> Self {
        Self::new()
    }
}

impl Windows {
    /// None.
    pub const fn new() -> Self {
        let (used, changes) = (AtomicUsize::new(0), AtomicU32::new(1));
        let pages = [const { AtomicU64::new(0) }; PAGES];
        Self { places: [const { Place::new() }; MOST], used, changes, pages }
    }

    fn places(&self) -> &[Place] {
        &self.places[..self.used.load(Ordering::Acquire).min(MOST)]
    }

    /// False where there was never any.
    #[inline]
    pub fn were_any(&self) -> bool {
        self.used.load(R) > 0
    }

    /// Where in registered memory these bytes are, if all of them are in one window. A mask and a probe, as a rule.
    #[inline]
    pub fn find(&self, address: usize, len: usize) -> Option<Window> {
        if !self.were_any() {
            return None;
        }
        let end = address.checked_add(len)?;
        let page = address >> HUGE;
        let known = &self.pages[page % PAGES];
        // SYNC POINT windows: pairs with the Release in `changed`.
        let changes = self.changes.load(Ordering::Acquire);
        match Known(known.load(R)).place(page, changes) {
            Some(MOST) => None,
            // Whatever was remembered: what is there now is looked at.
            Some(place) => {
                self.places[place].part(address..end).or_else(|| self.search(address..end))
            }
            None => {
                let place = self.only_place(page);
                if let Some(found) = place.and_then(|place| Known::new(page, place, changes)) {
                    known.store(found.0, R);
                }
                self.search(address..end)
            }
        }
    }

    fn search(&self, range: Range<usize>) -> Option<Window> {
        self.places().iter().find_map(|place| place.part(range.clone()))
    }

    /// The place of a window in this huge page, or [`MOST`]. `None` in the middle of a change.
    #[cold]
    fn only_place(&self, page: usize) -> Option<usize> {
        let range = page << HUGE..(page + 1) << HUGE;
        let mut found = MOST;
        for (index, place) in self.places().iter().enumerate() {
            if place.look().ok()?.is_some_and(|window| window.overlaps(&range)) {
                found = index;
            }
        }
        Some(found)
    }

    /// What was remembered may be wrong from now on.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// True when there may be some of these bytes in a window.
    #[inline]
    pub fn may_touch(&self, range: &Range<usize>) -> bool {
        self.places().iter().any(|place| match place.look() {
            Ok(window) => window.is_some_and(|window| window.overlaps(range)),
            Err(()) => true,
        })
    }

    /// The window that begins there.
    pub fn at(&self, base: usize) -> Option<Window> {
        self.places().iter().filter_map(Place::read).find(|window| window.base == base)
    }

    /// True when some of this memory is mapped.
    pub fn show(&self, export: usize) -> bool {
        self.places().iter().filter_map(Place::read).any(|window| window.export == export)
    }

    /// Enters a window, in the place of what was there. False when there are too many.
    pub fn add(&self, mut window: Window) -> bool {
        self.remove(&(window.base..window.end()));
        for place in self.places() {
            let Some(other) = place.read() else { continue };
            if let Some(joined) = other.joined(window).or_else(|| window.joined(other)) {
                window = joined;
                place.set(None);
            }
        }
        let used = self.used.load(R);
        let free = self.places().iter().find(|place| place.read().is_none());
        let Some(place) = free.or_else(|| self.places.get(used)) else { return false };
        place.set(Some(window));
        if free.is_none() {
            self.used.store(used + 1, Ordering::Release);
        }
        self.changed();
        true
    }

    /// Takes what lies in `range` out of the table.
    pub fn remove(&self, range: &Range<usize>) {
        for place in &self.places[..self.used.load(R).min(MOST)] {
            let Some(window) = place.read() else { continue };
            if !window.overlaps(range) {
                continue;
            }
            let before = window.within(0..range.start);
            let after = window.within(range.end..usize::MAX);
            place.set(before.or(after));
            if before.is_some()
                && let Some(after) = after
            {
                self.add(after);
            }
        }
        self.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(base: usize, len: usize, export: usize, from: usize) -> Window {
        Window { base, len, export, from }
    }

    #[test]
    fn bytes_are_found_where_all_of_them_are_in_one_window() {
        let all = Windows::new();
        assert!(all.find(0x1000, 1).is_none() && !all.may_touch(&(0..usize::MAX)));
        assert!(all.add(window(0x1000, 0x1000, 3, 0x5000)));
        assert_eq!(all.find(0x1800, 0x800), Some(window(0x1800, 0x800, 3, 0x5800)));
        for (address, len) in [(0x1800, 0x801), (0xfff, 2), (0x2000, 1), (usize::MAX, 2)] {
            assert_eq!(all.find(address, len), None, "{address:x}");
        }
        assert!(all.may_touch(&(0x1fff..0x2000)) && !all.may_touch(&(0x2000..0x3000)));
        assert!(all.show(3) && !all.show(4));
        assert_eq!(all.at(0x1000), Some(window(0x1000, 0x1000, 3, 0x5000)));
    }

    #[test]
    fn a_hole_leaves_what_is_around_it() {
        let all = Windows::new();
        all.add(window(0x1000, 0x4000, 1, 0));
        all.remove(&(0x2000..0x3000));
        assert_eq!(all.find(0x1000, 0x1000), Some(window(0x1000, 0x1000, 1, 0)));
        assert_eq!(all.find(0x3000, 0x2000), Some(window(0x3000, 0x2000, 1, 0x2000)));
        assert!(!all.may_touch(&(0x2000..0x3000)));
        all.remove(&(0..usize::MAX));
        assert!(!all.may_touch(&(0..usize::MAX)) && !all.show(1));
    }

    #[test]
    fn what_is_mapped_over_another_one_takes_its_place() {
        let all = Windows::new();
        all.add(window(0x1000, 0x3000, 1, 0));
        all.add(window(0x2000, 0x1000, 2, 0x9000));
        assert_eq!(all.find(0x2000, 0x1000), Some(window(0x2000, 0x1000, 2, 0x9000)));
        assert_eq!(all.find(0x3000, 0x1000), Some(window(0x3000, 0x1000, 1, 0x2000)));
        assert_eq!(all.find(0x1800, 0x1000), None, "of two");
    }

    #[test]
    fn neighbours_of_one_memory_are_one() {
        let all = Windows::new();
        all.add(window(0x1000, 0x1000, 1, 0));
        all.add(window(0x3000, 0x1000, 1, 0x2000));
        all.add(window(0x2000, 0x1000, 1, 0x1000));
        assert_eq!(all.find(0x1000, 0x3000), Some(window(0x1000, 0x3000, 1, 0)));
        all.add(window(0x4000, 0x1000, 1, 0));
        assert_eq!(all.find(0x3800, 0x1000), None, "not next to it in the memory");
    }

    #[test]
    fn what_is_remembered_of_a_huge_page_is_no_longer_true_after_a_change() {
        const PAGE: usize = 1 << HUGE;
        let all = Windows::new();
        let (here, there) = (0x7f12_3456_7000, 0x7f12_3456_7000 + PAGES * PAGE);
        for round in 0..3 {
            // The other page takes the place, so that it is remembered of this one that nothing is there.
            assert_eq!(all.find(there, 8), None);
            assert_eq!(all.find(here, 8), None, "{round}");
            assert!(all.add(window(here, 0x4000, 1, 0)));
            for _ in 0..2 {
                assert_eq!(all.find(here + 8, 8), Some(window(here + 8, 8, 1, 8)));
                // Of a page that shares the place of the other.
                assert_eq!(all.find(there, 8), None);
            }
            assert!(all.add(window(here + 0x8000, 0x1000, 2, 0)));
            for _ in 0..2 {
                assert_eq!(all.find(here, 0x4000), Some(window(here, 0x4000, 1, 0)));
                assert_eq!(all.find(here + 0x8000, 8), Some(window(here + 0x8000, 8, 2, 0)));
                assert_eq!(all.find(here + 0x4000, 8), None, "between the two");
            }
            all.remove(&(here..here + 0x10000));
        }
        // Not of the program's half, and at the very end.
        for address in [usize::MAX - 100, 1 << 47] {
            assert_eq!(all.find(address, 8), None);
        }
    }

    #[test]
    fn there_is_an_end_of_windows() {
        let all = Windows::new();
        for n in 0..MOST {
            assert!(all.add(window(n * 0x2000, 0x1000, n, 0)));
        }
        assert!(!all.add(window(MOST * 0x2000, 0x1000, 1, 0)));
        all.remove(&(0..0x1000));
        assert!(all.add(window(MOST * 0x2000, 0x1000, 1, 0)));
    }
}

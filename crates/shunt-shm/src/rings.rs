//! Where a process has the rings of a region: in *windows*, of some connections each, which are mapped when a
//! connection first needs them. All rings of a region are a gigabyte of addresses, of which a program may have few
//! (`RLIMIT_AS`), and of which most connections need little.
//!
//! A window begins and ends in the middle of a page, as slots do, so each has the last page in common with the next
//! one. By that page it is found: mremap(2) makes a mapping anew, and longer, for which no descriptor has to be kept.
//!
//! In a forked child, which may have other rights than its parent, only what it holds stays mapped.

use core::ops::Range;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use crate::geometry::SLOTS;
use crate::memfd::Map;
use crate::sync::own::{AtomicPtr, Ordering};

/// Slots of a window.
const SLOTS_AT_ONCE: usize = 8;
const WINDOWS: usize = SLOTS.div_ceil(SLOTS_AT_ONCE);
/// The page that windows are made of.
pub const PAGE: usize = 4096;

/// How the rings lie in a region.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Where they begin; half a page behind a page's start.
    pub at: usize,
    /// Bytes of a slot's.
    pub of_slot: usize,
    /// How many slots there are.
    pub slots: usize,
}

impl Layout {
    /// Where a window begins, and its length.
    fn window(self, index: usize) -> (usize, usize) {
        let from = index * SLOTS_AT_ONCE;
        let slots = self.slots.saturating_sub(from).min(SLOTS_AT_ONCE);
        (self.at - PAGE / 2 + from * self.of_slot, slots * self.of_slot + PAGE)
    }
}

/// The windows.
#[derive(Debug)]
pub struct Rings {
    layout: Layout,
    /// Where the rings of a window's first slot are; null: not mapped.
    at: [AtomicPtr<u8>; WINDOWS],
    // Apart, so that what is made on the stack is small: threads may have little.
    maps: Box<[OnceLock<Map>]>,
}

impl Rings {
    fn none(layout: Layout) -> Self {
        let at = [const { AtomicPtr::new(ptr::null_mut()) }; WINDOWS];
        Self { layout, at, maps: (0..WINDOWS).map(|_| OnceLock::new()).collect() }
    }

    /// Those of a region in memory of this machine, with the first window.
    ///
    /// # Errors
    /// Those of [`Map::part`].
    pub fn map(fd: impl AsFd, layout: Layout) -> io::Result<Self> {
        let rings = Self::none(layout);
        let (at, len) = layout.window(0);
        rings.put(0, Map::part(fd, at, len)?);
        Ok(rings)
    }

    /// Those of a region that is mapped as a whole, at `base`.
    pub fn mapped(base: NonNull<u8>, layout: Layout) -> Self {
        let rings = Self::none(layout);
        for index in 0..layout.slots.div_ceil(SLOTS_AT_ONCE) {
            let offset = layout.at + index * SLOTS_AT_ONCE * layout.of_slot;
            rings.at[index].store(base.as_ptr().wrapping_add(offset), Ordering::Release);
        }
        rings
    }

    fn put(&self, index: usize, map: Map) {
        let first = map.base().as_ptr().wrapping_add(PAGE / 2);
        if self.maps[index].set(map).is_ok() {
            self.at[index].store(first, Ordering::Release);
        }
    }

    /// True when the rings of a slot are mapped.
    #[must_use]
    pub fn has(&self, slot: usize) -> bool {
        let window = self.at.get(slot / SLOTS_AT_ONCE);
        window.is_some_and(|at| !at.load(Ordering::Acquire).is_null())
    }

    /// Maps those of a slot, unless they are. By one thread at a time.
    ///
    /// # Errors
    /// `EINVAL` where there is no such slot, and those of [`Map::beyond`].
    pub fn open(&self, slot: usize) -> io::Result<()> {
        if slot >= self.layout.slots {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.has(slot) {
            return Ok(());
        }
        let index = slot / SLOTS_AT_ONCE;
        let nearest = (0..index).rev().find_map(|i| self.maps[i].get().map(|map| (i, map)));
        let (i, map) = nearest.ok_or(io::ErrorKind::InvalidInput)?;
        let ((from, len), (to, new_len)) = (self.layout.window(i), self.layout.window(index));
        let last_page = len - PAGE;
        self.put(index, map.beyond(last_page, to - (from + last_page), new_len)?);
        Ok(())
    }

    /// The rings of a slot, which are mapped: its first byte.
    #[inline]
    pub fn of(&self, slot: usize) -> *mut u8 {
        let window = self.at[slot / SLOTS_AT_ONCE % WINDOWS].load(Ordering::Acquire);
        window.wrapping_add(slot % SLOTS_AT_ONCE * self.layout.of_slot)
    }

    /// Gives the memory of a ring back, from `from` to `to` within what is mapped of its slot, as far as it is whole pages.
    /// Not that of a region that is mapped as a whole, which may be a device's.
    ///
    /// # Safety
    /// Nobody relies on what is there.
    pub unsafe fn discard(&self, slot: usize, from: usize, to: usize) {
        let map = self.maps.get(slot / SLOTS_AT_ONCE).and_then(OnceLock::get);
        if let Some(map) = map.filter(|_| self.has(slot) && to <= self.layout.of_slot) {
            let at = PAGE / 2 + slot % SLOTS_AT_ONCE * self.layout.of_slot;
            // SAFETY: the caller promises that nobody relies on what is there.
            unsafe { map.discard(at + from, to.saturating_sub(from)) };
        }
    }

    /// In a forked child: only the rings of these slots stay mapped. What two neighbours have in common stays with
    /// either: half a page at the far ends of the longest rings. The addresses of a window stay taken.
    ///
    /// # Safety
    /// Nobody uses the others, then or later.
    pub unsafe fn keep_only(&self, held: impl Fn(usize) -> bool) {
        for (index, map) in self.maps.iter().enumerate() {
            let (Some(map), at) = (map.get(), &self.at[index]) else { continue };
            let first = index * SLOTS_AT_ONCE;
            let slots = first..(first + SLOTS_AT_ONCE).min(self.layout.slots);
            if at.load(Ordering::Acquire).is_null() {
                continue;
            }
            if !slots.clone().any(&held) {
                at.store(ptr::null_mut(), Ordering::Release);
                // SAFETY: no slot of the window is held, and the caller promises that nobody uses the rings of those.
                unsafe { map.hide(0, map.len()) };
                continue;
            }
            // By as few calls as there are stretches.
            let mut rest = slots;
            while let Some(from) = rest.find(|slot| !held(*slot)) {
                let to = rest.find(|slot| held(*slot)).unwrap_or(rest.end);
                // SAFETY: the caller promises that nobody uses the rings of slots that are not held.
                unsafe { self.hide_all(from..to) };
            }
        }
    }

    /// The same of one more slot.
    ///
    /// # Safety
    /// Nobody uses its rings, then or later.
    pub unsafe fn hide(&self, slot: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.hide_all(slot..slot + 1) };
    }

    /// The same of some that follow each other in one window.
    unsafe fn hide_all(&self, slots: Range<usize>) {
        let map = self.maps.get(slots.start / SLOTS_AT_ONCE).and_then(OnceLock::get);
        if let Some(map) = map.filter(|_| self.has(slots.start)) {
            let from = slots.start % SLOTS_AT_ONCE * self.layout.of_slot;
            // SAFETY: the caller promises that nobody uses their rings; these are the pages between those that they have in common with their neighbours.
            unsafe { map.hide(from + PAGE, slots.len() * self.layout.of_slot - PAGE) };
        }
    }
}

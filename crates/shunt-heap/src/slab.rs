//! Objects that are known by a place and a number of uses.
//!
//! An object is never freed, only used again: whoever still has a reference to it looks at valid
//! memory. Whether it is still what the reference was meant for is told by the number of uses, which
//! no two uses of a place share.

use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicPtr;

use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};

use crate::pages::{self, PAGE};
use crate::stack::{Links, Stack};

/// What can stand in a slab.
///
/// # Safety
/// A value of zero bytes is valid, and nothing is to be dropped.
pub unsafe trait Zeroed: Sync + 'static {}

/// A use of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The place.
    pub index: u32,
    /// Which use of it, counted from 1.
    pub uses: u64,
}

#[repr(C)]
struct Slot<T> {
    value: T,
    uses: AtomicU64,
    /// Of the free list.
    next: AtomicU32,
}

/// Objects of one type; at most `MOST`.
#[derive(Debug)]
pub struct Slab<T: Zeroed, const MOST: usize> {
    slots: AtomicPtr<Slot<T>>,
    /// Places whose memory can be touched.
    open: AtomicU32,
    /// Places that were ever used.
    used: AtomicU32,
    free: Stack,
}

impl<T: Zeroed, const MOST: usize> Links for Slab<T, MOST> {
    fn link(&self, number: u32) -> &AtomicU32 {
        // SAFETY: numbers on the free list are places that were used.
        unsafe { &(*self.slots.load(Ordering::Acquire).add(number as usize)).next }
    }
}

impl<T: Zeroed, const MOST: usize> Slab<T, MOST> {
    const LEN: usize = (MOST * size_of::<Slot<T>>()).next_multiple_of(PAGE);
    /// Bytes that are opened at a time.
    const STEP: usize = 16 * PAGE;

    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(align_of::<Slot<T>>() <= PAGE && MOST <= u32::MAX as usize) };
        Self {
            slots: AtomicPtr::new(ptr::null_mut()),
            open: AtomicU32::new(0),
            used: AtomicU32::new(0),
            free: Stack::new(),
        }
    }

    fn slot(&self, index: u32) -> Option<&'static Slot<T>> {
        if index >= self.open.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: open places lie in the reserved memory, which is never unmapped, and are zeroed or
        // in use; a zeroed value is valid (`Zeroed`).
        unsafe { self.slots.load(Ordering::Relaxed).add(index as usize).as_ref() }
    }

    /// The object at a place, whichever use of it; `None` where none has ever been.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&'static T> {
        self.slot(index).map(|slot| &slot.value)
    }

    /// The object, if the place is still in this use of it.
    #[inline]
    #[must_use]
    pub fn find(&self, name: Name) -> Option<&'static T> {
        let slot = self.slot(name.index)?;
        (slot.uses.load(Ordering::Acquire) == name.uses).then_some(&slot.value)
    }

    /// The present use of a place.
    #[must_use]
    pub fn uses(&self, index: u32) -> u64 {
        self.slot(index).map_or(0, |slot| slot.uses.load(Ordering::Acquire))
    }

    /// The objects that were ever used.
    pub fn all(&self) -> impl Iterator<Item = (u32, &'static T)> + '_ {
        let used = self.used.load(Ordering::Acquire);
        (0..used).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// A place for a new object, as its last user left it, or zero. `None` without memory, or when
    /// all are in use.
    #[must_use]
    pub fn take(&self) -> Option<(Name, &'static T)> {
        let index = match self.free.pop(self) {
            Some(index) => index,
            None => self.next_unused()?,
        };
        let slot = self.slot(index)?;
        let uses = slot.uses.fetch_add(1, Ordering::AcqRel) + 1;
        Some((Name { index, uses }, &slot.value))
    }

    /// The object is not in use any more: from now on its name finds nothing.
    pub fn give_back(&self, name: Name) {
        if let Some(slot) = self.slot(name.index) {
            slot.uses.fetch_add(1, Ordering::AcqRel);
            self.free.push(name.index, self);
        }
    }

    fn next_unused(&self) -> Option<u32> {
        let mut next = self.used.load(Ordering::Relaxed);
        loop {
            if next as usize >= MOST {
                return None;
            }
            self.open_up_to(next)?;
            let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.used.compare_exchange(next, next + 1, ok, no) {
                Ok(_) => return Some(next),
                Err(now) => next = now,
            }
        }
    }

    /// Makes the memory of a place accessible.
    fn open_up_to(&self, index: u32) -> Option<()> {
        if index < self.open.load(Ordering::Acquire) {
            return Some(());
        }
        let slots = self.reserved()?;
        let end = ((index as usize + 1) * size_of::<Slot<T>>()).next_multiple_of(Self::STEP);
        let end = end.min(Self::LEN);
        // SAFETY: a part of what was reserved. What is open already stays as it is.
        if !unsafe { pages::open(slots, end) } {
            return None;
        }
        let whole = u32::try_from((end / size_of::<Slot<T>>()).min(MOST)).ok()?;
        self.open.fetch_max(whole, Ordering::AcqRel);
        Some(())
    }

    fn reserved(&self) -> Option<NonNull<u8>> {
        let known = self.slots.load(Ordering::Acquire);
        if let Some(known) = NonNull::new(known) {
            return Some(known.cast());
        }
        let new = pages::reserve(Self::LEN)?;
        let (ok, no) = (Ordering::AcqRel, Ordering::Acquire);
        match self.slots.compare_exchange(ptr::null_mut(), new.as_ptr().cast(), ok, no) {
            Ok(_) => Some(new),
            Err(first) => {
                // SAFETY: another thread, or a handler, was quicker; nobody has seen this one.
                unsafe { pages::release(new.as_ptr(), Self::LEN) };
                NonNull::new(first.cast())
            }
        }
    }
}

impl<T: Zeroed, const MOST: usize> Default for Slab<T, MOST> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(AtomicU64);
    // SAFETY: an atomic number.
    unsafe impl Zeroed for Number {}

    #[test]
    fn a_name_finds_its_use_and_no_other() {
        static SLAB: Slab<Number, 1000> = Slab::new();
        assert!(SLAB.get(0).is_none());
        let (first, object) = SLAB.take().unwrap();
        object.0.store(7, Ordering::Relaxed);
        assert_eq!(SLAB.find(first).unwrap().0.load(Ordering::Relaxed), 7);
        SLAB.give_back(first);
        assert!(SLAB.find(first).is_none());
        let (second, _) = SLAB.take().unwrap();
        assert_eq!(second.index, first.index);
        assert!(second.uses > first.uses);
        assert!(SLAB.find(first).is_none() && SLAB.find(second).is_some());
    }

    #[test]
    fn all_places_can_be_used_and_no_more() {
        static SLAB: Slab<Number, 3000> = Slab::new();
        let names: Vec<Name> = (0..3000).map(|_| SLAB.take().unwrap().0).collect();
        assert!(SLAB.take().is_none());
        assert_eq!(SLAB.all().count(), 3000);
        names.iter().for_each(|name| SLAB.give_back(*name));
        assert!(SLAB.take().is_some());
    }
}

//! A mapped region by its address: sections, rings, grants and completion queues.

use core::ptr::NonNull;

use shunt_wire::agent::MAX_VECTORS;
use shunt_wire::clc::Answer;

#[cfg(not(loom))]
use crate::doorbell::{futex_wake, take_futex};
use crate::geometry::{SLOTS, Side};
use crate::grants::Grants;
use crate::region::layout::{
    DATA_AT, Geometry, Header, LANES, OWNERS_AT, SECTIONS_AT, VECTORS_AT, Vector,
};
use crate::region::section::Section;
use crate::rings::Rings;
#[cfg(not(loom))]
use crate::sync::store_load_fence;
use crate::sync::{AtomicU64, Ordering};

/// Where the parts of a region are that do not follow the head.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) rings: Rings,
    pub(super) grants: NonNull<u8>,
}

// SAFETY: an address in a mapping, which is plain memory that stays where it is.
unsafe impl Send for Parts {}
// SAFETY: what lies there is atomics, and bytes that are reached by raw copies alone.
unsafe impl Sync for Parts {}

/// A view of a mapped region by its address.
#[derive(Clone, Copy, Debug)]
pub struct RegionView {
    pub(super) base: NonNull<u8>,
    pub(super) parts: NonNull<Parts>,
    pub(super) geometry: Geometry,
}

// SAFETY: addresses of what stays where it is as long as the region is mapped.
unsafe impl Send for RegionView {}
// SAFETY: what lies there is atomics, and bytes that are reached by raw copies alone.
unsafe impl Sync for RegionView {}

/// The completion queues of one process.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// Endpoint that has claimed the lane, 0: none.
    pub owner: &'a AtomicU64,
    view: RegionView,
    index: usize,
}

impl<'a> Lane<'a> {
    /// The queue of a completion vector, which is taken modulo [`MAX_VECTORS`].
    ///
    /// The queues of two lanes, those of a client and of its first acceptor among them, lie side by side, vector by vector: so
    /// programs that use a few of the vectors touch one page.
    #[inline]
    #[must_use]
    pub fn vector(self, vector: usize) -> &'a Vector {
        let pair = (self.index / 2 * MAX_VECTORS + vector % MAX_VECTORS) * 2;
        let at = VECTORS_AT + (pair + self.index % 2) * size_of::<Vector>();
        // SAFETY: the lane's index is below LANES, and the vector is taken modulo MAX_VECTORS, so it lies in the mapping, which
        // whoever has a view keeps; atomics only.
        unsafe { self.view.base.byte_add(at).cast().as_ref() }
    }
}

impl RegionView {
    const fn parts<'a>(self) -> &'a Parts {
        // SAFETY: the parts live as long as the region, which whoever has a view keeps.
        unsafe { self.parts.as_ref() }
    }

    /// How large its parts are.
    #[inline]
    #[must_use]
    pub const fn geometry(self) -> Geometry {
        self.geometry
    }

    /// The section that `side` writes for connection `slot`.
    #[inline]
    #[must_use]
    pub fn section<'a>(self, slot: usize, side: Side) -> &'a Section {
        debug_assert!(slot < SLOTS);
        let at = SECTIONS_AT + (slot * 2 + side as usize) * size_of::<Section>();
        // SAFETY: slot < SLOTS, so the section lies in the mapping; it consists of atomics.
        unsafe { self.base.byte_add(at).cast().as_ref() }
    }

    /// The buffer of [`Geometry::ring`] bytes that `receiver` reads from and the other side writes to.
    #[inline]
    #[must_use]
    pub fn buffer(self, slot: usize, receiver: Side) -> NonNull<u8> {
        debug_assert!(slot < self.geometry.slots());
        let rings = self.parts().rings.of(slot);
        // SAFETY: the slot is one of those that there is room for, and whoever uses it has had it mapped.
        unsafe { NonNull::new_unchecked(rings).byte_add(receiver as usize * self.geometry.ring()) }
    }

    /// The grants to `receiver`, which the other side makes.
    #[inline]
    #[must_use]
    pub fn grants<'a>(self, slot: usize, receiver: Side) -> &'a Grants {
        debug_assert!(slot < self.geometry.slots());
        let at = (slot * 2 + receiver as usize) * size_of::<Grants>();
        // SAFETY: the slot is one of those that there is room for, so they lie in the mapping; atomics only.
        unsafe { self.parts().grants.byte_add(at).cast().as_ref() }
    }

    /// Copies bytes from `at` on of the ring of `receiver` in a slot, as many as `to` and the ring have
    /// there; returns what was copied.
    pub fn copy_to(self, slot: usize, receiver: Side, at: usize, to: &mut [u8]) -> &[u8] {
        let ring = self.buffer(slot, receiver);
        let at = at.min(self.geometry.ring());
        let copied = to.len().min(self.geometry.ring() - at);
        let (to, _) = to.split_at_mut(copied);
        // SAFETY: `at + copied` lies inside the ring, and `to` has room for so many; private memory and
        // a ring do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(ring.as_ptr().add(at), to.as_mut_ptr(), copied) };
        to
    }

    /// Offset of that buffer in the region: what a device that moves bytes is told.
    #[inline]
    #[must_use]
    pub const fn buffer_offset(self, slot: usize, receiver: Side) -> usize {
        DATA_AT + (slot * 2 + receiver as usize) * self.geometry.ring()
    }

    /// Gives the memory of the ring of `receiver` in a slot back, but for what a connection of small messages takes, and
    /// for what the ring has in common with its neighbours. Not that of a device, where it is not the kernel's to give.
    ///
    /// # Safety
    /// The ring is empty, and stays so meanwhile.
    pub unsafe fn discard(self, slot: usize, receiver: Side) {
        let ring = self.geometry.ring();
        let at = receiver as usize * ring;
        // SAFETY: the caller promises that the ring is empty and stays so, so nobody relies on its bytes.
        unsafe { self.parts().rings.discard(slot, at, at + ring) };
    }

    /// Copies `data` to `offset`, as a device does that moves bytes. `None`: they do not lie in the rings of one slot, and
    /// nothing is copied.
    #[must_use]
    pub fn move_data(self, offset: usize, data: &[u8]) -> Option<()> {
        let of_slot = 2 * self.geometry.ring();
        let at = offset.checked_sub(DATA_AT)?;
        let (slot, at) = (at / of_slot, at % of_slot);
        if slot >= self.geometry.slots() || data.len() > of_slot - at {
            return None;
        }
        // SAFETY: inside of the slot's rings, as just checked; private memory does not overlap them.
        unsafe {
            let to = self.buffer(slot, Side::Client).as_ptr().add(at);
            core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
        }
        Some(())
    }

    /// Lane `lane`, taken modulo [`LANES`].
    #[inline]
    #[must_use]
    pub fn lane<'a>(self, lane: usize) -> Lane<'a> {
        let index = lane % LANES;
        // SAFETY: the lane is taken modulo LANES, so its owner lies in the mapping; atomics only.
        let owner = unsafe {
            self.base.byte_add(OWNERS_AT + index * size_of::<AtomicU64>()).cast().as_ref()
        };
        Lane { owner, view: self, index }
    }

    /// Where the lanes are in the region: owners, and behind them all queues.
    #[must_use]
    pub const fn lanes_at() -> core::ops::Range<usize> {
        OWNERS_AT..SECTIONS_AT
    }

    /// Claims a lane for `endpoint`: lane 0 for the region's owner, else one that is free. A lane
    /// is given back by storing 0 to its owner.
    #[must_use]
    pub fn claim_lane(self, side: Side, endpoint: u64) -> Option<usize> {
        let range = if side == Side::Client { 0..1 } else { 1..LANES };
        range.into_iter().find(|lane| {
            let owner = &self.lane(*lane).owner;
            owner.compare_exchange(0, endpoint, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }
}

/// Packs a lane and a vector for [`Ctl::queue`](super::Ctl::queue).
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "both are small")]
pub const fn queue_code(lane: usize, vector: usize) -> u32 {
    1 + (lane % LANES * MAX_VECTORS + vector % MAX_VECTORS) as u32
}

/// The reverse of [`queue_code`]; any number gives a valid lane and vector.
#[inline]
#[must_use]
pub const fn queue_place(code: u32) -> Option<(usize, usize)> {
    match (code as usize).checked_sub(1) {
        Some(n) => Some((n / MAX_VECTORS % LANES, n % MAX_VECTORS)),
        None => None,
    }
}

impl RegionView {
    const fn header<'a>(self) -> &'a Header {
        // SAFETY: the header lies at the start of the mapping, which whoever has a view keeps; atomics only.
        unsafe { self.base.cast().as_ref() }
    }

    /// A number that changes when a program with connections in it has gone, before those are woken who sleep ([`Self::rouse`]).
    /// 0: the agent that made the region does not tell.
    #[inline]
    #[must_use]
    pub fn gone(self) -> u32 {
        self.header().gone.load(Ordering::Acquire)
    }

    /// Wakes those who sleep on futexes on this side: a program on the other one is gone, of which only the kernel tells. Whoever
    /// arms a word from now on finds [`Self::gone`] changed.
    #[cfg(not(loom))]
    pub fn rouse(self, side: Side) {
        if self.gone() != 0 {
            self.header().gone.fetch_add(1, Ordering::AcqRel);
        }
        // SYNC POINT word-arm: the number before the look at who sleeps; who comes to sleep does it the other way round.
        store_load_fence();
        // Clients take the lowest slots first, and a slot that none has used takes no memory.
        let was_used = |slot: &usize| {
            self.section(*slot, Side::Client).setup.generation.load(Ordering::Relaxed) != 0
        };
        for slot in (0..self.geometry.slots()).take_while(was_used) {
            let ctl = &self.section(slot, side).ctl;
            // The word changes, so one that is about to sleep on it does not.
            let asleep = [&ctl.rx_arm, &ctl.tx_arm].into_iter().filter(|word| take_futex(word));
            asleep.for_each(|word| futex_wake(word, u32::MAX));
        }
    }

    /// The machine of one side is gone: every connection that was agreed on breaks, on either side, at its next look
    /// ([`Grants::are_possible`]). Proposals that were not taken up stay on TCP, which knows by itself, and so do connections
    /// of which a side has let go: nothing more is to come through the ring. Returns the slots it concerns.
    pub fn break_all(self) -> impl Iterator<Item = usize> {
        let agreed = move |slot: &usize| {
            let setup = |side| &self.section(*slot, side).setup;
            let is_done = |side| setup(side).done.load(Ordering::Acquire) != 0;
            setup(Side::Server).state.load(Ordering::Acquire) == Answer::Accepted as u32
                && ![Side::Client, Side::Server].into_iter().any(is_done)
        };
        (0..self.geometry.slots()).filter(agreed).inspect(move |slot| {
            for side in [Side::Client, Side::Server] {
                self.section(*slot, side).prod.grants.store(u32::MAX / 2, Ordering::Release);
            }
        })
    }
}

//! The slots of a link group of this process's own: those in use, and the leftovers of ended
//! connections in them.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::slots::LinkGroup;
use shunt_shm::region::{SLOTS, Section, Side};

use crate::control::link::{CHANGES, Link, all};
use crate::knobs;
use crate::stream::alarm;

/// What ended connections have left in rings, after [`trim()`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Left {
    /// Nothing that is to be given back.
    Nothing,
    /// Some acceptors have yet to say that they are done with theirs.
    Awaited,
    /// More than there was time for.
    More,
}

/// Gives the memory of rings back that ended connections have left, until this time.
pub fn trim(until: u64) -> Left {
    let Some(_changes) = CHANGES.try_lock() else { return Left::Awaited };
    let own = all().filter(|link| link.listener.is_some() && !link.is_inherited());
    own.map(|link| link.trim(until)).max().unwrap_or(Left::Nothing)
}

impl Link {
    /// A slot for a proposal of this process; its sections are cleared.
    pub(super) fn take_slot(&self) -> Option<usize> {
        let limit = knobs::get()
            .conns_per_lg
            .map_or(SLOTS, usize::from)
            .min(self.view().geometry().slots());
        self.slots.take(limit, self)
    }

    /// The connection in the slot has ended on this side.
    pub fn has_ended(&self, slot: usize) {
        self.slots.has_ended(slot);
    }

    /// A connection of this process in the slot is over, one of many bytes or not.
    pub fn is_left(&self, slot: usize, had_many: bool) {
        // Slots of other link groups are not this process's to give out.
        if self.listener.is_none() || self.is_far() || self.is_inherited() {
            return;
        }
        let (word, bit) = (&self.touched[slot / 64], 1 << (slot % 64));
        let was_touched = word.load(Ordering::Relaxed) & bit != 0;
        if had_many && !was_touched {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        if had_many || was_touched {
            let _ = alarm::arm();
        }
    }

    /// Gives the memory of rings back that ended connections have left in slots which nobody uses, as far as there is
    /// time; under the lock. A slot that is used again is told of when that is over.
    fn trim(&self, until: u64) -> Left {
        let mut left = Left::Nothing;
        for slot in 0..SLOTS {
            let (word, bit) = (&self.touched[slot / 64], 1 << (slot % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                continue;
            }
            if self.slots.is_given(slot, self) {
                let mine = self.view().section(slot, self.side);
                if mine.setup.done.load(Ordering::Acquire) != 0 {
                    left = Left::Awaited;
                }
                continue;
            }
            if crate::system::clock::now() >= until {
                return Left::More;
            }
            word.fetch_and(!bit, Ordering::Relaxed);
            for side in [Side::Client, Side::Server] {
                // SAFETY: both ends are done with the slot, and it is not given out but under the lock.
                unsafe { self.view().discard(slot, side) };
            }
        }
        left
    }

    /// True while a place is being prepared in it.
    pub(super) fn drafted(&self) -> bool {
        self.drafts.load(Ordering::Acquire) > 0
    }

    /// True when a slot is in use by nobody on this side and not given back by the other.
    pub(super) fn has_lost_slots(&self) -> bool {
        self.slots.are_lost(self.view().geometry().slots(), self)
    }

    /// Gives back a slot whose proposal was never taken up.
    pub fn free_slot(&self, slot: usize) {
        self.slots.free(slot, self);
    }
}

impl LinkGroup for Link {
    fn section(&self, slot: usize, side: Side) -> &Section {
        self.view().section(slot, side)
    }

    fn is_open(&self, slot: usize) -> bool {
        self.memory.has(slot)
    }

    fn open(&self, slot: usize) -> bool {
        self.memory.open(slot).is_ok()
    }

    fn begins(&self, slot: usize) {
        self.drafts.fetch_add(1, Ordering::AcqRel);
        // Nobody watches the new connection yet, whoever watched the one before.
        self.watch[slot].store(0, Ordering::Release);
    }
}

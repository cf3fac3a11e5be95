//! Link groups in a forked child: it keeps those of its parent's in which it has inherited
//! connections.

use core::sync::atomic::Ordering;

use shunt_shm::region::{SLOTS, Side};
use shunt_wire::agent::RegionId;

use crate::control::link::{CHANGES, HIGH, Link, TABLE, all, looks};
use crate::control::process;
use crate::threads::mutex::Guard;

/// The locks of link groups, to be held across fork.
#[derive(Debug)]
pub struct ForkLocks {
    _changes: Guard<'static, ()>,
    _processes: process::ForkLock,
    _looks: Guard<'static, ()>,
}

/// Takes them.
pub fn lock_for_fork() -> ForkLocks {
    ForkLocks {
        _changes: CHANGES.lock(),
        _processes: process::lock_for_fork(),
        _looks: looks::lock_for_fork(),
    }
}

/// In a forked child: completion queues belong to the parent, who pops them.
pub fn forget_in_child() {
    process::forget_in_child();
    looks::forget_in_child();
    for link in all() {
        link.lane.store(0, Ordering::Relaxed);
        // Those were of the parent's other threads.
        link.drafts.store(0, Ordering::Relaxed);
    }
}

/// In a forked child, once it is known what it holds: of its parent's link groups it sees the rings of these connections,
/// and nothing else. It may give up the parent's rights, and the parent goes on.
pub fn keep_what_is_held<I: Iterator<Item = (RegionId, Side, usize)>>(held: impl Fn() -> I) {
    for link in all().filter(|link| link.is_inherited()) {
        let here = held().filter(|(region, side, _)| (*region, *side) == (link.region, link.side));
        let mut slots = [0; SLOTS.div_ceil(64)];
        here.for_each(|(_, _, slot)| slots[slot / 64] |= 1 << (slot % 64));
        for (word, slots) in link.held.iter().zip(slots) {
            word.store(slots, Ordering::Release);
        }
        // SAFETY: nobody uses connections that this process does not hold, and it comes by no others in this link group.
        unsafe { link.memory.keep_only(|slot| link.holds(slot)) };
        link.shed();
    }
}

/// This process has let go of a connection, which may be one that it has inherited.
pub fn let_go(region: RegionId, side: Side, slot: usize) {
    let is_it = |l: &&Link| l.region == region && l.side == side && l.is_inherited();
    let Some(link) = all().find(is_it) else { return };
    let bit = 1 << (slot % 64);
    if link.held[slot / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
        // SAFETY: nobody uses a connection that this process does not hold, and none comes to be there.
        unsafe { link.memory.hide(slot) };
        link.shed();
    }
}

impl Link {
    /// True in a forked child for what was its parent's: it has the connections there that it has inherited, and no
    /// others.
    pub(super) fn is_inherited(&self) -> bool {
        self.endpoint.is_inherited()
    }

    /// True when a connection in the slot can be used.
    #[must_use]
    pub fn holds(&self, slot: usize) -> bool {
        let held = || self.held[slot / 64].load(Ordering::Acquire) & 1 << (slot % 64) != 0;
        !self.is_inherited() || held()
    }

    /// In a forked child: where it holds nothing any more nothing is left in its memory.
    fn shed(&'static self) {
        if self.held.iter().any(|word| word.load(Ordering::Acquire) != 0) {
            return;
        }
        let me = core::ptr::from_ref(self).cast_mut();
        for place in &TABLE[..HIGH.load(Ordering::Acquire)] {
            let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
            if place.compare_exchange(me, core::ptr::null_mut(), ok, no).is_ok() {
                // SAFETY: nobody uses connections that this process does not hold, and it holds none here. A thread that walks the table may still look at the rest, and finds it empty; so
                // the link is never freed.
                unsafe { self.memory.blank() };
                self.peers.drop_idle();
            }
        }
    }
}

//! To whom each extent belongs.
//!
//! An extent has one *owner*, and any number of *holders*: members whose programs have it mapped. It is free when
//! its owner has given it up or is gone, and no member that is there holds it.

use super::control::Control;
use super::extent::Kind;
use super::member::MemberId;
use crate::sync::{Ordering, store_load_fence};

impl Control {
    /// Takes a free extent for `me`. What was in it is still there, and of which kind it was:
    /// [`Extent::kind`](super::Extent::kind).
    #[must_use]
    pub fn take_extent(&self, me: MemberId) -> Option<usize> {
        // Whoever comes first takes it: a low place in the memory that is in use stays so.
        (1..self.extents()).find(|index| {
            let extent = self.extent(*index);
            let owner = extent.owner();
            let is_mine_to_take = || {
                // SYNC POINT hold: the owner is changed before this look; a holder does it the other way round.
                store_load_fence();
                extent.holders() & self.living() == 0
            };
            let free = (owner == 0 || self.find(owner).is_none()) && is_mine_to_take();
            let (ok, no) = (Ordering::SeqCst, Ordering::Relaxed);
            if !free || extent.owner.compare_exchange(owner, me.name, ok, no).is_err() {
                return false;
            }
            if !is_mine_to_take() {
                let _ = extent.owner.compare_exchange(me.name, 0, ok, no);
                return false;
            }
            extent.name.store(0, Ordering::Release);
            // Those who are gone.
            extent.holders.fetch_and(self.living(), Ordering::SeqCst);
            true
        })
    }

    /// Says what an extent of `me` is, and by what name others find it (0: by none).
    pub fn describe(&self, index: usize, kind: Kind, len: usize, endpoint: u64, name: u64) {
        let extent = self.extent(index);
        extent.kind.store(kind as u32, Ordering::Relaxed);
        extent.len.store(len as u64, Ordering::Relaxed);
        extent.endpoint.store(endpoint, Ordering::Relaxed);
        extent.name.store(name, Ordering::Release);
    }

    /// Nobody finds an extent of `me` any more.
    pub fn hide(&self, index: usize, me: MemberId) {
        let extent = self.extent(index);
        if extent.owner() == me.name {
            extent.name.store(0, Ordering::Release);
        }
    }

    /// Gives an extent of `me` up: it is free when its holders have let go of it.
    pub fn give_extent(&self, index: usize, me: MemberId) {
        self.hide(index, me);
        let (ok, no) = (Ordering::SeqCst, Ordering::Relaxed);
        let _ = self.extent(index).owner.compare_exchange(me.name, 0, ok, no);
    }

    /// The extent of that name, and its owner. The name is not 0.
    #[must_use]
    pub fn find_extent(&self, name: u64) -> Option<(usize, MemberId)> {
        let index = (1..self.extents()).find(|index| self.extent(*index).name() == name)?;
        Some((index, self.find(self.extent(index).owner())?))
    }

    /// Holds an extent that `owner` has under `name`, until
    /// [`Extent::release`](super::Extent::release). False: it is not there any more.
    #[must_use]
    pub fn hold(&self, index: usize, (owner, name): (MemberId, u64), me: MemberId) -> bool {
        let extent = self.extent(index);
        extent.holders.fetch_or(1 << me.index, Ordering::SeqCst);
        // SYNC POINT hold.
        store_load_fence();
        let is_there = extent.owner() == owner.name && extent.name() == name && self.lives(owner);
        if !is_there {
            extent.release(me.index);
        }
        is_there
    }
}

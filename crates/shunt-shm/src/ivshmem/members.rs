//! Who shares the memory: one agent of each machine.

use super::control::Control;
use super::member::{MEMBERS, MemberId};
use crate::sync::Ordering;

impl Control {
    /// The members that are there.
    pub fn members(&self) -> impl Iterator<Item = MemberId> + '_ {
        (0..MEMBERS).filter_map(|index| {
            let name = self.member(index).live();
            (name != 0).then_some(MemberId { index, name })
        })
    }

    /// True while the member is there.
    #[must_use]
    pub fn lives(&self, member: MemberId) -> bool {
        self.member(member.index).live() == member.name
    }

    /// A bit for each member that is there.
    #[must_use]
    pub fn living(&self) -> u64 {
        self.members().fold(0, |bits, member| bits | 1 << member.index)
    }

    /// The member of this name.
    #[must_use]
    pub fn find(&self, name: u64) -> Option<MemberId> {
        self.members().find(|member| member.name == name)
    }

    /// Takes a place in the table. `name` is a fresh random number, `peer` the ID with the server: whoever had that ID
    /// before is gone. `None`: there are as many members as can be.
    pub fn join(&self, name: u64, peer: Option<u16>, vectors: u32) -> Option<MemberId> {
        let name = name.max(1);
        for old in self.members() {
            if peer.is_some() && self.member(old.index).peer() == peer {
                self.is_gone(old);
            }
        }
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        let index = (0..MEMBERS).find(|index| {
            let place = self.member(*index);
            let before = place.name.load(Ordering::Acquire);
            let free = before == 0 || place.gone.load(Ordering::Acquire) == before;
            free && place.name.compare_exchange(before, name, ok, no).is_ok()
        })?;
        let place = self.member(index);
        place.home.store(0, Ordering::Release);
        place.vectors.store(vectors, Ordering::Relaxed);
        place.peer.store(peer.map_or(0, |peer| u32::from(peer) + 1), Ordering::Release);
        // What the one before held is let go of in its name.
        for extent in 1..self.extents() {
            self.extent(extent).release(index);
        }
        Some(MemberId { index, name })
    }

    /// Says that a member is gone: its extents are free as soon as nobody holds them.
    pub fn is_gone(&self, member: MemberId) {
        self.member(member.index).gone.store(member.name, Ordering::Release);
    }

    /// The machine with this ID is gone, as the server knows. True when it was a member.
    pub fn has_left(&self, peer: u16) -> bool {
        let of_it = |member: &MemberId| self.member(member.index).peer() == Some(peer);
        self.members().filter(of_it).inspect(|member| self.is_gone(*member)).count() > 0
    }

    /// Shows that `me` is alive.
    pub fn beats(&self, me: MemberId) {
        self.member(me.index).beat.fetch_add(1, Ordering::Relaxed);
    }

    /// Says above which number the names of `me` lie.
    pub fn names_from(&self, me: MemberId, ids: u64) {
        self.member(me.index).ids.store(ids, Ordering::Relaxed);
    }

    /// Makes `extent` the home of `me`; it is ready.
    pub fn moves_in(&self, me: MemberId, extent: usize) {
        let extent = u32::try_from(extent).unwrap_or(0);
        self.member(me.index).home.store(extent, Ordering::Release);
    }

    /// The extent that is a member's home, once it has one.
    #[must_use]
    pub fn home_of(&self, member: MemberId) -> Option<usize> {
        let extent = self.member(member.index).home();
        let is_its = (1..self.extents()).contains(&extent)
            && self.extent(extent).owner() == member.name
            && self.lives(member);
        is_its.then_some(extent)
    }
}

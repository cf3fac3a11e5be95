//! Which link group a connection takes, and which completion queue a link group.
//!
//! A link group's work is done by one thread, so many connections in one of them are bound to one processor. Their number is
//! bounded ([`PerGroup`]); a further link group takes the queue that serves the fewest.

use std::collections::BTreeMap;

/// Most connections of a link group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PerGroup {
    /// 8: many link groups, spread over all queues.
    Eight,
    /// 32.
    #[default]
    ThirtyTwo,
    /// 255, SMC's own limit (RFC 7609, section 4.5.1): few queue pairs.
    All,
}

impl PerGroup {
    /// The number.
    #[must_use]
    pub const fn get(self) -> usize {
        match self {
            Self::Eight => 8,
            Self::ThirtyTwo => 32,
            Self::All => 255,
        }
    }

    /// That of this number, if it is one of them.
    #[must_use]
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            8 => Some(Self::Eight),
            32 => Some(Self::ThirtyTwo),
            255 => Some(Self::All),
            _ => None,
        }
    }
}

/// Names a link group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(u64);

/// Where a connection goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The link group.
    pub group: GroupId,
    /// The place in it.
    pub slot: usize,
    /// The completion queue of the link group.
    pub queue: usize,
    /// The link group is new, and has to be connected first.
    pub is_new: bool,
}

#[derive(Debug)]
struct Group<K> {
    peer: K,
    queue: usize,
    /// Taken places.
    slots: Vec<bool>,
    /// It has failed, or is on its way out.
    is_closed: bool,
}

/// The link groups with all peers; `K` names one: host, and who may share a link group there.
#[derive(Debug)]
pub struct Placement<K> {
    per_group: PerGroup,
    /// Link groups of each queue.
    queues: Vec<usize>,
    groups: BTreeMap<GroupId, Group<K>>,
    next: u64,
}

impl<K: PartialEq> Placement<K> {
    /// For so many completion queues; at least one.
    #[must_use]
    pub fn new(queues: usize, per_group: PerGroup) -> Self {
        let queues = vec![0; queues.max(1)];
        Self { per_group, queues, groups: BTreeMap::new(), next: 0 }
    }

    /// Link groups of each queue.
    #[must_use]
    pub fn load(&self) -> &[usize] {
        &self.queues
    }

    /// A place for a connection to a peer: in the oldest link group that has one, else in a new one.
    pub fn place(&mut self, peer: K) -> Place {
        let has_room = |(id, group): (&GroupId, &mut Group<K>)| {
            let is_right = group.peer == peer && !group.is_closed;
            let slot = group.slots.iter().position(|taken| !taken).filter(|_| is_right)?;
            group.slots[slot] = true;
            Some(Place { group: *id, slot, queue: group.queue, is_new: false })
        };
        if let Some(place) = self.groups.iter_mut().find_map(has_room) {
            return place;
        }
        let least = self.queues.iter().enumerate().min_by_key(|(_, groups)| **groups);
        let queue = least.map_or(0, |(queue, _)| queue);
        self.queues[queue] += 1;
        let (group, slot) = (GroupId(self.next), 0);
        self.next += 1;
        let mut slots = vec![false; self.per_group.get()];
        slots[slot] = true;
        self.groups.insert(group, Group { peer, queue, slots, is_closed: false });
        Place { group, slot, queue, is_new: true }
    }

    /// A connection is over. True: it was the last one of its link group, which is gone with it.
    pub fn release(&mut self, group: GroupId, slot: usize) -> bool {
        let Some(found) = self.groups.get_mut(&group) else { return false };
        if let Some(taken) = found.slots.get_mut(slot) {
            *taken = false;
        }
        if found.slots.contains(&true) {
            return false;
        }
        self.queues[found.queue] -= 1;
        self.groups.remove(&group);
        true
    }

    /// A link group takes no further connections: its link has failed.
    pub fn close(&mut self, group: GroupId) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.is_closed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn connections_fill_link_groups_and_these_spread() {
        let mut placement = Placement::new(4, PerGroup::Eight);
        let places: Vec<_> = (0..100).map(|_| placement.place("far")).collect();
        assert_eq!(places.iter().filter(|place| place.is_new).count(), 13);
        assert_eq!(placement.load(), [4, 3, 3, 3]);
        assert_eq!(places[8], Place { group: GroupId(1), slot: 0, queue: 1, is_new: true });
    }

    #[test]
    fn peers_have_link_groups_of_their_own() {
        let mut placement = Placement::new(1, PerGroup::All);
        let (one, two) = (placement.place("one"), placement.place("two"));
        assert_ne!(one.group, two.group);
        assert_eq!(placement.place("one").group, one.group);
    }

    #[test]
    fn a_link_group_that_failed_takes_no_more() {
        let mut placement = Placement::new(2, PerGroup::All);
        let first = placement.place("far");
        placement.close(first.group);
        let second = placement.place("far");
        assert!(second.is_new && second.queue == 1);
        assert!(placement.release(first.group, first.slot));
        assert_eq!(placement.load(), [0, 1]);
    }

    #[test]
    fn limits_are_those_of_the_setting() {
        assert_eq!(
            [8, 32, 255].map(|number| PerGroup::of(number).map(PerGroup::get)),
            [8, 32, 255].map(|it| Some(it as usize))
        );
        assert_eq!(PerGroup::of(16), None);
    }

    proptest! {
        #[test]
        fn queues_differ_by_one_link_group_at_most_while_none_goes(
            queues in 1_usize..9,
            connections in 0_usize..400,
            limit in prop::sample::select(vec![PerGroup::Eight, PerGroup::ThirtyTwo, PerGroup::All]),
        ) {
            let mut placement = Placement::new(queues, limit);
            let mut places = BTreeSet::new();
            for _ in 0..connections {
                let place = placement.place(());
                prop_assert!(place.slot < limit.get() && place.queue < queues);
                prop_assert!(places.insert((place.group, place.slot)));
            }
            let load = placement.load();
            prop_assert_eq!(load.iter().sum::<usize>(), connections.div_ceil(limit.get()));
            prop_assert!(load.iter().max().unwrap() - load.iter().min().unwrap() <= 1);
            for (group, slot) in places {
                placement.release(group, slot);
            }
            prop_assert!(placement.load().iter().all(|groups| *groups == 0));
        }
    }
}

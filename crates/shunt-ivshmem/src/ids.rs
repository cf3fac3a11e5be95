//! Which IDs are free.
//!
//! QEMU frees what it keeps of a peer when that peer leaves, and goes on using it when the ID comes again:
//! its heap is broken then (seen with 7.2). So an ID comes again only when all are gone who were connected
//! when its last owner left. Clients that bear it can do with less: that all have been told.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{MAX_PEERS, PeerId};

/// All IDs. Time is counted in joins and leaves, each of which has a time of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    /// An ID is free as soon as all have been told.
    reuse: bool,
    /// Joins and leaves so far.
    clock: u64,
    /// When those came who are connected.
    arrivals: BTreeSet<u64>,
    /// IDs whose owners are gone: since when, and how many have not been told yet.
    untold: BTreeMap<PeerId, (u64, usize)>,
    /// Those of which all have been told, but of whom somebody has heard, by when their owners left.
    resting: BTreeMap<u64, PeerId>,
    /// Free, below `next`.
    free: BTreeSet<PeerId>,
    /// All from here on are free.
    next: usize,
}

impl Ids {
    pub(crate) const fn new(reuse: bool) -> Self {
        Self {
            reuse,
            clock: 0,
            arrivals: BTreeSet::new(),
            untold: BTreeMap::new(),
            resting: BTreeMap::new(),
            free: BTreeSet::new(),
            next: 0,
        }
    }

    /// With those that somebody has (and when he came), and those whose owners are gone: since when, and
    /// how many have not been told yet.
    pub(crate) fn restore(
        reuse: bool,
        clock: u64,
        live: &BTreeMap<PeerId, u64>,
        gone: BTreeMap<PeerId, (u64, usize)>,
    ) -> Self {
        let next = gone.keys().chain(live.keys()).max().map_or(0, |id| usize::from(*id) + 1);
        let below = (0..=PeerId::MAX).take(next);
        let free = below.filter(|id| !gone.contains_key(id) && !live.contains_key(id)).collect();
        let arrivals = live.values().copied().collect();
        let mut ids = Self { clock, arrivals, free, next, ..Self::new(reuse) };
        for (id, (at, untold)) in gone {
            ids.set_aside(id, at, untold);
        }
        ids.look();
        ids
    }

    /// Joins and leaves so far.
    pub(crate) const fn clock(&self) -> u64 {
        self.clock
    }

    /// IDs that are not free though their owners are gone, and since when.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (PeerId, u64)> + '_ {
        let untold = self.untold.iter().map(|(id, (at, _))| (*id, *at));
        untold.chain(self.resting.iter().map(|(at, id)| (*id, *at)))
    }

    /// How many are free.
    pub(crate) fn left(&self) -> usize {
        self.free.len() + MAX_PEERS.saturating_sub(self.next)
    }

    /// The lowest free one, for somebody who comes, and when that is.
    pub(crate) fn take(&mut self) -> Option<(PeerId, u64)> {
        let id = match self.free.pop_first() {
            Some(id) => id,
            None => {
                let id = PeerId::try_from(self.next).ok()?;
                self.next += 1;
                id
            }
        };
        self.clock += 1;
        self.arrivals.insert(self.clock);
        Some((id, self.clock))
    }

    /// The owner of `id`, who came at `joined`, is gone, of which so many are to be told.
    pub(crate) fn give_back(&mut self, id: PeerId, joined: u64, untold: usize) {
        self.clock += 1;
        self.arrivals.remove(&joined);
        if untold == 0 {
            // Nobody has ever heard of him.
            self.free.insert(id);
        } else {
            self.set_aside(id, self.clock, untold);
        }
        self.look();
    }

    /// One more has been told that the owner of `id` is gone, or is gone himself.
    pub(crate) fn told(&mut self, id: PeerId) {
        if let Some((at, untold)) = self.untold.remove(&id) {
            self.set_aside(id, at, untold.saturating_sub(1));
            self.look();
        }
    }

    fn set_aside(&mut self, id: PeerId, at: u64, untold: usize) {
        if untold > 0 {
            self.untold.insert(id, (at, untold));
        } else if self.reuse {
            self.free.insert(id);
        } else {
            self.resting.insert(at, id);
        }
    }

    /// Finds those that are free: nobody is connected who was when their owners left.
    fn look(&mut self) {
        while let Some(first) = self.resting.first_entry()
            && self.arrivals.first().is_none_or(|oldest| first.key() < oldest)
        {
            self.free.insert(first.remove());
        }
    }
}

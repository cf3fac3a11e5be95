//! The link group of the two programs: places that connections have one after the other.

use core::cell::{Cell, OnceCell};
use std::rc::Rc;

use shunt_shm::grants::Grants;
use shunt_shm::region::{Section, Side};

use super::World;
use super::pace::point;
use crate::handshake::slots::{LinkGroup, Slots};

/// Places of the link group: fewer than connections that are open at a time, so that some stay on TCP.
pub const PLACES: usize = 2;

/// A place in the link group: memory that connections have one after the other.
pub struct Place {
    sections: [Rc<Section>; 2],
    rmbs: [Rc<[Cell<u8>]>; 2],
    entries: [Rc<OnceCell<Box<Grants>>>; 2],
    /// The connection that was begun there last.
    pub conn: Cell<Option<usize>>,
    /// The client has its rings mapped.
    pub is_open: Cell<bool>,
}

/// What a side has of it.
type Parts = (Rc<Section>, Rc<[Cell<u8>]>, Rc<OnceCell<Box<Grants>>>);

impl Default for Place {
    fn default() -> Self {
        let rmb = || (0..World::RING).map(|_| Cell::new(0)).collect();
        Self {
            sections: [Rc::default(), Rc::default()],
            rmbs: [rmb(), rmb()],
            entries: Default::default(),
            conn: Cell::new(None),
            is_open: Cell::new(true),
        }
    }
}

impl Place {
    /// What this side writes for the other, the ring from which it receives, and what of that lies elsewhere.
    pub fn of(&self, side: Side) -> Parts {
        let side = side as usize;
        let Self { sections, rmbs, entries, .. } = self;
        (Rc::clone(&sections[side]), Rc::clone(&rmbs[side]), Rc::clone(&entries[side]))
    }
}

/// The link group of the two.
pub struct Group {
    pub slots: Slots,
    pub places: [Place; PLACES],
    /// The client has no memory for rings that are not mapped.
    pub is_short: Cell<bool>,
}

impl Default for Group {
    fn default() -> Self {
        let (slots, places) = (Slots::new(PLACES), Default::default());
        Self { slots, places, is_short: Cell::new(false) }
    }
}

impl LinkGroup for Group {
    fn section(&self, slot: usize, side: Side) -> &Section {
        &self.places[slot].sections[side as usize]
    }

    fn is_open(&self, slot: usize) -> bool {
        self.places[slot].is_open.get()
    }

    fn open(&self, slot: usize) -> bool {
        let is_open = &self.places[slot].is_open;
        is_open.set(is_open.get() || !self.is_short.get());
        is_open.get()
    }

    fn begins(&self, slot: usize) {
        assert!(self.is_open(slot), "a place is given out whose rings are not mapped");
        self.places[slot].conn.set(None);
        point();
    }
}

//! A capture, and an endpoint's part in captures.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::rc::Rc;

use serde_json::Value;
use shunt_shm::arena::ArenaView;
use shunt_shm::capture::{BITS, PLACES, Rings, Wish};
use shunt_wire::agent::EndpointId;

use crate::held::Held;
use crate::party::Party;

/// The captures that there are.
#[derive(Debug, Default)]
pub(super) struct Captures {
    pub(super) places: [Option<Capture>; PLACES],
    pub(super) epoch: u32,
    /// Of programs that have ended.
    pub(super) left: VecDeque<Capturable>,
}

impl Captures {
    /// Tells the next change from the ones before.
    pub(super) const fn next_epoch(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }
}

/// What a tool captures.
#[derive(Debug)]
pub(super) struct Capture {
    /// Tells it from others that have had its place.
    pub(super) number: u64,
    /// Whose programs it may see; `None`: all.
    pub(super) party: Option<Party>,
    pub(super) wish: Wish,
    /// Programs of which the tool does not know yet.
    pub(super) news: VecDeque<News>,
    /// Those of which it knows.
    pub(super) told: HashSet<EndpointId>,
    /// Programs that have ended of which it has not been told that.
    pub(super) ended: Vec<EndpointId>,
}

/// A program of which a tool does not know yet. It may have ended.
#[derive(Debug)]
pub(super) struct News {
    pub(super) endpoint: EndpointId,
    pub(super) description: Value,
    pub(super) memory: Rc<Held>,
}

/// What an endpoint has for captures.
#[derive(Clone, Debug)]
pub(crate) struct Capturable {
    pub(super) arena: Rc<ArenaView>,
    pub(super) memory: Rc<Held>,
    /// While somebody captures.
    rings: Option<Rc<Rings>>,
    bits: u32,
}

impl Capturable {
    pub(super) const fn new(arena: Rc<ArenaView>, memory: Rc<Held>) -> Self {
        Self { arena, memory, rings: None, bits: 0 }
    }

    /// True while somebody captures.
    pub(super) const fn is_captured(&self) -> bool {
        self.bits != 0
    }

    /// True while the capture in this place does.
    pub(super) const fn is_captured_by(&self, place: usize) -> bool {
        self.bits & 1 << place != 0
    }

    /// A capture begins. `epoch` tells each change from the ones before.
    pub(super) fn begin(&mut self, place: usize, wish: Wish, epoch: u32) -> io::Result<()> {
        let rings = match &self.rings {
            Some(rings) => Rc::clone(rings),
            None => Rc::clone(self.rings.insert(Rc::new(Rings::map(&*self.memory)?))),
        };
        rings.open(place, wish, monotonic());
        self.set(self.bits | 1 << place, epoch);
        Ok(())
    }

    /// A capture ends.
    pub(super) fn end(&mut self, place: usize, epoch: u32) {
        if self.bits & 1 << place == 0 {
            return;
        }
        self.set(self.bits & !(1 << place), epoch);
        if let Some(rings) = &self.rings {
            rings.close(place);
        }
        if self.bits == 0 {
            self.rings = None;
        }
    }

    /// Says it anew where the program takes a capture for over that is not: its reader showed no life for long.
    pub(super) fn insist(&self, epoch: u32) {
        if self.bits != 0 && self.arena.captures() & BITS != self.bits {
            self.arena.set_captures(word(self.bits, epoch));
        }
    }

    fn set(&mut self, bits: u32, epoch: u32) {
        self.bits = bits;
        self.arena.set_captures(word(bits, epoch));
    }
}

/// The word in the records; 0 where nobody captures.
const fn word(bits: u32, epoch: u32) -> u32 {
    if bits == 0 { 0 } else { epoch << PLACES | bits }
}

fn monotonic() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec.cast_unsigned())
}

//! An agent whose shared memory a fuzzer fills.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use shunt_shm::doorbell;
use shunt_shm::ivshmem::Published;
use shunt_shm::reach::WHOLE;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{EndpointId, ListenerId, RegionId};

use super::Fabric;
use super::memory::Memory;
use crate::held::Held;

/// Its network.
const NAMESPACE: u64 = 1;
/// Above which it names what it makes; what it is asked about lies below.
const NAMES: u64 = 1 << 40;

/// The agent, and the doorbells of its programs.
pub struct Victim {
    fabric: Fabric,
    bells: Vec<Rc<Held>>,
    next: u64,
}

impl Victim {
    /// Joins the memory, which holds anything; `None` when there is no room.
    #[must_use]
    pub fn join(memory: &Arc<OwnedFd>, len: usize) -> Option<Self> {
        let transport = Memory { memory: Arc::clone(memory), len, vectors: 4 };
        let fabric = Fabric::join(Box::new(transport), 0, NAMESPACE).ok()?;
        let bells = (0..2).filter_map(|_| doorbell::create().ok());
        let bells = bells.map(|bell| Rc::new(Held::own(bell))).collect();
        Some(Self { fabric, bells, next: NAMES })
    }

    /// Looks at everything that others have written. How many rings and listeners that was.
    pub fn turn(&mut self) -> usize {
        let next = &mut self.next;
        let news = self.fabric.turn(|| {
            *next += 1;
            *next
        });
        news.rings.len() + news.come.len() + news.gone.len()
    }

    /// A program connects to the first of the others' listeners that is known.
    pub fn connect(&mut self, me: EndpointId) {
        self.next += 1;
        if let Some(listener) = self.fabric.remotes.keys().copied().next() {
            let _ = self.fabric.connect((me, &self.bells), listener, self.next);
        }
    }

    /// A program accepts what somebody has proposed.
    pub fn attach(&mut self, me: EndpointId, at: (RegionId, usize), tuple: &FourTuple) {
        let _ = self.fabric.attach((me, &self.bells), at, tuple);
    }

    /// A program asks for the doorbells of the other end of each of its link groups.
    pub fn ask_for_bells(&mut self, me: EndpointId, of: EndpointId) {
        let regions: Vec<_> = self.fabric.links.keys().copied().collect();
        for region in regions {
            let _ = self.fabric.bells(me, region, of);
        }
    }

    /// A program listens.
    pub fn publish(&mut self, listener: ListenerId, addr: Addr) {
        let _ = self
            .fabric
            .publish(&Published { id: listener, addr, v6only: false, bits: WHOLE }, NAMESPACE);
    }

    /// It does not any more.
    pub fn withdraw(&mut self, listener: ListenerId) {
        self.fabric.withdraw(listener);
    }

    /// A program is gone, and with it all that it had mapped.
    pub fn end(&mut self, me: EndpointId) {
        self.fabric.endpoint_left(me);
        let regions: Vec<_> = self.fabric.links.keys().copied().collect();
        for region in regions {
            self.fabric.let_go(region);
        }
    }

    /// Another memory takes the place of this one.
    pub fn retire(&mut self) {
        let _ = self.fabric.retire();
    }

    /// What the tools are told.
    #[must_use]
    pub fn describe(&self) -> String {
        self.fabric.describe().to_string()
    }
}

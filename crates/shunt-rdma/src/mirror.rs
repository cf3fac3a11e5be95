//! Connections of a link group where they lie in the memory of this host's programs, and how these are woken.

use std::sync::{Arc, OnceLock};

use shunt_engine::wait::tell::{self, Armed, Wake};
use shunt_far::{Mirror, News};
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::{self, ON_QUEUE, futex_wake};
use shunt_shm::handover;
use shunt_shm::ivshmem::{Control, Home, far_vector, offset};
use shunt_shm::region::{Geometry, Region, Section, Side, queue_code, queue_place};
use shunt_shm::ring::TxCursor;
use shunt_shm::sync::{AtomicU32, Ordering, store_load_fence};
use shunt_wire::agent::{EndpointId, RegionId};
use shunt_wire::clc::Answer;
use shunt_wire::reason::Reason;

use crate::memory::{AGENT, SharedMemory};

/// Rings the doorbells of this host's programs.
#[derive(Debug)]
pub(crate) struct Bells {
    memory: Arc<SharedMemory>,
    /// The agent's home, once it has one.
    home: OnceLock<Home>,
}

impl Bells {
    pub(crate) const fn new(memory: Arc<SharedMemory>) -> Self {
        Self { memory, home: OnceLock::new() }
    }

    fn home(&self) -> Option<&Home> {
        if self.home.get().is_none() {
            let _ = self.home.set(agents_home(&self.memory)?.0);
        }
        self.home.get()
    }

    /// Tells the program of a connection that is TCP from now on, and why. Its place is its own again, unless it is about to end.
    pub(crate) fn decline(&self, place: &Place, why: Reason) {
        let setup = &place.section(place.side.other()).setup;
        setup.why.store(why as u32, Ordering::Relaxed);
        setup.state.store(Answer::Declined as u32, Ordering::Release);
        // It may wait for what the server says first, of which the kernel has told already.
        let ctl = &place.section(place.side).ctl;
        let program = Program { place, bells: self };
        tell::data(Armed { word: &ctl.rx_arm, bells: &ctl.rx_bells }, &program);
    }

    fn ring(&self, endpoint: EndpointId, vector: usize) {
        let Some(home) = self.home() else { return };
        let Some(place) = home.find_endpoint(endpoint).filter(|_| endpoint != 0) else { return };
        let vector = far_vector(vector);
        let line = home.interrupt_of(place, vector).and_then(|line| self.memory.line(line));
        match line {
            Some(bell) => doorbell::ring_fd(&*bell),
            None if home.notify(place, vector) => self.memory.tell_agent(),
            None => {}
        }
    }
}

/// The home of this host's agent, and where it begins in the memory.
pub(crate) fn agents_home(memory: &SharedMemory) -> Option<(Home, usize)> {
    let control = Control::look(memory.fd(), memory.len())?;
    let agent = control.members().find(|m| control.member(m.index).peer() == Some(AGENT))?;
    let at = offset(control.home_of(agent)?);
    Some((Home::map(memory.fd(), at).ok()?, at))
}

/// Where a connection lies.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) region: Arc<Region>,
    pub(crate) name: RegionId,
    pub(crate) slot: usize,
    /// The side of this host's program.
    pub(crate) side: Side,
    /// By which endpoint the far program is known here.
    pub(crate) endpoint: EndpointId,
}

impl Place {
    pub(crate) fn section(&self, side: Side) -> &Section {
        self.region.view().section(self.slot, side)
    }
}

/// A region with connections of the link group, and the queue in it by which programs say that they have published something.
#[derive(Debug)]
struct Watch {
    region: Arc<Region>,
    name: RegionId,
    lane: usize,
    slots: [Option<usize>; Geometry::Device.slots()],
}

/// The connections of a link group.
#[derive(Debug)]
pub(crate) struct Lanes {
    bells: Arc<Bells>,
    places: Vec<Option<Place>>,
    watches: Vec<Watch>,
    /// What stands where no program is: a client that takes nothing and sends nothing, and what the far side says, which nobody reads.
    none: [Section; 2],
}

impl Lanes {
    pub(crate) fn new(bells: Arc<Bells>, slots: usize) -> Self {
        let places = (0..slots).map(|_| None).collect();
        let none: [Section; 2] = Default::default();
        handover::has_left_for_good(&none[Side::Client as usize].ctl.handed_over, 0);
        Self { bells, places, watches: Vec::new(), none }
    }

    /// A connection has its place there: how its program says that it has published something. `None`: it cannot.
    pub(crate) fn put(&mut self, slot: usize, place: Place) -> Option<u32> {
        let at = match self.watches.iter().position(|watch| watch.name == place.name) {
            Some(at) => at,
            None => {
                let view = place.region.view();
                let lane = view.claim_lane(place.side.other(), place.endpoint)?;
                // For good: a worker that is awake finds the number queued already.
                view.lane(lane).vector(0).arm.arm();
                let slots = [None; Geometry::Device.slots()];
                let (region, name) = (Arc::clone(&place.region), place.name);
                self.watches.push(Watch { region, name, lane, slots });
                self.watches.len() - 1
            }
        };
        let watch = &mut self.watches[at];
        *watch.slots.get_mut(place.slot)? = Some(slot);
        let code = queue_code(watch.lane, 0);
        *self.places.get_mut(slot)? = Some(place);
        Some(code)
    }

    /// Answers the program of a connection that the agent takes up: it goes into the ring, and says what it publishes there. `use_` is the
    /// number of the use of its place.
    pub(crate) fn accepts(&self, slot: usize, use_: u32) {
        let Some(place) = self.place(slot) else { return };
        let Some(watch) = self.watches.iter().find(|watch| watch.name == place.name) else {
            return;
        };
        let theirs = place.section(place.side.other());
        theirs.setup.generation.store(use_, Ordering::Relaxed);
        theirs.setup.endpoint.store(place.endpoint, Ordering::Relaxed);
        theirs.ctl.queue.store(queue_code(watch.lane, 0), Ordering::Relaxed);
        theirs.ctl.tx_arm.store(ON_QUEUE, Ordering::Relaxed);
        // In the ring from its first byte on, also where something came over TCP before it.
        TxCursor::set_mark(&theirs.prod, 0);
        theirs.prod.behind.store(1, Ordering::Release);
        theirs.setup.state.store(Answer::Accepted as u32, Ordering::Release);
    }

    /// It is over.
    pub(crate) fn clear(&mut self, slot: usize) {
        let Some(place) = self.places.get_mut(slot).and_then(Option::take) else { return };
        for watch in self.watches.iter_mut().filter(|watch| watch.name == place.name) {
            watch.slots[place.slot % Geometry::Device.slots()] = None;
        }
        self.watches.retain(|watch| {
            let is_used = watch.slots.iter().any(Option::is_some);
            if !is_used {
                let lane = watch.region.view().lane(watch.lane);
                lane.vector(0).arm.disarm();
                lane.owner.store(0, Ordering::Release);
            }
            is_used
        });
    }

    pub(crate) fn place(&self, slot: usize) -> Option<&Place> {
        self.places.get(slot)?.as_ref()
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        (0..self.places.len()).for_each(|slot| self.clear(slot));
    }
}

impl Mirror for Lanes {
    fn side(&self, slot: usize) -> Side {
        self.place(slot).map_or(Side::Client, |place| place.side)
    }

    fn slots(&self) -> usize {
        self.places.len()
    }

    fn ring(&self) -> u64 {
        Geometry::Device.ring() as u64
    }

    fn section(&self, slot: usize, side: Side) -> &Section {
        self.place(slot).map_or(&self.none[side as usize], |place| place.section(side))
    }

    fn news(&mut self, each: &mut Vec<usize>) {
        let before = each.len();
        for watch in &self.watches {
            let queue = &watch.region.view().lane(watch.lane).vector(0).queue;
            if !queue.is_empty() {
                queue.pop_all(|_| 0, |slot| each.extend(watch.slots.get(slot).copied().flatten()));
            }
        }
        for slot in &each[before..] {
            // What was taken since is told by the next one.
            let theirs = self.section(*slot, self.side(*slot).other());
            doorbell::arm(&theirs.ctl.tx_arm, ON_QUEUE);
        }
        if each.len() > before {
            // SYNC POINT word-arm.
            store_load_fence();
        }
    }

    fn is_free(&mut self, slot: usize) {
        let theirs = self.section(slot, self.side(slot).other());
        theirs.cons.heard.store(0, Ordering::Release);
        theirs.prod.behind.store(0, Ordering::Release);
        // The far program's part of it: the place can be used again.
        theirs.setup.done.store(1, Ordering::Release);
        self.clear(slot);
    }

    fn wake(&mut self, slot: usize, news: News) {
        let Some(place) = self.place(slot) else { return };
        let program = Program { place, bells: &self.bells };
        let ctl = &place.section(place.side).ctl;
        if news.bytes {
            tell::data(Armed { word: &ctl.rx_arm, bells: &ctl.rx_bells }, &program);
        }
        if news.room {
            tell::space(Armed { word: &ctl.tx_arm, bells: &ctl.tx_bells }, &program);
        }
    }
}

/// What wakes a program.
struct Program<'a> {
    place: &'a Place,
    bells: &'a Bells,
}

impl Wake for Program<'_> {
    fn futex(&self, word: &AtomicU32) {
        futex_wake(word, u32::MAX);
    }

    fn ring(&self, vectors: impl Iterator<Item = usize>) {
        let endpoint = self.place.section(self.place.side).setup.endpoint.load(Ordering::Relaxed);
        vectors.for_each(|vector| self.bells.ring(endpoint, vector));
    }

    fn is_queued(&self) -> bool {
        self.place.section(self.place.side).ctl.queue.load(Ordering::Relaxed) != 0
    }

    fn push(&self) -> Option<usize> {
        self.queue(tell::queue)
    }

    fn push_again(&self) -> Option<usize> {
        self.queue(tell::queue_again)
    }

    fn ring_all(&self) {
        self.ring(core::iter::once(0));
    }

    // An agent has no handlers above this that would tell.
    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T {
        halves()
    }
}

/// Puts a connection into a queue, and says whether its owner is to be rung.
type Puts = fn(&CqLine, &ArmLine, usize, Option<&AtomicU32>) -> Push;

impl Program<'_> {
    fn queue(&self, puts: Puts) -> Option<usize> {
        let (mine, theirs) =
            (self.place.section(self.place.side), self.place.section(self.place.side.other()));
        let (lane, vector) = queue_place(mine.ctl.queue.load(Ordering::Relaxed))?;
        let of = self.place.region.view().lane(lane).vector(vector);
        let place = Some(&theirs.prod.place);
        let rings = puts(&of.queue, &of.arm, self.place.slot, place) == Push::Ring;
        rings.then_some(vector)
    }
}

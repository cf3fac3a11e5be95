//! What one thread does: it takes requests off its ring, hands them to its lane, and puts what is over back on the ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tracing::warn;
use vhost_user_backend::{VringMutex, VringState, VringT};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend};

use crate::metrics::{Asked, Counter, Counts};
use crate::port::{
    Buffers, Completed, Geometry, Lane, Memory, Op, Outcome, Request, Size, Traffic, Wait,
};
use crate::request::{Work, parse};
use crate::ring::{Broken, Round};
use crate::spin::Spin;

/// A ring of a guest's.
pub type Ring = VringMutex<GuestMemoryAtomic<Memory>>;

/// Most requests that are taken before the target is told of them: it begins while the next ones are taken.
const BATCH: usize = 16;

/// A request that is under way. Its buffers keep the memory in which its status is.
#[derive(Debug)]
struct Pending {
    head: u16,
    status: Option<GuestAddress>,
    /// What the device writes besides the status, where all goes well.
    written: u32,
}

/// What is counted when a request is over.
#[derive(Clone, Copy, Debug)]
struct Begun {
    asked: Asked,
    at: Instant,
}

/// A lane, and the requests of one ring in it.
pub struct Worker {
    lane: Box<dyn Lane>,
    memory: GuestMemoryAtomic<Memory>,
    geometry: Geometry,
    size: Size,
    pending: Vec<Option<(Pending, Begun)>>,
    /// Places in `pending` that are free.
    free: Vec<usize>,
    completed: Vec<Completed>,
    /// Room of buffers that was used before.
    spare: Vec<Buffers>,
    spin: Spin,
    /// No more requests are taken. Others say so without waiting for the thread.
    stopped: Arc<AtomicBool>,
    /// The ring cannot be read any more; told once.
    broken: bool,
    counts: Arc<Counts>,
    /// What of the lane's traffic is counted.
    counted: Traffic,
}

impl Worker {
    /// One for a ring in `memory`, and a disk that is so large now.
    #[must_use]
    pub fn new(
        lane: Box<dyn Lane>,
        memory: GuestMemoryAtomic<Memory>,
        geometry: Geometry,
        size: Size,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            // What the lane has sent for front ends that are gone is counted.
            counted: lane.traffic(),
            counts,
            lane,
            memory,
            geometry,
            size,
            pending: Vec::new(),
            free: Vec::new(),
            completed: Vec::new(),
            spare: Vec::new(),
            spin: Spin::default(),
            stopped: Arc::default(),
            broken: false,
        }
    }

    /// Requests that are under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// When this is set, no more requests are taken off the ring.
    #[must_use]
    pub fn stopper(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopped)
    }

    /// The ring begins anew.
    pub const fn begin(&mut self) {
        self.broken = false;
    }

    /// What the lane waits for.
    pub fn wait(&self, wait: &mut Wait) {
        wait.interests.clear();
        wait.until = None;
        self.lane.wait(wait);
    }

    /// The lane, when nothing of this ring is under way.
    #[must_use]
    pub fn into_lane(self) -> Box<dyn Lane> {
        self.lane
    }

    /// Does what there is to do, and a little longer where that pays.
    pub fn run(&mut self, ring: &Ring) {
        self.spin.woken(Instant::now());
        loop {
            let mut found = self.take(ring);
            self.lane.poll(&mut self.completed);
            found |= self.put(ring);
            if found {
                self.spin.found();
            } else if !self.spin.goes_on(Instant::now()) {
                if !self.listen(ring) {
                    return;
                }
                self.spin.found();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Has the guest tell of requests from now on; true where one has come meanwhile that can be taken.
    fn listen(&self, ring: &Ring) -> bool {
        let mut state = ring.get_mut();
        // Where no more is taken for now, the next answer leads here again, and the ring is looked at then.
        self.takes(&state)
            && state.enable_notification().unwrap_or(false)
            && self.has_room(state.get_queue())
    }

    /// True if another request can be taken: a driver has no more than the ring has places (VIRTIO 1.2, 2.7.13).
    fn has_room(&self, queue: &Queue) -> bool {
        self.lane.has_room() && self.in_flight() < usize::from(queue.size())
    }

    /// True if requests of the ring are taken.
    fn takes(&self, state: &VringState<GuestMemoryAtomic<Memory>>) -> bool {
        !self.stopped.load(Ordering::Relaxed)
            && !self.broken
            && state.is_enabled()
            && state.get_queue().ready()
    }

    /// Takes requests off the ring; true if there was one.
    fn take(&mut self, ring: &Ring) -> bool {
        let mut state = ring.get_mut();
        if !self.takes(&state) {
            return false;
        }
        if !state.get_queue().event_idx_enabled() {
            let _told_again_later = state.disable_notification();
        }
        let memory = self.memory.memory().into_inner();
        let taken = Round::of(state.get_queue(), &memory)
            .and_then(|round| self.take_some(&round, &mut state, &memory));
        taken.unwrap_or_else(|Broken| {
            self.broken = true;
            self.counts.one(Counter::BrokenRings);
            warn!("a guest's ring is broken, nothing is taken off it any more: {Broken}");
            false
        })
    }

    fn take_some(
        &mut self,
        round: &Round<'_>,
        state: &mut VringState<GuestMemoryAtomic<Memory>>,
        memory: &Arc<Memory>,
    ) -> Result<bool, Broken> {
        let queue = state.get_queue_mut();
        let ready = usize::from(round.ready(queue)?).min(BATCH);
        if ready == 0 {
            return Ok(false);
        }
        // Those that are taken at once have begun at once.
        let at = Instant::now();
        self.geometry.blocks = self.size.get();
        let used = queue.next_used();
        let mut found = false;
        for _ in 0..ready {
            if !self.has_room(queue) {
                break;
            }
            found = true;
            let head = round.take(queue)?;
            let spare = self.spare.pop().unwrap_or_default();
            let parsed = parse(round.chain(head), memory, &self.geometry, spare);
            let status = parsed.status;
            match parsed.work {
                Work::Submit(op, data) => {
                    let written = match op {
                        Op::Read { .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
                        _ => 0,
                    };
                    let begun = Begun { asked: Asked::of(&op, data.len()), at };
                    let tag = self.keep(Pending { head, status, written }, begun);
                    self.lane.submit(Request { op, data, tag });
                }
                Work::Identified(written) => {
                    let pending = Pending { head, status, written };
                    finish(round, queue, memory, &pending, Outcome::Done);
                }
                Work::Refuse(outcome) => {
                    self.counts.one(Counter::Refused);
                    finish(round, queue, memory, &Pending { head, status, written: 0 }, outcome);
                }
            }
        }
        publish(round, state, used);
        Ok(found)
    }

    /// Finds a request a place.
    fn keep(&mut self, pending: Pending, begun: Begun) -> usize {
        if let Some(tag) = self.free.pop() {
            self.pending[tag] = Some((pending, begun));
            return tag;
        }
        self.pending.push(Some((pending, begun)));
        self.pending.len() - 1
    }

    /// Puts what is over on the ring; true if there was any.
    fn put(&mut self, ring: &Ring) -> bool {
        if self.completed.is_empty() {
            return false;
        }
        let now = Instant::now();
        let traffic = self.lane.traffic();
        self.counts.sent(self.counted, traffic);
        self.counted = traffic;
        let memory = self.memory.memory().into_inner();
        let mut state = ring.get_mut();
        // A ring that is gone hears nothing.
        let round = Round::of(state.get_queue(), &memory).ok();
        let used = state.get_queue().next_used();
        for completed in self.completed.drain(..) {
            let pending = self.pending.get_mut(completed.tag).and_then(Option::take);
            if let Some((pending, begun)) = pending {
                self.free.push(completed.tag);
                let took = now.saturating_duration_since(begun.at);
                self.counts.answered(begun.asked, completed.outcome, took);
                if let (Some(round), Some(memory)) = (&round, completed.data.memory()) {
                    finish(round, state.get_queue_mut(), memory, &pending, completed.outcome);
                }
            }
            self.spare.push(completed.data.released());
        }
        if let Some(round) = &round {
            publish(round, &mut state, used);
        }
        true
    }
}

/// Says how a request ended and gives its descriptors back. Where the guest has made that impossible, only its ring has less.
fn finish(
    round: &Round<'_>,
    queue: &mut Queue,
    memory: &Memory,
    pending: &Pending,
    outcome: Outcome,
) {
    let (status, written) = match outcome {
        Outcome::Done => (VIRTIO_BLK_S_OK, pending.written),
        Outcome::Failed => (VIRTIO_BLK_S_IOERR, 0),
        Outcome::Unsupported => (VIRTIO_BLK_S_UNSUPP, 0),
    };
    let place = pending.status.and_then(|at| memory.get_slice(at, 1).ok());
    let told = place.is_some_and(|place| {
        u8::try_from(status).is_ok_and(|status| place.write_obj(status, 0).is_ok())
    });
    round.put(queue, pending.head, written.saturating_add(u32::from(told)));
}

/// Shows the guest what was put on its ring since the index was `before`, and tells it, if it wants to know.
fn publish(round: &Round<'_>, state: &mut VringState<GuestMemoryAtomic<Memory>>, before: u16) {
    if round.publish(state.get_queue(), before) {
        let _front_is_gone = state.signal_used_queue();
    }
}

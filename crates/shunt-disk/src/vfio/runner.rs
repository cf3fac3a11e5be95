//! Commands on their way: from the controller's queues into lanes, one for each queue, and back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use shunt_nvme::wire::opcode::io;
use shunt_nvme::wire::{Sqe, Status};

use super::command::{Work, understand};
use super::controller::Controller;
use super::logs::Usage;
use crate::metrics::{Asked, Counter, Counts};
use crate::port::{
    Buffers, Completed, Geometry, Lane, Memory, Op, Outcome, Request, Traffic, Wait,
};

/// Most commands that are taken off a queue before the target is told of them.
const BATCH: usize = 16;

/// A command that is under way.
#[derive(Debug)]
struct Pending {
    /// None for the flush of a shutdown.
    sqe: Option<Sqe>,
    asked: Asked,
    at: Instant,
    bytes: u64,
    /// A flush follows.
    durable: bool,
}

/// A lane, and the commands of one queue in it.
struct Seat {
    /// The queue.
    id: u16,
    lane: Box<dyn Lane>,
    pending: Vec<Option<Pending>>,
    /// Places in `pending` that are free.
    free: Vec<usize>,
    /// Commands whose flush waits for room.
    flushes: VecDeque<(usize, Buffers)>,
    completed: Vec<Completed>,
    /// Room of buffers that was used before.
    spare: Vec<Buffers>,
    counts: Arc<Counts>,
    /// What of the lane's traffic is counted.
    counted: Traffic,
}

/// How a command completes that the disk has not done. A guest has one path, so that it hears nothing of the target's.
const fn failure(opcode: u8, outcome: Outcome, why: Option<Status>) -> Status {
    match outcome {
        Outcome::Failed
            if let Some(why) = why
                && !why.is_path_error() =>
        {
            why
        }
        Outcome::Unsupported => Status::INVALID_OPCODE.dnr(),
        Outcome::Done | Outcome::Failed if opcode == io::READ => Status::UNRECOVERED_READ,
        Outcome::Done | Outcome::Failed => Status::WRITE_FAULT,
    }
}

/// Counts what SMART pages tell.
const fn count(usage: &mut Usage, opcode: u8, bytes: u64) {
    match opcode {
        io::READ => {
            usage.reads += 1;
            usage.bytes_read += bytes;
        }
        io::WRITE => {
            usage.writes += 1;
            usage.bytes_written += bytes;
        }
        _ => {}
    }
}

impl Seat {
    fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Finds a command a place.
    fn keep(&mut self, pending: Pending) -> usize {
        if let Some(tag) = self.free.pop() {
            self.pending[tag] = Some(pending);
            return tag;
        }
        self.pending.push(Some(pending));
        self.pending.len() - 1
    }

    fn submit(&mut self, op: Op, data: Buffers, durable: bool, sqe: Option<Sqe>, at: Instant) {
        let (asked, bytes) = (Asked::of(&op, data.len()), data.len());
        let tag = self.keep(Pending { sqe, asked, at, bytes, durable });
        self.lane.submit(Request { op, data, tag });
    }

    /// Takes commands off the queue; true if there was one.
    fn take(&mut self, controller: &mut Controller, memory: &Arc<Memory>, disk: &Geometry) -> bool {
        if !controller.has_next(self.id) {
            return false;
        }
        // Those that are taken at once have begun at once.
        let at = Instant::now();
        let mut found = false;
        for _ in 0..BATCH {
            if !self.flushes.is_empty() || !self.lane.has_room() {
                break;
            }
            let Some(sqe) = controller.take(self.id, memory) else { break };
            found = true;
            let old = self.spare.pop().unwrap_or_default();
            match understand(&sqe, memory, disk, old) {
                Ok(Work::Submit { op, data, durable }) => {
                    self.submit(op, data, durable, Some(sqe), at);
                }
                Ok(Work::Nothing) => controller.complete(self.id, &sqe, Ok(0)),
                Err(status) => {
                    self.counts.one(Counter::Refused);
                    controller.complete(self.id, &sqe, Err(status));
                }
            }
        }
        found
    }

    /// Moves on what is under way; true if something has completed.
    fn poll(&mut self, controller: &mut Controller, memory: &Arc<Memory>) -> bool {
        while self.lane.has_room()
            && let Some((tag, data)) = self.flushes.pop_front()
        {
            self.lane.submit(Request { op: Op::Flush, data, tag });
        }
        self.lane.poll(&mut self.completed);
        if self.completed.is_empty() {
            return false;
        }
        let now = Instant::now();
        let traffic = self.lane.traffic();
        self.counts.sent(self.counted, traffic);
        self.counted = traffic;
        for completed in std::mem::take(&mut self.completed) {
            self.completed(completed, controller, memory, now);
        }
        true
    }

    fn completed(
        &mut self,
        completed: Completed,
        controller: &mut Controller,
        memory: &Arc<Memory>,
        now: Instant,
    ) {
        let Completed { tag, outcome, why, data } = completed;
        let Some(place) = self.pending.get_mut(tag) else { return };
        if let Some(pending) = place
            && pending.durable
            && outcome == Outcome::Done
        {
            pending.durable = false;
            self.flushes.push_back((tag, Buffers::reusing(Arc::clone(memory), data)));
            return;
        }
        if let Some(pending) = place.take() {
            self.free.push(tag);
            let Pending { sqe, asked, at, bytes, .. } = pending;
            self.counts.answered(asked, outcome, now.saturating_duration_since(at));
            match sqe {
                None => controller.flushed(),
                Some(sqe) if outcome == Outcome::Done => {
                    count(controller.usage(), sqe.opcode, bytes);
                    controller.complete(self.id, &sqe, Ok(0));
                }
                Some(sqe) => {
                    controller.complete(self.id, &sqe, Err(failure(sqe.opcode, outcome, why)));
                }
            }
        }
        self.spare.push(data.released());
    }
}

/// A controller, and the lanes of its queues.
pub struct Runner {
    controller: Controller,
    seats: Vec<Seat>,
    disk: Geometry,
}

impl Runner {
    /// One whose queues have these lanes, with counts of their own.
    #[must_use]
    pub fn new(
        controller: Controller,
        lanes: Vec<Box<dyn Lane>>,
        disk: Geometry,
        counts: impl Fn(usize) -> Arc<Counts>,
    ) -> Self {
        let seat = |(id, (n, lane)): (u16, (usize, Box<dyn Lane>))| Seat {
            id,
            // What the lane has sent for others before is counted.
            counted: lane.traffic(),
            counts: counts(n),
            lane,
            pending: Vec::new(),
            free: Vec::new(),
            flushes: VecDeque::new(),
            completed: Vec::new(),
            spare: Vec::new(),
        };
        let seats = (1..).zip(lanes.into_iter().enumerate()).map(seat).collect();
        Self { controller, seats, disk }
    }

    /// The controller.
    pub const fn controller(&mut self) -> &mut Controller {
        &mut self.controller
    }

    /// The disk has so many blocks now.
    pub fn resize(&mut self, blocks: u64) {
        self.disk.blocks = blocks;
        self.controller.changed();
    }

    /// Commands that are under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.seats.iter().map(Seat::in_flight).sum()
    }

    /// Takes commands, Admin commands first; true if there was one.
    pub fn take(&mut self, memory: &Arc<Memory>) -> bool {
        let Self { controller, seats, disk } = self;
        controller.look(memory);
        let mut found = controller.run(memory, disk);
        for seat in seats {
            found |= seat.take(controller, memory, disk);
        }
        found
    }

    /// Moves on what is under way; with `idle`, also lanes that have nothing under way. True if something has completed.
    pub fn poll(&mut self, memory: &Arc<Memory>, idle: bool) -> bool {
        let Self { controller, seats, .. } = self;
        let mut found = false;
        for seat in seats.iter_mut().filter(|seat| idle || seat.in_flight() > 0) {
            found |= seat.poll(controller, memory);
        }
        if seats.iter().all(|seat| seat.in_flight() == 0)
            && controller.settle()
            && let Some(seat) = seats.first_mut()
        {
            // A lane with nothing under way has room.
            let none = Buffers::of(Arc::clone(memory));
            seat.submit(Op::Flush, none, false, None, Instant::now());
            found = true;
        }
        found
    }

    /// Shows the guest what has completed, and adds the interrupts that tell it.
    pub fn post(&mut self, memory: &Memory, interrupts: &mut Vec<u16>) {
        self.controller.post(memory, interrupts);
    }

    /// What the lanes wait for: fills `wait`, which is empty.
    pub fn wait(&self, wait: &mut Wait) {
        for seat in &self.seats {
            let mut one = Wait::default();
            seat.lane.wait(&mut one);
            wait.interests.append(&mut one.interests);
            wait.until = wait.until.into_iter().chain(one.until).min();
        }
    }

    /// The lanes, when nothing is under way.
    #[must_use]
    pub fn into_lanes(self) -> Vec<Box<dyn Lane>> {
        self.seats.into_iter().map(|seat| seat.lane).collect()
    }
}

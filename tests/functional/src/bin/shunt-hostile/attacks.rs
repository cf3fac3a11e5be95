//! What a peer can write: on purpose, field by field, and anything anywhere.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;

use fastrand::Rng;
use shunt_functional::shared::Shared;
use shunt_shm::doorbell::futex_wake;
use shunt_shm::grants::Part;
use shunt_shm::handover::LEFT;
use shunt_shm::region::{LANES, RING, RegionView, SLOTS, Section, Side, queue_place};
use shunt_shm::ring::MARKS;
use shunt_shm::sync::{AtomicU32, AtomicU64};
use shunt_wire::agent::MAX_VECTORS;

use crate::bells;
use crate::traffic;

/// A connection as one who attacks it sees it.
pub struct Target {
    /// Its descriptor, where it is known.
    fd: Option<RawFd>,
    view: RegionView,
    slot: usize,
    side: Side,
    /// What this side writes.
    own: &'static Section,
    /// What the other side writes, and this one should not.
    theirs: &'static Section,
}

const RING_LEN: u64 = RING as u64;

macro_rules! attacks {
    ($($(#[doc = $doc:literal])+ $name:ident $($broken:ident)?: |$at:pat_param, $rng:pat_param| $do:expr;)+) => {
        /// Something that no honest peer writes, or not then.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
        pub enum Attack { $($(#[doc = $doc])+ $name,)+ }

        impl Attack {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Does it.
            pub fn run(self, on: &Target, rng: &mut Rng) {
                match self { $(Self::$name => { let ($at, $rng) = (on, rng); $do; })+ }
            }
        }
    };
}

attacks! {
    /// More bytes than were sent, within the ring.
    ProducerAhead: |at, rng| add(&at.own.prod.prod, rng.u64(1..RING_LEN));
    /// More bytes than the ring holds.
    ProducerBeyond: |at, rng| add(&at.own.prod.prod, RING_LEN + rng.u64(1..u64::MAX / 2));
    /// Fewer bytes than were sent.
    ProducerBack: |at, _| at.own.prod.prod.store(0, Relaxed);
    /// The other side's producer, which is not this side's to write.
    ProducerOfOther: |at, rng| at.theirs.prod.prod.store(rng.u64(..), Relaxed);
    /// More bytes taken than were sent.
    ConsumerBeyond: |at, rng| add(&at.own.cons.cons, RING_LEN + rng.u64(1..u64::MAX / 2));
    /// Fewer bytes taken than were.
    ConsumerBack: |at, _| at.own.cons.cons.store(0, Relaxed);
    /// All taken, at once: what is on its way is overwritten.
    ConsumerAhead: |at, _| at.own.cons.cons.store(at.theirs.prod.prod.load(Relaxed), Relaxed);
    /// The other side's consumer.
    ConsumerOfOther: |at, rng| at.theirs.cons.cons.store(rng.u64(..), Relaxed);
    /// A shape, and a place to begin.
    Base: |at, rng| at.own.prod.base.store(rng.u64(..), Relaxed);
    /// More marks than may be open.
    MarksAhead: |at, rng| add32(&at.own.prod.marks, rng.u32(3..1 << 30));
    /// Marks that were set are not.
    MarksBack: |at, _| add32(&at.own.prod.marks, u32::MAX);
    /// A mark further back than a ring reaches.
    MarkBehind: |at, _| mark(at, at.own.prod.prod.load(Relaxed).wrapping_sub(RING_LEN + 1));
    /// A mark that has bytes come once more, which do not.
    MarkRepeated: |at, _| mark(at, 0);
    /// A mark at a place that never comes.
    MarkAhead: |at, rng| mark(at, rng.u64(..));
    /// Two marks at once.
    MarkTwice: |at, rng| { mark(at, rng.u64(..)); mark(at, rng.u64(..)) };
    /// Where marks are, without a new one.
    MarkPlaces: |at, rng| at.own.prod.mark_at[rng.usize(..MARKS)].store(rng.u64(..), Relaxed);
    /// The other side's marks.
    MarksOfOther: |at, rng| at.theirs.prod.marks.store(rng.u32(..9), Relaxed);
    /// Marks passed, or not.
    MarksPassed: |at, rng| at.own.cons.marks_passed.store(odd32(rng), Relaxed);
    /// An end that is none, or none where there is one.
    Fin: |at, rng| either(at, rng).prod.fin.store(rng.u32(..3), Relaxed);
    /// Closed, reset, or not.
    Closed: |at, rng| either(at, rng).ctl.closed.store(rng.u32(..4), Relaxed);
    /// Left the ring, and takes nothing any more.
    HandedOver: |at, rng| either(at, rng).ctl.handed_over.store(rng.u32(..4), Relaxed);
    /// The same, and says that it has taken what was never sent.
    HandedOverBeyond: |at, _| {
        at.own.cons.cons.store(u64::MAX, Relaxed);
        at.own.ctl.handed_over.store(LEFT, Relaxed);
    };
    /// The size of a buffer.
    Window: |at, rng| at.own.ctl.window.store(odd32(rng), Relaxed);
    /// A place in the queue.
    Place: |at, rng| at.own.prod.place.store(rng.u32(..), Relaxed);
    /// Where completions go.
    Queue: |at, rng| either(at, rng).ctl.queue.store(odd32(rng), Relaxed);
    /// Who waits, and how.
    Arms: |at, rng| {
        let ctl = &either(at, rng).ctl;
        ctl.rx_arm.store(odd32(rng), Relaxed);
        ctl.tx_arm.store(odd32(rng), Relaxed);
        ctl.rx_bells.store(rng.u64(..), Relaxed);
        ctl.tx_bells.store(rng.u64(..), Relaxed);
    };
    /// A state of the handshake.
    State: |at, rng| either(at, rng).setup.state.store(rng.u32(..6), Relaxed);
    /// Another use of the slot.
    Generation: |at, rng| add32(&either(at, rng).setup.generation, rng.u32(1..4));
    /// Another endpoint: there may be one of that name.
    Endpoint: |at, rng| {
        let endpoint = &either(at, rng).setup.endpoint;
        endpoint.store(endpoint.load(Relaxed).wrapping_add(rng.u64(..8)), Relaxed);
    };
    /// An endpoint that never was.
    NoEndpoint: |at, rng| at.own.setup.endpoint.store(rng.u64(..), Relaxed);
    /// Done with the slot, or not.
    Done: |at, rng| either(at, rng).setup.done.store(rng.u32(..2), Relaxed);
    /// Another connection's name.
    Tuple: |at, rng| {
        let other = at.view.section(rng.usize(..SLOTS), Side::Client);
        either(at, rng).setup.set_tuple(&other.setup.tuple());
    };
    /// A lane is somebody else's, or nobody's.
    LaneOwner: |at, rng| {
        let other = at.view.lane(rng.usize(..LANES)).owner.load(Relaxed);
        let owner = if rng.bool() { 0 } else { other };
        at.view.lane(rng.usize(..LANES)).owner.store(owner, Relaxed);
    };
    /// Numbers in the queues, also of no connection.
    QueueBits: |at, rng| {
        let lane = at.view.lane(rng.usize(..LANES));
        for vector in (0..MAX_VECTORS).map(|vector| lane.vector(vector)) {
            vector.queue.push(&vector.arm, rng.usize(..256));
        }
    };
    /// Sleepers that are none.
    Sleepers: |at, rng| {
        let lane = at.view.lane(rng.usize(..LANES));
        let arm = &lane.vector(rng.usize(..MAX_VECTORS)).arm;
        if rng.bool() { arm.arm() } else { arm.disarm() }
    };
    /// Other bytes than were sent.
    Bytes: |at, rng| {
        let receiver = if rng.bool() { Side::Client } else { Side::Server };
        let offset = at.view.buffer_offset(at.slot, receiver) + rng.usize(..RING - 64);
        let _moved = at.view.move_data(offset, &[rng.u8(..); 64]);
    };
    /// More grants than can be open.
    GrantsAhead: |at, rng| add32(&at.own.prod.grants, rng.u32(65..1 << 30));
    /// Grants that were made are not.
    GrantsBack: |at, _| add32(&at.own.prod.grants, u32::MAX);
    /// Bytes are granted from memory that was never offered.
    GrantOfNothing: |at, rng| {
        let number = at.own.prod.grants.load(Relaxed);
        let part = Part { at: 0, len: 1 << 31, region: rng.u64(1..), from: rng.u64(..) };
        at.view.grants(at.slot, at.side.other()).put(&at.own.prod, number, &part);
        add(&at.own.prod.prod, 1);
    };
    /// Any entry, of any memory.
    GrantAnywhere: |at, rng| {
        let number = at.own.prod.grants.load(Relaxed);
        let near = at.own.prod.prod.load(Relaxed).wrapping_add(rng.u64(..RING_LEN));
        let part = Part { at: near, len: rng.u64(..1 << 20), region: rng.u64(..8), from: rng.u64(..) };
        at.view.grants(at.slot, at.side.other()).put(&at.own.prod, number, &part);
    };
    /// What was offered was accepted, or not.
    Accepted: |at, rng| at.own.ctl.accepted.store(rng.u64(..), Relaxed);
    /// Bytes over TCP of which no mark tells, from a sender in the ring.
    UnmarkedBytes: |at, rng| if let Some(fd) = at.fd { traffic::send_unseen(fd, &[rng.u8(..); 64]) };
}

fn add(word: &AtomicU64, n: u64) {
    word.fetch_add(n, Relaxed);
}

fn add32(word: &AtomicU32, n: u32) {
    word.fetch_add(n, Relaxed);
}

fn either(at: &Target, rng: &mut Rng) -> &'static Section {
    if rng.u8(..4) == 0 { at.theirs } else { at.own }
}

fn mark(at: &Target, place: u64) {
    let prod = &at.own.prod;
    let next = prod.marks.load(Relaxed).wrapping_add(1);
    prod.mark_at[next as usize % MARKS].store(place, Relaxed);
    prod.marks.store(next, Relaxed);
}

/// Any number, more often one that means something.
fn odd32(rng: &mut Rng) -> u32 {
    match rng.u8(..6) {
        0 => rng.u32(..),
        1 => u32::MAX - rng.u32(..4),
        2 => 1 << rng.u32(..32),
        _ => rng.u32(..16),
    }
}

/// The same of 64 bits; `before` is what is there.
fn odd64(rng: &mut Rng, before: u64) -> u64 {
    match rng.u8(..8) {
        0 => rng.u64(..),
        1 => u64::MAX - rng.u64(..4),
        2 => before ^ 1 << rng.u32(..64),
        3 => before.wrapping_add(RING_LEN).wrapping_sub(rng.u64(..3)),
        4 => before.wrapping_sub(rng.u64(..3)),
        5 => u64::from(odd32(rng)) << 32 | u64::from(odd32(rng)),
        _ => rng.u64(..16),
    }
}

impl Target {
    /// The connection of `slot`, from this side.
    pub fn new(view: RegionView, slot: usize, side: Side) -> Self {
        let (own, theirs) = (view.section(slot, side), view.section(slot, side.other()));
        Self { fd: None, view, slot, side, own, theirs }
    }

    /// The same, whose descriptor is this.
    pub fn over(self, fd: RawFd) -> Self {
        Self { fd: Some(fd), ..self }
    }

    /// True when both directions are in the ring, at both ends, and the other side knows of bytes that were
    /// taken: it has sent more than the ring holds.
    pub fn is_under_way(&self) -> bool {
        [(self.own, self.theirs), (self.theirs, self.own)].iter().all(|(sender, receiver)| {
            let marks = sender.prod.marks.load(Relaxed);
            sender.prod.prod.load(Relaxed) > 0
                && marks % 2 == 1
                && receiver.cons.marks_passed.load(Relaxed) == marks
        }) && self.own.cons.cons.load(Relaxed) > RING_LEN
            && self.theirs.cons.cons.load(Relaxed) > 0
    }

    /// True when it is the connection with these ports.
    pub fn is(&self, local: u16, peer: u16) -> bool {
        let tuple = self.view.section(self.slot, self.side).setup.tuple();
        let client = self.view.section(self.slot, Side::Client).setup.tuple();
        let ports = (client.local.port, client.peer.port);
        (tuple.local.port, tuple.peer.port) == (local, peer) || ports == (peer, local)
    }

    /// Has the other side look, however it waits.
    pub fn wake(&self, bells: &[i32]) {
        for word in [&self.theirs.ctl.rx_arm, &self.theirs.ctl.tx_arm] {
            futex_wake(word, u32::MAX);
        }
        if let Some((lane, vector)) = queue_place(self.theirs.ctl.queue.load(Relaxed)) {
            let vector = self.view.lane(lane).vector(vector);
            vector.queue.push(&vector.arm, self.slot);
        }
        bells.iter().for_each(|bell| bells::add(*bell, 1));
    }

    /// Writes anything to some word of the two sections, of the lanes or of the header.
    pub fn scribble(&self, memory: &Shared, rng: &mut Rng) {
        let section = if rng.bool() { self.own } else { self.theirs };
        let lanes = RegionView::lanes_at();
        let start = std::ptr::from_ref(self.view.lane(0).owner).addr() - lanes.start;
        let at = std::ptr::from_ref(section).addr() - start;
        let offset = match rng.u8(..8) {
            0 => rng.usize(..lanes.end),
            1 => rng.usize(..64),
            _ => at + rng.usize(..size_of::<Section>()),
        };
        scribble_at(memory, offset, rng);
    }
}

/// Writes anything to the word at an offset.
pub fn scribble_at(memory: &Shared, offset: usize, rng: &mut Rng) {
    let word = memory.word(offset);
    let before = word.load(Relaxed);
    // Half of the words of an odd kind are two of 32 bits.
    let new = match rng.u8(..3) {
        0 => before & 0xffff_ffff | u64::from(odd32(rng)) << 32,
        1 => before & !0xffff_ffff | u64::from(odd32(rng)),
        _ => odd64(rng, before),
    };
    word.store(new, Relaxed);
}

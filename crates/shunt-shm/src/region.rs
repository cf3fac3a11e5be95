//! The memory of a link group: both RMBs of each of its connections, and both sides' completion
//! queues.
//!
//! Everything here is shared with the peer and never trusted. Geometry is a function of constants (one for
//! memory of this machine, one for a device's: [`Geometry`]), so there is none to be lied about. For each connection and side there is one [`Section`] that
//! only this side writes and the other reads, as a DMB on a device that can only copy would have it;
//! the exceptions, both "signal" operations of the device, are the completion queue and the two arm
//! words.

use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{MAX_VECTORS, RegionId};
use shunt_wire::clc::{Answer, Proposal};

use crate::cq::{ArmLine, CqLine};
#[cfg(not(loom))]
use crate::doorbell::{ON_FUTEX, futex_wake};
pub use crate::geometry::{LONG_RING, RING, SHORT_RING, SLOTS, Side, shape};
use crate::grants::Grants;
use crate::ivshmem::{self, EXTENT, Kind};
use crate::memfd::{self, Map};
use crate::reset::resets;
use crate::ring::{ConsLine, ProdLine};
use crate::rings::{self, Rings};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = 0x5348_554e_545f_4c47; // "SHUNT_LG"
/// Processes that can have completion queues in one region: the client (lane 0) and, where a group
/// of workers shares a listening socket, the first so many of them; the rest watch each connection.
pub const LANES: usize = 32;

const OWNERS_AT: usize = 64;
const VECTORS_AT: usize = OWNERS_AT + LANES * size_of::<AtomicU64>();
const SECTIONS_AT: usize = VECTORS_AT + LANES * MAX_VECTORS * size_of::<Vector>();
/// Half a page behind a page's start: see [`shape`].
const DATA_AT: usize =
    (SECTIONS_AT + SLOTS * 2 * size_of::<Section>()).next_multiple_of(4096) + 4096 / 2;
/// Length of a region of this machine in bytes; only what is touched takes memory.
pub const LEN: usize = Geometry::Host.size();

/// How large the parts of a region are. Who maps one knows it from the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Geometry {
    /// Memory of this machine, which is had for the asking.
    Host,
    /// An extent of a device's memory.
    Device,
}

impl Geometry {
    /// Connections that there is room for.
    #[inline]
    #[must_use]
    pub const fn slots(self) -> usize {
        match self {
            Self::Host => SLOTS,
            Self::Device => 15,
        }
    }

    /// Length of one direction's buffer in bytes, a power of two.
    #[inline]
    #[must_use]
    pub const fn ring(self) -> usize {
        match self {
            Self::Host => RING,
            Self::Device => 256 * 1024,
        }
    }

    /// Where the RMBs end.
    #[must_use]
    pub const fn data_end(self) -> usize {
        DATA_AT + self.slots() * 2 * self.ring()
    }

    const fn rings(self) -> rings::Layout {
        rings::Layout { at: DATA_AT, of_slot: 2 * self.ring(), slots: self.slots() }
    }

    const fn grants_at(self) -> usize {
        self.data_end().next_multiple_of(4096)
    }

    /// Length of a region.
    #[must_use]
    pub const fn size(self) -> usize {
        self.grants_at() + self.slots() * 2 * size_of::<Grants>()
    }
}

const _: () = assert!(Geometry::Device.size() <= crate::ivshmem::EXTENT);
const _: () = assert!(Geometry::Device.ring().is_power_of_two());

const _: () = assert!(size_of::<Section>() == 256 && align_of::<Section>() == 64);
const _: () = assert!(size_of::<Vector>() == 128 && VECTORS_AT.is_multiple_of(64));
const _: () = assert!(LANES.is_multiple_of(2));

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    region: AtomicU64,
}

/// A completion vector.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Vector {
    /// The queue: pushed by the peer.
    pub queue: CqLine,
    /// Armed by the owner.
    pub arm: ArmLine,
}

/// The completion queues of one process.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// Endpoint that has claimed the lane, 0: none.
    pub owner: &'a AtomicU64,
    view: RegionView,
    index: usize,
}

impl<'a> Lane<'a> {
    /// The queue of a completion vector, which is taken modulo [`MAX_VECTORS`].
    ///
    /// The queues of two lanes, those of a client and of its first acceptor among them, lie side by side, vector by vector: so
    /// programs that use a few of the vectors touch one page.
    #[inline]
    #[must_use]
    pub fn vector(self, vector: usize) -> &'a Vector {
        let pair = (self.index / 2 * MAX_VECTORS + vector % MAX_VECTORS) * 2;
        let at = VECTORS_AT + (pair + self.index % 2) * size_of::<Vector>();
        // SAFETY: the lane's index is below LANES, and the vector is taken modulo MAX_VECTORS, so it lies in the mapping, which
        // whoever has a view keeps; atomics only.
        unsafe { self.view.base.byte_add(at).cast().as_ref() }
    }
}

/// The handshake's words (CLC). The client fills in the tuple and sets `state` to a
/// [`shunt_wire::clc::Proposal`], the acceptor to a [`shunt_wire::clc::Answer`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Setup {
    /// Proposal or answer.
    pub state: AtomicU32,
    /// Number of the slot's use, so that a late answer to an earlier use is noticed.
    pub generation: AtomicU32,
    /// Endpoint of the writer: whose doorbells to ring. Changes when a fork takes over.
    pub endpoint: AtomicU64,
    /// Not 0: the writer has let go of the slot.
    pub done: AtomicU32,
    ports: AtomicU32,
    ips: [AtomicU64; 4],
}

/// A value of [`Ctl::closed`].
pub const CLOSED: u32 = 1;
/// A value of [`Ctl::closed`]: the kernel sends RST.
pub const RESET: u32 = 2;
/// A value of [`Ctl::closed`]: both directions are shut down. What is there may still be read; to more the kernel
/// answers with RST.
pub const DEAF: u32 = 3;

/// What the other side wants to be told, and how.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Ctl {
    /// The writer waits for bytes to read ([`crate::doorbell`]).
    pub rx_arm: AtomicU32,
    /// The writer waits for room to write.
    pub tx_arm: AtomicU32,
    /// Whose doorbells are to be rung then: completion vectors, a bit each.
    pub rx_bells: AtomicU64,
    /// The same for room.
    pub tx_bells: AtomicU64,
    /// Where completions go ([`queue_code`]); 0: nowhere, the arm words say all.
    pub queue: AtomicU32,
    /// Not 0: the writer takes no more bytes (no half-close): [`CLOSED`], or [`RESET`] when bytes for it were left
    /// unread or its program wants no other end (`SO_LINGER`), or [`DEAF`].
    pub closed: AtomicU32,
    /// [`crate::handover::LEFT`]: the writer's end goes to a program that may not run under Shunt. It takes
    /// nothing from the ring any more: what is left there is to be sent once more, over TCP. [`crate::handover::STAYS`]: it
    /// does, and drops what it has had.
    pub handed_over: AtomicU32,
    /// Bytes that the writer's receive buffer should hold (`SO_RCVBUF`), 0: not said.
    pub window: AtomicU32,
    /// The registered region that the writer was offered last, once it has mapped it; [`DECLINED`] with it when
    /// it will not. 0: none.
    pub accepted: AtomicU64,
    /// What copies out of the ring take at the writer's end, and out of the peer's pipes: two halves of a word, in nanoseconds
    /// per MiB; 0: not known.
    pub costs: AtomicU64,
    /// When the writer last began to wake somebody at the other end, in nanoseconds of the monotonic clock; for those who
    /// learn what a wake-up takes.
    pub rang: AtomicU64,
}

/// Bit of [`Ctl::accepted`].
pub const DECLINED: u64 = 1 << 63;

/// What one side writes for the other, per connection.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Section {
    /// Cursors of the writer's sending direction.
    pub prod: ProdLine,
    /// Cursors of the writer's receiving direction.
    pub cons: ConsLine,
    /// Waiting.
    pub ctl: Ctl,
    /// Handshake.
    pub setup: Setup,
}

impl Setup {
    /// Writes the connection's name (as the writer sees it).
    pub fn set_tuple(&self, t: &FourTuple) {
        let ends = [t.local.ip, t.peer.ip];
        for (i, word) in self.ips.iter().enumerate() {
            let ip = &ends[i / 2];
            let mut half = [0; 8];
            half.copy_from_slice(&ip[(i % 2) * 8..][..8]);
            word.store(u64::from_ne_bytes(half), Ordering::Relaxed);
        }
        let ports = u32::from(t.local.port) << 16 | u32::from(t.peer.port);
        self.ports.store(ports, Ordering::Relaxed);
    }

    /// Reads the connection's name; as untrusted as the rest.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "two ports are packed in one word")]
    pub fn tuple(&self) -> FourTuple {
        let mut ends = [[0; 16]; 2];
        for (i, word) in self.ips.iter().enumerate() {
            let half = word.load(Ordering::Relaxed).to_ne_bytes();
            ends[i / 2][(i % 2) * 8..][..8].copy_from_slice(&half);
        }
        let ports = self.ports.load(Ordering::Relaxed);
        FourTuple {
            local: Addr { ip: ends[0], port: (ports >> 16) as u16 },
            peer: Addr { ip: ends[1], port: ports as u16 },
        }
    }

    /// True when the writer, a client, proposes this very connection, as its acceptor sees it. The table that leads to
    /// the slot says less: it is open to all clients of the listener.
    #[must_use]
    pub fn proposes(&self, generation: u32, to_acceptor: &FourTuple) -> bool {
        let state = self.state.load(Ordering::Acquire);
        [Proposal::Proposed as u32, Proposal::Used as u32].contains(&state)
            && self.generation.load(Ordering::Relaxed) == generation
            && self.tuple().reversed() == *to_acceptor
    }
}

// The number of the slot's use goes on, so that a late answer to an earlier use is noticed.
resets! { Setup { state, endpoint, done, ports, ips } keeps { generation } }
resets! { Ctl { rx_arm, tx_arm, rx_bells, tx_bells, queue, closed, handed_over, window, accepted, costs, rang } }
resets! { Section { prod, cons, ctl, setup } }

/// Makes a region. It belongs to the agent's work: see [`memfd`].
///
/// # Errors
/// Those of [`memfd::create_sealed`] and [`Map::new`].
pub fn create(region: RegionId) -> io::Result<OwnedFd> {
    let fd = memfd::create_sealed("shunt-link-group", LEN)?;
    let map = Map::new(&fd, 4096, true)?;
    // SAFETY: Header consists of atomics.
    if let Some(header) = unsafe { map.at::<Header>(0) } {
        header.region.store(region, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }
    Ok(fd)
}

/// Makes a region in an extent of a device's memory that nobody uses, where a region may have been before.
///
/// # Errors
/// Those of [`Map::device`].
pub fn create_in_device(
    memory: impl AsFd,
    offset: usize,
    region: RegionId,
    before: ivshmem::Kind,
) -> io::Result<Region> {
    let made = Region::whole(Map::device(memory, offset, EXTENT)?, Geometry::Device);
    let map = &made.head;
    match before {
        Kind::Fresh => {}
        Kind::Region => {
            let view = made.view();
            // Only what was used takes memory, and is touched.
            for slot in 0..view.geometry.slots() {
                let sections = [Side::Client, Side::Server].map(|side| view.section(slot, side));
                if sections.iter().any(|s| s.setup.generation.load(Ordering::Relaxed) != 0) {
                    map.zero(view.buffer_offset(slot, Side::Client), 2 * view.geometry.ring());
                }
            }
            map.zero(0, DATA_AT);
            map.zero(view.geometry.grants_at(), EXTENT);
        }
        Kind::Home => map.zero(0, EXTENT),
    }
    // SAFETY: Header consists of atomics.
    if let Some(header) = unsafe { map.at::<Header>(0) } {
        header.region.store(region, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }
    Ok(made)
}

/// A mapped region.
#[derive(Debug)]
pub struct Region {
    /// Header, lanes and sections.
    head: Map,
    /// Where grants are mapped apart.
    tail: Option<Map>,
    view: RegionView,
    /// To which the view refers.
    parts: Owned,
}

/// Where the parts of a region are that do not follow the head.
#[derive(Debug)]
struct Parts {
    rings: Rings,
    grants: NonNull<u8>,
}

// SAFETY: an address in a mapping, which is plain memory that stays where it is.
unsafe impl Send for Parts {}
// SAFETY: what lies there is atomics, and bytes that are reached by raw copies alone.
unsafe impl Sync for Parts {}

/// Parts on the heap, known by their address: a box that is moved says that no address leads there any more, and views have one.
#[derive(Debug)]
struct Owned(NonNull<Parts>);

// SAFETY: it owns the parts as a box does, and these can be sent and shared.
unsafe impl Send for Owned {}
// SAFETY: by a shared reference there are shared ones to the parts alone, which can be shared.
unsafe impl Sync for Owned {}

impl Owned {
    fn new(parts: Parts) -> Self {
        Self(NonNull::from(Box::leak(Box::new(parts))))
    }
}

impl Deref for Owned {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        // SAFETY: made by `new`, and freed with this value.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed here alone; whoever has a view keeps the region.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Region {
    /// Maps a region, with the rings of its first slots.
    ///
    /// # Errors
    /// `EINVAL` when it is not a region, else those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        const GEOMETRY: Geometry = Geometry::Host;
        // Under Miri all mappings of a region are one.
        if cfg!(miri) || rustix::param::page_size() > rings::PAGE {
            return Self::of(Map::new(fd, LEN, true)?, GEOMETRY);
        }
        let head = Map::new(&fd, DATA_AT - rings::PAGE / 2, true)?;
        check(&head)?;
        let grants = GEOMETRY.grants_at();
        let tail = Map::part(&fd, grants, LEN - grants)?;
        let parts = Parts { rings: Rings::map(fd, GEOMETRY.rings())?, grants: tail.base() };
        Ok(Self::with(head, Some(tail), GEOMETRY, parts))
    }

    /// Maps a region that lies at `offset` of a device's memory ([`Map::device`]).
    ///
    /// # Errors
    /// As for [`Self::map`].
    pub fn map_device(memory: impl AsFd, offset: usize) -> io::Result<Self> {
        Self::of(Map::device(memory, offset, EXTENT)?, Geometry::Device)
    }

    /// One of which all is mapped.
    ///
    /// # Errors
    /// `EINVAL` when it is not a region.
    pub fn of(map: Map, geometry: Geometry) -> io::Result<Self> {
        if map.len() < geometry.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        check(&map)?;
        Ok(Self::whole(map, geometry))
    }

    /// Of a mapping of all of it.
    fn whole(map: Map, geometry: Geometry) -> Self {
        // SAFETY: inside of the mapping, which is as long as the region.
        let grants = unsafe { map.base().byte_add(geometry.grants_at()) };
        let parts = Parts { rings: Rings::mapped(map.base(), geometry.rings()), grants };
        Self::with(map, None, geometry, parts)
    }

    fn with(head: Map, tail: Option<Map>, geometry: Geometry, parts: Parts) -> Self {
        let parts = Owned::new(parts);
        let view = RegionView { base: head.base(), parts: parts.0, geometry };
        Self { head, tail, view, parts }
    }

    /// Maps the rings of a slot, unless they are. By one thread at a time.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn open(&self, slot: usize) -> io::Result<()> {
        self.parts.rings.open(slot)
    }

    /// True when the rings of a slot are mapped.
    #[must_use]
    pub fn has(&self, slot: usize) -> bool {
        self.parts.rings.has(slot)
    }

    /// In a forked child, which does not hold the connections of other slots: their rings are not mapped any more.
    ///
    /// # Safety
    /// Nobody uses them, then or later.
    pub unsafe fn keep_only(&self, held: impl Fn(usize) -> bool) {
        // SAFETY: the caller promises that nobody uses the rings of other slots.
        unsafe { self.parts.rings.keep_only(held) };
    }

    /// The same of one more slot.
    ///
    /// # Safety
    /// As for [`Self::keep_only`].
    pub unsafe fn hide(&self, slot: usize) {
        // SAFETY: the caller promises that nobody uses the rings of this slot.
        unsafe { self.parts.rings.hide(slot) };
    }

    /// In a forked child, which holds no connection in it: all of it is zero from now on.
    ///
    /// # Safety
    /// Nobody uses any ring of it, then or later.
    pub unsafe fn blank(&self) {
        // SAFETY: the caller promises that nobody uses any of its rings.
        unsafe { self.keep_only(|_| false) };
        self.head.blank();
        self.tail.iter().for_each(Map::blank);
    }

    /// Its name as it says itself, which proves nothing.
    #[must_use]
    pub fn name(&self) -> RegionId {
        // SAFETY: Header consists of atomics.
        unsafe { self.head.at::<Header>(0) }
            .map_or(0, |header| header.region.load(Ordering::Relaxed))
    }

    /// A view that does not keep the region mapped.
    #[must_use]
    pub const fn view(&self) -> RegionView {
        self.view
    }
}

/// That it is a region.
fn check(head: &Map) -> io::Result<()> {
    // SAFETY: Header consists of atomics.
    let header = unsafe { head.at::<Header>(0) }.ok_or(io::ErrorKind::InvalidInput)?;
    if header.magic.load(Ordering::Acquire) != MAGIC {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(())
}

/// A view of a mapped region by its address.
#[derive(Clone, Copy, Debug)]
pub struct RegionView {
    base: NonNull<u8>,
    parts: NonNull<Parts>,
    geometry: Geometry,
}

// SAFETY: addresses of what stays where it is as long as the region is mapped.
unsafe impl Send for RegionView {}
// SAFETY: what lies there is atomics, and bytes that are reached by raw copies alone.
unsafe impl Sync for RegionView {}

impl RegionView {
    const fn parts<'a>(self) -> &'a Parts {
        // SAFETY: the parts live as long as the region, which whoever has a view keeps.
        unsafe { self.parts.as_ref() }
    }

    /// How large its parts are.
    #[inline]
    #[must_use]
    pub const fn geometry(self) -> Geometry {
        self.geometry
    }

    /// The section that `side` writes for connection `slot`.
    #[inline]
    #[must_use]
    pub fn section<'a>(self, slot: usize, side: Side) -> &'a Section {
        debug_assert!(slot < SLOTS);
        let at = SECTIONS_AT + (slot * 2 + side as usize) * size_of::<Section>();
        // SAFETY: slot < SLOTS, so the section lies in the mapping; it consists of atomics.
        unsafe { self.base.byte_add(at).cast().as_ref() }
    }

    /// The buffer of [`Geometry::ring`] bytes that `receiver` reads from and the other side writes to.
    #[inline]
    #[must_use]
    pub fn buffer(self, slot: usize, receiver: Side) -> NonNull<u8> {
        debug_assert!(slot < self.geometry.slots());
        let rings = self.parts().rings.of(slot);
        // SAFETY: the slot is one of those that there is room for, and whoever uses it has had it mapped.
        unsafe { NonNull::new_unchecked(rings).byte_add(receiver as usize * self.geometry.ring()) }
    }

    /// The grants to `receiver`, which the other side makes.
    #[inline]
    #[must_use]
    pub fn grants<'a>(self, slot: usize, receiver: Side) -> &'a Grants {
        debug_assert!(slot < self.geometry.slots());
        let at = (slot * 2 + receiver as usize) * size_of::<Grants>();
        // SAFETY: the slot is one of those that there is room for, so they lie in the mapping; atomics only.
        unsafe { self.parts().grants.byte_add(at).cast().as_ref() }
    }

    /// Copies bytes from `at` on of the ring of `receiver` in a slot, as many as `to` and the ring have
    /// there; returns what was copied.
    pub fn copy_to(self, slot: usize, receiver: Side, at: usize, to: &mut [u8]) -> &[u8] {
        let ring = self.buffer(slot, receiver);
        let at = at.min(self.geometry.ring());
        let copied = to.len().min(self.geometry.ring() - at);
        let (to, _) = to.split_at_mut(copied);
        // SAFETY: `at + copied` lies inside the ring, and `to` has room for so many; private memory and
        // a ring do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(ring.as_ptr().add(at), to.as_mut_ptr(), copied) };
        to
    }

    /// Offset of that buffer in the region: what a device that moves bytes is told.
    #[inline]
    #[must_use]
    pub const fn buffer_offset(self, slot: usize, receiver: Side) -> usize {
        DATA_AT + (slot * 2 + receiver as usize) * self.geometry.ring()
    }

    /// Gives the memory of the ring of `receiver` in a slot back, but for what a connection of small messages takes, and
    /// for what the ring has in common with its neighbours. Not that of a device, where it is not the kernel's to give.
    ///
    /// # Safety
    /// The ring is empty, and stays so meanwhile.
    pub unsafe fn discard(self, slot: usize, receiver: Side) {
        let ring = self.geometry.ring();
        let at = receiver as usize * ring;
        // SAFETY: the caller promises that the ring is empty and stays so, so nobody relies on its bytes.
        unsafe { self.parts().rings.discard(slot, at, at + ring) };
    }

    /// Copies `data` to `offset`, as a device does that moves bytes. `None`: they do not lie in the rings of one slot, and
    /// nothing is copied.
    #[must_use]
    pub fn move_data(self, offset: usize, data: &[u8]) -> Option<()> {
        let of_slot = 2 * self.geometry.ring();
        let at = offset.checked_sub(DATA_AT)?;
        let (slot, at) = (at / of_slot, at % of_slot);
        if slot >= self.geometry.slots() || data.len() > of_slot - at {
            return None;
        }
        // SAFETY: inside of the slot's rings, as just checked; private memory does not overlap them.
        unsafe {
            let to = self.buffer(slot, Side::Client).as_ptr().add(at);
            core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
        }
        Some(())
    }

    /// Lane `lane`, taken modulo [`LANES`].
    #[inline]
    #[must_use]
    pub fn lane<'a>(self, lane: usize) -> Lane<'a> {
        let index = lane % LANES;
        // SAFETY: the lane is taken modulo LANES, so its owner lies in the mapping; atomics only.
        let owner = unsafe {
            self.base.byte_add(OWNERS_AT + index * size_of::<AtomicU64>()).cast().as_ref()
        };
        Lane { owner, view: self, index }
    }

    /// Where the lanes are in the region: owners, and behind them all queues.
    #[must_use]
    pub const fn lanes_at() -> core::ops::Range<usize> {
        OWNERS_AT..SECTIONS_AT
    }

    /// Claims a lane for `endpoint`: lane 0 for the region's owner, else one that is free. A lane
    /// is given back by storing 0 to its owner.
    #[must_use]
    pub fn claim_lane(self, side: Side, endpoint: u64) -> Option<usize> {
        let range = if side == Side::Client { 0..1 } else { 1..LANES };
        range.into_iter().find(|lane| {
            let owner = &self.lane(*lane).owner;
            owner.compare_exchange(0, endpoint, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }
}

/// Packs a lane and a vector for [`Ctl::queue`].
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "both are small")]
pub const fn queue_code(lane: usize, vector: usize) -> u32 {
    1 + (lane % LANES * MAX_VECTORS + vector % MAX_VECTORS) as u32
}

/// The reverse of [`queue_code`]; any number gives a valid lane and vector.
#[inline]
#[must_use]
pub const fn queue_place(code: u32) -> Option<(usize, usize)> {
    match (code as usize).checked_sub(1) {
        Some(n) => Some((n / MAX_VECTORS % LANES, n % MAX_VECTORS)),
        None => None,
    }
}

impl RegionView {
    /// Wakes those who sleep on futexes on this side: a program on the other one is gone, of which only the kernel tells. Nothing
    /// is written: who comes to sleep right now looks for itself soon.
    #[cfg(not(loom))]
    pub fn rouse(self, side: Side) {
        // Clients take the lowest slots first, and a slot that none has used takes no memory.
        let was_used = |slot: &usize| {
            self.section(*slot, Side::Client).setup.generation.load(Ordering::Relaxed) != 0
        };
        for slot in (0..self.geometry.slots()).take_while(was_used) {
            let ctl = &self.section(slot, side).ctl;
            let sleeps = |word: &&AtomicU32| word.load(Ordering::Relaxed) & ON_FUTEX != 0;
            let asleep = [&ctl.rx_arm, &ctl.tx_arm].into_iter().filter(sleeps);
            asleep.for_each(|word| futex_wake(word, u32::MAX));
        }
    }

    /// The machine of one side is gone: every connection that was agreed on breaks, on either side, at its next look
    /// ([`Grants::are_possible`]). Proposals that were not taken up stay on TCP, which knows by itself. Returns the slots
    /// it concerns.
    pub fn break_all(self) -> impl Iterator<Item = usize> {
        let agreed = move |slot: &usize| {
            let answer = self.section(*slot, Side::Server).setup.state.load(Ordering::Acquire);
            answer == Answer::Accepted as u32
        };
        (0..self.geometry.slots()).filter(agreed).inspect(move |slot| {
            for side in [Side::Client, Side::Server] {
                self.section(*slot, side).prod.grants.store(u32::MAX / 2, Ordering::Release);
            }
        })
    }
}

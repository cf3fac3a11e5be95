//! The memory of a link group: both RMBs of each of its connections, and both sides' completion
//! queues.
//!
//! Everything here is shared with the peer and never trusted. Geometry is a function of constants (one for
//! memory of this machine, one for a device's: [`Geometry`]), so there is none to be lied about. For each connection and side there is one [`Section`] that
//! only this side writes and the other reads, as a DMB on a device that can only copy would have it;
//! the exceptions, both "signal" operations of the device, are the completion queue and the two arm
//! words.

mod layout;
mod section;
mod view;

use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use shunt_wire::agent::RegionId;

pub use crate::geometry::{LONG_RING, RING, SHORT_RING, SLOTS, Side, shape};
use crate::ivshmem::{self, EXTENT, Kind};
use crate::memfd::{self, Map};
use crate::rings::{self, Rings};
use crate::sync::Ordering;
use layout::{DATA_AT, Header, NONE_GONE};
pub use layout::{Geometry, LANES, LEN, Vector};
pub use section::{CLOSED, Ctl, DEAF, DECLINED, RESET, Section, Setup};
use view::Parts;
pub use view::{Lane, RegionView, queue_code, queue_place};

const MAGIC: u64 = 0x5348_554e_545f_4c47; // "SHUNT_LG"

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
        header.gone.store(NONE_GONE, Ordering::Relaxed);
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
        header.gone.store(NONE_GONE, Ordering::Relaxed);
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

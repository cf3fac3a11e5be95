//! A listener's table of open proposals, keyed by the connection's 4-tuple.
//!
//! Clients of the listener (same user) write it, every process that holds the listening socket reads
//! it. An entry only points at a slot of a region; the acceptor compares the 4-tuple there, in
//! memory that only the client and this listener know, so a forged entry leads nowhere. The entry's
//! state is the one place where accepting and withdrawing meet: whoever changes it first has won.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use shunt_wire::addr::FourTuple;
use shunt_wire::agent::RegionId;

use crate::memfd::{self, Map};
use crate::region::SLOTS;
use crate::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence};

/// Open proposals that fit.
pub const ENTRIES: usize = 4096;
/// Entries that are looked at for one 4-tuple.
const PROBES: usize = 16;

const EMPTY: u64 = 0;
const BUSY: u64 = 1;

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    /// Clients between their connect(2) and their post.
    connecting: AtomicU32,
}

/// `key`: `EMPTY`, `BUSY`, or the 4-tuple's hash (made larger than both).
#[repr(C, align(32))]
struct Entry {
    key: AtomicU64,
    region: AtomicU64,
    slot: AtomicU32,
    generation: AtomicU32,
}

const MAGIC: u64 = 0x5348_554e_545f_5054; // "SHUNT_PT"
const LEN: usize = size_of::<Header>() + ENTRIES * size_of::<Entry>();

/// Where a proposal lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Region.
    pub region: RegionId,
    /// Slot in it, below [`SLOTS`].
    pub slot: usize,
    /// Number of the slot's use.
    pub generation: u32,
}

/// Makes a table.
///
/// # Errors
/// Those of [`memfd::create_sealed`].
pub fn create() -> io::Result<OwnedFd> {
    let fd = memfd::create_sealed("shunt-proposals", LEN)?;
    let map = Map::new(&fd, LEN, true)?;
    // SAFETY: Header consists of atomics.
    if let Some(header) = unsafe { map.at::<Header>(0) } {
        header.magic.store(MAGIC, Ordering::Release);
    }
    Ok(fd)
}

/// A mapped table.
#[derive(Debug)]
pub struct Table {
    map: Map,
}

/// Names a posted proposal, for [`Table::withdraw`].
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    index: usize,
    key: u64,
    place: Place,
}

fn key_of(tuple: &FourTuple) -> u64 {
    tuple.hash64() | 2
}

impl Table {
    /// Maps a table.
    ///
    /// # Errors
    /// `EINVAL` when it is not a table, else those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let table = Self { map: Map::new(fd, LEN, true)? };
        if table.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(table)
    }

    fn header(&self) -> &Header {
        // SAFETY: the map is LEN bytes long, of which the first are the header; atomics only.
        unsafe { self.map.base().cast().as_ref() }
    }

    fn entry(&self, index: usize) -> &Entry {
        let at = size_of::<Header>() + (index % ENTRIES) * size_of::<Entry>();
        // SAFETY: the index is taken modulo ENTRIES, so it lies in the map; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a hash")]
    fn probes(key: u64) -> impl Iterator<Item = usize> {
        (0..PROBES).map(move |i| ((key >> 8) as usize + i) % ENTRIES)
    }

    /// A client is about to call connect(2): acceptors look again while this is open.
    pub fn connect_begins(&self) {
        self.header().connecting.fetch_add(1, Ordering::AcqRel);
    }

    /// It has posted, or will not.
    pub fn connect_ends(&self) {
        self.header().connecting.fetch_sub(1, Ordering::AcqRel);
    }

    /// True while some client is between its connect(2) and its post.
    #[must_use]
    pub fn connecting(&self) -> bool {
        store_load_fence();
        self.header().connecting.load(Ordering::Acquire) != 0
    }

    /// Posts a proposal. `tuple` is as the acceptor sees it. `None` when there is no room.
    #[must_use]
    pub fn post(&self, tuple: &FourTuple, place: Place) -> Option<Ticket> {
        let key = key_of(tuple);
        Self::probes(key).find_map(|index| {
            let e = self.entry(index);
            e.key.compare_exchange(EMPTY, BUSY, Ordering::Acquire, Ordering::Relaxed).ok()?;
            e.region.store(place.region, Ordering::Relaxed);
            e.slot.store(u32::try_from(place.slot).ok()?, Ordering::Relaxed);
            e.generation.store(place.generation, Ordering::Relaxed);
            // SYNC POINT post: pairs with the Acquire in find; releases the slot's contents too.
            e.key.store(key, Ordering::Release);
            Some(Ticket { index, key, place })
        })
    }

    /// Finds a proposal for `tuple` without taking it.
    #[must_use]
    pub fn find(&self, tuple: &FourTuple) -> Option<Ticket> {
        let key = key_of(tuple);
        Self::probes(key).find_map(|index| {
            let e = self.entry(index);
            // SYNC POINT post.
            if e.key.load(Ordering::Acquire) != key {
                return None;
            }
            let slot = e.slot.load(Ordering::Relaxed) as usize;
            let place = Place {
                region: e.region.load(Ordering::Relaxed),
                slot,
                generation: e.generation.load(Ordering::Relaxed),
            };
            (slot < SLOTS).then_some(Ticket { index, key, place })
        })
    }

    /// Takes an entry out: by the acceptor to accept, by the client to withdraw. `false`: the other
    /// was first.
    #[must_use]
    pub fn take(&self, ticket: &Ticket) -> bool {
        let e = self.entry(ticket.index);
        if e.key.compare_exchange(ticket.key, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let same = e.region.load(Ordering::Relaxed) == ticket.place.region
            && e.slot.load(Ordering::Relaxed) as usize == ticket.place.slot
            && e.generation.load(Ordering::Relaxed) == ticket.place.generation;
        e.key.store(if same { EMPTY } else { ticket.key }, Ordering::Release);
        same
    }

    /// Removes every entry that points into `region`: its owner is gone.
    pub fn scrub(&self, region: RegionId) {
        for index in 0..ENTRIES {
            let e = self.entry(index);
            let key = e.key.load(Ordering::Acquire);
            if key != EMPTY && e.region.load(Ordering::Relaxed) == region {
                let _ = e.key.compare_exchange(key, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

impl Ticket {
    /// Where the proposal lies.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Packs the entry's index and key for storage in plain words.
    #[must_use]
    pub const fn to_words(self) -> (u64, u64) {
        (self.index as u64, self.key)
    }

    /// The reverse of [`Self::to_words`], with the place known from elsewhere.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "taken modulo ENTRIES at use")]
    pub const fn from_words((index, key): (u64, u64), place: Place) -> Self {
        Self { index: index as usize, key, place }
    }
}

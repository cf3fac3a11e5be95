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

use crate::geometry::SLOTS;
use crate::memfd::{self, Map};
use crate::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence};

/// Open proposals that fit.
pub const ENTRIES: usize = 4096;
/// Entries that are looked at for one 4-tuple.
const PROBES: usize = 16;

/// Link groups whose clients can be between their connect(2) and their post at once and are known by
/// name; what more there are is counted only.
const CONNECTING: usize = 64;

const EMPTY: u64 = 0;

/// The key of an entry that is being changed on behalf of the owner of `region`: should whoever
/// changes it be killed just then, the entry is freed with the region.
const fn busy(region: RegionId) -> u64 {
    region << 2 | 1
}

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    /// Clients between their connect(2) and their post that have no place below.
    crowd: AtomicU32,
    /// The others, by link group: see [`packed`].
    connecting: [AtomicU64; CONNECTING],
}

/// A region and the number of its connects that are under way. Regions' names are below 2^53.
const fn packed(region: RegionId, count: u64) -> u64 {
    region << COUNT_BITS | count
}

const COUNT_BITS: u32 = 10;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// `key`: `EMPTY`, [`busy`], or the 4-tuple's hash (in which the second bit is set, as in no other).
#[repr(C, align(32))]
struct Entry {
    key: AtomicU64,
    region: AtomicU64,
    slot: AtomicU32,
    generation: AtomicU32,
}

const MAGIC: u64 = 0x5348_554e_545f_5054; // "SHUNT_PT"
/// Length of a table in bytes.
pub const LEN: usize = size_of::<Header>() + ENTRIES * size_of::<Entry>();

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

/// Names a posted proposal, for [`Table::take`].
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

    /// Maps a table that lies at `offset` of a device's memory ([`Map::device`]).
    ///
    /// # Errors
    /// As for [`Self::map`].
    pub fn map_device(memory: impl AsFd, offset: usize) -> io::Result<Self> {
        let table = Self { map: Map::device(memory, offset, LEN)? };
        if table.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(table)
    }

    /// Makes an empty table at `offset` of a device's memory, of which nobody knows yet.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn create_in_device(memory: impl AsFd, offset: usize) -> io::Result<Self> {
        let table = Self { map: Map::device(memory, offset, LEN)? };
        table.map.zero(0, LEN);
        table.header().magic.store(MAGIC, Ordering::Release);
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

    /// A client is about to call connect(2), with a place in `region` for its proposal: acceptors look
    /// again until what this returns is dropped, when it has posted, or will not.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "a place to begin at")]
    pub fn connect_begins(&self, region: RegionId) -> Connecting<'_> {
        let more = |word: u64| match word {
            EMPTY => Some(packed(region, 1)),
            word if word >> COUNT_BITS == region && word & COUNT < COUNT => Some(word + 1),
            _ => None,
        };
        let header = self.header();
        let start = region as usize;
        for i in 0..CONNECTING {
            let place = (start + i) % CONNECTING;
            let word = &header.connecting[place];
            if word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok() {
                return Connecting { table: self, place: Some(place), region };
            }
        }
        header.crowd.fetch_add(1, Ordering::AcqRel);
        Connecting { table: self, place: None, region }
    }

    /// True while some client is between its connect(2) and its post.
    #[must_use]
    pub fn connecting(&self) -> bool {
        store_load_fence();
        let header = self.header();
        header.crowd.load(Ordering::Acquire) != 0
            || header.connecting.iter().any(|word| word.load(Ordering::Acquire) != EMPTY)
    }

    /// Posts a proposal. `tuple` is as the acceptor sees it. `None` when there is no room. What an
    /// earlier connection of the same name has left is replaced: in the kernel it is over.
    #[must_use]
    pub fn post(&self, tuple: &FourTuple, place: Place) -> Option<Ticket> {
        let key = key_of(tuple);
        let slot = u32::try_from(place.slot).ok()?;
        let write = |old: u64, index: usize| {
            let e = self.entry(index);
            let mine = busy(place.region);
            e.key.compare_exchange(old, mine, Ordering::Acquire, Ordering::Relaxed).ok()?;
            e.region.store(place.region, Ordering::Relaxed);
            e.slot.store(slot, Ordering::Relaxed);
            e.generation.store(place.generation, Ordering::Relaxed);
            // SYNC POINT post: pairs with the Acquire in find; releases the slot's contents too.
            e.key.store(key, Ordering::Release);
            Some(Ticket { index, key, place })
        };
        Self::probes(key)
            .find_map(|index| write(key, index))
            .or_else(|| Self::probes(key).find_map(|index| write(EMPTY, index)))
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
        let place = &ticket.place;
        let same = || {
            e.region.load(Ordering::Relaxed) == place.region
                && e.slot.load(Ordering::Relaxed) as usize == place.slot
                && e.generation.load(Ordering::Relaxed) == place.generation
        };
        let taken = busy(place.region);
        // Another use of the entry is left alone, as far as a look can tell.
        if !same()
            || e.key
                .compare_exchange(ticket.key, taken, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        let same = same();
        e.key.store(if same { EMPTY } else { ticket.key }, Ordering::Release);
        same
    }

    /// Removes all that is of `region`, finished or not: its owner is gone.
    pub fn scrub(&self, region: RegionId) {
        self.scrub_where(|other| other == region);
    }

    /// The same for all regions that are `over`.
    pub fn scrub_where(&self, over: impl Fn(RegionId) -> bool) {
        let clear = |word: &AtomicU64, seen: u64| {
            let _ = word.compare_exchange(seen, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
        };
        for word in &self.header().connecting {
            let seen = word.load(Ordering::Acquire);
            if seen != EMPTY && over(seen >> COUNT_BITS) {
                clear(word, seen);
            }
        }
        for index in 0..ENTRIES {
            let e = self.entry(index);
            let key = e.key.load(Ordering::Acquire);
            let of = match key {
                EMPTY => continue,
                key if key & 2 != 0 => e.region.load(Ordering::Relaxed),
                key => key >> 2,
            };
            if over(of) {
                clear(&e.key, key);
            }
        }
    }
}

/// A connect that has begun, and ends with this.
#[derive(Debug)]
pub struct Connecting<'a> {
    table: &'a Table,
    place: Option<usize>,
    region: RegionId,
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        let header = self.table.header();
        let Some(place) = self.place else {
            header.crowd.fetch_sub(1, Ordering::AcqRel);
            return;
        };
        let less = |word: u64| match word & COUNT {
            _ if word >> COUNT_BITS != self.region => None,
            0 | 1 => Some(EMPTY),
            _ => Some(word - 1),
        };
        let word = &header.connecting[place];
        // It fails when the region was scrubbed: the agent took this process for dead.
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
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

//! A member's home: what it publishes, and what it is told.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use shunt_wire::addr::Addr;

use super::extent::EXTENT;
use crate::memfd::Map;
use crate::reach;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::table;

/// Endpoints of a member that others can wake.
pub const ENDPOINTS: usize = 1024;
/// Completion vectors of an endpoint that can be told apart from another machine.
pub const FAR_VECTORS: usize = 8;

/// The vector that is rung from another machine for this one: those beyond [`FAR_VECTORS`] by the first, which all hear.
#[must_use]
pub const fn far_vector(vector: usize) -> usize {
    if vector < FAR_VECTORS { vector } else { 0 }
}

/// Listeners that a member can publish.
pub const LISTENERS: usize = 60;
/// Addresses of a machine that a member can publish.
pub const ADDRESSES: usize = 64;

const ADDRESSES_AT: usize = 4096;
const ENDPOINTS_AT: usize = 8192;
const LISTENERS_AT: usize = ENDPOINTS_AT + ENDPOINTS * size_of::<Place>();
const TABLES_AT: usize = 32768;
const TABLE: usize = table::LEN.next_multiple_of(4096);

const _: () = assert!(LISTENERS_AT + LISTENERS * size_of::<Entry>() <= TABLES_AT);
const _: () = assert!(TABLES_AT + LISTENERS * TABLE <= EXTENT);
const _: () = assert!(ADDRESSES_AT + ADDRESSES * 16 <= ENDPOINTS_AT);

#[repr(C, align(64))]
struct Head {
    /// Changes with each change of listeners and addresses.
    news: AtomicU64,
    addresses: AtomicU32,
    /// Bit n: endpoint n has something pending.
    summary: [AtomicU64; ENDPOINTS / 64],
}

/// An endpoint of the member.
#[repr(C, align(16))]
struct Place {
    /// Its name; 0: free.
    id: AtomicU64,
    /// Completion vectors (a bit each) whose doorbells are to be rung.
    pending: AtomicU32,
    /// Completion vectors in the lowest byte; above them the interrupt of the first one, and how many have one.
    vectors: AtomicU32,
}

#[repr(C, align(64))]
struct Entry {
    /// The listener's name; 0: free.
    id: AtomicU64,
    ip: [AtomicU64; 2],
    /// Port and more ([`reach`]).
    port: AtomicU32,
}

/// A listener that a member has published; its table of proposals is that of its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// Its name with that member.
    pub id: u64,
    /// Its address, possibly unspecified.
    pub addr: Addr,
    /// `IPV6_V6ONLY` is set.
    pub v6only: bool,
    /// Bits of the address that count. Fewer than [`reach::WHOLE`]: it stands for the servers of a network; with port 0 for those at every port.
    pub bits: u8,
}

/// Offset in a home of the proposal table of the listener at `place`, which is taken modulo [`LISTENERS`].
#[must_use]
pub const fn table_offset(place: usize) -> usize {
    TABLES_AT + place % LISTENERS * TABLE
}

/// A member's home, mapped.
#[derive(Debug)]
pub struct Home {
    map: Map,
}

impl Home {
    /// Maps the home that begins at `offset` of a device's memory.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(memory: impl AsFd, offset: usize) -> io::Result<Self> {
        // The tables are mapped where they are needed.
        Ok(Self { map: Map::device(memory, offset, TABLES_AT)? })
    }

    fn part<T>(&self, at: usize, index: usize, count: usize) -> &T {
        let at = at + index % count * size_of::<T>();
        debug_assert!(at + size_of::<T>() <= TABLES_AT);
        // SAFETY: the index is bounded, and the constants above have room for so many; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    fn head(&self) -> &Head {
        self.part(0, 0, 1)
    }

    fn place(&self, index: usize) -> &Place {
        self.part(ENDPOINTS_AT, index, ENDPOINTS)
    }

    fn entry(&self, index: usize) -> &Entry {
        self.part(LISTENERS_AT, index, LISTENERS)
    }

    /// What changes when listeners or addresses do.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.head().news.load(Ordering::Acquire)
    }

    /// The addresses of the member's machine.
    #[must_use]
    pub fn addresses(&self) -> Vec<[u8; 16]> {
        let count = (self.head().addresses.load(Ordering::Acquire) as usize).min(ADDRESSES);
        (0..count).map(|i| load(self.part(ADDRESSES_AT, i, ADDRESSES))).collect()
    }

    /// Publishes them; what does not fit is left out.
    pub fn set_addresses(&self, addresses: &[[u8; 16]]) {
        let head = self.head();
        for (i, ip) in addresses.iter().take(ADDRESSES).enumerate() {
            store(self.part(ADDRESSES_AT, i, ADDRESSES), *ip);
        }
        let count = u32::try_from(addresses.len().min(ADDRESSES)).unwrap_or(0);
        head.addresses.store(count, Ordering::Release);
        head.news.fetch_add(1, Ordering::AcqRel);
    }

    /// The listeners, with their places.
    pub fn listeners(&self) -> impl Iterator<Item = (usize, Published)> + '_ {
        (0..LISTENERS).filter_map(|index| {
            let e = self.entry(index);
            let id = e.id.load(Ordering::Acquire);
            let port = e.port.load(Ordering::Relaxed);
            let (port, v6only, bits) = reach::of_word(port);
            let addr = Addr { ip: load(&e.ip), port };
            // Names are never used again, so the same one before and after means the same listener.
            fence(Ordering::Acquire);
            let whole = id != 0 && e.id.load(Ordering::Relaxed) == id;
            whole.then_some((index, Published { id, addr, v6only, bits }))
        })
    }

    /// Publishes a listener at `place`, which is free and whose table is empty.
    pub fn publish(&self, place: usize, listener: &Published) {
        let e = self.entry(place);
        store(&e.ip, listener.addr.ip);
        let word = reach::word(listener.addr.port, listener.v6only, listener.bits);
        e.port.store(word, Ordering::Relaxed);
        e.id.store(listener.id, Ordering::Release);
        self.head().news.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes it back.
    pub fn withdraw(&self, place: usize) {
        self.entry(place).id.store(0, Ordering::Release);
        self.head().news.fetch_add(1, Ordering::AcqRel);
    }

    /// The endpoint at `place`, which is taken modulo [`ENDPOINTS`]: its name and completion vectors.
    #[must_use]
    pub fn endpoint(&self, place: usize) -> (u64, usize) {
        let place = self.place(place);
        let id = place.id.load(Ordering::Acquire);
        (id, place.vectors.load(Ordering::Relaxed) as usize & 0xff)
    }

    /// The interrupt vector of the member's machine that leads to an endpoint's own doorbell, of this completion vector;
    /// `None`: it is to be noted and told to the agent.
    #[must_use]
    pub fn interrupt_of(&self, place: usize, vector: usize) -> Option<u8> {
        let [_, first, count, _] = self.place(place).vectors.load(Ordering::Acquire).to_le_bytes();
        let vector = u8::try_from(vector).ok().filter(|vector| *vector < count)?;
        first.checked_add(vector)
    }

    /// Where the endpoint of this name is.
    #[must_use]
    pub fn find_endpoint(&self, id: u64) -> Option<usize> {
        (0..ENDPOINTS).find(|place| self.place(*place).id.load(Ordering::Acquire) == id)
    }

    /// Publishes an endpoint at `place`, with the interrupts that lead to its doorbells, from the first completion vector
    /// on; 0: takes it back.
    pub fn set_endpoint(&self, place: usize, id: u64, vectors: usize, interrupts: &Range<usize>) {
        let place = self.place(place);
        place.pending.store(0, Ordering::Relaxed);
        Self::lead(place, vectors, interrupts);
        place.id.store(id, Ordering::Release);
    }

    /// Publishes that an endpoint has so many vectors by now, and the interrupts that lead to them.
    pub fn set_vectors(&self, place: usize, vectors: usize, interrupts: &Range<usize>) {
        Self::lead(self.place(place), vectors, interrupts);
    }

    fn lead(place: &Place, vectors: usize, interrupts: &Range<usize>) {
        let word =
            [vectors, interrupts.start, interrupts.len()].map(|n| u8::try_from(n).unwrap_or(0));
        let word = u32::from_le_bytes([word[0], word[1], word[2], 0]);
        place.vectors.store(word, Ordering::Release);
    }

    /// Notes that a doorbell of an endpoint is to be rung. True when the member has to be told of it: else it was told
    /// and has not looked yet.
    pub fn notify(&self, place: usize, vector: usize) -> bool {
        let index = place % ENDPOINTS;
        // SYNC POINT pending: the vector before the summary; whoever takes does it the other way round.
        self.place(index).pending.fetch_or(1 << far_vector(vector), Ordering::AcqRel);
        let bit = 1 << (index % 64);
        self.head().summary[index / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Takes what is pending: places of endpoints with their vectors (a bit each).
    pub fn take_pending(&self, mut each: impl FnMut(usize, u32)) {
        for (word, summary) in self.head().summary.iter().enumerate() {
            if summary.load(Ordering::Acquire) == 0 {
                continue;
            }
            // SYNC POINT pending.
            let mut bits = summary.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                each(index, self.place(index).pending.swap(0, Ordering::AcqRel));
            }
        }
    }

    /// True when something is pending.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.head().summary.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }
}

fn store(words: &[AtomicU64; 2], ip: [u8; 16]) {
    for (word, half) in words.iter().zip(ip.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(half);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

fn load(words: &[AtomicU64; 2]) -> [u8; 16] {
    let mut ip = [0; 16];
    for (word, half) in words.iter().zip(ip.chunks_exact_mut(8)) {
        half.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    ip
}

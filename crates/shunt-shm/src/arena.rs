//! The arena of an endpoint: one record per TCP connection of the process.
//!
//! It lies in memory that the process shares with its own forks, so that parent and child go on with
//! one state as they would with one kernel socket, and that the agent reads, so that
//! `shunt list` and `shunt stats` cost the data path nothing; all it writes is its part of the records' offers.
//! It is trusted: nobody else has it.

use core::mem::offset_of;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use shunt_wire::addr::FourTuple;
use shunt_wire::version::OLDEST_VERSION;
use shunt_wire::waits::{Part, Waits};

use crate::capture;
use crate::counters::Counters;
use crate::decisions::Decisions;
use crate::geometry::{SLOTS, Side};
use crate::grants::PipeReads;
use crate::holders::{Holders, Member, Processes};
use crate::lock::{Owner, OwnerLock};
use crate::memfd::{self, Map};
use crate::reset::resets;
use crate::ring::{RxCursor, TxCursor};
use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use crate::tuple;
use crate::unregistered::Places;
use crate::waits::{AllWaits, ConnWaits};
use crate::zerocopy::{Tallied, ZeroCopy};

mod view;

pub use view::{ArenaView, ConnInfo};

/// Connections that an endpoint can track at once.
pub const RECORDS: usize = 64 * 1024;

const MAGIC: u64 = 0x5348_554e_545f_4152; // "SHUNT_AR"

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    /// Records ever used: the agent looks no further.
    high_water: AtomicU32,
    /// [`TxState::captures`] of records that are taken from now on.
    captures: AtomicU32,
    /// Shards of [`AllWaits`] in use, by bit: reading the others would give them memory.
    waits: AtomicU32,
    counters: Counters,
    processes: Processes,
    unregistered: Places,
    families: Families,
}

/// What the processes that share an arena learn of connections to their ports, for those that are forked next: an agent of any version has
/// zeros there.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Families {
    brevity: [AtomicU32; FAMILIES],
    spins: [AtomicU32; FAMILIES],
}

/// Ports that are told apart, by their lowest bits.
const FAMILIES: usize = 64;

impl Families {
    /// What connections to this port have cost and not gained: the library's business.
    #[must_use]
    pub const fn brevity(&self, port: u16) -> &AtomicU32 {
        &self.brevity[port as usize % FAMILIES]
    }

    /// Whether it pays to wait for bytes on connections to this port: the library's business.
    #[must_use]
    pub const fn spins(&self, port: u16) -> &AtomicU32 {
        &self.spins[port as usize % FAMILIES]
    }
}

/// How the bytes of a connection go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// Kernel TCP.
    Tcp = 0,
    /// Shared memory, written straight into the receiver's RMB.
    Attach = 1,
    /// Shared memory, moved by the device.
    Copy = 2,
}

impl Mode {
    /// From its code in the arena.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Attach,
            2 => Self::Copy,
            _ => Self::Tcp,
        }
    }

    /// The stable name that tools print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Attach => "shunt-attach",
            Self::Copy => "shunt-copy",
        }
    }
}

/// What a connection is, and what all its directions share.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Identity {
    /// 0: the record is free.
    pub live: AtomicU32,
    /// The process and those of its forks that have it open.
    pub holders: Holders,
    /// Uses of the record: a stale pointer to it is told by this.
    pub generation: AtomicU32,
    /// `O_NONBLOCK` and the like: the library's business.
    pub flags: AtomicU32,
    /// Process that used it last.
    pub pid: AtomicU32,
    /// One of its file descriptors.
    pub fd: AtomicI32,
    /// [`Mode`].
    pub mode: AtomicU32,
    /// [`Reason`](shunt_wire::reason::Reason), 0 for none.
    pub reason: AtomicU32,
    /// Region of its link group, when it has one.
    pub region: AtomicU64,
    /// Slot in the region.
    pub slot: AtomicU32,
    /// [`Side`].
    pub side: AtomicU32,
    /// Use of the slot.
    pub slot_generation: AtomicU32,
    /// 4-tuple.
    tuple: [AtomicU64; 4],
    ports: AtomicU32,
    /// Phase of the handshake: the library's business.
    pub phase: AtomicU32,
    /// The table entry of an open proposal ([`crate::table::Ticket::to_words`]).
    pub ticket: [AtomicU64; 2],
    /// Held while a proposal is looked for and taken up.
    pub handshake: OwnerLock,
    /// When the phase began, in monotonic nanoseconds.
    pub since: AtomicU64,
    /// Calls on the socket since the phase began.
    pub looks: AtomicU32,
    /// Completion vector + 1, 0: none.
    pub vector: AtomicU32,
    /// [`shunt_wire::offer::Offer`], of which the agent writes its part.
    pub offer: AtomicU64,
}

/// Lets a signal handler use a direction although the call that it interrupted holds the lock, while
/// that call only copies bytes and has not yet told anybody.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Copying {
    /// Not 0 while the owner of the lock copies.
    pub open: AtomicU32,
    /// Calls that were made in handlers meanwhile, ever: the owner begins anew after one.
    pub calls: AtomicU32,
}

/// What a receiver keeps.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct RxState {
    /// Held while bytes are taken.
    pub lock: OwnerLock,
    /// Marks of switch points passed: odd means that bytes come from the ring.
    pub marks: AtomicU32,
    /// See [`Copying`].
    pub copying: Copying,
    /// Ring cursors.
    pub cursor: RxCursor,
    /// Bytes received through the ring.
    pub bytes: AtomicU64,
    /// Calls that received some.
    pub messages: AtomicU64,
    /// Spins that paid / did not, and the present spin budget in nanoseconds.
    pub spins: [AtomicU32; 2],
    /// Learnt spin budget in nanoseconds.
    pub budget: AtomicU32,
    /// When the kernel socket was last asked, in units of 1024 ns (the low half of them).
    pub visited: AtomicU32,
    /// When bytes of which no mark tells were first seen in the kernel socket, in the same units; 0: never.
    pub unmarked: AtomicU32,
    /// Grants and offers passed; see [`crate::grants`].
    pub grants: AtomicU32,
    /// What was read of the sender's pipes.
    pub pipe_reads: PipeReads,
    /// What copies out of the ring take, and out of pipes, in nanoseconds per MiB; 0: not known.
    pub costs: [AtomicU32; 2],
    /// Bytes to come from the kernel socket that were taken from the ring already: they are dropped.
    pub again: AtomicU32,
    /// `SO_RCVLOWAT`, 0: not set.
    pub low_water: AtomicU32,
    /// `SO_RCVTIMEO`, see [`Timeout`].
    pub timeout: Timeout,
}

/// A timeout of the program's, so that the kernel is asked for it once.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Timeout(AtomicU64);

impl Timeout {
    const NONE: u64 = u64::MAX;

    /// In nanoseconds; `None`: wait for ever. `ask` says what the kernel knows.
    #[inline]
    pub fn get(&self, ask: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let mut word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            word = ask().map_or(Self::NONE, |nanos| nanos.clamp(1, Self::NONE - 1));
            self.0.store(word, Ordering::Relaxed);
        }
        (word != Self::NONE).then_some(word)
    }

    /// None was set, as is known without asking.
    pub fn set_none(&self) {
        self.0.store(Self::NONE, Ordering::Relaxed);
    }

    /// The kernel is to be asked again.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For a new connection.
    fn reset(&self) {
        self.forget();
    }
}

/// Bit of [`TxState::replay`]: the receiver was just leaving when the mark was set, and is about to say how
/// many bytes it wants.
pub const UNDECIDED: u64 = 1 << 63;

/// What a sender keeps.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct TxState {
    /// Held while bytes are put in.
    pub lock: OwnerLock,
    /// Marks of switch points set: odd means that bytes go into the ring.
    pub marks: AtomicU32,
    /// Captures that want to see what is sent ([`crate::capture`]); 0: none. Set by the agent.
    pub captures: AtomicU32,
    /// See [`Copying`].
    pub copying: Copying,
    /// Ring cursors.
    pub cursor: TxCursor,
    /// Bytes at the end of what was put into the ring that are to be sent once more, over TCP: or fewer,
    /// with [`UNDECIDED`].
    pub replay: AtomicU64,
    /// Bytes sent through the ring.
    pub bytes: AtomicU64,
    /// Calls that sent some.
    pub messages: AtomicU64,
    /// Doorbells rung, doorbells saved, waits for room.
    pub rung: AtomicU32,
    /// See `rung`.
    pub saved: AtomicU32,
    /// See `rung`.
    pub full: AtomicU32,
    /// Bytes that the send buffer should hold (`SO_SNDBUF`), 0: not set.
    pub buffer: AtomicU32,
    /// Since when there was no room, in units of 1024 ns; 0: there was some.
    pub full_since: AtomicU32,
    /// How far the receiver was then.
    pub full_at: AtomicU64,
    /// `SO_SNDTIMEO`, see [`Timeout`].
    pub timeout: Timeout,
    /// Bytes that lay in the ring and were sent once more, over TCP.
    pub repeated: AtomicU64,
}

/// One connection.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Record {
    /// What it is.
    pub id: Identity,
    /// Receiving.
    pub rx: RxState,
    /// Sending.
    pub tx: TxState,
}

const _: () = assert!(size_of::<Record>() <= 512);
// As version 7 has it, whose libraries work with agents of this one: what the agent reads may not move before
// `shunt_wire::version::OLDEST_VERSION` is above that. There `copying` began where `captures` is.
const _: () = {
    assert!(OLDEST_VERSION != 7 || (RECORDS_AT == 155_648 && size_of::<Record>() == 512));
    assert!(offset_of!(TxState, captures) == 12 && offset_of!(TxState, cursor) == 24);
    assert!(offset_of!(TxState, timeout) == 112 && size_of::<TxState>() == 128);
};
/// In [`Identity::flags`] of a connection on which calls were made with `MSG_ZEROCOPY`: [`Arena::zero_copy`] is in use.
pub const NUMBERED: u32 = 2048;
/// In the same of one for which a call has waited alone: its waits are in use.
pub const WAITED: u32 = 1 << 31;
/// Records after which a look is taken for one nearer to the front.
const BLOCK: usize = 64;
const RECORDS_AT: usize = size_of::<Header>().next_multiple_of(4096);
/// Beside the records, as few connections have any: what is not touched takes no memory.
const ZERO_COPY_AT: usize = (RECORDS_AT + RECORDS * size_of::<Record>()).next_multiple_of(4096);
/// Agents of version 7 make arenas without.
const DECISIONS_AT: usize = (ZERO_COPY_AT + RECORDS * size_of::<ZeroCopy>()).next_multiple_of(4096);
/// Agents of version 8 make arenas without.
const WAITS_AT: usize = (DECISIONS_AT + size_of::<Decisions>()).next_multiple_of(4096);
/// Beside the records, as those of zero-copy sends: those for which no call waits alone take no memory.
const CONN_WAITS_AT: usize = (WAITS_AT + size_of::<AllWaits>()).next_multiple_of(4096);
/// Records whose waits are kept for each: the first ones, as more would take many addresses of each program. Waits for others count
/// for the endpoint alone.
pub const CONN_WAITS: usize = RECORDS / 4;

/// Waits for a connection that has carried fewer messages count for the endpoint alone: many idle ones would take a page for a few.
pub const MESSAGES: u64 = 32;
/// Length of an arena of an agent of version 7, in bytes.
pub const LEAST_LEN: usize = DECISIONS_AT;
/// Length of an arena of an agent of version 8.
pub const LEN_8: usize = DECISIONS_AT + size_of::<Decisions>();
/// Length of an arena in bytes.
pub const LEN: usize = CONN_WAITS_AT + CONN_WAITS * size_of::<ConnWaits>();
/// The lengths of arenas with which this component works, the newest first.
const LENGTHS: [usize; 3] = [LEN, LEN_8, LEAST_LEN];

impl Identity {
    /// Sets the connection's name.
    pub fn set_tuple(&self, t: &FourTuple) {
        tuple::store(&self.tuple, &self.ports, t);
    }

    /// The connection's name.
    #[must_use]
    pub fn tuple(&self) -> FourTuple {
        tuple::load(&self.tuple, &self.ports)
    }
}

// Who has a lock gives it back; the other fields that stay are the business of [`Arena::allocate`].
resets! {
    Identity {
        flags, pid, fd, mode, reason, region, slot, side, slot_generation, tuple, ports, phase, ticket, since, looks,
        vector, offer,
    } keeps { live, holders, generation, handshake }
}
resets! {
    RxState {
        marks, copying, cursor, bytes, messages, spins, budget, visited, unmarked, grants, pipe_reads, costs, again, low_water,
        timeout,
    } keeps { lock }
}
resets! {
    TxState {
        marks, captures, copying, cursor, replay, bytes, messages, rung, saved, full, buffer, full_since, full_at, timeout, repeated,
    } keeps { lock }
}
// The number of calls only has to change.
resets! { Copying { open } keeps { calls } }
resets! { Record { id, rx, tx } }

impl Record {
    /// True once messages enough have come and gone that its waits are worth memory of their own.
    fn has_carried_some(&self) -> bool {
        let [sent, received] = [&self.tx.messages, &self.rx.messages];
        sent.load(Ordering::Relaxed).saturating_add(received.load(Ordering::Relaxed)) >= MESSAGES
    }

    /// The side of the link group on which this end is.
    #[must_use]
    #[inline]
    pub fn side(&self) -> Side {
        Side::from_code(self.id.side.load(Ordering::Relaxed))
    }

    /// The slot in the region, always below [`SLOTS`].
    #[must_use]
    #[inline]
    pub fn slot(&self) -> usize {
        (self.id.slot.load(Ordering::Relaxed) as usize).min(SLOTS - 1)
    }

    /// Frees the locks that somebody has died with. A thread that came too late may hold one still, and
    /// gives it back by itself.
    pub fn free_locks(&self, is_dead: impl Fn(Owner) -> bool) {
        let Self { id, rx, tx } = self;
        for lock in [&id.handshake, &rx.lock, &tx.lock] {
            lock.free_if_dead(&is_dead);
        }
    }
}

/// Makes an arena.
///
/// # Errors
/// Those of [`memfd::create_sealed`] and [`Map::new`].
pub fn create() -> io::Result<OwnedFd> {
    let fd = memfd::create_sealed("shunt-arena", LEN)?;
    let map = Map::new(&fd, RECORDS_AT, true)?;
    // SAFETY: Header consists of atomics.
    if let Some(header) = unsafe { map.at::<Header>(0) } {
        header.magic.store(MAGIC, Ordering::Release);
    }
    Ok(fd)
}

/// A mapped arena.
#[derive(Debug)]
pub struct Arena {
    map: Map,
}

impl Arena {
    /// Maps an arena.
    ///
    /// # Errors
    /// `EINVAL` when it is not an arena, else those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let [newest, older @ ..] = LENGTHS;
        let shorter = |why, len: &usize| Map::new(&fd, *len, true).map_err(|_| why);
        let map = older
            .iter()
            .fold(Map::new(&fd, newest, true), |map, len| map.or_else(|why| shorter(why, len)));
        let arena = Self { map: map? };
        if arena.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(arena)
    }

    /// In a forked child, which holds no connection in it: all of it is zero from now on, for this process alone.
    pub fn blank(&self) {
        self.map.blank();
    }

    fn header(&self) -> &Header {
        // SAFETY: the map is LEAST_LEN bytes long at least, of which the first are the header; atomics only.
        unsafe { self.map.base().cast().as_ref() }
    }

    /// The endpoint's totals.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.header().counters
    }

    /// Listeners that the agent does not know.
    #[must_use]
    pub fn unregistered(&self) -> &Places {
        &self.header().unregistered
    }

    /// What those that share the arena have learnt.
    #[must_use]
    pub fn families(&self) -> &Families {
        &self.header().families
    }

    /// What was decided lately; `None`: an older agent has made the arena.
    #[must_use]
    pub fn decisions(&self) -> Option<&Decisions> {
        // SAFETY: atomics only.
        unsafe { self.map.at(DECISIONS_AT) }
    }

    /// Waits, but for those of open connections, and which shards are in use; `None`: an older agent has made the arena.
    fn all_waits(&self) -> Option<(&AllWaits, &AtomicU32)> {
        // SAFETY: atomics only.
        Some((unsafe { self.map.at(WAITS_AT) }?, &self.header().waits))
    }

    /// Counts a wait of `thread` for several connections. Safe in signal handlers.
    pub fn count_wait_for_several(&self, thread: u32, part: Part, nanos: u64) {
        if let Some((all, used)) = self.all_waits() {
            all.count((thread, used), part, nanos);
        }
    }

    /// Waits for a connection of this arena alone, in use where it is [`WAITED`] for; `None`: as above, or it is none of the first
    /// [`CONN_WAITS`].
    #[must_use]
    pub fn conn_waits(&self, record: &Record) -> Option<&ConnWaits> {
        let index = self.index_of(record);
        if index >= CONN_WAITS {
            return None;
        }
        // SAFETY: atomics only.
        unsafe { self.map.at(CONN_WAITS_AT + index * size_of::<ConnWaits>()) }
    }

    /// Counts a wait for a connection of this arena alone, or for the endpoint where it has carried few messages.
    pub fn count_wait(&self, record: &Record, part: Part, nanos: u64) {
        let Some(waits) = self.conn_waits(record).filter(|_| record.has_carried_some()) else {
            // Those of several connections mostly have a shard each.
            let shard = u32::try_from(self.index_of(record)).unwrap_or(0);
            return self.count_wait_for_several(shard, part, nanos);
        };
        if record.id.flags.load(Ordering::Relaxed) & WAITED == 0 {
            waits.reset();
            record.id.flags.fetch_or(WAITED, Ordering::Relaxed);
        }
        if waits.count(part, nanos) {
            self.settle_waits(record, 0);
        }
    }

    /// Adds the waits of a connection to the endpoint's, as `thread`; they begin anew.
    pub fn settle_waits(&self, record: &Record, thread: u32) {
        if record.id.flags.load(Ordering::Relaxed) & WAITED != 0
            && let (Some(own), Some((all, used))) = (self.conn_waits(record), self.all_waits())
        {
            all.add((thread, used), &own.take());
        }
    }

    /// What a connection has waited; `None`: no call has waited for it alone.
    fn waited(&self, record: &Record) -> Option<Waits> {
        let has_waited = record.id.flags.load(Ordering::Relaxed) & WAITED != 0;
        has_waited.then(|| self.conn_waits(record).map(ConnWaits::read)).flatten()
    }

    /// The processes that share the arena.
    #[must_use]
    pub fn processes(&self) -> &Processes {
        &self.header().processes
    }

    /// The records in use that `member` holds.
    pub fn held_by(&self, member: Member) -> impl Iterator<Item = &Record> {
        let used = self.header().high_water.load(Ordering::Relaxed) as usize;
        (0..used.min(RECORDS)).map(|index| self.record(index)).filter(move |record| {
            record.id.live.load(Ordering::Acquire) != 0 && record.id.holders.has(member)
        })
    }

    fn record(&self, index: usize) -> &Record {
        let at = RECORDS_AT + (index % RECORDS) * size_of::<Record>();
        // SAFETY: the index is taken modulo RECORDS, so it lies in the map; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    /// The place of a record of this arena, by which the agent knows it.
    #[must_use]
    pub fn index_of(&self, record: &Record) -> usize {
        let first = self.map.base().addr().get() + RECORDS_AT;
        core::ptr::from_ref(record).addr().wrapping_sub(first) / size_of::<Record>() % RECORDS
    }

    /// What is kept of a connection of this arena that sends without copies.
    #[must_use]
    pub fn zero_copy(&self, record: &Record) -> &ZeroCopy {
        let at = ZERO_COPY_AT + self.index_of(record) * size_of::<ZeroCopy>();
        // SAFETY: the index is below RECORDS, so it lies in the map; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    /// What such a connection has counted; `None`: it has sent nothing without copies.
    #[must_use]
    pub fn tallied(&self, record: &Record) -> Option<Tallied> {
        let is_numbered = record.id.flags.load(Ordering::Relaxed) & NUMBERED != 0;
        is_numbered.then(|| self.zero_copy(record).tally.read())
    }

    /// Captures are over, as a sender has found by the word of its record.
    pub fn end_captures(&self, record: &Record, word: u32, over: u32) {
        let left = if word & !over & capture::BITS == 0 { 0 } else { word & !over };
        for each in [&record.tx.captures, &self.header().captures] {
            // Not where the agent has said something else since.
            let _ = each.compare_exchange(word, left, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Where to go on looking for a free record instead of `at`, the start of a block: at the front, or half
    /// the way there, if one is free. So the records that are ever touched are few: about twice as many as are
    /// in use at once.
    fn nearer_front(&self, at: usize) -> usize {
        let half = at / 2 / BLOCK * BLOCK;
        let is_free = |i| self.record(i).id.live.load(Ordering::Relaxed) == 0;
        [0, half].into_iter().find(|start| (*start..start + BLOCK).any(is_free)).unwrap_or(at)
    }

    /// Takes a free record and clears it; `holder` has it from now on. `hint` is where to look first;
    /// it is moved on. Only the process that said Hello for this arena allocates in it. A lock of the
    /// record may be held still: see [`Record::free_locks`].
    #[must_use]
    pub fn allocate(&self, holder: Member, hint: &mut usize) -> Option<&Record> {
        let mut goes_back = true;
        for _ in 0..RECORDS + BLOCK {
            let mut index = *hint % RECORDS;
            if index.is_multiple_of(BLOCK) && core::mem::take(&mut goes_back) {
                index = self.nearer_front(index);
            }
            *hint = index + 1;
            let r = self.record(index);
            if r.id.live.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                r.reset();
                r.id.fd.store(-1, Ordering::Relaxed);
                r.id.generation.fetch_add(1, Ordering::Relaxed);
                r.id.holders.begin(holder);
                let used = u32::try_from(index + 1).unwrap_or(u32::MAX);
                let high_water = &self.header().high_water;
                if high_water.load(Ordering::Relaxed) < used {
                    high_water.fetch_max(used, Ordering::Relaxed);
                }
                capture::inherit(&self.header().captures, &r.tx.captures);
                return Some(r);
            }
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The process that has the connections.
    pub(crate) const fn member() -> Member {
        Member::UNNAMED
    }

    /// An arena as an older agent makes it.
    pub(crate) fn older(len: usize) -> OwnedFd {
        let whole = create().unwrap();
        let short = memfd::create_sealed("older", len).unwrap();
        let mut head = [0; 8];
        rustix::io::pread(&whole, &mut head, 0).unwrap();
        rustix::io::pwrite(&short, &head, 0).unwrap();
        short
    }
}

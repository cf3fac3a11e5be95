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
use shunt_wire::agent::RegionId;
use shunt_wire::counter::COUNTER_SLOTS;
use shunt_wire::offer::Offer;
use shunt_wire::reason::{REASON_SLOTS, Reason};
use shunt_wire::version::OLDEST_VERSION;

use crate::capture;
use crate::counters::Counters;
use crate::decisions::{self, Decisions, Noted};
use crate::geometry::{SLOTS, Side};
use crate::grants::PipeReads;
use crate::holders::{Holders, Member, Processes};
use crate::lock::{Owner, OwnerLock};
use crate::memfd::{self, Map};
use crate::reset::resets;
use crate::ring::{RxCursor, TxCursor};
use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use crate::tuple;
use crate::unregistered::{Places, Unregistered};
use crate::zerocopy::{Tallied, ZeroCopy};

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
    counters: Counters,
    processes: Processes,
    unregistered: Places,
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
    /// [`Reason`], 0 for none.
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
/// Records after which a look is taken for one nearer to the front.
const BLOCK: usize = 64;
const RECORDS_AT: usize = size_of::<Header>().next_multiple_of(4096);
/// Beside the records, as few connections have any: what is not touched takes no memory.
const ZERO_COPY_AT: usize = (RECORDS_AT + RECORDS * size_of::<Record>()).next_multiple_of(4096);
/// Last, as agents of version 7 make arenas without.
const DECISIONS_AT: usize = (ZERO_COPY_AT + RECORDS * size_of::<ZeroCopy>()).next_multiple_of(4096);
/// Length of an arena of an agent of version 7, in bytes.
pub const LEAST_LEN: usize = DECISIONS_AT;
/// Length of an arena in bytes.
pub const LEN: usize = DECISIONS_AT + size_of::<Decisions>();

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
        let map = Map::new(&fd, LEN, true);
        let arena = Self { map: map.or_else(|_| Map::new(&fd, LEAST_LEN, true))? };
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

    /// What was decided lately; `None`: an older agent has made the arena.
    #[must_use]
    pub fn decisions(&self) -> Option<&Decisions> {
        // SAFETY: atomics only.
        unsafe { self.map.at(DECISIONS_AT) }
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

/// The agent's view of an arena.
#[derive(Debug)]
pub struct ArenaView {
    arena: Arena,
}

/// In [`Identity::flags`] of a connection on which calls were made with `MSG_ZEROCOPY`: [`Arena::zero_copy`] is in use.
pub const NUMBERED: u32 = 2048;

/// A snapshot of one connection.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Process that used it last.
    pub pid: u32,
    /// One of its file descriptors.
    pub fd: i32,
    /// 4-tuple.
    pub tuple: FourTuple,
    /// How the bytes go.
    pub mode: Mode,
    /// Why not through shared memory.
    pub reason: Option<Reason>,
    /// Bytes sent through the ring.
    pub bytes_sent: u64,
    /// Bytes received through the ring.
    pub bytes_received: u64,
    /// Sends.
    pub messages_sent: u64,
    /// Receives.
    pub messages_received: u64,
    /// Bytes in the sending ring that the peer has not taken, as far as this end knows.
    pub ring_fill_tx: u64,
    /// Bytes in the receiving ring that are known and not taken.
    pub ring_fill_rx: u64,
    /// What was sent without copies, or should have been; `None` where the program has not asked for it.
    pub zero_copy: Option<Tallied>,
    /// Completion vector.
    pub vector: Option<u32>,
    /// Region of the link group, 0: none.
    pub region: RegionId,
    /// Slot in it.
    pub slot: u32,
    /// Which side.
    pub side: Side,
    /// Doorbells rung, saved, waits for room.
    pub doorbells: [u32; 3],
    /// Spins that paid and that did not.
    pub spins: [u32; 2],
}

impl ArenaView {
    /// Maps an arena.
    ///
    /// # Errors
    /// As [`Arena::map`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self { arena: Arena::map(fd)? })
    }

    /// Where the offer in a record stands.
    #[must_use]
    pub fn offer(&self, record: u32) -> Offer {
        Offer::from_word(self.arena.record(record as usize).id.offer.load(Ordering::Acquire))
    }

    /// Answers it; `false`: it is not open with this number any more.
    #[must_use]
    pub fn answer(&self, record: u32, number: u64, answer: Offer) -> bool {
        let word = &self.arena.record(record as usize).id.offer;
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        // SYNC POINT offer: releases what the agent has written into the slot.
        word.compare_exchange(Offer::Open(number).to_word(), answer.to_word(), ok, no).is_ok()
    }

    /// Says which captures want to see what the endpoint sends. Where there is one the word differs from the one before.
    pub fn set_captures(&self, word: u32) {
        let header = self.arena.header();
        capture::set(&header.captures, word, || {
            let used = header.high_water.load(Ordering::Relaxed) as usize;
            (0..used.min(RECORDS)).map(|i| &self.arena.record(i).tx.captures)
        });
    }

    /// What was said last; the program takes back what is over.
    #[must_use]
    pub fn captures(&self) -> u32 {
        self.arena.header().captures.load(Ordering::Relaxed)
    }

    /// Totals of the endpoint; the live connections' own numbers are not in it.
    #[must_use]
    pub fn counters(&self) -> [u64; COUNTER_SLOTS] {
        self.arena.counters().counters()
    }

    /// Declined connection ends, by the reason's code.
    #[must_use]
    pub fn declined(&self) -> [u64; REASON_SLOTS] {
        self.arena.counters().declined()
    }

    /// Listeners that were not registered, by the reason's code.
    #[must_use]
    pub fn unregistered(&self) -> [u64; REASON_SLOTS] {
        self.arena.counters().unregistered()
    }

    /// Listeners that the agent does not know, as the program says.
    pub fn unregistered_listeners(&self) -> impl Iterator<Item = Unregistered> + '_ {
        self.arena.unregistered().read()
    }

    /// What was decided lately, the oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = Noted> + '_ {
        self.arena.decisions().into_iter().flat_map(Decisions::read)
    }

    /// True where all that was ever decided is kept.
    #[must_use]
    pub fn has_all_decisions(&self) -> bool {
        self.arena.decisions().is_some_and(|all| all.count() <= decisions::ENTRIES as u64)
    }

    /// The live connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnInfo> + '_ {
        let used = self.arena.header().high_water.load(Ordering::Relaxed) as usize;
        (0..used.min(RECORDS)).filter_map(|i| {
            let record = self.arena.record(i);
            let Record { id, rx, tx } = record;
            if id.live.load(Ordering::Acquire) == 0 {
                return None;
            }
            Some(ConnInfo {
                pid: id.pid.load(Ordering::Relaxed),
                fd: id.fd.load(Ordering::Relaxed),
                tuple: id.tuple(),
                mode: Mode::from_code(id.mode.load(Ordering::Relaxed)),
                reason: u8::try_from(id.reason.load(Ordering::Relaxed))
                    .ok()
                    .and_then(Reason::from_code),
                bytes_sent: tx.bytes.load(Ordering::Relaxed),
                bytes_received: rx.bytes.load(Ordering::Relaxed),
                messages_sent: tx.messages.load(Ordering::Relaxed),
                messages_received: rx.messages.load(Ordering::Relaxed),
                ring_fill_tx: tx.cursor.in_flight(),
                ring_fill_rx: rx.cursor.known(),
                zero_copy: self.arena.tallied(record),
                vector: id.vector.load(Ordering::Relaxed).checked_sub(1),
                region: id.region.load(Ordering::Relaxed),
                slot: id.slot.load(Ordering::Relaxed),
                side: Side::from_code(id.side.load(Ordering::Relaxed)),
                doorbells: [&tx.rung, &tx.saved, &tx.full].map(|w| w.load(Ordering::Relaxed)),
                spins: [&rx.spins[0], &rx.spins[1]].map(|w| w.load(Ordering::Relaxed)),
            })
        })
    }
}

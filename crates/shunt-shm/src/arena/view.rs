//! What the agent sees of an arena.

use std::io;
use std::os::fd::AsFd;

use shunt_wire::addr::FourTuple;
use shunt_wire::agent::RegionId;
use shunt_wire::counter::COUNTER_SLOTS;
use shunt_wire::offer::Offer;
use shunt_wire::reason::{REASON_SLOTS, Reason};
use shunt_wire::waits::Waits;

use super::{Arena, Mode, RECORDS, Record};
use crate::capture;
use crate::decisions::{self, Decisions, Noted};
use crate::geometry::Side;
use crate::sync::Ordering;
use crate::unregistered::Unregistered;
use crate::zerocopy::Tallied;

/// The agent's view of an arena.
#[derive(Debug)]
pub struct ArenaView {
    arena: Arena,
}

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
    /// How long calls have waited for it alone; `None`: none has, or an older library does not tell.
    pub waits: Option<Waits>,
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

    /// How long calls have waited, those for open connections among them.
    #[must_use]
    pub fn waits(&self) -> Waits {
        let mut all = self.arena.all_waits().map(|(all, used)| all.read(used)).unwrap_or_default();
        self.records().filter_map(|record| self.arena.waited(record)).for_each(|it| all.add(&it));
        all
    }

    /// Those of the live connections.
    fn records(&self) -> impl Iterator<Item = &Record> {
        let used = self.arena.header().high_water.load(Ordering::Relaxed) as usize;
        let records = (0..used.min(RECORDS)).map(|i| self.arena.record(i));
        records.filter(|record| record.id.live.load(Ordering::Acquire) != 0)
    }

    /// The live connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnInfo> + '_ {
        self.records().map(|record| {
            let Record { id, rx, tx } = record;
            ConnInfo {
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
                waits: self.arena.waited(record),
            }
        })
    }
}

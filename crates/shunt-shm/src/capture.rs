//! What `shunt capture` sees of an endpoint: rings into which its senders copy what they send, while somebody captures.
//!
//! The agent makes the memory together with the arena; processes that share an arena share it. It has [`PLACES`] rings, one for
//! each capture that there can be at once. The agent opens a ring, sets its bit in the words of the arena's records
//! ([`crate::arena::ArenaView::set_captures`]), and clears it when the capture ends. A tool reads the ring.
//!
//! Senders reserve room by compare-exchange and never wait: what does not fit is lost and counted. So threads, signal handlers and
//! forks may all put something in at once. A reader that finds room which was reserved and not filled (its sender was killed just
//! then) passes over it after [`PATIENCE`].
//!
//! The program writes the ring, and the tool does: neither trusts what it finds there. Whatever the words say, both stay within
//! the ring.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{EndpointId, RegionId};

use crate::memfd::{self, Map};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Captures that there can be at once: bits of the words that say who captures.
pub const PLACES: usize = 4;
/// The bits of such a word that name captures; the others change each time that it is set.
pub const BITS: u32 = (1 << PLACES) - 1;

/// Bytes that one ring holds.
pub const RING: usize = 4 << 20;
/// Most bytes of one event. What is sent at once is captured by pieces of that length.
pub const PIECE: usize = 32 * 1024;

const PAGE: usize = 4096;
const PLACE: usize = PAGE + RING;
/// Length of the memory in bytes; what is not touched takes none.
pub const LEN: usize = PLACES * PLACE;

/// How long room may be reserved and not filled, in nanoseconds.
pub const PATIENCE: u64 = 1_000_000_000;
/// How long a full ring waits for a reader that shows no life, in nanoseconds: then the capture is over for its senders.
pub const LIFE: u64 = 10_000_000_000;

/// Bits of [`Event::flags`].
pub mod flag {
    /// The bytes went over the kernel socket.
    pub const TCP: u32 = 1;
    /// The sender's end has made the connection (else it has accepted it).
    pub const CLIENT: u32 = 2;
    /// The direction ends.
    pub const FIN: u32 = 4;
    /// The connection is reset.
    pub const RST: u32 = 8;
    /// The bytes are not there: the kernel has moved them.
    pub const UNSEEN: u32 = 16;
}

/// Something that a sender did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Event {
    /// When, in nanoseconds since 1970.
    pub at: u64,
    /// Bytes of the direction before it.
    pub offset: u64,
    /// The connection, as the sender's end has it.
    pub tuple: FourTuple,
    /// [`flag`]s.
    pub flags: u32,
    /// Bytes that were sent.
    pub len: u32,
    /// The other end's endpoint; 0: not known.
    pub peer: EndpointId,
    /// The link group; 0: none yet.
    pub link: RegionId,
    /// The sender's process, as it counts.
    pub pid: u32,
    /// Number of the use of the connection's record.
    pub generation: u32,
}

/// Length of an event's head in the ring, the word before it included.
const HEAD: usize = 104;
const LONGEST: usize = HEAD + PIECE;

/// The word before an event: its length, and one of these above.
const RESERVED: u64 = 1 << 32;
const COMMITTED: u64 = 3 << 32;
const STATE: u64 = !0 << 32;

impl Event {
    fn encode(&self, kept: u32) -> [u8; HEAD - 8] {
        let mut out = [0; HEAD - 8];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(to) = out.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
            at += bytes.len();
        };
        for word in [self.at, self.offset, self.peer, self.link] {
            put(&word.to_ne_bytes());
        }
        for end in [self.tuple.local, self.tuple.peer] {
            put(&end.ip);
        }
        for word in [self.flags, self.len, kept, self.pid, self.generation] {
            put(&word.to_ne_bytes());
        }
        for end in [self.tuple.local, self.tuple.peer] {
            put(&end.port.to_ne_bytes());
        }
        out
    }

    /// The event, and how many of its bytes follow.
    fn decode(head: &[u8; HEAD - 8]) -> Option<(Self, usize)> {
        let u64_at = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let u16_at = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let ip_at = |at: usize| head.get(at..at + 16)?.try_into().ok();
        let local = Addr { ip: ip_at(32)?, port: u16_at(84)? };
        let peer = Addr { ip: ip_at(48)?, port: u16_at(86)? };
        let event = Self {
            at: u64_at(0)?,
            offset: u64_at(8)?,
            peer: u64_at(16)?,
            link: u64_at(24)?,
            tuple: FourTuple { local, peer },
            flags: u32_at(64)?,
            len: u32_at(68)?,
            pid: u32_at(76)?,
            generation: u32_at(80)?,
        };
        let kept = u32_at(72)?;
        (kept <= event.len && event.len as usize <= PIECE).then_some((event, kept as usize))
    }
}

/// Written by the agent and by the tool.
#[repr(C, align(64))]
struct Control {
    /// 0: nobody captures here.
    open: AtomicU32,
    /// Most bytes of an event that are kept.
    snap: AtomicU32,
    /// A port of either end; 0: any.
    port: AtomicU32,
    /// When the tool last showed life, in monotonic nanoseconds.
    alive: AtomicU64,
}

/// Written by senders.
#[repr(C, align(64))]
struct Senders {
    /// Bytes ever reserved.
    head: AtomicU64,
    /// Events that did not fit.
    lost: AtomicU64,
    /// Bytes of them.
    lost_bytes: AtomicU64,
}

/// Written by the tool.
#[repr(C, align(64))]
struct Taken {
    tail: AtomicU64,
}

#[repr(C)]
struct Place {
    control: Control,
    senders: Senders,
    taken: Taken,
}

/// What a capture wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// Most bytes of a packet's data.
    pub snap: u32,
    /// A port of either end; 0: any.
    pub port: u16,
}

/// Makes the memory.
///
/// # Errors
/// Those of [`memfd::create_sealed`].
pub fn create() -> io::Result<OwnedFd> {
    memfd::create_sealed("shunt-capture", LEN)
}

/// The bytes of an event, in pieces: where they are, and how many.
pub type Part = (*const u8, usize);

/// The rings of an endpoint.
#[derive(Debug)]
pub struct Rings {
    map: Map,
}

impl Rings {
    /// Maps them.
    ///
    /// # Errors
    /// Those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self { map: Map::new(fd, LEN, true)? })
    }

    fn place(&self, n: usize) -> &Place {
        // SAFETY: the map is LEN bytes long, and the number is taken modulo PLACES; atomics only.
        unsafe { self.map.base().byte_add(n % PLACES * PLACE).cast().as_ref() }
    }

    /// The word before the event at a position; `None`: no event can be there.
    fn word(&self, n: usize, position: u64) -> Option<&AtomicU64> {
        // SAFETY: the map sees to it that the word is inside and aligned; an atomic.
        unsafe { self.map.at(start(n) + offset(position)) }
    }

    /// The parts of the ring that `len` bytes from a position on take: where in the memory, and how many.
    fn span(n: usize, position: u64, len: usize) -> [(usize, usize); 2] {
        let (at, len) = (offset(position), len.min(RING));
        let first = len.min(RING - at);
        [(start(n) + at, first), (start(n), len - first)]
    }

    /// Opens a ring for a capture: nothing is in it. `now`: monotonic nanoseconds.
    pub fn open(&self, n: usize, wish: Wish, now: u64) {
        let Place { control, senders, taken } = self.place(n);
        // Senders of the capture before it may be at work still: their room stays theirs.
        taken.tail.store(senders.head.load(Ordering::Acquire) & !7, Ordering::Relaxed);
        senders.head.fetch_and(!7, Ordering::Relaxed);
        self.empty(n);
        senders.lost.store(0, Ordering::Relaxed);
        senders.lost_bytes.store(0, Ordering::Relaxed);
        control.snap.store(wish.snap, Ordering::Relaxed);
        control.port.store(wish.port.into(), Ordering::Relaxed);
        control.alive.store(now, Ordering::Relaxed);
        // SYNC POINT capture: senders see all of that once they see this.
        control.open.store(1, Ordering::Release);
    }

    /// Closes it, and gives its memory back.
    pub fn close(&self, n: usize) {
        self.place(n).control.open.store(0, Ordering::Release);
        self.empty(n);
    }

    /// All of a ring is zero from now on, and takes no memory.
    fn empty(&self, n: usize) {
        // SAFETY: senders that are at work still write what nobody reads; a reader checks whatever it finds.
        unsafe { self.map.discard(start(n), RING) };
    }

    /// Puts an event into the rings of the captures in `bits`, by pieces. Returns those that are over. `now`: monotonic
    /// nanoseconds, asked when a ring is full.
    ///
    /// # Safety
    /// The parts are readable, and are `event.len` bytes or none.
    pub unsafe fn put(
        &self,
        bits: u32,
        event: &Event,
        parts: &[Part],
        now: impl Fn() -> u64,
    ) -> u32 {
        let mut over = 0;
        for n in (0..PLACES).filter(|n| bits & (1 << n) != 0) {
            // SAFETY: the caller's promise.
            if !unsafe { self.put_into(n, event, parts, &now) } {
                over |= 1 << n;
            }
        }
        over
    }

    /// False: the capture is over.
    ///
    /// # Safety
    /// As for [`Self::put`].
    unsafe fn put_into(
        &self,
        n: usize,
        event: &Event,
        parts: &[Part],
        now: impl Fn() -> u64,
    ) -> bool {
        let Control { open, snap, port, alive } = &self.place(n).control;
        // SYNC POINT capture.
        if open.load(Ordering::Acquire) == 0 {
            return false;
        }
        let (port, tuple) = (port.load(Ordering::Relaxed), &event.tuple);
        if port != 0 && [tuple.local, tuple.peer].iter().all(|end| u32::from(end.port) != port) {
            return true;
        }
        let snap = snap.load(Ordering::Relaxed) as usize;
        let (mut done, len) = (0, event.len as usize);
        loop {
            let piece = (len - done).min(PIECE);
            let event = Event {
                offset: event.offset + done as u64,
                len: u32::try_from(piece).unwrap_or(0),
                ..*event
            };
            let kept = if parts.is_empty() { 0 } else { piece.min(snap) };
            // SAFETY: the caller's promise; `done` and `kept` stay within the length.
            if !unsafe { self.put_one(n, &event, parts, (done, kept)) }
                && now().saturating_sub(alive.load(Ordering::Relaxed)) > LIFE
            {
                return false;
            }
            done += piece;
            if done >= len {
                return true;
            }
        }
    }

    /// False: there is no room.
    ///
    /// # Safety
    /// The parts are readable, and as long as `skip` and `kept` say.
    unsafe fn put_one(
        &self,
        n: usize,
        event: &Event,
        parts: &[Part],
        (skip, kept): (usize, usize),
    ) -> bool {
        let Place { senders, taken, .. } = self.place(n);
        let need = (HEAD + kept).next_multiple_of(8);
        let mut head = senders.head.load(Ordering::Relaxed);
        loop {
            // SYNC POINT capture tail: what the reader has taken it has made zero before.
            let used = head.wrapping_sub(taken.tail.load(Ordering::Acquire));
            if used > (RING - need) as u64 {
                senders.lost.fetch_add(1, Ordering::Relaxed);
                senders.lost_bytes.fetch_add(event.len.into(), Ordering::Relaxed);
                return false;
            }
            let (ok, no) = (Ordering::Relaxed, Ordering::Relaxed);
            let next = head.wrapping_add(need as u64);
            match senders.head.compare_exchange_weak(head, next, ok, no) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // The words may be anything; then there is no such place.
        let Some(word) = self.word(n, head) else { return true };
        word.store(RESERVED | need as u64, Ordering::Relaxed);
        let encoded = event.encode(u32::try_from(kept).unwrap_or(0));
        let mut at = head.wrapping_add(8);
        let mut write = |from: *const u8, len: usize| {
            let mut from = from;
            for (to, len) in Self::span(n, at, len) {
                // SAFETY: a span lies within the memory; the caller promises that `from` is readable. Where another
                // process writes there, too, bytes are wrong that a reader checks.
                unsafe {
                    let to = self.map.base().byte_add(to).as_ptr();
                    core::ptr::copy_nonoverlapping(from, to, len);
                }
                from = from.wrapping_add(len);
            }
            at = at.wrapping_add(len as u64);
        };
        write(encoded.as_ptr(), encoded.len());
        let (mut skip, mut left) = (skip, kept);
        for (from, len) in parts {
            let skipped = skip.min(*len);
            skip -= skipped;
            let piece = (len - skipped).min(left);
            write(from.wrapping_add(skipped), piece);
            left -= piece;
        }
        // SYNC POINT capture event: the event before its word.
        word.store(COMMITTED | need as u64, Ordering::Release);
        true
    }
}

/// Where a ring begins.
const fn start(n: usize) -> usize {
    n % PLACES * PLACE + PAGE
}

/// Where a position is in its ring.
#[allow(clippy::cast_possible_truncation, reason = "below the ring's length")]
const fn offset(position: u64) -> usize {
    (position % RING as u64) as usize
}

/// What the reader of a ring found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Events that did not fit.
    pub events: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Times that something was passed over which made no sense, or was never finished.
    pub damaged: u64,
}

/// The reader of one ring.
#[derive(Debug)]
pub struct Reader {
    rings: Rings,
    n: usize,
    at: u64,
    /// Since when what is next is not there, in monotonic nanoseconds.
    stuck: Option<u64>,
    damaged: u64,
}

impl Reader {
    /// Of the ring `n`.
    ///
    /// # Errors
    /// Those of [`Map::new`].
    pub fn new(fd: impl AsFd, n: usize) -> io::Result<Self> {
        let rings = Rings::map(fd)?;
        let at = rings.place(n).taken.tail.load(Ordering::Acquire) & !7;
        Ok(Self { rings, n, at, stuck: None, damaged: 0 })
    }

    /// Shows life, in monotonic nanoseconds.
    pub fn lives(&self, now: u64) {
        self.rings.place(self.n).control.alive.store(now, Ordering::Relaxed);
    }

    /// Nobody reads any more.
    pub fn close(&self) {
        self.rings.place(self.n).control.open.store(0, Ordering::Release);
    }

    /// What was lost, as senders say.
    #[must_use]
    pub fn losses(&self) -> Losses {
        let senders = &self.rings.place(self.n).senders;
        Losses {
            events: senders.lost.load(Ordering::Relaxed),
            bytes: senders.lost_bytes.load(Ordering::Relaxed),
            damaged: self.damaged,
        }
    }

    /// The next event, with its bytes. `now`: monotonic nanoseconds.
    pub fn next(&mut self, now: u64) -> Option<(Event, Vec<u8>)> {
        // Each turn takes something from what was there at first, so a program that writes nonsense keeps nobody here.
        let head = self.rings.place(self.n).senders.head.load(Ordering::Acquire);
        loop {
            let there = head.wrapping_sub(self.at);
            if there == 0 {
                return None;
            }
            if there > RING as u64 || !head.is_multiple_of(8) {
                self.pass_over(head);
                return None;
            }
            // SYNC POINT capture event.
            let word = self.rings.word(self.n, self.at)?.load(Ordering::Acquire);
            let need = word & !STATE;
            let can_be = (HEAD as u64..=LONGEST as u64).contains(&need)
                && need.is_multiple_of(8)
                && need <= there;
            match word & STATE {
                COMMITTED if can_be => {
                    self.stuck = None;
                    match self.take(need) {
                        Some(found) => return Some(found),
                        None => self.damaged += 1,
                    }
                }
                RESERVED | 0 => {
                    let since = *self.stuck.get_or_insert(now);
                    if now.saturating_sub(since) < PATIENCE {
                        return None;
                    }
                    // Its sender was killed.
                    self.stuck = None;
                    if word & STATE == RESERVED && can_be {
                        self.damaged += 1;
                        self.clear(need);
                    } else {
                        self.pass_over(head);
                    }
                }
                _ => self.pass_over(head),
            }
        }
    }

    /// The event that takes `need` bytes.
    fn take(&mut self, need: u64) -> Option<(Event, Vec<u8>)> {
        let mut head = [0; HEAD - 8];
        let mut found = self.read(8, &mut head).and_then(|()| Event::decode(&head));
        found = found.filter(|(_, kept)| (HEAD + kept) as u64 <= need);
        let found = found.and_then(|(event, kept)| {
            let mut bytes = vec![0; kept];
            self.read(HEAD as u64, &mut bytes)?;
            Some((event, bytes))
        });
        self.clear(need);
        found
    }

    fn read(&self, skip: u64, into: &mut [u8]) -> Option<()> {
        let [first, second] = Rings::span(self.n, self.at.wrapping_add(skip), into.len());
        let (front, back) = into.split_at_mut_checked(first.1)?;
        self.rings.map.read(first.0, front)?;
        self.rings.map.read(second.0, back)
    }

    /// Gives `len` bytes back to senders.
    fn clear(&mut self, len: u64) {
        for (at, len) in Rings::span(self.n, self.at, usize::try_from(len).unwrap_or(RING)) {
            self.rings.map.zero(at, len);
        }
        self.at = self.at.wrapping_add(len);
        // SYNC POINT capture tail.
        self.rings.place(self.n).taken.tail.store(self.at, Ordering::Release);
    }

    /// All that is there makes no sense.
    #[cold]
    fn pass_over(&mut self, head: u64) {
        self.damaged += 1;
        let there = head.wrapping_sub(self.at);
        self.clear(there.min(RING as u64));
        self.at = head & !7;
        self.rings.place(self.n).senders.head.fetch_and(!7, Ordering::Relaxed);
        self.rings.place(self.n).taken.tail.store(self.at, Ordering::Release);
    }
}

/// Sets the word of an endpoint for all of its records: `words` are those there may be.
pub(crate) fn set<'a, I>(all: &AtomicU32, word: u32, words: impl FnOnce() -> I)
where
    I: Iterator<Item = &'a AtomicU32>,
{
    all.store(word, Ordering::Relaxed);
    // SYNC POINT captures: a record that is taken at this moment is found here, or its taker finds the word.
    fence(Ordering::SeqCst);
    for each in words() {
        each.store(word, Ordering::Relaxed);
    }
}

/// The word of a record that was just taken.
pub(crate) fn inherit(all: &AtomicU32, word: &AtomicU32) {
    loop {
        let now = all.load(Ordering::Relaxed);
        word.store(now, Ordering::Relaxed);
        // SYNC POINT captures.
        fence(Ordering::SeqCst);
        if all.load(Ordering::Relaxed) == now {
            break;
        }
    }
}

//! One direction of a connection: a byte ring in the receiver's RMB and its cursors.
//!
//! Cursors are CDC's (RFC 7609 section 4.7.5: wrap sequence and count), held as one 64-bit count of
//! the bytes that went through the ring, of which the quotient by the ring's length is the wrap and
//! the remainder the count. It never wraps in practice, so full and empty cannot be mistaken.
//!
//! The ring takes a part of its buffer, its [`Shape`], which the sender chooses anew whenever the ring is
//! empty; so it also begins anew at the same place then, and small messages go through the same few
//! hot cache lines again and again. The place of a byte in that part is `(position - base) mod
//! capacity`. Shape and base are one word, so that a receiver never sees one without the other.
//!
//! A sender may honour a *limit* below the capacity: so many bytes may lie unread (the program has set
//! the size of a buffer). It can change at any time; what the receiver has to know of it, how often
//! to look whether somebody waits for room, is a part of the shape. A sender therefore waits only while
//! such a look is still to come, see [`TxCursor::room`].
//!
//! At a *switch point* the byte stream changes from one way to the other. A sender notes each one as a numbered *mark*:
//! odd marks lead from kernel TCP into the ring (`at` = bytes sent over TCP so far), even marks from the ring back to
//! TCP (`at` = ring position).

use crate::Violation;
use crate::reset::resets;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Marks of switch points that may be open (set, not yet passed by the reader) at once: one as a rule, a
/// second when a connection leaves the ring before its reader has entered it.
pub const MARKS: usize = 2;

/// Bytes after which an empty ring is rewound: small enough to stay in the first page.
pub const REWIND_AFTER: u64 = 2048;

/// The largest message for which memory is kept, in bytes: a page.
const SMALL: u64 = 4096;

/// Bytes from the start of an empty ring on that small messages take. A sender that goes beyond has touched memory that it
/// may not need again soon.
pub const KEPT: u64 = REWIND_AFTER + SMALL;

/// How often in the length of a ring (or of what the limit leaves of it) a receiver looks whether the
/// sender waits for room: not so often that a sender is woken for little.
pub const LOOKS: u64 = 4;

/// The limit of a sender that has none.
pub const UNLIMITED: u64 = u64::MAX;

/// Written by the sender of a direction, read by its receiver.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ProdLine {
    /// Bytes ever put into the ring.
    pub prod: AtomicU64,
    /// The ring's shape, and the position that lies at its offset 0; see [`Shape`].
    pub base: AtomicU64,
    /// Marks of switch points ever set.
    pub marks: AtomicU32,
    /// Not 0 once the sender has shut its direction down or closed: the receiver, when the ring is
    /// empty, asks the kernel socket what that means.
    pub fin: AtomicU32,
    /// Where mark `n` (counted from 1) lies: entry `n % MARKS`.
    pub mark_at: [AtomicU64; MARKS],
    /// The connection's place in the receiver's completion queue; see [`crate::cq`].
    pub place: AtomicU32,
    /// Grants and offers ever made; see [`crate::grants`].
    pub grants: AtomicU32,
    /// Not 0: the writer is on another host, and the link to it may be behind the kernel's connection. The agent writes this. What
    /// the kernel says of the end of this direction counts when it is 0 again.
    pub behind: AtomicU32,
    /// Not 0: the sender, whose receiver is on another host, is about to end this direction. It looks once more whether the receiver has left
    /// ([`crate::handover`]), and only then says so in `fin`, in the ring or behind it.
    pub ending: AtomicU32,
}

/// Written by the receiver of a direction, read by its sender.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ConsLine {
    /// Bytes ever taken out of the ring.
    pub cons: AtomicU64,
    /// Marks of switch points passed.
    pub marks_passed: AtomicU32,
    /// Of a writer on another host, while the link to it is up: [`heard`] of the marks that have come there. The agent writes this.
    /// 0: marks are seen when they are set.
    pub heard: AtomicU64,
}

/// A value of [`ConsLine::heard`].
#[must_use]
pub const fn heard(marks: u32) -> u64 {
    1 << 32 | marks as u64
}

/// The sender's private cursors.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TxCursor {
    pos: AtomicU64,
    base: AtomicU64,
    cons: AtomicU64,
    /// How far behind the start of an empty ring the sender was when it last looked at the receiver's cursor for room.
    behind: AtomicU64,
}

/// What becomes of a reserved place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The bytes are put there.
    Put,
    /// They are granted, so that the place does not matter: an empty ring is not rewound for them, and the receiver's
    /// cursor, which it has just written, is left where it is.
    Granted,
    /// Some are put there, and some are granted.
    Mixed,
}

/// The receiver's private cursors.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RxCursor {
    pos: AtomicU64,
    prod: AtomicU64,
    base: AtomicU64,
}

/// One or two pieces of the ring's buffer: (offset, length) each; the second may be empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    /// First piece.
    pub head: (usize, usize),
    /// Second piece, at the start of the buffer.
    pub tail: (usize, usize),
}

impl Span {
    /// The first `len` bytes of it, and the rest.
    #[must_use]
    pub fn split(self, len: usize) -> (Self, Self) {
        let (head, tail) = (self.head, self.tail);
        let (first, second) = (len.min(head.1), len.saturating_sub(head.1).min(tail.1));
        let taken = Self { head: (head.0, first), tail: (tail.0, second) };
        let rest = if first < head.1 {
            Self { head: (head.0 + first, head.1 - first), tail }
        } else {
            Self { head: (tail.0 + second, tail.1 - second), tail: (tail.0, 0) }
        };
        (taken, rest)
    }

    /// Bytes in all.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.head.1 + self.tail.1
    }

    /// True for no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which part of its buffer a ring takes.
///
/// As a word, from the top: how many times more often than else the receiver looks (3 bits, a binary
/// logarithm), the binary logarithm of the capacity (5 bits, 0: not chosen yet), `LATE`, the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes, a power of two of at least 4: no more than the buffer has.
    pub cap: u64,
    /// The ring lies at the end of the buffer, and an empty one begins [`REWIND_AFTER`] bytes (or all of
    /// it) in front of that end; else both are the start.
    pub late: bool,
}

/// Bit of a base word.
const LATE: u64 = 1 << 55;
/// Where the capacity is in a base word, and its bits.
const LOG_AT: u32 = 56;
const LOG: u64 = 0x1f;
/// Where a base word says how often the receiver looks, and the most that it can say.
const OFTEN_AT: u32 = 61;
const MOST_OFTEN: u32 = 7;

impl Shape {
    /// Offset in the ring at which an empty one begins.
    const fn start(self) -> u64 {
        if self.late { self.cap.saturating_sub(REWIND_AFTER) } else { 0 }
    }

    /// The word that has position `pos` at the start, for a sender with this limit.
    const fn word(self, pos: u64, limit: u64) -> u64 {
        let late = if self.late { LATE } else { 0 };
        let base = pos.wrapping_sub(self.start()) & (LATE - 1);
        let log = self.cap.trailing_zeros() as u64;
        often(self.cap, limit) << OFTEN_AT | log << LOG_AT | late | base
    }

    /// What a word says; whatever it is, the ring lies in a buffer of `len` bytes. The whole buffer as
    /// long as nothing was chosen.
    const fn of(word: u64, len: u64) -> Self {
        let log = word >> LOG_AT & LOG;
        let all = len.trailing_zeros() as u64;
        let cap = if log == 0 || log > all { len } else { 1 << log };
        Self { cap, late: word & LATE != 0 }
    }
}

/// How much more often than else the receiver is to look for a sender with this limit.
#[inline]
const fn often(cap: u64, limit: u64) -> u64 {
    if limit >= cap {
        return 0;
    }
    let often = cap.ilog2() - (limit | 1).ilog2();
    if often < MOST_OFTEN { often as u64 } else { MOST_OFTEN as u64 }
}

/// The receiver looks whenever it passes a multiple of this, at least 1 and a power of two.
const fn look_step(word: u64, len: u64) -> u64 {
    let step = (Shape::of(word, len).cap / LOOKS) >> (word >> OFTEN_AT);
    if step == 0 { 1 } else { step }
}

/// True when a receiver that goes from one position to the other looks.
const fn looks(from: u64, to: u64, step: u64) -> bool {
    (from ^ to) >= step
}

/// How far behind the place where an empty ring begins a position is.
#[inline(always)]
const fn gone(pos: u64, word: u64, shape: Shape) -> u64 {
    pos.wrapping_sub(word).wrapping_sub(shape.start()) & (LATE - 1)
}

/// See [`TxCursor::room`]; the receiver's and the sender's position.
#[inline]
const fn room((cons, pos): (u64, u64), word: u64, len: u64, limit: u64) -> (u64, u64) {
    let cap = Shape::of(word, len).cap;
    let left = pos.wrapping_sub(cons);
    let most = if limit < cap { limit } else { cap };
    let free = most.saturating_sub(left);
    let step = look_step(word, len);
    if looks(cons, pos, step) {
        return (free, most);
    }
    let (to_look, to_end) = (step - (pos & (step - 1)), cap.saturating_sub(left));
    let to_look = if to_look < to_end { to_look } else { to_end };
    let free = if free < to_look { to_look } else { free };
    (free, free)
}

/// The place of up to `want` bytes from `pos` on in a buffer of `len` bytes.
#[allow(clippy::cast_possible_truncation, reason = "all are smaller than the buffer, a usize")]
const fn span(pos: u64, word: u64, want: u64, len: u64) -> Span {
    let Shape { cap, late } = Shape::of(word, len);
    // The capacity is a divisor of what stands above the base, so that needs no mask.
    let off = pos.wrapping_sub(word) & (cap - 1);
    let at = if late { len - cap } else { 0 };
    let want = if want < cap { want } else { cap };
    let first = if want < cap - off { want } else { cap - off };
    Span {
        head: ((at + off) as usize, first as usize),
        tail: (at as usize, (want - first) as usize),
    }
}

const R: Ordering = Ordering::Relaxed;

resets! { ProdLine { prod, base, marks, fin, mark_at, place, grants, behind, ending } }
resets! { ConsLine { cons, marks_passed, heard } }
resets! { TxCursor { pos, base, cons, behind } }
resets! { RxCursor { pos, prod, base } }

impl TxCursor {
    /// Bytes ever sent into the ring.
    #[inline]
    pub fn pos(&self) -> u64 {
        self.pos.load(R)
    }

    /// Bytes that the receiver, as far as known here, has not taken yet.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.pos.load(R).saturating_sub(self.cons.load(R))
    }

    /// Bytes that the receiver has taken, as far as known here: never fewer than before.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.cons.load(R)
    }

    /// How many bytes may be sent, and of how many in an empty ring, when the receiver has come to `cons`
    /// and no more than `limit` bytes are to lie unread.
    ///
    /// Nothing, or so little that epoll does not call it room, only while the receiver is to look whether
    /// somebody waits before it has taken all. That is so whenever the limit is what it was when the ring
    /// was last empty; else a sender may have to go beyond it, up to the receiver's next look.
    #[inline]
    pub fn room(&self, cons: u64, len: u64, limit: u64) -> (u64, u64) {
        room((cons, self.pos.load(R)), self.base.load(R), len, limit)
    }

    /// False when a [`Self::refresh`] would find the receiver's cursor impossible.
    #[inline]
    #[must_use]
    pub fn is_possible(&self, peer: &ConsLine) -> bool {
        // The own cursors after the peer's: those go on meanwhile, where another thread sends.
        let known = self.cons.load(Ordering::Acquire);
        let cons = peer.cons.load(Ordering::Acquire);
        (known..=self.pos.load(R)).contains(&cons)
    }

    /// Reads the receiver's cursor anew; returns the bytes that it has not taken yet.
    ///
    /// # Errors
    /// [`Violation::Consumer`] when the cursor is impossible.
    #[inline]
    pub fn refresh(&self, peer: &ConsLine) -> Result<u64, Violation> {
        // SYNC POINT cons: pairs with the Release store in RxCursor::consume. The receiver's reads
        // of the bytes it took happen before we overwrite them.
        let cons = peer.cons.load(Ordering::Acquire);
        let (pos, known) = (self.pos.load(R), self.cons.load(R));
        if cons < known || cons > pos {
            return Err(Violation::Consumer);
        }
        self.cons.store(cons, R);
        Ok(pos - cons)
    }

    /// The place for up to `want` bytes in a buffer of `len`, after a look at the receiver's cursor if
    /// the own copy says that there is too little room, or that it is time to rewind. The span may be
    /// shorter than `want`, and is empty when there is no [`Self::room`]. An empty ring takes the shape
    /// `wish`.
    ///
    /// # Errors
    /// [`Violation::Consumer`].
    #[inline(always)]
    pub fn reserve(
        &self,
        peer: &ConsLine,
        len: u64,
        wish: Shape,
        limit: u64,
        (want, content): (u64, Content),
    ) -> Result<Span, Violation> {
        let (pos, word) = (self.pos.load(R), self.base.load(R));
        let shape = Shape::of(word, len);
        let (mut free, _) = room((self.cons.load(R), pos), word, len, limit);
        let rewind = content != Content::Granted && gone(pos, word, shape) >= REWIND_AFTER;
        // Also before anything was chosen.
        let other = word >> LOG_AT == 0 || word >> OFTEN_AT != often(shape.cap, limit);
        // A sender of grants seldom needs room, and would find the ring empty just then only by chance.
        let short = content != Content::Put && shape.cap < wish.cap;
        if free < want || rewind || other || short {
            free = self.look_for_room(peer, len, wish, limit)?;
        }
        Ok(span(pos, self.base.load(R), want.min(free), len))
    }

    /// What is free after a look at the receiver's cursor. Apart, so that callers need not have a [`Span`] in memory.
    #[inline(never)]
    fn look_for_room(
        &self,
        peer: &ConsLine,
        len: u64,
        wish: Shape,
        limit: u64,
    ) -> Result<u64, Violation> {
        if self.refresh(peer)? == 0 {
            self.base.store(wish.word(self.pos.load(R), limit), R);
        }
        let (pos, word) = (self.pos.load(R), self.base.load(R));
        self.behind.store(gone(pos, word, Shape::of(word, len)), R);
        Ok(self.room(self.cons.load(R), len, limit).0)
    }

    /// True when so many bytes, put to the place that was just reserved for them, lie beyond what is [`KEPT`] of an idle
    /// ring; also for some that end shortly before. A sender that has not looked for room since is less than
    /// [`REWIND_AFTER`] behind the start.
    #[inline(always)]
    #[must_use]
    pub fn goes_far(&self, len: usize) -> bool {
        len as u64 + self.behind.load(R) > SMALL
    }

    /// True when the receiver has taken all that was ever put into the ring, and so looks at no byte of it before this
    /// side puts the next one there: until then the bytes may be anything. With nothing reserved.
    ///
    /// # Errors
    /// [`Violation::Consumer`].
    pub fn is_drained(&self, peer: &ConsLine) -> Result<bool, Violation> {
        Ok(self.refresh(peer)? == 0)
    }

    /// Makes `n` bytes that were copied to the reserved place visible to the receiver.
    #[inline]
    pub fn publish(&self, mine: &ProdLine, n: u64) {
        let pos = self.pos.load(R) + n;
        self.pos.store(pos, R);
        mine.base.store(self.base.load(R), R);
        // SYNC POINT prod: pairs with the Acquire load in RxCursor::refresh.
        mine.prod.store(pos, Ordering::Release);
    }

    /// Where the last `n` bytes lie that were put into the ring, in a buffer of `len` bytes.
    #[must_use]
    pub fn last(&self, n: u64, len: u64) -> Span {
        span(self.pos.load(R).saturating_sub(n), self.base.load(R), n, len)
    }

    /// True when the receiver has passed every mark that was set, so that another may be set.
    #[inline]
    pub fn marks_settled(mine: &ProdLine, peer: &ConsLine) -> bool {
        peer.marks_passed.load(Ordering::Acquire) == mine.marks.load(R)
    }

    /// True when a sender in the ring may set the mark at which it leaves: the receiver has passed all but
    /// the one that led there.
    #[must_use]
    pub fn may_set_mark(mine: &ProdLine, peer: &ConsLine) -> bool {
        let open = mine.marks.load(R).wrapping_sub(peer.marks_passed.load(Ordering::Acquire));
        (open as usize) < MARKS
    }

    /// Sets the mark of the next switch point. `at`: bytes sent over TCP (odd marks) or the ring position (even
    /// marks). Odd marks only when [`Self::marks_settled`], so that no more than [`MARKS`] are open.
    pub fn set_mark(mine: &ProdLine, at: u64) {
        let n = mine.marks.load(R).wrapping_add(1);
        mine.mark_at[n as usize % MARKS].store(at, R);
        // SYNC POINT marks: pairs with the Acquire load in RxCursor::next_mark.
        mine.marks.store(n, Ordering::Release);
    }
}

impl RxCursor {
    /// One that has come to this position.
    #[must_use]
    pub fn at(pos: u64) -> Self {
        let cursor = Self::default();
        cursor.pos.store(pos, R);
        cursor.prod.store(pos, R);
        cursor
    }

    /// Bytes ever taken from the ring.
    #[inline]
    pub fn pos(&self) -> u64 {
        self.pos.load(R)
    }

    /// Bytes that are known to be readable, without a look at the sender's cursor.
    #[inline]
    pub fn known(&self) -> u64 {
        self.prod.load(R).saturating_sub(self.pos.load(R))
    }

    /// Reads the sender's cursor anew; returns the readable bytes.
    ///
    /// # Errors
    /// [`Violation::Producer`] when the cursor is impossible.
    #[inline]
    pub fn refresh(&self, peer: &ProdLine, len: u64) -> Result<u64, Violation> {
        // SYNC POINT prod: pairs with the Release store in TxCursor::publish; the bytes and `base`
        // were written before it.
        let prod = peer.prod.load(Ordering::Acquire);
        let (pos, known) = (self.pos.load(R), self.prod.load(R));
        if prod < known || prod - pos > len {
            return Err(Violation::Producer);
        }
        // The sender moves `base` only while the ring is empty, that is while we read nothing; it is
        // masked at use, so any value is harmless. It comes first: a handler of a signal between the two, or
        // a relative of one that is killed there, must not take the new bytes from the old place.
        self.base.store(peer.base.load(R), R);
        self.prod.store(prod, Ordering::Release);
        Ok(prod - pos)
    }

    /// Where the next up to `want` readable bytes lie. Empty when there are none.
    ///
    /// # Errors
    /// [`Violation::Producer`].
    #[inline]
    pub fn readable(&self, peer: &ProdLine, len: u64, want: u64) -> Result<Span, Violation> {
        let mut avail = self.known();
        if avail < want {
            avail = self.refresh(peer, len)?;
        }
        Ok(span(self.pos.load(R), self.base.load(R), want.min(avail), len))
    }

    /// Whether a sender whose bytes lie unread may be at the end of its room in a buffer of `len`: `None`, it is
    /// not; else whether it is in any case. A poll would not tell one of room that has less than a third free
    /// ([`TxCursor::room`]); how much its limit leaves is known to within a factor of two.
    #[must_use]
    pub fn is_filled(peer: &ProdLine, len: u64, unread: u64) -> Option<bool> {
        let word = peer.base.load(R);
        let cap = Shape::of(word, len).cap;
        let least = cap >> (word >> OFTEN_AT);
        (unread.saturating_mul(3) >= least.saturating_mul(2)).then_some(unread >= cap)
    }

    /// Where the next byte will lie in a buffer of `len`, unless the ring is rewound before.
    #[inline]
    #[must_use]
    pub fn next_at(&self, len: u64) -> usize {
        span(self.pos.load(R), self.base.load(R), 1, len).head.0
    }

    /// Where byte `pos` lies in a buffer of `len`, if it is known to be readable.
    #[inline]
    #[must_use]
    pub fn place_of(&self, pos: u64, len: u64) -> Option<usize> {
        let ahead = pos.wrapping_sub(self.pos.load(R));
        (ahead < self.known()).then(|| span(pos, self.base.load(R), 1, len).head.0)
    }

    /// Takes `n` bytes out of the ring in a buffer of `len`, after they were copied. True: look whether
    /// the sender waits for room (SYNC POINT word-arm).
    #[inline]
    #[must_use]
    pub fn consume(&self, mine: &ConsLine, len: u64, n: u64) -> bool {
        self.consume_noting(mine, len, n, || {})
    }

    /// The same, with something to be noted before the sender is told, and never by one who is killed before the bytes are
    /// taken.
    #[inline]
    #[must_use]
    pub fn consume_noting(&self, mine: &ConsLine, len: u64, n: u64, note: impl FnOnce()) -> bool {
        let step = look_step(self.base.load(R), len);
        let before = self.pos.load(R);
        let pos = before + n;
        self.pos.store(pos, R);
        note();
        // SYNC POINT cons: pairs with the Acquire load in TxCursor::refresh.
        mine.cons.store(pos, Ordering::Release);
        looks(before, pos, step)
    }

    /// The next mark after the `passed` ones, if the sender has set it.
    ///
    /// # Errors
    /// [`Violation::Marks`] when the sender set more marks than it may.
    #[inline]
    pub fn next_mark(peer: &ProdLine, passed: u32) -> Result<Option<u64>, Violation> {
        // SYNC POINT marks: pairs with the Release store in TxCursor::set_mark.
        let set = peer.marks.load(Ordering::Acquire);
        let next = passed.wrapping_add(1);
        match set.wrapping_sub(passed) {
            0 => Ok(None),
            1 | 2 => Ok(Some(peer.mark_at[next as usize % MARKS].load(R))),
            _ => Err(Violation::Marks),
        }
    }

    /// The ring position at which the stretch ends that a receiver of so many marks is in, or comes to next,
    /// if the sender has set its end.
    ///
    /// # Errors
    /// [`Violation::Marks`] when the sender set more marks than it may.
    pub fn ring_end(peer: &ProdLine, passed: u32) -> Result<Option<u64>, Violation> {
        let next = Self::next_mark(peer, passed)?;
        match next {
            Some(_) if passed & 1 == 0 => Self::next_mark(peer, passed.wrapping_add(1)),
            _ => Ok(next),
        }
    }
}

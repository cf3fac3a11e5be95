//! Bytes that are granted instead of copied: what the sender offers, grants and takes back, and how the receiver
//! comes to them. See [`shunt_shm::grants`] for the rules.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::time::Duration;

use shunt_engine::conn::End;
use shunt_engine::stretch::{Path, path};
use shunt_shm::Violation;
use shunt_shm::grants::{GRANTS, Part, Source};
use shunt_shm::region::{DECLINED, Section};
use shunt_shm::ring::Span;
use shunt_shm::sync::AtomicU32;
use shunt_shm::zerocopy::Open;
use shunt_wire::counter::Counter;

use crate::calls::Which;
use crate::conn::{CUT_OFF, NUMBERED, Sock, UNREAD};
use crate::control::endpoint::Endpoint;
use crate::control::link::Link;
use crate::fds::fd_table;
use crate::knobs;
use crate::memory::exports;
use crate::memory::imports::{self, Bytes};
use crate::point;
use crate::stream::bytes::Buffers;
use crate::stream::granted::{Unknown, count, place_of, state, taken};
use crate::stream::hints::{Hint, Hints};
use crate::stream::pulls::{self, Pull};
use crate::stream::{doubt, pins, trim};
use crate::threads::signals::SettingUp;

/// Bytes below which a copy is cheaper than a grant, unless the program says otherwise.
pub const LEAST: usize = 4 * 1024;

/// Longest wait for a call on a connection of which something is taken back.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes of a call that can be granted.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where they are.
    pub address: usize,
    /// How many.
    pub len: usize,
    /// With fewer of them a copy is cheaper.
    pub least: usize,
    lies: Lies,
}

/// Where bytes lie that can be granted.
#[derive(Clone, Copy, Debug)]
enum Lies {
    /// In registered memory of this name, from here on.
    Registered(u64, usize),
    /// In private memory.
    Private,
}

impl Piece {
    /// What counts the bytes that are granted like these.
    pub const fn counter(&self) -> Counter {
        match self.lies {
            Lies::Registered(..) => Counter::BytesGranted,
            Lies::Private => Counter::BytesPinned,
        }
    }
}

/// True for a buffer that is worth a grant.
fn is_wanted(hint: Hint, len: usize) -> bool {
    match hint {
        Hint::Auto => len >= LEAST,
        Hint::Copy => false,
        Hint::Grant => true,
    }
}

/// The bytes of a call after the first `done`, up to the end of their buffer, if they lie in registered memory, or can be
/// pinned, and are worth a grant.
#[inline(always)]
pub fn piece(
    sock: &Sock,
    theirs: &Section,
    (buffers, hints): (&Buffers<'_>, &Hints<'_>),
    done: usize,
) -> Result<Option<Piece>, Unknown> {
    let Some((address, len, index)) = buffers.piece(done) else { return Ok(None) };
    let hint = hints.of_buffer(index);
    if !is_wanted(hint, len) {
        return Ok(None);
    }
    let Some(place) = exports::find(address.addr(), len) else {
        if !is_attached(sock) {
            return Ok(None);
        }
        let private = |len| {
            let (address, least, lies) = (address.addr(), pins::least(), Lies::Private);
            Piece { address, len, least, lies }
        };
        return pins::piece(sock, theirs, len).map(|len| len.map(private));
    };
    let accepted = || theirs.ctl.accepted.load(Acquire);
    let is_known =
        |region: &u64| is_attached(sock) && state(sock).granted.is_known(*region, accepted());
    let region = place.name().filter(is_known).ok_or(Unknown)?;
    let len = len.min(sock.ring() / 2);
    let least = if hint == Hint::Grant { 1 } else { LEAST };
    let lies = Lies::Registered(region, place.from());
    Ok(Some(Piece { address: address.addr(), len, least, lies }))
}

fn is_attached(sock: &Sock) -> bool {
    use shunt_shm::arena::Mode;
    sock.record().id.mode.load(Relaxed) == Mode::Attach as u32
}

/// Bytes after the first `done` of a call that are copied before the next buffer that is worth a grant.
pub fn copied(buffers: &Buffers<'_>, hints: &Hints<'_>, done: usize) -> usize {
    buffers.run(done, |i, len| is_wanted(hints.of_buffer(i), len))
}

/// Forgets what was granted in front of the cursor by a process that was killed before it had the cursor come to it: other
/// bytes have that place now. With the lock of the sending direction held, and not in a signal handler above a call that may
/// be about to do so.
#[inline]
pub fn withdraw(sock: &Sock, mine: &Section) {
    let pos = sock.record().tx.cursor.pos();
    let granted = &state(sock).granted;
    if granted.is_ahead(pos) {
        granted.withdraw(&mine.prod, pos);
    }
}

/// Grants up to `n` bytes of a piece, for which the next place in the ring is reserved, with the lock of the direction held.
/// Says how many, `None` when so many grants are open that they have to be copied.
pub fn grant(
    sock: &'static Sock,
    (end, link): (End<'_>, &Link),
    piece: &Piece,
    n: usize,
) -> Option<usize> {
    let (record, granted) = (end.record, &state(sock).granted);
    // As far as known at first: the receiver has just written its cursor, and to fetch that takes time.
    let known = record.tx.cursor.taken();
    let Some(number) = granted.place(known).or_else(|| granted.place(taken(sock, end.theirs)))
    else {
        count(sock, Counter::GrantOverflows, 1);
        return None;
    };
    let (region, from, n) = match piece.lies {
        Lies::Registered(region, from) => (region, from as u64, n),
        Lies::Private => {
            let Some((name, lane, n)) = pins::pin(sock, piece.address, n) else {
                count(sock, Counter::GrantOverflows, 1);
                return None;
            };
            point!(pin_put);
            (name, lane.to_word(), n)
        }
    };
    let part = Part { at: record.tx.cursor.pos(), len: n as u64, region, from };
    granted.note(number, &part, piece.address as u64, doubt::arise());
    let grants = link.view().grants(record.slot(), record.side().other());
    grants.put(&end.mine.prod, number, &part);
    point!(grant_put);
    Some(n)
}

/// The cursor has come to what was granted of this piece, if there is one.
#[inline]
pub fn are_covered(sock: &Sock, piece: Option<&Piece>) {
    if piece.is_some_and(|piece| matches!(piece.lies, Lies::Private)) {
        state(sock).pinned.are_covered();
    }
}

/// True for a sender that has registered memory to grant.
pub fn are_used(sock: &Sock) -> bool {
    let state = state(sock);
    let offered = state.granted.offered();
    offered != 0 && offered != state.pinned.name.load(Relaxed)
}

/// Offers the region in which the first large buffer of a call lies, or the pipes in which one can be pinned, unless they
/// were. Without the lock of the direction: the agent may have to be told of them.
pub fn offer(sock: &'static Sock, buffers: &Buffers<'_>, hints: &Hints<'_>) {
    let (Some(link), Some((mine, theirs))) = (sock.link(), sock.sections()) else { return };
    if !is_attached(sock) {
        return;
    }
    let mut wanted = buffers.chosen(|i, len| is_wanted(hints.of_buffer(i), len));
    let region = match wanted.find_map(|(at, len)| exports::find(at.addr(), len)) {
        None => pins::name(sock),
        Some(place) => place.name().or_else(|| {
            let _setting_up = SettingUp::begin()?;
            place.tell()
        }),
    };
    let Some(region) = region else { return };
    let record = sock.record();
    let lock = sock.lock_tx();
    let granted = &state(sock).granted;
    let accepted = theirs.ctl.accepted.load(Acquire);
    // One at a time: the answer names the last one.
    let is_open = granted.offered() != 0 && accepted & !DECLINED != granted.offered();
    let in_ring = path(record.tx.marks.load(Relaxed)) == Path::Ring;
    if lock.nested()
        || !in_ring
        || is_open
        || granted.offered() == region
        || granted.is_known(region, accepted)
    {
        return;
    }
    // Also where it is not ahead: an offer of which the receiver was not told.
    granted.withdraw(&mine.prod, record.tx.cursor.pos());
    let Some(number) = granted.place(taken(sock, theirs)) else { return };
    let part = Part { at: record.tx.cursor.pos(), len: 0, region, from: 0 };
    granted.note(number, &part, 0, doubt::moment());
    link.view().grants(record.slot(), record.side().other()).put(&mine.prod, number, &part);
    granted.offer(region);
}

/// True when the program has cut some of these bytes off from memory of its own, which is then not sealed, and would be
/// copied.
pub fn are_cut_off(buffers: &Buffers<'_>, hints: &Hints<'_>) -> bool {
    let mut wanted = buffers.chosen(|i, len| is_wanted(hints.of_buffer(i), len));
    wanted.any(|(at, len)| {
        let place = exports::find(at.addr(), len);
        place.is_some_and(|place| place.name().is_none() && !place.is_there())
    })
}

/// Where some of a receiver's next bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Their place in the ring.
    pub span: Span,
    /// Where they are instead.
    pub held: Held,
}

/// Where they are.
#[derive(Clone, Copy, Debug)]
pub enum Held {
    /// In the ring.
    Ring,
    /// Here, as long as this entry says so.
    Mapped(u32, NonNull<u8>),
    /// In a pipe.
    Piped(Pull),
}

/// How a look at a receiver's next bytes has come out: the number of entries that lie behind them, for
/// [`RxState::grants`](shunt_shm::arena::RxState::grants) once the bytes were taken. `None`: some are in pipes that another
/// process of this end has accepted. They are here now, and whoever has begun without them looks anew.
pub type Passed = Result<Option<u32>, Violation>;

/// Calls `each` for the parts of `span`, the receiver's next bytes, as long as it says to go on. `pulls`: they may be read from
/// pipes ([`Pulls::begin`](shunt_shm::grants::Pulls::begin)).
pub fn each_part(
    sock: &'static Sock,
    link: &'static Link,
    (span, pulls): (Span, bool),
    mut each: impl FnMut(Found) -> Result<bool, Violation>,
) -> Passed {
    let mut anew = false;
    let passed = each_source(sock, link, span, |span, source| {
        let mut held = Held::Ring;
        if let Source::Granted { number, part, skip, len } = source {
            let from = part.from.checked_add(skip).ok_or(Violation::Grants)?;
            let find = || imports::find(sock, part.region, from, len);
            // Another process of this end may have accepted the offer.
            let bytes = find().or_else(|| take_up(sock, link, part.region).then(find)?);
            held = match bytes.ok_or(Violation::Grants)? {
                Bytes::Mapped(bytes) => Held::Mapped(number, bytes),
                Bytes::Piped(_) if !pulls => {
                    anew = true;
                    return Ok(false);
                }
                Bytes::Piped(pipes) => Held::Piped(Pull::new(sock, pipes, number, (&part, skip))?),
            };
        }
        each(Found { span, held })
    })?;
    Ok((!anew).then_some(passed))
}

/// The same, with where the bytes should be.
fn each_source(
    sock: &'static Sock,
    link: &'static Link,
    span: Span,
    mut each: impl FnMut(Span, Source) -> Result<bool, Violation>,
) -> Result<u32, Violation> {
    let record = sock.record();
    let passed = AtomicU32::new(record.rx.grants.load(Relaxed));
    let Some((mine, theirs)) = sock.sections() else { return Ok(passed.into_inner()) };
    let grants = link.view().grants(record.slot(), record.side());
    let (mut pos, mut left) = (record.rx.cursor.pos(), span);
    loop {
        let offered = |region| {
            let answer = if take_up(sock, link, region) { region } else { region | DECLINED };
            mine.ctl.accepted.store(answer, core::sync::atomic::Ordering::Release);
        };
        // Also with nothing left: who is told that its bytes were taken may use the entries again.
        let source = grants.source(&theirs.prod, &passed, (pos, left.len() as u64), offered)?;
        if left.is_empty() {
            return Ok(passed.load(Relaxed));
        }
        let n = match source {
            Source::Ring(n) | Source::Granted { len: n, .. } => n,
        };
        let (part, rest) = left.split(usize::try_from(n).unwrap_or(usize::MAX));
        if !each(part, source)? {
            return Ok(passed.load(Relaxed));
        }
        (pos, left) = (pos + part.len() as u64, rest);
    }
}

/// Goes past `span`, the receiver's next bytes, wherever they are. Returns what [`each_part`] does.
pub fn pass(sock: &'static Sock, link: &'static Link, span: Span) -> Result<u32, Violation> {
    each_source(sock, link, span, |_, _| Ok(true))
}

/// What a call does with a receiver's next bytes.
#[derive(Clone, Copy, Debug)]
pub enum Use<'a> {
    /// They go to its places after the first so many bytes.
    Copied(&'a Buffers<'a>, usize),
    /// The same, and they stay where they are.
    Seen(&'a Buffers<'a>, usize),
    /// They are passed over.
    Dropped,
}

/// Does that with `span`, the receiver's next bytes. Returns what [`each_part`] does.
pub fn take(
    sock: &'static Sock,
    link: &'static Link,
    what: Use<'_>,
    (span, pulls): (Span, bool),
) -> Passed {
    let (slot, side) = (sock.record().slot(), sock.record().side());
    let (grants, ring) = (link.view().grants(slot, side), link.view().buffer(slot, side));
    let mut after = 0;
    each_part(sock, link, (span, pulls), |Found { span, held }| {
        let from_ring = match (held, what) {
            (Held::Piped(pull), Use::Copied(buffers, at)) => {
                pull.copy_out(sock, (grants, ring), (buffers, at + after), span)?;
                false
            }
            (Held::Piped(pull), Use::Seen(..) | Use::Dropped) => {
                pull.into_ring(sock, (grants, ring), span)?;
                true
            }
            (Held::Mapped(number, bytes), Use::Copied(buffers, at) | Use::Seen(buffers, at)) => {
                let flat = Span { head: (0, span.len()), tail: (0, 0) };
                // SAFETY: the program's buffers are writable, as recv(2) asks; so many bytes are mapped.
                unsafe { buffers.copy_out(at + after, bytes, flat) };
                !grants.is_granted(number)
            }
            (Held::Mapped(..), Use::Dropped) | (Held::Ring, _) => true,
        };
        if let Use::Copied(buffers, at) | Use::Seen(buffers, at) = what
            && from_ring
        {
            // SAFETY: as above; the span is readable.
            let copy = || unsafe { buffers.copy_out(at + after, ring, span) };
            pulls::noting_a_copy(sock, span.len(), copy);
        }
        after += span.len();
        Ok(true)
    })
}

/// Maps a region that the peer offers.
#[cold]
fn take_up(sock: &'static Sock, link: &'static Link, region: u64) -> bool {
    let Some(_setting_up) = SettingUp::begin() else { return false };
    imports::accept(sock, link.region, region)
}

/// Copies what is granted to its place in the ring, so that the program's memory is its own again. False when some of it
/// is a relative's, and not to be had. With the lock of the sending direction held, as for [`withdraw`].
pub fn take_back(sock: &'static Sock) -> bool {
    take_back_those(sock, |_| true)
}

/// The same of those of which `is_meant` says so.
fn take_back_those(sock: &'static Sock, is_meant: impl Fn(&Open) -> bool) -> bool {
    if !sock.has(NUMBERED) {
        return true;
    }
    let (Some(link), Some((mine, theirs))) = (sock.link(), sock.sections()) else { return true };
    withdraw(sock, mine);
    let (record, state) = (sock.record(), state(sock));
    let (slot, receiver) = (record.slot(), record.side().other());
    let taken = taken(sock, theirs);
    let (mut any, mut all) = (false, true);
    let mut pinned = [Open::default(); GRANTS];
    let mut count_of_pinned = 0;
    let meant = || state.granted.open(taken).filter(&is_meant);
    for open in meant().filter(|open| pins::is_pinned(sock, open)) {
        pinned[count_of_pinned] = open;
        count_of_pinned += 1;
    }
    let pinned = &pinned[..count_of_pinned];
    let are_pins_back = pinned.is_empty() || pins::take_back(sock, link, pinned);
    for open in meant() {
        let is_back = match pins::is_pinned(sock, &open) {
            true => are_pins_back,
            false => restore(sock, link, &open),
        };
        if !is_back {
            all = false;
            continue;
        }
        link.view().grants(slot, receiver).take_back(open.number);
        state.granted.take_back(open.number);
        any = true;
    }
    if !pinned.is_empty() && are_pins_back {
        state.pinned.end();
    }
    if any {
        count(sock, Counter::GrantsTakenBack, 1);
    }
    if state.granted.open(taken).next().is_none() {
        state.completions.settle(taken);
    }
    all
}

/// This process is about to let go of the connection. What the agent knows by it alone the relatives that have the connection
/// still need not be able to take back, nor others to find.
pub fn leave(sock: &'static Sock) {
    let record = sock.record();
    if sock.has(NUMBERED)
        && record.id.holders.count() > 1
        && Endpoint::current().is_some()
        && let Some(_lock) = sock.lock_within(Which::Tx, PATIENCE)
    {
        let are_its_pipes = pins::are_told_of(sock);
        take_back_those(sock, |open| match pins::is_pinned(sock, open) {
            true => are_its_pipes,
            false => exports::is_told_of(open.region),
        });
        if are_its_pipes {
            state(sock).pinned.end();
        }
    }
}

/// Copies granted bytes to their places: from this process's registered memory, or, if a relative has granted them, from
/// a map of that. False when they are not to be had.
fn restore(sock: &'static Sock, link: &'static Link, open: &Open) -> bool {
    let (record, span) = (sock.record(), place_of(sock, open));
    let ring = link.view().buffer(record.slot(), record.side().other());
    trim::touch(sock);
    let mut from = open.from;
    let is_own = [span.head, span.tail].into_iter().all(|(at, len)| {
        // SAFETY: the span was reserved in this buffer for these bytes.
        let copied = len == 0 || unsafe { exports::copy_out(open.region, from, ring.add(at), len) };
        from += len as u64;
        copied
    });
    if is_own {
        return true;
    }
    let find = || imports::find(sock, open.region, open.from, open.len);
    let found = find().or_else(|| take_up(sock, link, open.region).then(find)?);
    let Some(Bytes::Mapped(bytes)) = found else { return false };
    let iov = libc::iovec { iov_base: bytes.as_ptr().cast(), iov_len: span.len() };
    // SAFETY: so many bytes are mapped there; the span was reserved for them.
    unsafe { Buffers::one(&iov).copy_in(0, ring, span) };
    true
}

/// Takes back what [`is_overdue`], with the lock of the sending direction held.
pub fn time_out(sock: &'static Sock) {
    if !sock.has(CUT_OFF) {
        count(sock, Counter::GrantsTimedOut, 1);
    }
    sock.put(UNREAD, true);
    take_back(sock);
}

/// True when what is granted has been left unread for too long, or will never be read.
pub fn is_overdue(sock: &Sock, theirs: &Section) -> bool {
    let granted = &state(sock).granted;
    if granted.open(theirs.cons.cons.load(Relaxed)).next().is_none() {
        return false;
    }
    if sock.has(CUT_OFF) {
        return true;
    }
    let age = u64::from(doubt::arise().wrapping_sub(granted.since())) << 10;
    age >= knobs::get().grant_timeout()
}

/// Registered memory is about to go: everything of it that is granted is copied.
pub fn take_back_in(base: usize, len: usize) {
    let (from, to) = (base as u64, (base + len) as u64);
    for (_, entry) in fd_table::iter(0..=fd_table::high_water()) {
        let Some(sock) = Sock::of(entry).filter(|sock| sock.has(NUMBERED)) else { continue };
        let Some((_, theirs)) = sock.sections() else { continue };
        // In a signal handler above a call on it, or where its holder was stopped, it is taken back later.
        let Some(_lock) = sock.lock_within(Which::Tx, PATIENCE) else { continue };
        if state(sock).granted.is_open_in(taken(sock, theirs), from, to) {
            take_back(sock);
        }
    }
}

//! Bytes that are granted instead of copied: the program's memory and the peer's as ports of the engine's rules
//! ([`shunt_engine::zerocopy`]).

use core::ptr::NonNull;
use core::time::Duration;

use libc::iovec;
use shunt_engine::conn::End;
use shunt_engine::pinning::Pin;
use shunt_engine::zerocopy::batch::Batch;
use shunt_engine::zerocopy::choice::{Piece, is_attached, is_wanted};
use shunt_engine::zerocopy::ports::{
    Borrower, Clock, Collector, Lender, Memory, Moment, Piped, Registered, Restorer, Scratch, To,
    Unknown,
};
use shunt_engine::zerocopy::received::{self, Passed};
use shunt_engine::zerocopy::sender::Granting;
use shunt_shm::Violation;
use shunt_shm::grants::Grants;
use shunt_shm::ring::Span;
use shunt_shm::sync::prefetch;
use shunt_shm::zerocopy::Open;

use crate::calls::Which;
use crate::conn::{NUMBERED, Sock};
use crate::control::endpoint::Endpoint;
use crate::control::link::Link;
use crate::fds::fd_table;
use crate::knobs;
use crate::memory::exports;
use crate::memory::imports::{self, Bytes, Pipes};
use crate::point;
use crate::stream::bytes::Buffers;
use crate::stream::granted::granting;
use crate::stream::hints::Hints;
use crate::stream::{liveness, pipe_rx, pipe_tx, trim};
use crate::threads::signals::SettingUp;

/// Longest wait for a call on a connection of which something is taken back.
const PATIENCE: Duration = Duration::from_millis(200);

/// The process of a sender that grants.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    sock: &'static Sock,
    link: &'static Link,
}

impl Own {
    /// For a connection with a ring.
    pub const fn new(sock: &'static Sock, link: &'static Link) -> Self {
        Self { sock, link }
    }

    /// The same, if it has one.
    pub fn of(sock: &'static Sock) -> Option<Self> {
        Some(Self { sock, link: sock.link()? })
    }

    fn sent(&self) -> &'static Grants {
        let record = self.sock.record();
        self.link.view().grants(record.slot(), record.side().other())
    }

    /// Copies granted bytes from a map of a relative's memory.
    fn restore_from_map(&self, open: &Open, place: Span, ring: NonNull<u8>) -> bool {
        let Self { sock, link } = *self;
        let find = || imports::find(sock, open.region, open.from, open.len);
        let found = find().or_else(|| take_up(sock, link, open.region).then(find)?);
        let Some(Bytes::Mapped(bytes)) = found else { return false };
        let iov = iovec { iov_base: bytes.as_ptr().cast(), iov_len: place.len() };
        // SAFETY: so many bytes are mapped there; the place was reserved for them.
        unsafe { Buffers::one(&iov).copy_in(0, ring, place) };
        true
    }
}

impl Memory for Own {
    #[inline(always)]
    fn registered(&self, address: usize, len: usize) -> Option<Registered> {
        let place = exports::find(address, len)?;
        Some(Registered { name: place.name(), from: place.from() })
    }

    fn policy(&self) -> Pin {
        knobs::get().pin
    }

    fn pipes(&self) -> Option<u64> {
        pipe_tx::own(self.sock)
    }
}

/// The time, for grants.
#[derive(Clone, Copy, Debug)]
pub struct Time;

impl Clock for Time {
    fn now(&self) -> u32 {
        liveness::moment()
    }

    fn arise(&self) -> u32 {
        liveness::arise()
    }

    fn timeout(&self) -> u64 {
        knobs::get().grant_timeout()
    }
}

impl Clock for Own {
    fn now(&self) -> u32 {
        Time.now()
    }

    fn arise(&self) -> u32 {
        Time.arise()
    }

    fn timeout(&self) -> u64 {
        Time.timeout()
    }
}

impl Lender for Own {
    fn entries(&self) -> &Grants {
        self.sent()
    }

    fn pin(&self, lane: usize, address: usize, len: usize) -> Option<usize> {
        pipe_tx::put(self.sock, lane, address, len)
    }

    #[inline(always)]
    fn reaches(&self, moment: Moment) {
        match moment {
            Moment::Pinned => point!(pin_put),
            Moment::Granted => point!(grant_put),
        }
    }
}

impl Restorer for Own {
    fn entries(&self) -> &Grants {
        self.sent()
    }

    /// From this process's registered memory, or, if a relative has granted them, from a map of that.
    fn restore(&self, open: &Open, place: Span) -> bool {
        let record = self.sock.record();
        let ring = self.link.view().buffer(record.slot(), record.side().other());
        trim::touch(self.sock);
        let mut from = open.from;
        let is_own = [place.head, place.tail].into_iter().all(|(at, len)| {
            // SAFETY: the place was reserved in this buffer for these bytes.
            let copied =
                len == 0 || unsafe { exports::copy_out(open.region, from, ring.add(at), len) };
            from += len as u64;
            copied
        });
        is_own || self.restore_from_map(open, place, ring)
    }

    fn pipes(&self) -> Option<impl Scratch> {
        pipe_tx::left(self.sock, self.link)
    }
}

impl Collector for Own {
    fn locked(&self, step: impl FnOnce()) {
        let lock = self.sock.lock_tx();
        if !lock.nested() {
            step();
        }
    }
}

/// The bytes of a call after the first `done`, up to the end of their buffer, if they are to be granted.
#[inline(always)]
pub fn piece(
    own: &Own,
    granting: &Granting<'_>,
    (buffers, hints): (&Buffers<'_>, &Hints<'_>),
    done: usize,
) -> Result<Option<Piece>, Unknown> {
    let Some((address, len, index)) = buffers.piece(done) else { return Ok(None) };
    granting.piece(own, hints.of_buffer(index), (address.addr(), len))
}

/// Puts the pieces of a call after the first `done` bytes that go together, up to some `most` bytes, into `place`, where one of them is
/// granted. True where some lie in registered memory that the peer has not mapped.
#[inline(never)]
pub fn gather(
    own: &Own,
    granting: &Granting<'_>,
    (buffers, hints): (&Buffers<'_>, &Hints<'_>),
    (done, most): (usize, usize),
    place: &mut Option<Batch>,
) -> bool {
    let pieces = buffers.pieces_from(done);
    let pieces =
        pieces.map(|(at, len, index)| (hints.of_buffer(index), (at.expose_provenance(), len)));
    let batch = place.insert(Batch::new());
    granting.gather(own, pieces, most, batch);
    let is_unknown = batch.is_unknown;
    if !batch.is_worth_it() {
        *place = None;
    }
    is_unknown
}

/// Bytes after the first `done` of a call that are copied before the next buffer that is worth a grant.
pub fn copied(buffers: &Buffers<'_>, hints: &Hints<'_>, done: usize) -> usize {
    buffers.run(done, |i, len| is_wanted(hints.of_buffer(i), len))
}

/// Offers the region in which the first large buffer of a call lies, or the pipes in which one can be pinned, unless they
/// were. Without the lock of the direction: the agent may have to be told of them.
pub fn offer(sock: &'static Sock, buffers: &Buffers<'_>, hints: &Hints<'_>) {
    let (Some(own), Some(granting)) = (Own::of(sock), granting(sock)) else { return };
    if !is_attached(&granting.end) {
        return;
    }
    let mut wanted = buffers.chosen(|i, len| is_wanted(hints.of_buffer(i), len));
    let region = match wanted.find_map(|(at, len)| exports::find(at.addr(), len)) {
        None => pipe_tx::name(sock, &granting),
        Some(place) => place.name().or_else(|| {
            let _setting_up = SettingUp::begin()?;
            place.tell()
        }),
    };
    let Some(region) = region else { return };
    let lock = sock.lock_tx();
    granting.offer(&own, region, lock.nested());
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

/// The process of a receiver, and the program's places after the first so many bytes, where the look is for some.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    sock: &'static Sock,
    link: &'static Link,
    to: Option<(&'a Buffers<'a>, usize)>,
}

impl<'a> Look<'a> {
    /// For such a look.
    pub const fn new(
        sock: &'static Sock,
        link: &'static Link,
        to: Option<(&'a Buffers<'a>, usize)>,
    ) -> Self {
        Self { sock, link, to }
    }

    /// The ring from which it receives.
    pub fn ring(&self) -> NonNull<u8> {
        let record = self.sock.record();
        self.link.view().buffer(record.slot(), record.side())
    }

    fn end(&self) -> End<'static> {
        self.link.end(self.sock.record())
    }
}

impl Borrower for Look<'_> {
    type Mapped = NonNull<u8>;
    type Pipes = &'static Pipes;

    fn entries(&self) -> &Grants {
        let record = self.sock.record();
        self.link.view().grants(record.slot(), record.side())
    }

    fn find(&self, region: u64, from: u64, len: u64) -> Option<Bytes> {
        imports::find(self.sock, region, from, len)
    }

    fn take_up(&self, region: u64) -> bool {
        take_up(self.sock, self.link, region)
    }

    fn copy_mapped(&self, at: usize, bytes: NonNull<u8>, len: usize) {
        let Some((buffers, first)) = self.to else { return };
        let flat = Span { head: (0, len), tail: (0, 0) };
        // SAFETY: the program's buffers are writable, as recv(2) asks; so many bytes are mapped.
        unsafe { buffers.copy_out(first + at, bytes, flat) };
    }

    fn copy_ring(&self, at: usize, span: Span) {
        pipe_rx::noting_a_copy(self.sock, span.len(), || self.copy_pulled(at, span));
    }

    fn copy_pulled(&self, at: usize, span: Span) {
        let Some((buffers, first)) = self.to else { return };
        // SAFETY: the program's buffers are writable, as recv(2) asks; the span is readable.
        unsafe { buffers.copy_out(first + at, self.ring(), span) };
    }

    fn read_pipe(&self, (pipes, lane): (&'static Pipes, usize), to: To, len: usize) -> Piped {
        match (to, self.to) {
            (To::Ring(span), _) => pipe_rx::read_to_ring(&pipes[lane], self.ring(), span),
            (To::Program(at), Some((buffers, first))) => {
                pipe_rx::read(&pipes[lane], (buffers, first + at), len)
            }
            (To::Program(_), None) => Piped::BadPlace,
        }
    }

    #[inline]
    fn fetch_ahead(&self, at: usize, number: u32) {
        const LINE: usize = 64;
        let place = self.ring().as_ptr().wrapping_add(at);
        prefetch(self.entries().place(number));
        prefetch(place);
        prefetch(place.wrapping_add(LINE));
    }

    fn waits(&self, since: &mut Option<u64>) -> bool {
        pipe_rx::wait(since)
    }

    fn uncancelled<T>(&self, what: impl FnOnce() -> T) -> T {
        pipe_rx::uncancelled(what)
    }

    fn timed<T>(&self, len: usize, what: impl FnOnce() -> T) -> T {
        pipe_tx::timed(&self.sock.record().rx.costs[1], len, what)
    }
}

/// Goes past `span`, the receiver's next bytes, wherever they are: the number of entries that lie behind them.
pub fn pass(sock: &'static Sock, link: &'static Link, span: Span) -> Result<u32, Violation> {
    let look = Look::new(sock, link, None);
    look.end().pass_granted(&look, span)
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

/// Does that with `span`, the receiver's next bytes ([`End::take_granted`]).
pub fn take(
    sock: &'static Sock,
    link: &'static Link,
    what: Use<'_>,
    (span, reads_pipes): (Span, bool),
) -> Passed {
    let (what, to) = match what {
        Use::Copied(buffers, at) => (received::Use::Copied, Some((buffers, at))),
        Use::Seen(buffers, at) => (received::Use::Seen, Some((buffers, at))),
        Use::Dropped => (received::Use::Dropped, None),
    };
    let look = Look::new(sock, link, to);
    look.end().take_granted(&look, what, (span, reads_pipes))
}

/// Maps a region that the peer offers.
#[cold]
fn take_up(sock: &'static Sock, link: &'static Link, region: u64) -> bool {
    let Some(_setting_up) = SettingUp::begin() else { return false };
    imports::accept(sock, link.region, region)
}

/// Copies what is granted to its place in the ring, so that the program's memory is its own again. False when some of it
/// is a relative's, and not to be had. With the lock of the sending direction held, as for [`Granting::take_back`].
pub fn take_back(sock: &'static Sock) -> bool {
    let (Some(own), Some(granting)) = (Own::of(sock), granting(sock)) else { return true };
    granting.take_back(&own)
}

/// This process is about to let go of the connection ([`Granting::leave`]).
pub fn leave(sock: &'static Sock) {
    if sock.has(NUMBERED)
        && sock.record().id.holders.count() > 1
        && Endpoint::current().is_some()
        && let Some(_lock) = sock.lock_within(Which::Tx, PATIENCE)
        && let (Some(own), Some(granting)) = (Own::of(sock), granting(sock))
    {
        granting.leave(&own, pipe_tx::are_told_of(sock), exports::is_told_of);
    }
}

/// Registered memory is about to go: everything of it that is granted is copied.
pub fn take_back_in(base: usize, len: usize) {
    let (from, to) = (base as u64, (base + len) as u64);
    for (_, entry) in fd_table::of_program() {
        let Some(sock) = Sock::of(entry).filter(|sock| sock.has(NUMBERED)) else { continue };
        let Some(granting) = granting(sock) else { continue };
        // In a signal handler above a call on it, or where its holder was stopped, it is taken back later.
        let Some(_lock) = sock.lock_within(Which::Tx, PATIENCE) else { continue };
        if granting.is_open_in(from, to) {
            take_back(sock);
        }
    }
}

//! Sending: a program's call as the engine's port ([`Outgoing`]).

use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::Ordering::Relaxed;

use libc::{MSG_FASTOPEN, MSG_OOB, MSG_ZEROCOPY, c_int, iovec};
use shunt_engine::call::{Direction, Errno, Kernel, Moment, Step, enter};
use shunt_engine::conn::send::{Outgoing, over_kernel};
use shunt_engine::conn::sends_over_tcp;
use shunt_engine::kernel::KernelSocket;
use shunt_engine::pinning::REST;
use shunt_engine::zerocopy::batch::Batch;
use shunt_engine::zerocopy::choice::{Lies, Piece};
use shunt_engine::zerocopy::granting::Put;
use shunt_engine::zerocopy::numbers::Numbers;
use shunt_engine::zerocopy::sender::Granting;
use shunt_shm::Violation;
use shunt_shm::arena::Mode;
use shunt_shm::region::{LONG_RING, RESET, SHORT_RING};
use shunt_shm::ring::{Content, Span};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::conn::{Conn, Hold, Locked, NUMBERED, RESET_AWAITED, Sock};
use crate::control::endpoint;
use crate::control::link::Way;
use crate::point;
use crate::stream::borrow::Request;
use crate::stream::bytes::Buffers;
use crate::stream::call::{self, Call};
use crate::stream::copy_mode::Place;
use crate::stream::granted::{self, state};
use crate::stream::grants::{self, Own};
use crate::stream::hints::Hints;
use crate::stream::in_doubt::InDoubt;
use crate::stream::tcp::Socket;
use crate::stream::transfer::Stop;
use crate::stream::{
    capture, copy_mode, demote, liveness, notify, offer_budget, pipe_tx, promote, tcp, trim,
    zerocopy,
};
use crate::system::clock;

/// Bytes that go into the ring before the receiver is told: it copies out while we copy in.
const CHUNK: usize = 64 * 1024;

/// Connections of this process in a link group that may have the longest rings.
const FEW: u32 = 8;

/// Sends the buffers, with a number where the program wants to hear that the call is complete. `kernel`: the same call on a
/// descriptor of the kernel socket, with these flags.
#[inline(always)]
pub fn numbered(
    conn: Conn,
    buffers: Option<Buffers<'_>>,
    flags: c_int,
    hints: Option<&Hints<'_>>,
    kernel: &dyn Fn(c_int, c_int) -> isize,
) -> isize {
    let mut send = |flags, request: Request<'_>| {
        with_flags(conn, buffers, flags, request, &mut |fd, extra| kernel(fd, flags | extra))
    };
    match &buffers {
        Some(buffers) if flags & MSG_ZEROCOPY != 0 || hints.is_some_and(|h| h.is_quiet) => {
            let none = Hints::default();
            zerocopy::numbered(conn, flags, buffers, hints.unwrap_or(&none), &mut send)
        }
        _ => send(flags, Request::Plain),
    }
}

/// Sends the buffers, unless the flags ask for what only the kernel can do.
#[inline(always)]
pub fn with_flags(
    conn: Conn,
    buffers: Option<Buffers<'_>>,
    flags: c_int,
    request: Request<'_>,
    kernel: &mut dyn FnMut(c_int, c_int) -> isize,
) -> isize {
    let Some(buffers) = buffers else { return kernel(conn.descriptor(), 0) };
    if flags & (MSG_OOB | MSG_FASTOPEN) != 0 {
        if flags & MSG_FASTOPEN != 0 {
            // The kernel refuses to connect the socket once more.
            return kernel(conn.descriptor(), 0);
        }
        // Urgent data are the kernel's: this direction goes back to it.
        demote::leave(conn, Reason::Unsupported);
    }
    let hold = Hold::none();
    transmit(&mut Call { conn, hold, buffers, flags, request, kernel })
}

/// Does the call.
#[inline(never)]
pub fn transmit(call: &mut Call<'_>) -> isize {
    let conn = call.conn;
    call::run(call, Direction::Sending, |call, sent, blocking| {
        let way = conn.way();
        if let Some(Way { end, .. }) = &way {
            // The step says of a descriptor that another thread has closed what is to be said.
            if end.is_to_follow() && conn.kernel().is_some() {
                return Ok(Step::Follow);
            }
            if end.theirs.ctl.closed.load(Relaxed) == RESET && !conn.has(RESET_AWAITED) {
                conn.put(RESET_AWAITED, true);
                // Before the lock is taken: this may take a moment.
                conn.ask(tcp::await_reset);
            }
        }
        let step = step(call, way.as_ref(), sent, blocking)?;
        if matches!(step, Step::Again) && *sent >= call.buffers.total {
            count(conn.sock());
            return Ok(Step::Done);
        }
        Ok(step)
    })
}

/// One step. `way`: as it was found before the lock was taken.
fn step(
    call: &mut Call<'_>,
    way: Option<&Way>,
    sent: &mut usize,
    blocking: bool,
) -> Result<Step, Violation> {
    let (conn, sock) = (call.conn, call.conn.sock());
    let record = sock.record();
    let lock = &mut sock.lock_tx();
    point!(send_locked);
    let is_nested = lock.nested();
    let Some(_entered) = enter(is_nested, &record.tx.copying) else {
        // A signal handler above a call that is putting bytes in just now.
        return Ok(Step::Failed(Errno::INTR));
    };
    let Some(fd) = conn.kernel() else { return Ok(Step::Failed(Errno::BADF)) };
    let in_doubt = InDoubt::begins(conn);
    // It may have come to be there since.
    let late = if way.is_none() { sock.way() } else { None };
    let way = way.or(late.as_ref());
    let mut sending = Sending { call, sock, way, fd, sent, lock, piece: None };
    let step = match way {
        Some(way) => way.end.send(&mut sending, is_nested, blocking),
        None => Ok(over_kernel(record, None, &mut sending)),
    };
    in_doubt.ends();
    if !matches!(step, Ok(Step::Done | Step::Failed(_))) && *sent < call.buffers.total {
        call.hold.keep(&call.conn);
    }
    step
}

/// One step.
struct Sending<'a, 'b> {
    call: &'a mut Call<'b>,
    /// The process's part of the connection.
    sock: &'static Sock,
    /// The way into the ring.
    way: Option<&'a Way>,
    /// A descriptor of the kernel socket.
    fd: c_int,
    sent: &'a mut usize,
    lock: &'a mut Locked,
    /// What is to be granted.
    piece: Option<Piece>,
}

impl Sending<'_, '_> {
    /// So many bytes are sent.
    #[inline(always)]
    fn advance(&mut self, n: usize) {
        *self.sent += n;
        if *self.sent < self.call.buffers.total {
            self.call.hold.keep(&self.call.conn);
        }
    }

    /// Shows the `n` bytes that are about to be published to those who capture.
    #[inline(always)]
    fn capture(&self, put: Put, n: usize, span: Span) {
        if self.way.is_some_and(|way| capture::is_wanted(way.end.record)) {
            self.capture_in_ring(put, n, span);
        }
    }

    #[cold]
    fn capture_in_ring(&self, put: Put, n: usize, span: Span) {
        let (sock, Some(way)) = (self.sock, self.way) else { return };
        if let Put::Granted(_) = put {
            // SAFETY: the program's buffers are readable, as send(2) asks.
            unsafe { capture::granted(sock, &way.end, n, (&self.call.buffers, *self.sent)) };
            return;
        }
        let ring = way.ring().as_ptr().cast_const();
        let parts = [span.head, span.tail].map(|(at, len)| (ring.wrapping_add(at), len));
        // SAFETY: the span was reserved in the ring, and no more of it is filled than it is long.
        unsafe { capture::in_ring(sock, &way.end, n, &parts) };
    }

    #[cold]
    fn capture_over_kernel(&self, at: u64, n: usize) {
        let from = (self.sock, self.fd);
        match self.call.request {
            Request::From(source) => capture::moved(from, at, n, source),
            // SAFETY: the kernel has just read so many bytes there.
            _ => unsafe { capture::over_kernel(from, at, n, (&self.call.buffers, *self.sent)) },
        }
    }

    /// Puts bytes to their place in the peer's RMB: straight, or through an own sndbuf that the device
    /// moves. `head` and `tail` are a span's: as numbers they need no memory on their way, whose stores this call would wait for.
    fn put(&self, head: (usize, usize), tail: (usize, usize)) {
        let (span, Some(way)) = (Span { head, tail }, self.way) else { return };
        let buffers = &self.call.buffers;
        match mode(way) {
            Mode::Copy => copy_mode::put(buffers, *self.sent, &place(way, span)),
            // SAFETY: the program's buffers are readable, as send(2) asks; the span was reserved.
            _ => unsafe { buffers.copy_in(*self.sent, way.ring(), span) },
        }
    }
}

/// Puts bytes at an address to their place in the peer's RMB, straight.
///
/// # Safety
/// They are readable, and the place is reserved.
unsafe fn put_part(way: &Way, place: Span, address: usize) {
    let iov_base = with_exposed_provenance_mut(address);
    let iov = iovec { iov_base, iov_len: place.len() };
    // SAFETY: the caller's promise.
    unsafe { Buffers::one(&iov).copy_in(0, way.ring(), place) };
}

impl Sending<'_, '_> {
    /// The pieces that go together.
    #[inline(always)]
    fn batch(&self) -> Option<&Batch> {
        if let Request::Grant(_, _, batch) = &self.call.request { batch.as_ref() } else { None }
    }

    /// Sees to it that pieces that go together are in their places: all of them are then.
    #[inline(never)]
    fn complete_batch(&mut self, way: &Way, span: Span) -> usize {
        let (sock, n) = (self.sock, span.len());
        let granting = Granting { end: way.end, state: state(sock) };
        let Request::Grant(outcome, hints, place) = &mut self.call.request else { return 0 };
        let Some(batch) = &**place else { return 0 };
        let (at, mut granted) = (way.end.record.tx.cursor.pos(), 0);
        let each = |put, before: usize, (address, len): (usize, usize)| {
            match put {
                // SAFETY: the program's buffers are readable, as send(2) asks; the span was reserved.
                Put::Refused => unsafe {
                    put_part(way, span.split(before).1.split(len).0, address);
                },
                Put::Granted(n) => granted += n,
                Put::Copied => {}
            }
            outcome.notes(put, len, at + (before + len) as u64);
        };
        granting.put_all(&Own::new(sock, way.link), batch, n, each);
        **place = None;
        let put = if granted > 0 { Put::Granted(n) } else { Put::Copied };
        if *self.sent + n >= self.call.buffers.total && !hints.is_quiet {
            let (record, end) = (way.end.record, Some(way.end));
            Numbers { record, end, state: state(sock) }.number_before(outcome, put);
            point!(zerocopy_numbered);
        }
        granted::count(sock, Counter::BytesGranted, granted as u64);
        self.capture(put, n, span);
        self.advance(n);
        n
    }
}

impl Outgoing for Sending<'_, '_> {
    #[inline(always)]
    fn socket(&self) -> impl KernelSocket {
        Socket(self.fd)
    }

    #[inline(always)]
    fn sent(&self) -> usize {
        *self.sent
    }

    #[inline(always)]
    fn next_piece(&mut self) -> Result<(usize, Content), Errno> {
        if self.call.buffers.are_bad() {
            return Err(Errno::FAULT);
        }
        let (buffers, sent) = (&self.call.buffers, *self.sent);
        let Request::Grant(outcome, hints, batch) = &mut self.call.request else {
            return Ok(((buffers.total - sent).min(CHUNK), Content::Put));
        };
        let (sock, Some(way)) = (self.sock, self.way) else { return Err(Errno::FAULT) };
        let granting = Granting { end: way.end, state: state(sock) };
        let own = Own::new(sock, way.link);
        let piece = grants::piece(&own, &granting, (buffers, hints), sent);
        let mut is_unknown = piece.is_err();
        self.piece = piece.ok().flatten();
        let (len, content) = match &self.piece {
            Some(piece) => (piece.len, Content::Granted),
            None => (grants::copied(buffers, hints, sent).min(CHUNK), Content::Put),
        };
        **batch = None;
        let is_private = self.piece.is_some_and(|piece| piece.lies == Lies::Private);
        let is_alone = len >= CHUNK || len >= buffers.total - sent || is_private;
        if !is_alone {
            is_unknown |= grants::gather(&own, &granting, (buffers, hints), (sent, CHUNK), batch);
            if batch.is_some() {
                self.piece = None;
            }
        }
        // Once per call, as the kernel is asked for the memory's size.
        if is_unknown
            && !core::mem::replace(&mut outcome.is_unknown, true)
            && grants::are_cut_off(buffers, hints)
        {
            return Err(Errno::FAULT);
        }
        Ok(self.batch().map_or((len, content), |batch| (batch.len(), batch.content())))
    }

    #[inline(always)]
    fn longest_ring(&mut self) -> u64 {
        let (sock, Some(way)) = (self.sock, self.way) else { return 0 };
        let ring = usize::try_from(way.end.ring).unwrap_or(0);
        let few = way.link.users.load(Relaxed) <= FEW;
        let most = sock.endpoint().longest_ring();
        let numbered = way.end.has(NUMBERED);
        let granting = || Granting { end: way.end, state: state(sock) };
        if numbered {
            granting().withdraw();
        }
        let longest = match few {
            _ if numbered && granting().has_registered() => ring,
            true => LONG_RING.min(most).min(ring),
            false => SHORT_RING.min(most),
        };
        longest as u64
    }

    #[inline(always)]
    fn copy(&mut self, span: Span) {
        if let Some(batch) = self.batch() {
            let Some(way) = self.way else { return };
            for (before, address, len) in batch.copied(span.len()) {
                // SAFETY: the program's buffers are readable, as send(2) asks; the span was reserved.
                unsafe { put_part(way, span.split(before).1.split(len).0, address) };
            }
            return;
        }
        // What is granted is nearly always granted. What comes out of a pipe comes once.
        if self.piece.is_some() || matches!(self.call.request, Request::From(_)) {
            return;
        }
        let put = || self.put(span.head, span.tail);
        match span.len() {
            ..REST => put(),
            long => pipe_tx::noting_a_copy(self.sock, long, put),
        }
    }

    #[inline(always)]
    fn complete(&mut self, span: Span) -> usize {
        let (sock, Some(way)) = (self.sock, self.way) else { return 0 };
        if let Request::From(source) = self.call.request {
            let n = source.fill(&place(way, span));
            if n > 0 {
                point!(sendfile_read);
                point!(splice_read);
                self.capture(Put::Copied, n, span);
                self.advance(n);
            }
            return n;
        }
        if self.batch().is_some() {
            return self.complete_batch(way, span);
        }
        let put = match &self.piece {
            None => Put::Copied,
            Some(piece) => {
                let granting = Granting { end: way.end, state: state(sock) };
                granting.put(&Own::new(sock, way.link), piece, span.len())
            }
        };
        if put == Put::Refused {
            self.piece = None;
            self.put(span.head, span.tail);
        }
        let n = if let Put::Granted(n) = put { n } else { span.len() };
        if let Request::Grant(outcome, hints, _) = &mut self.call.request {
            outcome.notes(put, n, way.end.record.tx.cursor.pos() + n as u64);
            // Before the bytes are there: so nobody can have taken them yet.
            if n > 0 && *self.sent + n >= self.call.buffers.total && !hints.is_quiet {
                let (record, end) = (way.end.record, Some(way.end));
                Numbers { record, end, state: state(sock) }.number_before(outcome, put);
                point!(zerocopy_numbered);
            }
        }
        if let Some(piece) = &self.piece {
            granted::count(sock, piece.counter(), n as u64);
        }
        self.capture(put, n, span);
        self.advance(n);
        n
    }

    /// A call that takes bytes from a file or a pipe.
    #[cold]
    fn run_dry(&self) -> Option<Step> {
        let Request::From(source) = self.call.request else { return None };
        if *self.sent > 0 {
            count(self.sock);
        }
        Some(match source.stopped() {
            Some(Stop::Failed(error)) => Step::Failed(Errno::from_raw_os_error(error)),
            _ => Step::Done,
        })
    }

    #[inline(always)]
    fn goes_far(&self) {
        trim::touch(self.sock);
    }

    #[inline(always)]
    fn is_published(&self) {
        if let (Some(piece), Some(way)) = (&self.piece, self.way) {
            Granting { end: way.end, state: state(self.sock) }.is_covered(piece);
        }
    }

    #[inline(always)]
    fn unlock(&mut self) {
        self.lock.release();
    }

    #[inline(always)]
    fn tell(&mut self) -> bool {
        let (sock, Some(way)) = (self.sock, self.way) else { return false };
        notify::data(sock, way.link, &way.end.theirs.ctl, way.slot) == notify::Cost::Rung
    }

    #[inline(always)]
    fn over_kernel(&mut self) -> Kernel {
        let done = *self.sent;
        let at = capture::is_wanted(self.sock.record()).then(clock::wall);
        let result = self.call.on_kernel(self.fd, Direction::Sending, done, usize::MAX);
        if let Kernel::Moved(n) = result {
            if let Some(at) = at {
                self.capture_over_kernel(at, n);
            }
            *self.sent += n;
        }
        result
    }

    fn repeat(&mut self) -> bool {
        self.way.is_none_or(|way| demote::flush(self.sock, way.link, self.fd))
    }

    fn take_back(&mut self) -> bool {
        grants::take_back(self.sock)
    }

    fn leave_ring(&mut self, untaken: u64) {
        demote::leave_ring(self.sock, untaken);
    }

    fn is_promoted(&self, is_unused: bool) {
        if is_unused {
            promote::is_used_here();
        }
        endpoint::count(Counter::Promotions, 1);
    }

    #[inline(always)]
    fn can_tell(&self) -> bool {
        self.sock.peer().is_some()
    }

    fn is_cut_off(&self) -> bool {
        liveness::is_cut_off(self.sock)
    }

    fn is_orphaned(&self) -> bool {
        liveness::is_orphaned(self.sock)
    }

    fn now(&self) -> u64 {
        clock::now()
    }

    #[inline(always)]
    fn reaches(&self, moment: Moment) {
        match moment {
            Moment::MarkSet => point!(mark_set),
            Moment::Reserved => point!(send_reserved),
            Moment::Copied => point!(send_copied),
            Moment::Published => point!(send_published),
            Moment::Told => point!(send_told),
            Moment::Written => point!(send_written),
            Moment::Read | Moment::Taken | Moment::Passed => {}
        }
    }
}

/// A span that was reserved.
#[inline(always)]
fn place(way: &Way, span: Span) -> Place {
    let &Way { link, slot, receiver, .. } = way;
    Place { view: link.view(), slot, receiver, mode: mode(way), span }
}

/// How bytes come into the ring.
#[inline(always)]
fn mode(way: &Way) -> Mode {
    Mode::from_code(way.end.record.id.mode.load(Relaxed))
}

/// Counts a call that has sent all that it should through shared memory.
#[inline]
fn count(sock: &Sock) {
    if sends_over_tcp(sock.record()) {
        return;
    }
    let messages = &sock.record().tx.messages;
    let sent = messages.load(Relaxed) + 1;
    messages.store(sent, Relaxed);
    if sent.is_multiple_of(offer_budget::EARNED) {
        offer_budget::earn(sock, sent);
    }
}

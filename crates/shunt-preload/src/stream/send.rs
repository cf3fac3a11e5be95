//! Sending.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::{EBADF, ECONNRESET, c_int};
use shunt_engine::conn::End;
use shunt_engine::conn::overflow::{self, Full};
use shunt_engine::conn::repeated::are_pending;
use shunt_engine::kernel::{KernelSocket, peer_is_gone};
use shunt_engine::stretch::{Path, Send, Sender, path};
use shunt_shm::Violation;
use shunt_shm::arena::Mode;
use shunt_shm::doorbell::arm;
use shunt_shm::region::{LONG_RING, RESET, RegionView, SHORT_RING, Section, Side, shape};
use shunt_shm::ring::{Content, Span, TxCursor};
use shunt_wire::counter::Counter;

use crate::clock;
use crate::conn::{
    FILLS_KERNEL, KERNEL_HINT, Locked, NUMBERED, RESET_AWAITED, RESET_DUE, SHUT_RD, SHUT_WR, Sock,
    UNREAD, WANT_TCP,
};
use crate::endpoint;
use crate::errno;
use crate::link::Link;
use crate::panics::InDoubt;
use crate::points::point;
use crate::stream::borrow::Request;
use crate::stream::call::{self, Call, Direction, Kernel, Step, or_error};
use crate::stream::grants::{self, Piece};
use crate::stream::sleep::Until;
use crate::stream::tcp::Socket;
use crate::stream::transfer::{Place, Source, Stop};
use crate::stream::{demote, doubt, killed, notify, pins, promote, tcp, trim, worth, zerocopy};

/// Bytes that go into the ring before the receiver is told: it copies out while we copy in.
const CHUNK: usize = 64 * 1024;

/// Connections of this process in a link group that may have the longest rings.
const FEW: u32 = 8;

/// Does the call.
#[inline(never)]
pub fn transmit(call: &mut Call<'_>) -> isize {
    let conn = call.conn;
    call::run(call, Direction::Sending, |call, sent, blocking| {
        // The step says of a descriptor that another thread has closed what is to be said.
        if demote::is_due(&conn) && conn.kernel().is_some() {
            return Ok(Step::Follow);
        }
        if conn.sections().is_some_and(|(_, theirs)| theirs.ctl.closed.load(Relaxed) == RESET)
            && !conn.has(RESET_AWAITED)
        {
            conn.put(RESET_AWAITED, true);
            // Before the lock is taken: this may take a moment.
            conn.ask(tcp::await_reset);
        }
        let step = step(call, sent, blocking)?;
        if matches!(step, Step::Again) && *sent >= call.buffers.total {
            count(&conn);
            return Ok(Step::Done(sent.cast_signed()));
        }
        Ok(step)
    })
}

fn step(call: &mut Call<'_>, sent: &mut usize, blocking: bool) -> Result<Step, Violation> {
    let record = call.conn.record();
    let mut lock = call.conn.lock_tx();
    point!(send_locked);
    if lock.nested() && !call::may_intrude(&record.tx.copying) {
        // A signal handler above a call that is putting bytes in just now.
        return Ok(Step::Done(or_error(*sent, libc::EINTR)));
    }
    let Some(fd) = call.conn.kernel() else {
        return Ok(Step::Done(or_error(*sent, EBADF)));
    };
    let in_doubt = InDoubt::begins(call.conn);
    let step = put_some(call, fd, sent, blocking, &mut lock);
    in_doubt.ends();
    if !matches!(step, Ok(Step::Done(_))) && *sent < call.buffers.total {
        call.hold.keep(&call.conn);
    }
    step
}

/// One look, with the lock of the direction held, which goes when there is something to tell the peer.
fn put_some(
    call: &mut Call<'_>,
    fd: c_int,
    sent: &mut usize,
    blocking: bool,
    lock: &mut Locked,
) -> Result<Step, Violation> {
    let (conn, sock) = (call.conn, call.conn.sock());
    let record = sock.record();
    let is_nested = lock.nested();
    let (Some(link), Some(end)) = (sock.link(), sock.end()) else {
        return Ok(to_kernel(call, fd, sent));
    };
    let (mine, theirs) = (end.mine, end.theirs);
    let marks = record.tx.marks.load(Relaxed);
    // A peer that has closed answers bytes with RST, and that only the kernel can do.
    if theirs.ctl.closed.load(Relaxed) != 0 || sock.has(SHUT_WR) {
        return Ok(to_kernel(call, fd, sent));
    }
    let decision = Sender {
        marks,
        settled: path(marks) == Path::Ring || TxCursor::marks_settled(&mine.prod, &theirs.cons),
        active: sock.peer().is_some()
            && !are_pending(sock.record())
            && (path(marks) == Path::Ring || end.may_enter(marks)),
        // The place in the ring is that of the call which the handler interrupted.
        // A peer that has left takes nothing from the ring any more.
        want_tcp: is_nested
            || sock.has(WANT_TCP)
            || (path(marks) == Path::Tcp && theirs.ctl.handed_over.load(Acquire) != 0),
    }
    .decide();
    match decision {
        Send::Tcp => return Ok(to_kernel(call, fd, sent)),
        Send::Demote => {
            // In a signal handler it must: a receiver that has not come into the ring yet finds two marks.
            if is_nested || TxCursor::marks_settled(&mine.prod, &theirs.cons) {
                return leave_ring(call, fd, sent, (link, theirs, is_nested));
            }
        }
        Send::Promote => match Socket(fd).info() {
            // To a peer that has gone the ring leads nowhere, and only the kernel can say so.
            Some(info) if info.is_established() || theirs.prod.fin.load(Acquire) != 0 => {
                if record.side() == Side::Server && info.written() == 0 {
                    promote::is_used_here();
                }
                set_mark(sock, mine, marks, info.written());
                endpoint::count(Counter::Promotions, 1);
            }
            _ => return Ok(to_kernel(call, fd, sent)),
        },
        Send::Ring => {}
    }
    if call.buffers.are_bad() {
        return Ok(Step::Done(or_error(*sent, libc::EFAULT)));
    }
    let (piece, want) = match &mut call.request {
        Request::Grant(outcome, hints) => {
            let piece = grants::piece(sock, theirs, (&call.buffers, hints), *sent);
            // Once per call, as the kernel is asked for the memory's size.
            if piece.is_err()
                && !core::mem::replace(&mut outcome.is_unknown, true)
                && grants::are_cut_off(&call.buffers, hints)
            {
                return Ok(Step::Done(or_error(*sent, libc::EFAULT)));
            }
            let piece = piece.ok().flatten();
            let copied = || grants::copied(&call.buffers, hints, *sent).min(CHUNK);
            (piece, piece.map_or_else(copied, |piece| piece.len))
        }
        _ => (None, (call.buffers.total - *sent).min(CHUNK)),
    };
    let tx = Tx { sock, link, mine, theirs };
    let content = if piece.is_some() { Content::Granted } else { Content::Put };
    let span = tx.reserve(want, blocking, content)?;
    point!(send_reserved);
    let full = span.head.1 == 0 && want > 0;
    let from = matches!(call.request, Request::From(_));
    let (gone, alone) = call::interruptible(&record.tx.copying, || {
        let gone = tx.peer_is_gone(fd, full);
        // What is granted is nearly always granted; it is not put twice. What comes out of a pipe
        // cannot be put a second time, should a handler come meanwhile.
        if !gone && !full && piece.is_none() && !from {
            let copy = || put(sock, call, *sent, link.view(), span);
            pins::noting_a_copy(sock, span.len(), copy);
        }
        gone
    });
    if !alone {
        return Ok(Step::Again);
    }
    if gone {
        if *sent == 0 && killed::fails(&conn, fd) {
            return Ok(Step::Done(errno::fail(ECONNRESET)));
        }
        leave_unused(sock, mine);
        return Ok(to_kernel(call, fd, sent));
    }
    if full {
        let overflows = || end.notes_no_room(clock::now()) == Full::Overflows;
        let leaves =
            !end.can_be_rung() || (overflows() && TxCursor::may_set_mark(&mine.prod, &theirs.cons));
        return match leaves {
            true => leave_ring(call, fd, sent, (link, theirs, is_nested)),
            false => Ok(Step::Wait(Until::Ring)),
        };
    }
    overflow::ends(record);
    if let Request::From(source) = call.request {
        let n = source.fill(&tx.place(span));
        if n == 0 {
            return Ok(stopped(sock, source, *sent));
        }
        point!(sendfile_read);
        point!(splice_read);
        *sent += n;
        if *sent < call.buffers.total {
            call.hold.keep(&conn);
        }
        tx.publish(n, lock, || {});
        return Ok(Step::Again);
    }
    let is_worth_it = |piece: &&Piece| span.len() >= piece.least;
    let grant = |piece| grants::grant(&tx, piece, span.len());
    let granted = piece.as_ref().filter(is_worth_it).and_then(grant);
    if piece.is_some() && granted.is_none() {
        put(sock, call, *sent, link.view(), span);
    }
    point!(send_copied);
    let n = granted.unwrap_or(span.len());
    if let Request::Grant(outcome, hints) = &mut call.request {
        if granted.is_some() {
            outcome.until = record.tx.cursor.pos() + n as u64;
        } else {
            outcome.copied |= piece.is_some() || n >= grants::LEAST;
        }
        // Before the bytes are there: so nobody can have taken them yet.
        if n > 0 && *sent + n >= call.buffers.total && !hints.is_quiet {
            zerocopy::number(sock, record.tx.cursor.taken(), outcome, granted.is_some());
            outcome.is_numbered = true;
            point!(zerocopy_numbered);
        }
    }
    if let Some(piece) = piece.filter(|_| granted.is_some()) {
        grants::count(sock, piece.counter(), n as u64);
    }
    *sent += n;
    if *sent < call.buffers.total {
        call.hold.keep(&conn);
    }
    tx.publish(n, lock, || grants::are_covered(sock, granted.and(piece.as_ref())));
    Ok(Step::Again)
}

/// The result of a call whose source gives no more.
#[cold]
fn stopped(sock: &Sock, source: &Source, sent: usize) -> Step {
    if sent > 0 {
        count(sock);
    }
    Step::Done(match source.stopped() {
        Some(Stop::Failed(error)) => or_error(sent, error),
        _ => sent.cast_signed(),
    })
}

/// The sending direction while it is in the ring, with its lock held.
pub struct Tx<'a> {
    /// The connection.
    pub sock: &'static Sock,
    /// Its link group.
    pub link: &'static Link,
    /// What this side writes.
    pub mine: &'a Section,
    /// What the peer writes.
    pub theirs: &'a Section,
}

impl Tx<'_> {
    #[inline(always)]
    fn end(&self) -> End<'_> {
        let ring = self.link.view().geometry().ring() as u64;
        End { record: self.sock.record(), mine: self.mine, theirs: self.theirs, ring }
    }

    /// A place for up to `want` bytes; empty when the ring is full. Not in a signal handler above a call on the direction.
    #[inline(always)]
    fn reserve(&self, want: usize, blocking: bool, content: Content) -> Result<Span, Violation> {
        let span = self.find(want, content)?;
        if span.is_empty() && want > 0 {
            self.reserve_late(want, blocking, content)
        } else {
            Ok(span)
        }
    }

    /// The same when there was none.
    #[cold]
    fn reserve_late(
        &self,
        want: usize,
        blocking: bool,
        content: Content,
    ) -> Result<Span, Violation> {
        let mut span = Span::default();
        if !blocking {
            // Whoever waits for room in epoll is told through the queue.
            arm(&self.mine.ctl.tx_arm, notify::ON_QUEUE);
            span = self.find(want, content)?;
        }
        if span.is_empty() {
            let full = &self.sock.record().tx.full;
            full.store(full.load(Relaxed).wrapping_add(1), Relaxed);
        }
        Ok(span)
    }

    #[inline(always)]
    fn find(&self, want: usize, content: Content) -> Result<Span, Violation> {
        let tx = &self.sock.record().tx;
        let ring = self.link.view().geometry().ring();
        let few = self.link.users.load(Relaxed) <= FEW;
        let most = self.sock.endpoint().longest_ring();
        let numbered = self.sock.has(NUMBERED);
        if numbered {
            grants::withdraw(self.sock, self.mine);
        }
        let cap = match few {
            _ if numbered && grants::are_used(self.sock) => ring,
            true => LONG_RING.min(most).min(ring),
            false => SHORT_RING.min(most),
        } as u64;
        let wish = shape(self.sock.record().side().other(), cap);
        let limit = self.end().limit();
        let what = (want as u64, content);
        tx.cursor.reserve(&self.theirs.cons, ring as u64, wish, limit, what)
    }

    /// True when the peer's process has died: nobody takes bytes from the ring any more, and what the
    /// kernel answers to them is the truth. Asked when the ring is full, and now and then.
    fn peer_is_gone(&self, fd: c_int, full: bool) -> bool {
        const NOW_AND_THEN: u64 = 64;
        let record = self.sock.record();
        let sends = record.tx.messages.load(Relaxed);
        // An acceptor that promotes takes the client's word for it that it is there, until it shows itself.
        let first =
            sends == 0 && record.side() == Side::Server && self.theirs.prod.prod.load(Relaxed) == 0;
        let due = first || sends % NOW_AND_THEN == NOW_AND_THEN - 1;
        // Sends without copies wait for the peer to read, so 64 of them may take a minute.
        let unread = self.sock.has(UNREAD);
        let ask = full || due || unread || self.sock.has(KERNEL_HINT);
        if unread {
            self.sock.put(UNREAD, false);
        }
        // Who has shut its own reading sees that as an end, too.
        (ask && !self.sock.has(SHUT_RD) && peer_is_gone(&Socket(fd), &self.theirs.prod.fin))
            || (full && doubt::is_orphaned(self.sock))
    }

    /// A span that was reserved.
    fn place(&self, span: Span) -> Place {
        let record = self.sock.record();
        Place {
            view: self.link.view(),
            slot: record.slot(),
            receiver: record.side().other(),
            mode: Mode::from_code(record.id.mode.load(Relaxed)),
            span,
        }
    }

    /// Hands `n` bytes over that were put to the reserved place, and tells the receiver.
    #[inline(always)]
    fn publish(&self, n: usize, lock: &mut Locked, covered: impl FnOnce()) {
        let record = self.sock.record();
        let tx = &record.tx;
        if tx.cursor.goes_far(n) {
            trim::touch(self.sock);
        }
        tx.cursor.publish(&self.mine.prod, n as u64);
        covered();
        tx.bytes.store(tx.bytes.load(Relaxed) + n as u64, Relaxed);
        point!(send_published);
        lock.release();
        let which = match notify::data(self.sock, self.link, &self.theirs.ctl, record.slot()) {
            notify::Cost::Rung => &tx.rung,
            notify::Cost::Saved => &tx.saved,
        };
        which.store(which.load(Relaxed).wrapping_add(1), Relaxed);
        point!(send_told);
    }
}

/// Counts a call that has sent all that it should.
#[inline]
fn count(sock: &Sock) {
    let messages = &sock.record().tx.messages;
    let sent = messages.load(Relaxed) + 1;
    messages.store(sent, Relaxed);
    if sent.is_multiple_of(worth::EARNED) {
        worth::earn(sock, sent);
    }
}

/// Puts bytes to their place in the peer's RMB: straight, or through an own sndbuf that the device
/// moves.
fn put(sock: &Sock, call: &Call<'_>, at: usize, view: RegionView, span: Span) {
    let record = sock.record();
    let receiver = record.side().other();
    match Mode::from_code(record.id.mode.load(Relaxed)) {
        Mode::Copy => super::copy_mode::put(&call.buffers, at, view, record.slot(), receiver, span),
        // SAFETY: the program's buffers are readable, as send(2) asks; the span was reserved.
        _ => unsafe { call.buffers.copy_in(at, view.buffer(record.slot(), receiver), span) },
    }
}

/// Leaves a ring that was entered in accept(2), and into which nothing was put.
fn leave_unused(sock: &Sock, mine: &Section) {
    let tx = &sock.record().tx;
    if tx.marks.load(Relaxed) == 1 && tx.cursor.pos() == 0 {
        sock.put(WANT_TCP, true);
        set_mark(sock, mine, 1, 0);
    }
}

/// Goes on over TCP, behind what lies in the ring.
fn leave_ring(
    call: &mut Call<'_>,
    fd: c_int,
    sent: &mut usize,
    (link, theirs, is_nested): (&Link, &Section, bool),
) -> Result<Step, Violation> {
    let sock = call.conn.sock();
    match is_nested {
        true => demote::leave_ring_briefly(sock),
        false => demote::leave_ring(sock, theirs)?,
    }
    notify::data(sock, link, &theirs.ctl, sock.record().slot());
    Ok(to_kernel(call, fd, sent))
}

fn set_mark(sock: &Sock, mine: &Section, marks: u32, at: u64) {
    TxCursor::set_mark(&mine.prod, at);
    point!(mark_set);
    sock.record().tx.marks.store(marks.wrapping_add(1), Relaxed);
}

/// Sends over the kernel socket, without waiting: the lock is held, so that no byte of another thread
/// can come after a mark that this one does not know of.
fn to_kernel(call: &mut Call<'_>, fd: c_int, sent: &mut usize) -> Step {
    let sock = call.conn.sock();
    if sock.has(RESET_DUE) && *sent == 0 && killed::fails(sock, fd) {
        return Step::Done(errno::fail(ECONNRESET));
    }
    // What comes before these bytes first.
    if are_pending(sock.record())
        && let Some(link) = sock.link()
        && !demote::flush(sock, link, fd)
    {
        return Step::Wait(Until::Both);
    }
    sock.take_room();
    if !sock.has(FILLS_KERNEL) {
        sock.put(FILLS_KERNEL, true);
    }
    let copying = &sock.record().tx.copying;
    let on_kernel = || call.on_kernel(fd, Direction::Sending, *sent, usize::MAX);
    match call::interruptible(copying, on_kernel).0 {
        Kernel::Moved(0) if let Request::From(source) = call.request => {
            stopped(sock, source, *sent)
        }
        Kernel::Moved(n) => {
            *sent += n;
            point!(send_written);
            Step::Again
        }
        Kernel::Nothing => Step::Wait(Until::Both),
        Kernel::Failed(e) => Step::Done(or_error(*sent, e)),
    }
}

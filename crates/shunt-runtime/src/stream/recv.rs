//! Receiving: a program's call as the engine's port ([`Incoming`]).

use core::cell::Cell;

use libc::{MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, c_int};
use shunt_engine::call::{Direction, Errno, Kernel, Moment, Step, enter};
use shunt_engine::conn::End;
use shunt_engine::conn::recv::{Incoming, Looked, peek, receive as receive_step};
use shunt_engine::kernel::{KernelSocket, Look};
use shunt_shm::Violation;
use shunt_shm::ring::Span;
use shunt_sys::sockinfo;

use crate::conn::{Conn, Hold, LEFTOVER, Sock};
use crate::control::link::Link;
use crate::epoll::tell;
use crate::memory::imports;
use crate::point;
use crate::stream::borrow::{self, Request};
use crate::stream::bytes::Buffers;
use crate::stream::call::{self, Call};
use crate::stream::grants::{self, Use};
use crate::stream::in_doubt::InDoubt;
use crate::stream::tcp::{self, Socket};
use crate::stream::{again, demote, leftover, liveness, notify, pipe_rx, promote, zerocopy};
use crate::system::{abi, clock};

/// Time for which bytes of which no mark tells may lie in the kernel socket of a connection that goes on,
/// in units of 1024 ns: about a second.
const UNMARKED_FOR: u32 = 1_000_000;

/// Receives into the buffers, unless the flags ask for what only the kernel has.
#[inline(always)]
pub fn with_flags(
    conn: Conn,
    buffers: Option<Buffers<'_>>,
    flags: c_int,
    request: Request<'_>,
    kernel: &mut dyn FnMut(c_int, c_int) -> isize,
) -> isize {
    let fd = conn.descriptor();
    match buffers {
        Some(buffers) if flags & (MSG_ERRQUEUE | MSG_OOB) == 0 => {
            let hold = Hold::none();
            receive(&mut Call { conn, hold, buffers, flags, request, kernel })
        }
        _ if flags & MSG_ERRQUEUE != 0 => {
            zerocopy::discard(conn.sock()).unwrap_or_else(|| kernel(fd, 0))
        }
        _ => kernel(fd, 0),
    }
}

/// Does the call.
#[inline(never)]
pub fn receive(call: &mut Call<'_>) -> isize {
    call::run(call, Direction::Receiving, step)
}

fn step(call: &mut Call<'_>, got: &mut usize, blocking: bool) -> Result<Step, Violation> {
    let (conn, sock) = (call.conn, call.conn.sock());
    let record = sock.record();
    let lock = conn.lock_rx();
    point!(recv_locked);
    let Some(_entered) = enter(lock.nested(), &record.rx.copying) else {
        // A signal handler above a call that is taking bytes just now.
        return Ok(Step::Failed(Errno::INTR));
    };
    let Some(fd) = conn.kernel() else { return Ok(Step::Failed(Errno::BADF)) };
    let in_doubt = InDoubt::begins(conn);
    let (end, link) = (sock.end(), sock.link());
    if let Some(link) = link {
        match call.request {
            // What is copied now is no part of what was lent before.
            Request::Borrow(_) => sock.lent.clear(),
            Request::Release if *got == 0 => {
                if let Some(error) = borrow::refusal(sock, link, call.buffers.total) {
                    in_doubt.ends();
                    return Ok(Step::Failed(error));
                }
            }
            _ => {}
        }
    }
    let is_look = matches!(call.request, Request::Plain) && call.flags & MSG_PEEK != 0;
    let end = end.as_ref();
    let mut receiving = Receiving { call, end, link, fd, got, reads_pipes: Cell::new(false) };
    let step = if is_look {
        peek(record, end, &mut receiving, blocking)
    } else {
        receive_step(record, end, &mut receiving, blocking)
    };
    in_doubt.ends();
    if !matches!(step, Ok(Step::Done | Step::Failed(_))) {
        call.hold.keep(&call.conn);
    }
    step
}

/// One step.
pub(super) struct Receiving<'a, 'b> {
    pub call: &'a mut Call<'b>,
    /// The end.
    pub end: Option<&'a End<'static>>,
    /// The link group that has its ring.
    pub link: Option<&'static Link>,
    /// A descriptor of the kernel socket.
    pub fd: c_int,
    pub got: &'a mut usize,
    /// [`End::looking`] has begun to read from pipes, which is not over yet.
    reads_pipes: Cell<bool>,
}

impl Receiving<'_, '_> {
    #[inline(always)]
    pub const fn sock(&self) -> &'static Sock {
        self.call.conn.sock()
    }
}

impl Incoming for Receiving<'_, '_> {
    #[inline(always)]
    fn socket(&self) -> impl KernelSocket {
        Socket(self.fd)
    }

    #[inline(always)]
    fn got(&self) -> usize {
        *self.got
    }

    #[inline(always)]
    fn receives(&mut self, n: usize) {
        *self.got += n;
    }

    fn begins_anew(&mut self) {
        *self.got = 0;
    }

    fn looks_go_on(&self) -> bool {
        self.call.flags & MSG_PEEK != 0 && sockinfo::peeks_at_an_offset(abi::borrow(self.fd))
    }

    #[inline(always)]
    fn total(&self) -> usize {
        self.call.buffers.total
    }

    #[inline(always)]
    fn enough(&self) -> usize {
        if let Request::Into(_) = self.call.request {
            // As splice(2) has it.
            1
        } else if self.call.flags & MSG_WAITALL != 0 {
            self.call.buffers.total
        } else {
            self.call.conn.low_water()
        }
    }

    #[inline(always)]
    fn only_looks(&self) -> bool {
        self.call.flags & MSG_PEEK != 0
    }

    #[inline(always)]
    fn want(&self) -> usize {
        match (&self.call.request, self.link) {
            (Request::Borrow(_), Some(link)) if *self.got == 0 => link.view().geometry().ring(),
            _ => self.call.buffers.total - *self.got,
        }
    }

    #[inline(always)]
    fn is_bad(&self) -> bool {
        self.call.flags & MSG_TRUNC == 0 && self.call.buffers.are_bad()
    }

    fn read_kernel(&mut self, most: usize) -> Kernel {
        let result = self.call.on_kernel(self.fd, Direction::Receiving, *self.got, most);
        if let Kernel::Moved(n) = result {
            *self.got += n;
        }
        result
    }

    fn look_behind(&mut self, repeated: u64) {
        super::peek::behind(self.fd, repeated, || {
            self.read_kernel(usize::MAX);
        });
    }

    fn is_cut_off(&self) -> bool {
        liveness::is_cut_off(self.sock())
    }

    fn can_look_behind(&self) -> bool {
        super::peek::is_possible_behind(self.fd)
    }

    #[inline(always)]
    fn takes_otherwise(&mut self, place: Span) -> Option<Looked> {
        match self.call.request {
            Request::Borrow(_) if *self.got == 0 => Some(self.lend(place)),
            Request::Into(sink) => Some(self.drain(sink, place)),
            _ => None,
        }
    }

    #[inline(always)]
    fn copy(&mut self, place: Span) {
        let Some(link) = self.link.filter(|_| self.call.flags & MSG_TRUNC == 0) else {
            return;
        };
        let sock = self.sock();
        let (view, record) = (link.view(), sock.record());
        let ring = view.buffer(record.slot(), record.side());
        // SAFETY: the program's buffers are writable, as recv(2) asks; the span is readable.
        let copy = || unsafe { self.call.buffers.copy_out(*self.got, ring, place) };
        pipe_rx::noting_a_copy(sock, place.len(), copy);
    }

    fn copy_granted(&mut self, place: Span) -> Result<Option<u32>, Violation> {
        let (sock, Some(link)) = (self.sock(), self.link) else { return Ok(None) };
        let flags = self.call.flags;
        self.looking(|reads_pipes| {
            if matches!(self.call.request, Request::Release) && !reads_pipes {
                // Found when they were lent.
                return grants::pass(sock, link, place).map(Some);
            }
            let what = match (flags & MSG_TRUNC == 0, flags & MSG_PEEK != 0) {
                (true, true) => Use::Seen(&self.call.buffers, *self.got),
                (true, false) => Use::Copied(&self.call.buffers, *self.got),
                (false, _) => Use::Dropped,
            };
            grants::take(sock, link, what, (place, reads_pipes))
        })
    }

    /// What was read from pipes by [`End::looking`] is in the ring, or the cursor has passed it.
    fn has_copied(&self) {
        if self.reads_pipes.take() {
            self.sock().record().rx.pipe_reads.end();
            pipe_rx::tell_costs(self.sock());
        }
    }

    #[inline(always)]
    fn claims(&mut self, n: usize) -> bool {
        let sock = self.sock();
        if sock.has(LEFTOVER) && !leftover::claim(sock, n) {
            return false;
        }
        if let Request::Release = self.call.request {
            sock.lent.advance(n);
        }
        true
    }

    #[inline(always)]
    fn tell(&self) {
        let (Some(end), Some(link)) = (self.end, self.link) else { return };
        let sock = self.sock();
        notify::space(sock, link, &end.theirs.ctl, sock.record().slot());
    }

    fn drop_repeated(&mut self) -> bool {
        again::drop_had(self.sock(), self.fd)
    }

    fn settle(&self) {
        again::settle_locked(self.sock(), self.fd);
    }

    fn stay(&self) -> bool {
        demote::stay(self.sock())
    }

    fn is_leftover(&self) -> bool {
        leftover::is_left(self.sock(), self.fd)
    }

    fn is_unmarked_for_long(&self) -> bool {
        let Some(since) = liveness::unmarked(self.sock()) else { return false };
        // Not for a clock that seems to run backwards, by what marks the time as known.
        liveness::moment().wrapping_sub(since).cast_signed() >= UNMARKED_FOR.cast_signed()
    }

    fn await_end(&self) -> Look {
        tcp::await_end(self.fd)
    }

    /// Whoever has taken as many bytes from the kernel socket as there were when it was told of them waits to be told of the
    /// rest.
    fn has_passed(&self, is_late: bool) {
        liveness::look_for_unmarked(self.call.conn);
        // A client that has nothing more to send learns of the answer here.
        promote::poll_handshake(self.call.conn);
        if is_late {
            tell::look_again(self.sock());
        }
    }

    fn now(&self) -> u64 {
        clock::now()
    }

    #[inline(always)]
    fn reaches(&self, moment: Moment) {
        match moment {
            Moment::Read => point!(recv_read),
            Moment::Copied => point!(recv_copied),
            Moment::Taken => point!(recv_taken),
            Moment::Told => point!(recv_told),
            Moment::Passed => point!(recv_passed),
            Moment::MarkSet | Moment::Reserved | Moment::Published | Moment::Written => {}
        }
    }
}

impl Receiving<'_, '_> {
    /// Tells the call where bytes of the ring are.
    fn lend(&mut self, place: Span) -> Looked {
        let (sock, Some(end), Some(link)) = (self.sock(), self.end, self.link) else {
            return Ok(None);
        };
        let Request::Borrow(lending) = &mut self.call.request else { return Ok(None) };
        let lend = |reads_pipes| borrow::lend(sock, (end, link), (place, reads_pipes), lending);
        let lent = end.looking(imports::has_pipes(sock), &self.reads_pipes, lend)?;
        self.has_copied();
        Ok(lent.map(|len| {
            *self.got = len;
            Step::Done
        }))
    }

    /// Does `look` with granted bytes: see [`End::looking`].
    #[inline]
    pub fn looking<T>(
        &self,
        look: impl FnOnce(bool) -> Result<Option<T>, Violation>,
    ) -> Result<Option<T>, Violation> {
        let Some(end) = self.end else { return Ok(None) };
        end.looking(imports::has_pipes(self.sock()), &self.reads_pipes, look)
    }
}

//! Receiving.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::{MSG_PEEK, MSG_TRUNC, MSG_WAITALL, c_int};
use shunt_engine::call::{Errno, Kernel, Step, Until, interruptible, may_intrude};
use shunt_engine::conn::End;
use shunt_engine::handshake::Phase;
use shunt_engine::kernel::{Look, Progress, has_ended, look, progress};
use shunt_engine::stretch::{BeforeMark, Path, before_mark, had, path, reached_tcp_end};
use shunt_shm::Violation;
use shunt_shm::grants::Grants;
use shunt_shm::region::{RegionView, Section};
use shunt_shm::ring::{RxCursor, Span};

use crate::clock;
use crate::conn::{Conn, FROZEN, KERNEL_HINT, LEFTOVER, SHUT_RD, Sock};
use crate::imports;
use crate::link::Link;
use crate::ops;
use crate::panics::InDoubt;
use crate::points::point;
use crate::stream::borrow::{self, Request};
use crate::stream::call::{self, Call, Direction};
use crate::stream::grants::{self, Use};
use crate::stream::tcp::{self, Socket};
use crate::stream::{again, demote, doubt, killed, leftover, notify, peek, promote, pulls};

/// Time after which a program that polls an empty ring has the kernel asked, in units of 1024 ns:
/// whoever looks now and then always learns of the end, whoever looks all the time does not pay for
/// it each time.
const VISIT_AFTER: u32 = 20;

/// Time for which bytes of which no mark tells may lie in the kernel socket of a connection that goes on,
/// in the same units: about a second.
const UNMARKED_FOR: u32 = 1_000_000;

/// Does the call.
#[inline(never)]
pub fn receive(call: &mut Call<'_>) -> isize {
    call::run(call, Direction::Receiving, step)
}

/// Everything that a look needs.
pub(super) struct Rx<'a> {
    conn: Conn,
    /// A descriptor of the kernel socket.
    pub fd: c_int,
    pub link: &'static Link,
    pub view: RegionView,
    pub slot: usize,
    mine: &'a Section,
    pub theirs: &'a Section,
    cursor: &'a RxCursor,
    /// The call may wait.
    blocking: bool,
    /// [`Self::looking`] has begun to read from pipes, which is not over yet.
    pulls: Cell<bool>,
}

/// What a look comes to. `None`: look again, maybe in the next stretch.
pub(super) type Looked = Result<Option<Step>, Violation>;

fn step(call: &mut Call<'_>, got: &mut usize, blocking: bool) -> Result<Step, Violation> {
    let record = call.conn.record();
    let lock = call.conn.lock_rx();
    point!(recv_locked);
    if lock.nested() && !may_intrude(&record.rx.copying) {
        // A signal handler above a call that is taking bytes just now.
        return Ok(Step::Failed(Errno::INTR));
    }
    let Some(fd) = call.conn.kernel() else {
        return Ok(Step::Failed(Errno::BADF));
    };
    let in_doubt = InDoubt::begins(call.conn);
    let step = match call.request {
        Request::Plain if call.flags & MSG_PEEK != 0 => peek_once(call, fd, got, blocking),
        _ => look_once(call, fd, got, blocking),
    };
    in_doubt.ends();
    if !matches!(step, Ok(Step::Done | Step::Failed(_))) {
        call.hold.keep(&call.conn);
    }
    step
}

/// One look that takes nothing, from the first byte on: it waits for more than it saw if that is too little.
#[cold]
fn peek_once(
    call: &mut Call<'_>,
    fd: c_int,
    got: &mut usize,
    blocking: bool,
) -> Result<Step, Violation> {
    let mut is_last = false;
    loop {
        // Before the look, so that nothing comes unseen.
        let known = peek::arrivals(call.conn.sock());
        *got = 0;
        let step = look_once(call, fd, got, blocking)?;
        match step {
            Step::Done if *got > 0 && !is_last && !call.has_enough(*got, blocking) => {}
            _ => return Ok(step),
        }
        if !peek::is_over(call.conn) {
            return Ok(Step::Wait(Until::More(known)));
        }
        // What has come right before the end counts.
        is_last = true;
    }
}

/// One look, with the lock of the direction held.
fn look_once(
    call: &mut Call<'_>,
    fd: c_int,
    got: &mut usize,
    blocking: bool,
) -> Result<Step, Violation> {
    let (conn, sock) = (call.conn, call.conn.sock());
    let record = sock.record();
    let (Some(link), Some((mine, theirs))) = (sock.link(), sock.sections()) else {
        if *got > 0 && look(&Socket(fd)) == Look::Error {
            // It is the next call's to tell: once.
            return Ok(Step::Done);
        }
        let copying = &record.rx.copying;
        let (read, _) = interruptible(copying, || from_kernel(call, fd, got, usize::MAX));
        return Ok(match read {
            Read::Bytes if call.satisfied(*got, blocking) => Step::Done,
            Read::Bytes | Read::Nothing => call.nothing(*got, blocking, Until::Kernel),
            Read::Eof if *got == 0 && killed::fails(sock, fd) => Step::Failed(Errno::CONNRESET),
            Read::Eof => Step::Done,
            Read::Error(e) => Step::Failed(e),
        });
    };
    let rx = Rx {
        conn,
        fd,
        link,
        view: link.view(),
        slot: record.slot(),
        mine,
        theirs,
        cursor: &record.rx.cursor,
        blocking,
        pulls: Cell::new(false),
    };
    match call.request {
        // What is copied now is no part of what was lent before.
        Request::Borrow(_) => sock.lent.clear(),
        Request::Release if *got == 0 => {
            if let Some(error) = borrow::refusal(sock, link, call.buffers.total) {
                return Ok(Step::Failed(Errno::from_raw_os_error(error)));
            }
        }
        _ => {}
    }
    loop {
        let marks = record.rx.marks.load(Relaxed);
        let step = match path(marks) {
            Path::Tcp => rx.tcp_stretch(call, got, marks)?,
            Path::Ring => rx.ring_stretch(call, got, marks)?,
        };
        if let Some(step) = step {
            return Ok(step);
        }
    }
}

/// What the kernel socket gave.
enum Read {
    /// Bytes, which `got` counts.
    Bytes,
    Nothing,
    Eof,
    Error(Errno),
}

/// Bytes in the kernel socket of a receiver in the ring. A mark comes before the bytes of which it tells; those
/// that have none were sent by a thread while another one closed the descriptor, and are the last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unexplained {
    /// A mark has come meanwhile.
    Marked,
    /// The end is behind them.
    Last,
    /// The end is still to come.
    NotYet,
}

/// Reads from the kernel socket without waiting.
fn from_kernel(call: &mut Call<'_>, fd: c_int, got: &mut usize, limit: usize) -> Read {
    match call.on_kernel(fd, Direction::Receiving, *got, limit) {
        Kernel::Moved(0) if call.buffers.total > 0 => Read::Eof,
        // A call for no bytes finds some, and takes none.
        Kernel::Moved(n) => {
            *got += n;
            point!(recv_read);
            Read::Bytes
        }
        Kernel::Nothing => Read::Nothing,
        Kernel::Failed(e) => Read::Error(e),
    }
}

/// The result when the kernel socket has an error: told once, by the kernel itself, so that SO_ERROR and
/// later calls answer as they do.
fn failure(call: &mut Call<'_>, fd: c_int, got: &mut usize) -> Step {
    if *got > 0 {
        return Step::Done;
    }
    match from_kernel(call, fd, got, usize::MAX) {
        Read::Bytes | Read::Eof => Step::Done,
        Read::Nothing => Step::Failed(Errno::AGAIN),
        Read::Error(error) => Step::Failed(error),
    }
}

impl Call<'_> {
    /// True when the call has what it asked for: something, as much as `SO_RCVLOWAT` says, or all with
    /// `MSG_WAITALL`.
    fn satisfied(&self, got: usize, blocking: bool) -> bool {
        // Whoever only looks is asked once it has looked, by `peek_once`.
        self.flags & MSG_PEEK != 0 || self.has_enough(got, blocking)
    }

    /// The same of a call that only looks.
    fn has_enough(&self, got: usize, blocking: bool) -> bool {
        let enough = if !blocking {
            1
        } else if let Request::Into(_) = self.request {
            // As splice(2) has it.
            1
        } else if self.flags & MSG_WAITALL != 0 {
            self.buffers.total
        } else {
            self.conn.low_water()
        };
        got >= self.buffers.total || got >= enough
    }

    /// The step when there is nothing more now.
    fn nothing(&self, got: usize, blocking: bool, until: Until) -> Step {
        if got > 0 && self.satisfied(got, blocking) { Step::Done } else { Step::Wait(until) }
    }
}

impl Rx<'_> {
    #[inline(always)]
    pub const fn sock(&self) -> &'static Sock {
        self.conn.sock()
    }

    /// The same without a descriptor.
    pub fn end(&self) -> End<'_> {
        let (record, ring) = (self.sock().record(), self.ring());
        End { record, mine: self.mine, theirs: self.theirs, ring }
    }

    /// In a TCP stretch. `None`: go on with the next stretch.
    fn tcp_stretch(&self, call: &mut Call<'_>, got: &mut usize, marks: u32) -> Looked {
        // Who never waits is here before it has heard that the peer left.
        if demote::is_due(self.sock()) && self.sock().phase() == Phase::Active {
            return Ok(Some(Step::Follow));
        }
        // The other machine is gone: its kernel would not say so for a long time.
        if !Grants::are_possible(&self.theirs.prod, self.sock().record().rx.grants.load(Relaxed)) {
            return Err(Violation::Grants);
        }
        if !again::drop_had(self.sock(), self.fd) {
            return Ok(Some(call.nothing(*got, self.blocking, Until::Kernel)));
        }
        // Bytes in front of urgent data come alone, also those that lay in the ring.
        if *got > 0 && tcp::at_urgent_mark(self.fd) {
            return Ok(Some(Step::Done));
        }
        let next = RxCursor::next_mark(&self.theirs.prod, marks)?;
        if next == Some(0) && marks == 0 {
            // The sender was in the ring from the beginning.
            self.pass(marks);
            return Ok(None);
        }
        let Some(at) = next else { return self.without_mark(call, got, marks) };
        let over = Progress { read: u64::MAX, arrived: u64::MAX };
        let Progress { read, arrived } = progress(&Socket(self.fd), at).unwrap_or(over);
        let look = if read < at { look(&Socket(self.fd)) } else { Look::Silent };
        let is_over = matches!(look, Look::Eof | Look::Error);
        Ok(match before_mark(at, read, arrived, is_over) {
            BeforeMark::Pass => {
                if is_over {
                    // Told in this stretch, and not again in the next one.
                    self.sock().put(KERNEL_HINT, true);
                }
                self.pass_into_ring(marks);
                None
            }
            BeforeMark::Lost if look == Look::Eof => Some(self.at_end(*got)),
            BeforeMark::Lost => Some(failure(call, self.fd, got)),
            // What lies behind the mark in the kernel socket belongs to a later stretch.
            BeforeMark::Read(most) => {
                match from_kernel(call, self.fd, got, usize::try_from(most).unwrap_or(usize::MAX)) {
                    Read::Bytes => self.after_tcp(call, got, marks)?,
                    // The ring holds nothing that could be read yet.
                    Read::Nothing => Some(call.nothing(*got, self.blocking, Until::Kernel)),
                    Read::Eof => Some(self.at_end(*got)),
                    Read::Error(e) => Some(Step::Failed(e)),
                }
            }
        })
    }

    /// The same when no mark is open. One may come at any moment, and behind it bytes of a later stretch: a
    /// sender that can't stay in the ring does not wait until it has been seen there. So nothing is read but
    /// what was there before a look that found no mark.
    fn without_mark(&self, call: &mut Call<'_>, got: &mut usize, marks: u32) -> Looked {
        let look = look(&Socket(self.fd));
        if RxCursor::next_mark(&self.theirs.prod, marks)?.is_some() {
            return Ok(None);
        }
        let limit = match look {
            Look::Bytes(there) => usize::try_from(there).unwrap_or(usize::MAX),
            // The kernel does not count what is behind urgent data.
            Look::Silent if !tcp::at_urgent_mark(self.fd) => {
                return Ok(Some(call.nothing(*got, self.blocking, Until::Both)));
            }
            // It is the next call's to tell: once.
            Look::Error if *got > 0 => return Ok(Some(Step::Done)),
            // Behind the end nothing comes.
            Look::Silent | Look::Eof | Look::Error => usize::MAX,
        };
        let copying = &self.sock().record().rx.copying;
        let (read, alone) = interruptible(copying, || from_kernel(call, self.fd, got, limit));
        Ok(match read {
            // A signal handler has read what was there, and may have passed a mark.
            Read::Nothing | Read::Eof if !alone => None,
            Read::Bytes => self.after_tcp(call, got, marks)?,
            Read::Nothing => Some(call.nothing(*got, self.blocking, Until::Both)),
            // End of file, unless the sender went on in the ring before it closed.
            Read::Eof => {
                let mark = RxCursor::next_mark(&self.theirs.prod, marks)?;
                mark.is_none().then(|| self.at_end(*got))
            }
            Read::Error(e) => Some(Step::Failed(e)),
        })
    }

    /// After bytes from the kernel socket. `None`: go on.
    fn after_tcp(&self, call: &Call<'_>, got: &mut usize, marks: u32) -> Looked {
        let mark = RxCursor::next_mark(&self.theirs.prod, marks)?;
        let open = mark.is_some();
        let peek = call.flags & MSG_PEEK != 0;
        // A short read tells edge-triggered programs that there is no more: so the bytes on
        // the other side of the mark belong to the same call.
        if let Some(at) = mark.filter(|_| peek && *got < call.buffers.total) {
            self.peek_beyond_tcp(call, got, at)?;
        }
        let whole = *got >= call.buffers.total || peek;
        let end = whole || (call.satisfied(*got, self.blocking) && !open);
        Ok(end.then_some(Step::Done))
    }

    /// In a ring stretch. `None`: go on, with the next stretch if a mark was passed.
    fn ring_stretch(&self, call: &mut Call<'_>, got: &mut usize, marks: u32) -> Looked {
        let len = self.ring();
        let want = match &call.request {
            Request::Borrow(_) if *got == 0 => self.view.geometry().ring(),
            _ => call.buffers.total - *got,
        };
        if self.sock().has(FROZEN | LEFTOVER) && !leftover::is_left(self.sock(), self.fd) {
            // The peer sends what is left in the ring once more, after a mark that stands where we
            // stopped. A mark further on is of a peer that left by itself: nothing comes twice.
            match RxCursor::next_mark(&self.theirs.prod, marks)? {
                Some(_) if self.end().had_at_mark(true).is_some() => {
                    again::settle_locked(self.sock(), self.fd);
                    return Ok(None);
                }
                Some(_) => {}
                None if self.is_left_alone(marks)? => self.sock().put(FROZEN, false),
                None if demote::stay(self.sock()) => {}
                None => return Ok(None),
            }
        }
        let span = self.cursor.readable(&self.theirs.prod, len, want as u64)?;
        let n = span.head.1 + span.tail.1;
        if n > 0 {
            if let Request::Borrow(lending) = &mut call.request
                && *got == 0
            {
                let lend = |pulls| borrow::lend(self.sock(), self.link, (span, pulls), lending);
                let lent = self.looking(true, lend)?;
                self.has_pulled();
                return Ok(lent.map(|len| {
                    *got = len;
                    Step::Done
                }));
            }
            if matches!(call.request, Request::Into(_)) {
                return self.drain(call, got, span);
            }
            if call.flags & MSG_TRUNC == 0 && call.buffers.are_bad() {
                return Ok(Some(Step::Failed(Errno::FAULT)));
            }
            if !self.take(call, *got, span, n)? {
                return Ok(None);
            }
            *got += n;
            let mark = RxCursor::next_mark(&self.theirs.prod, marks)?;
            let open = mark.is_some();
            let peek = call.flags & MSG_PEEK != 0;
            let seen = self.cursor.pos() + n as u64;
            if peek
                && *got < call.buffers.total
                && let Some(at) = mark.filter(|at| *at <= seen)
            {
                // What lies beyond the mark, in the kernel socket, belongs to the same call.
                peek::behind(self.fd, seen - at, || {
                    from_kernel(call, self.fd, got, usize::MAX);
                });
            }
            let whole = *got >= call.buffers.total || peek;
            if whole && open {
                // What comes twice takes room in the kernel socket, without which there is no news of more.
                again::settle_locked(self.sock(), self.fd);
            }
            let end = whole || (call.satisfied(*got, self.blocking) && !open);
            return Ok(end.then_some(Step::Done));
        }
        if !Grants::are_possible(&self.theirs.prod, self.sock().record().rx.grants.load(Relaxed)) {
            return Err(Violation::Grants);
        }
        if want == 0 && self.cursor.refresh(&self.theirs.prod, len)? > 0 {
            return Ok(Some(Step::Done));
        }
        if let Some(at) = RxCursor::next_mark(&self.theirs.prod, marks)? {
            // It is set after all bytes in the ring.
            if self.cursor.refresh(&self.theirs.prod, len)? == 0 {
                let had = had(at, self.cursor.pos(), len).ok_or(Violation::Marks)?;
                self.end().pass_into_tcp(had);
            }
            return Ok(None);
        }
        self.ask_kernel(call, got, marks)
    }

    /// True when the peer ended its direction before it heard that this side leaves, or was killed: nothing
    /// comes once more over TCP, and what is left is in the ring alone.
    fn is_left_alone(&self, marks: u32) -> Result<bool, Violation> {
        if self.sock().has(SHUT_RD) {
            // The kernel tells of this side's own end then.
            let ended = self.theirs.prod.fin.load(Acquire) != 0;
            return Ok(ended && RxCursor::next_mark(&self.theirs.prod, marks)?.is_none());
        }
        Ok(match look(&Socket(self.fd)) {
            Look::Bytes(_) => self.unexplained(marks)? == Unexplained::Last,
            // The mark comes before all bytes that are sent once more, and before the end.
            Look::Eof | Look::Error => RxCursor::next_mark(&self.theirs.prod, marks)?.is_none(),
            Look::Silent => false,
        })
    }

    /// What bytes in the kernel socket are while this side reads the ring.
    fn unexplained(&self, marks: u32) -> Result<Unexplained, Violation> {
        if RxCursor::next_mark(&self.theirs.prod, marks)?.is_some() {
            Ok(Unexplained::Marked)
        } else if self.has_ended() {
            Ok(Unexplained::Last)
        } else if self.is_unmarked_for_long() {
            Err(Violation::Marks)
        } else {
            Ok(Unexplained::NotYet)
        }
    }

    /// Reads the last bytes of the direction, which no mark tells of.
    fn read_last(&self, call: &mut Call<'_>, got: &mut usize) -> Option<Step> {
        match from_kernel(call, self.fd, got, usize::MAX) {
            Read::Bytes if call.satisfied(*got, self.blocking) => Some(Step::Done),
            Read::Bytes | Read::Nothing => None,
            Read::Eof => Some(self.at_end(*got)),
            Read::Error(e) => Some(Step::Failed(e)),
        }
    }

    /// True when the peer has announced its end, or the kernel tells of it.
    fn has_ended(&self) -> bool {
        self.theirs.prod.fin.load(Acquire) != 0 || has_ended(&Socket(self.fd))
    }

    /// True when bytes without a mark have been there for longer than a close takes.
    fn is_unmarked_for_long(&self) -> bool {
        let Some(since) = doubt::unmarked(self.sock()) else { return false };
        // Not for a clock that seems to run backwards, by what marks the time as known.
        doubt::moment().wrapping_sub(since).cast_signed() >= UNMARKED_FOR.cast_signed()
    }

    /// The ring is empty: is that the end?
    fn ask_kernel(&self, call: &mut Call<'_>, got: &mut usize, marks: u32) -> Looked {
        if demote::is_due(self.sock()) {
            return Ok(Some(Step::Follow));
        }
        let due = !self.blocking && self.visit_is_due();
        let hinted = self.theirs.prod.fin.load(Relaxed) != 0
            || self.sock().has(KERNEL_HINT)
            || self.sock().has(SHUT_RD);
        if !due && !hinted {
            return Ok(Some(call.nothing(*got, self.blocking, Until::Ring)));
        }
        let copying = &self.sock().record().rx.copying;
        let announced = self.theirs.prod.fin.load(Relaxed) != 0;
        let look = || if announced { tcp::await_end(self.fd) } else { look(&Socket(self.fd)) };
        let (look, alone) = interruptible(copying, look);
        if !alone {
            return Ok(None);
        }
        // What was put into the ring before the end comes first.
        if self.cursor.refresh(&self.theirs.prod, self.ring())? > 0 {
            // Unless the call is for no bytes, which `ring_stretch` has seen to.
            return Ok(None);
        }
        // Also an end that is behind bytes: it is told once.
        self.sock().put(KERNEL_HINT, look != Look::Silent);
        if look == Look::Silent {
            self.sock().record().rx.unmarked.store(0, Relaxed);
        }
        Ok(Some(match look {
            Look::Eof => self.at_end(*got),
            Look::Error => failure(call, self.fd, got),
            Look::Bytes(_) => match self.unexplained(marks)? {
                // What was put into the ring before them comes first, also what has come meanwhile.
                Unexplained::Last if self.cursor.refresh(&self.theirs.prod, self.ring())? == 0 => {
                    return Ok(self.read_last(call, got));
                }
                Unexplained::Marked | Unexplained::Last => return Ok(None),
                Unexplained::NotYet => call.nothing(*got, self.blocking, Until::Ring),
            },
            // The end was announced and is on its way.
            Look::Silent if hinted => call.nothing(*got, self.blocking, Until::Both),
            Look::Silent => call.nothing(*got, self.blocking, Until::Ring),
        }))
    }

    /// A peek that saw all that is left of the stretch before the mark goes on in the ring. The kernel socket may hold
    /// more, of a sender that has left the ring already.
    fn peek_beyond_tcp(&self, call: &Call<'_>, got: &mut usize, at: u64) -> Result<(), Violation> {
        let seen = |read: u64| reached_tcp_end(read + *got as u64, at);
        let all_seen = progress(&Socket(self.fd), at).is_some_and(|progress| seen(progress.read));
        if !all_seen || call.buffers.are_bad() {
            return Ok(());
        }
        let want = (call.buffers.total - *got) as u64;
        let span = self.cursor.readable(&self.theirs.prod, self.ring(), want)?;
        let n = span.head.1 + span.tail.1;
        if self.take(call, *got, span, n)? {
            *got += n;
        }
        Ok(())
    }

    /// The result at the end of file.
    fn at_end(&self, got: usize) -> Step {
        let fails = got == 0 && killed::fails(self.sock(), self.fd);
        if fails { Step::Failed(Errno::CONNRESET) } else { Step::Done }
    }

    /// Length of the buffer.
    const fn ring(&self) -> u64 {
        self.view.geometry().ring() as u64
    }

    fn visit_is_due(&self) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
        let now = (clock::now() >> 10) as u32;
        let visited = &self.sock().record().rx.visited;
        let due = now.wrapping_sub(visited.load(Relaxed)) >= VISIT_AFTER;
        if due {
            visited.store(now, Relaxed);
        }
        due
    }

    /// Copies and takes (or only looks at) `n` bytes. False when a signal handler has taken them, or another program.
    fn take(&self, call: &Call<'_>, at: usize, span: Span, n: usize) -> Result<bool, Violation> {
        let rx = &self.sock().record().rx;
        let copy = call.flags & MSG_TRUNC == 0;
        let granted = self.has_grants();
        let peek = call.flags & MSG_PEEK != 0;
        let mut entries = rx.grants.load(Relaxed);
        if copy || granted {
            let passed = self.looking(granted, |pulls| {
                if matches!(call.request, Request::Release) && !pulls {
                    // Found when they were lent.
                    return grants::pass(self.sock(), self.link, span).map(Some);
                }
                if granted {
                    let what = match (copy, peek) {
                        (true, true) => Use::Seen(&call.buffers, at),
                        (true, false) => Use::Copied(&call.buffers, at),
                        (false, _) => Use::Dropped,
                    };
                    return grants::take(self.sock(), self.link, what, (span, pulls));
                }
                let ring = self.view.buffer(self.slot, self.sock().record().side());
                // SAFETY: the program's buffers are writable, as recv(2) asks; the span is readable.
                let copy = || unsafe { call.buffers.copy_out(at, ring, span) };
                pulls::noting_a_copy(self.sock(), n, copy);
                Ok(Some(entries))
            })?;
            let Some(passed) = passed else {
                self.has_pulled();
                return Ok(false);
            };
            entries = passed;
        }
        point!(recv_copied);
        if peek {
            self.has_pulled();
            return Ok(true);
        }
        if self.sock().has(LEFTOVER) && !leftover::claim(self.sock(), n) {
            self.has_pulled();
            return Ok(false);
        }
        if let Request::Release = call.request {
            self.sock().lent.advance(n);
        }
        self.pass_over(n, granted.then_some(entries));
        Ok(true)
    }

    /// True when some of the next bytes may be granted.
    pub fn has_grants(&self) -> bool {
        // SYNC POINT prod: what covers a grant was read before this look.
        self.theirs.prod.grants.load(Relaxed) != self.sock().record().rx.grants.load(Relaxed)
    }

    /// The program has got `n` bytes, and with them what was granted up to this entry.
    pub fn pass_over(&self, n: usize, entries: Option<u32>) {
        let rx = &self.sock().record().rx;
        // Together: a relative of one that was killed is not to take for bytes in the ring what was granted.
        let note = || {
            if let Some(entries) = entries {
                rx.grants.store(entries, Release);
            }
        };
        let look = self.cursor.consume_noting(&self.mine.cons, self.ring(), n as u64, note);
        self.has_pulled();
        rx.bytes.store(rx.bytes.load(Relaxed) + n as u64, Relaxed);
        rx.messages.store(rx.messages.load(Relaxed) + 1, Relaxed);
        point!(recv_taken);
        // Who has granted waits for its memory, not for room.
        if look || entries.is_some() {
            interruptible(&rx.copying, || {
                notify::space(self.sock(), self.link, &self.theirs.ctl, self.slot);
            });
            point!(recv_told);
        }
    }

    /// Does `look`, which copies what is there, such that a signal handler may come meanwhile: not where bytes may be read from
    /// pipes, of which it is told. `None`: look again, as one has come, or as the pipes have only just been found.
    #[inline]
    pub fn looking<T>(
        &self,
        granted: bool,
        look: impl FnOnce(bool) -> Result<Option<T>, Violation>,
    ) -> Result<Option<T>, Violation> {
        let rx = &self.sock().record().rx;
        if granted && imports::has_pipes(self.sock()) {
            rx.pulls.begin()?;
            self.pulls.set(true);
            return look(true);
        }
        let (looked, alone) = interruptible(&rx.copying, || look(false));
        if alone { looked } else { Ok(None) }
    }

    /// What was read from pipes by [`Self::looking`] is in the ring, or the cursor has passed it.
    pub fn has_pulled(&self) {
        if self.pulls.take() {
            self.sock().record().rx.pulls.end();
            pulls::tell_costs(self.sock());
        }
    }

    /// Passes from TCP into the ring, where bytes may be of which the watchers were told before those in
    /// front of them came: whoever has taken as many as there were at that time waits to be told of the
    /// rest.
    fn pass_into_ring(&self, marks: u32) {
        self.pass(marks);
        ops::epoll::look_again(self.sock());
    }

    /// Passes the open mark that leads into the ring.
    fn pass(&self, marks: u32) {
        let next = marks.wrapping_add(1);
        self.sock().record().rx.marks.store(next, Relaxed);
        self.mine.cons.marks_passed.store(next, Release);
        point!(recv_passed);
        doubt::look_for_unmarked(self.conn);
        // A client that has nothing more to send learns of the answer here.
        promote::glance(self.conn);
    }
}

//! Receiving: where the next bytes of a direction are, and how they come from there.

mod ring;
mod tcp;
#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::Violation;
use shunt_shm::arena::Record;
use shunt_shm::ring::Span;

use crate::call::{Errno, Kernel, Moment, Step, Until, interruptible};
use crate::conn::flags::SHUT_RD;
use crate::conn::{End, has, is_settled, reset};
use crate::handshake::Phase;
use crate::kernel::{KernelSocket, Look, has_ended, look};
use crate::stretch::{Path, path};

/// A call that receives: its room, and what the bytes need on their way. With the lock of the direction held.
pub trait Incoming {
    /// The kernel socket.
    fn socket(&self) -> impl KernelSocket;

    /// Bytes that the call has received.
    fn got(&self) -> usize;

    /// It has received so many more.
    fn receives(&mut self, n: usize);

    /// It only looks, and begins anew.
    fn begins_anew(&mut self);

    /// The kernel has each look begin where the last one ended (`SO_PEEK_OFF`).
    fn looks_go_on(&self) -> bool {
        false
    }

    /// Bytes that it has room for.
    fn total(&self) -> usize;

    /// Bytes with which it is content if it may wait.
    fn enough(&self) -> usize;

    /// It takes nothing (`MSG_PEEK`).
    fn only_looks(&self) -> bool;

    /// Most bytes of the ring that it wants now.
    fn want(&self) -> usize;

    /// The program's memory cannot be written.
    fn is_bad(&self) -> bool;

    /// Reads up to so many bytes from the kernel socket, without waiting. They count as received from now on.
    fn read_kernel(&mut self, most: usize) -> Kernel;

    /// The same behind bytes there that come a second time.
    fn look_behind(&mut self, repeated: u64);

    /// True where that can be done.
    fn can_look_behind(&self) -> bool;

    /// Does with bytes of the ring what a call does that wants them otherwise than copied (lent, put into a pipe). `None`: it
    /// wants them copied.
    fn takes_otherwise(&mut self, place: Span) -> Option<Looked>;

    /// Copies bytes out of the ring, behind those that were received. They do not count yet, as a handler of a signal that
    /// receives meanwhile makes it be done again.
    fn copy(&mut self, place: Span);

    /// The same where some of them are granted. The grants that are passed with them; `None`: look again.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    fn copy_granted(&mut self, place: Span) -> Result<Option<u32>, Violation>;

    /// What [`Self::copy_granted`] has used is over: the cursor has passed it, or nothing is taken.
    fn has_copied(&self);

    /// So many bytes are about to be taken. False: another program has them.
    fn claims(&mut self, n: usize) -> bool;

    /// Tells the sender of room.
    fn tell(&self);

    /// Drops what has come a second time. True when no more of it is to come.
    fn drop_repeated(&mut self) -> bool;

    /// Passes the mark that ends the ring, if this end is there, and drops what has come a second time.
    fn settle(&self);

    /// A receiver that has left, and is the only one that reads, comes back to the ring. False: the peer has left meanwhile.
    fn stay(&self) -> bool;

    /// True for bytes that a program before exec has left to this one.
    fn is_leftover(&self) -> bool;

    /// The agent that brings what comes from another host is gone.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// True when bytes that no mark explains have been in the kernel socket for longer than a close takes.
    fn is_unmarked_for_long(&self) -> bool;

    /// Looks at the kernel socket, where the peer has announced its end: a short wait saves a sleep.
    fn await_end(&self) -> Look;

    /// A mark was passed that leads into the ring. `is_late`: bytes may be there of which those who wait were told before.
    fn has_passed(&self, is_late: bool);

    /// The time, in nanoseconds.
    fn now(&self) -> u64;

    /// A test may come in here.
    #[inline(always)]
    fn reaches(&self, _: Moment) {}
}

/// What a look comes to. `None`: look again, maybe in the next stretch.
pub type Looked = Result<Option<Step>, Violation>;

/// What the kernel socket gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Read {
    Bytes,
    Nothing,
    Eof,
    Error(Errno),
}

/// Reads from the kernel socket without waiting.
fn read(call: &mut impl Incoming, most: usize) -> Read {
    match call.read_kernel(most) {
        Kernel::Moved(0) if call.total() > 0 => Read::Eof,
        // A call for no bytes finds some, and takes none.
        Kernel::Moved(_) => {
            call.reaches(Moment::Read);
            Read::Bytes
        }
        Kernel::Nothing => Read::Nothing,
        Kernel::Failed(error) => Read::Error(error),
    }
}

/// True when the call has what it asked for: something, as much as `SO_RCVLOWAT` says, or all with
/// `MSG_WAITALL`.
fn is_satisfied(call: &impl Incoming, blocking: bool) -> bool {
    // Whoever only looks is asked once it has looked, by `peek`.
    call.only_looks() || has_enough(call, blocking)
}

/// The same of a call that only looks.
fn has_enough(call: &impl Incoming, blocking: bool) -> bool {
    let enough = if blocking { call.enough() } else { 1 };
    call.got() >= call.total() || call.got() >= enough
}

/// The step when there is nothing more now.
fn nothing(call: &impl Incoming, blocking: bool, until: Until) -> Step {
    if call.got() > 0 && is_satisfied(call, blocking) { Step::Done } else { Step::Wait(until) }
}

/// The kernel socket has an error.
enum Failure {
    /// It is told once, by the kernel itself, so that `SO_ERROR` and later calls answer as they do.
    Told(Step),
    /// RST behind a FIN, of which receivers do not hear.
    BehindFin,
}

/// What comes of such an error.
fn failure(record: &Record, call: &mut impl Incoming) -> Failure {
    if call.got() > 0 {
        return Failure::Told(Step::Done);
    }
    Failure::Told(match read(call, usize::MAX) {
        Read::Bytes => Step::Done,
        Read::Eof => return Failure::BehindFin,
        Read::Nothing => Step::Failed(Errno::AGAIN),
        Read::Error(error) => failed(record, call, error),
    })
}

/// The step at an end that the kernel tells of before the link from another host has brought what was sent in front of it.
///
/// # Errors
/// Nobody brings it: the agent is gone.
fn ahead_of_link(call: &impl Incoming, blocking: bool) -> Result<Step, Violation> {
    if call.is_cut_off() {
        Err(Violation::Grants)
    } else {
        Ok(nothing(call, blocking, Until::Both))
    }
}

/// The step when the kernel socket has told its error.
#[cold]
fn failed(record: &Record, call: &mut impl Incoming, error: Errno) -> Step {
    if !reset::was_told(record, error, call.got()) {
        return Step::Failed(error);
    }
    match read(call, usize::MAX) {
        Read::Bytes | Read::Eof => Step::Done,
        Read::Nothing => Step::Failed(Errno::AGAIN),
        Read::Error(error) => Step::Failed(error),
    }
}

/// The step at the end of file.
fn at_end(record: &Record, end: Option<End<'_>>, call: &impl Incoming) -> Step {
    if call.got() == 0 && reset::fails(record, end, &call.socket()) {
        Step::Failed(Errno::CONNRESET)
    } else {
        Step::Done
    }
}

/// One step of a call that receives. `end`: what the connection has of shared memory.
///
/// # Errors
/// The peer breaks the protocol.
#[inline(always)]
pub fn receive(
    record: &Record,
    end: Option<&End<'_>>,
    call: &mut impl Incoming,
    blocking: bool,
) -> Result<Step, Violation> {
    let Some(end) = end else { return Ok(over_kernel(record, call, blocking)) };
    loop {
        // The library may have panicked in the middle of a step of another thread or program, for whose lock this one has waited,
        // or in a handler above this call: what stands in the cursors is in doubt.
        if end.phase() == Phase::Broken {
            return Ok(Step::Again);
        }
        let marks = record.rx.marks.load(Relaxed);
        let step = match path(marks) {
            Path::Tcp => end.tcp_stretch(call, blocking, marks)?,
            Path::Ring => end.ring_stretch(call, blocking, marks)?,
        };
        if let Some(step) = step {
            return Ok(step);
        }
    }
}

/// Where this process knows of no ring.
fn over_kernel(record: &Record, call: &mut impl Incoming, blocking: bool) -> Step {
    if record.id.holders.count() > 1 {
        return beside_others(record, call, blocking);
    }
    if call.got() > 0 && look(&call.socket()) == Look::Error {
        // It is the next call's to tell: once.
        return Step::Done;
    }
    let what = interruptible(&record.rx.copying, || read(call, usize::MAX)).0;
    come(record, call, blocking, what)
}

/// Another process that holds the end may take the connection up at any moment, and the peer go into the ring and come back: so nothing is
/// read but what was there before a look that found it not taken up.
#[cold]
fn beside_others(record: &Record, call: &mut impl Incoming, blocking: bool) -> Step {
    let look = look(&call.socket());
    if is_settled(record) {
        return Step::Again;
    }
    let most = match look {
        Look::Bytes(there) => usize::try_from(there).unwrap_or(usize::MAX),
        // It is the next call's to tell: once.
        Look::Error if call.got() > 0 => return Step::Done,
        // The kernel does not count what is behind urgent data.
        Look::Silent if call.total() > 0 && !call.socket().is_at_urgent_mark() => {
            return nothing(call, blocking, Until::Kernel);
        }
        Look::OwnEnd if !call.socket().is_at_urgent_mark() => return at_end(record, None, call),
        // Behind the end nothing comes.
        Look::Silent | Look::Eof | Look::OwnEnd | Look::Error => usize::MAX,
    };
    let what = read(call, most);
    come(record, call, blocking, what)
}

/// What a read of the kernel socket has brought.
fn come(record: &Record, call: &mut impl Incoming, blocking: bool, what: Read) -> Step {
    match what {
        Read::Bytes if is_satisfied(call, blocking) => Step::Done,
        Read::Bytes | Read::Nothing => nothing(call, blocking, Until::Kernel),
        Read::Eof => at_end(record, None, call),
        Read::Error(error) => failed(record, call, error),
    }
}

/// One step of a call that only looks, from the first byte on: it waits for more than it saw if that is too little.
///
/// # Errors
/// The peer breaks the protocol.
#[cold]
pub fn peek(
    record: &Record,
    end: Option<&End<'_>>,
    call: &mut impl Incoming,
    blocking: bool,
) -> Result<Step, Violation> {
    let mut is_last = false;
    loop {
        // Before the look, so that nothing comes unseen.
        let known = end.map_or(0, End::arrivals);
        if call.got() > 0 && !call.looks_go_on() {
            call.begins_anew();
        }
        let step = receive(record, end, call, blocking)?;
        match step {
            Step::Done if call.got() > 0 && !is_last && !has_enough(call, blocking) => {}
            // poll(2) would tell of the bytes that an earlier look has seen.
            Step::Wait(Until::Kernel | Until::Both)
                if call.socket().waiting() > 0 && call.looks_go_on() =>
            {
                return Ok(waits_for_more(end, known));
            }
            _ => return Ok(step),
        }
        if !is_over(record, end, call) {
            return Ok(waits_for_more(end, known));
        }
        // What has come right before the end counts.
        is_last = true;
    }
}

/// A look that finds some in the ring asks nothing else, and would not hear before it has seen enough that the peer has left.
fn waits_for_more(end: Option<&End<'_>>, known: u64) -> Step {
    let is_to_follow = |end: &End<'_>| end.phase() == Phase::Active && end.is_to_follow();
    if end.is_some_and(is_to_follow) { Step::Follow } else { Step::Wait(Until::More(known)) }
}

/// True when nothing will come any more that could be seen, as far as the kernel or the peer has told.
fn is_over(record: &Record, end: Option<&End<'_>>, call: &impl Incoming) -> bool {
    // Behind the end of a ring that its sender has left, an older kernel shows nothing.
    let is_cut_off = |end: &End<'_>| {
        let marks = record.rx.marks.load(Relaxed);
        path(marks) == Path::Ring
            && end.theirs.prod.marks.load(Acquire) != marks
            && !call.can_look_behind()
    };
    has(record, SHUT_RD)
        || end.is_some_and(|end| is_cut_off(end) || end.theirs.prod.fin.load(Acquire) != 0)
        || has_ended(&call.socket())
}

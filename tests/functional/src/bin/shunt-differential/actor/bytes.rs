//! Sends and receives.

use std::sync::atomic::Ordering::Relaxed;

use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::ops::{Flags, RecvBy, SendBy};
use shunt_functional::differential::plan::{Kind, Op, Stream, Var};
use shunt_functional::pattern;

use super::scratch::scratch;
use super::seen::{Seen, is_elastic};
use super::{calls, say_error, world};

/// Bytes under way that every buffer takes.
const ALWAYS_FITS: usize = 48 << 10;
/// Length of a message and of its answer.
const MESSAGE: usize = 100;
/// Bytes of one call of those that make many.
const BLOCK: usize = 64 << 10;

/// Does one of these operations.
pub fn perform(op: &Op, line: &mut Line) {
    match *op {
        Op::Ping { fd, times } => exchange(fd, times, true, line),
        Op::Pong { fd, times } => exchange(fd, times, false, line),
        Op::Send { fd, len, flags, by } => send(fd, len as usize, flags, by, line),
        Op::Recv { fd, len, flags, by } => recv(fd, len as usize, flags, by, line),
        Op::SendAll { fd, len } => send_all(fd, len as usize, line),
        Op::RecvAll { fd, len } => recv_all(fd, len as usize, line),
        Op::Fill { fd } => fill(fd, line),
        Op::Drain { fd } => drain(fd, line),
        _ => {}
    }
}

/// Says that how much is under way depends on buffers from now on.
fn stretch(stream: Stream) {
    world().board.stream(stream).elastic.store(1, Relaxed);
}

/// Makes a call that sends so many bytes; who drains the stream waits for it.
pub fn sending<T>(stream: Stream, len: usize, call: impl FnOnce() -> T) -> T {
    let senders = &world().board.stream(stream).senders;
    let may_wait = u32::from(len > ALWAYS_FITS || is_elastic(&world().board, stream));
    senders.fetch_add(may_wait, Relaxed);
    let result = call();
    senders.fetch_sub(may_wait, Relaxed);
    result
}

/// One call that sends the stream's next bytes.
fn send_next(fd: Var, len: usize, flags: Flags, by: SendBy) -> isize {
    let (world, stream) = (world(), fd.stream());
    let progress = world.board.stream(stream);
    if len > ALWAYS_FITS {
        stretch(stream);
    }
    let n = scratch(len, |bytes| {
        pattern::fill(stream.label(), progress.sent.load(Relaxed), bytes);
        sending(stream, len, || calls::send(world.fd(fd), bytes, flags.0, by))
    });
    if let Ok(n) = usize::try_from(n) {
        progress.sent.fetch_add(n as u64, Relaxed);
        if n < len {
            stretch(stream);
        }
    }
    n
}

fn send(fd: Var, len: usize, flags: Flags, by: SendBy, line: &mut Line) {
    match usize::try_from(send_next(fd, len, flags, by)) {
        Err(_) => say_error(line),
        Ok(n) if n == len => line.say(format_args!("{n}")),
        Ok(_) => line.say(format_args!("part")),
    }
}

/// A few bytes, for handlers.
pub fn send_few(fd: Var, len: usize, flags: i32, line: &mut Line) {
    send(fd, len, Flags(flags), SendBy::Send, line);
}

/// Up to a few bytes, for handlers.
pub fn recv_few(fd: Var, len: usize, flags: i32, line: &mut Line) {
    recv(fd, len, Flags(flags), RecvBy::Recv, line);
}

/// One call that receives; what it returned.
fn recv_next(fd: Var, bytes: &mut [u8], flags: Flags, by: RecvBy, seen: &mut Seen) -> isize {
    let (world, nominal) = (world(), fd.incoming());
    let (n, _) = calls::recv(world.fd(fd), bytes, flags.0, by);
    if let Ok(n) = usize::try_from(n) {
        seen.add(&world.board, nominal, &bytes[..n], flags.has(Flags::PEEK));
    }
    n
}

fn recv(fd: Var, len: usize, flags: Flags, by: RecvBy, line: &mut Line) {
    let (world, nominal) = (world(), fd.incoming());
    let elastic = || is_elastic(&world.board, nominal);
    scratch(len, |bytes| {
        let (n, said) = calls::recv(world.fd(fd), bytes, flags.0, by);
        let Ok(n) = usize::try_from(n) else { return say_error(line) };
        match n {
            0 => line.say(format_args!("0")),
            _ if flags.has(Flags::WAITALL) && n == len => line.say(format_args!("all")),
            _ if elastic() => line.say(format_args!("some")),
            _ => line.say(format_args!("{n}")),
        }
        if flags.has(Flags::TRUNC) && by == RecvBy::Recv && !flags.has(Flags::OOB) {
            line.say(format_args!(" dropped"));
            if !flags.has(Flags::PEEK) {
                world.board.stream(nominal).received.fetch_add(n as u64, Relaxed);
            }
        } else {
            let mut seen = Seen::default();
            let looks = flags.has(Flags::PEEK) || flags.has(Flags::OOB);
            seen.add(&world.board, nominal, &bytes[..n], looks);
            seen.say(&world.board, line);
        }
        if said.flags != 0 {
            line.say(format_args!(" flags {:#x}", said.flags));
        }
        match said.left {
            Some(left) if elastic() => line.say(format_args!(" left {}", left > 0)),
            Some(left) => line.say(format_args!(" left {left}")),
            None => {}
        }
    });
}

/// Waits for room or bytes where a call has found none.
fn wait(fd: Var, events: i16) {
    let mut one = libc::pollfd { fd: world().fd(fd), events, revents: 0 };
    // SAFETY: one entry. However it ends, the call that wanted it is made again.
    let _ = unsafe { libc::poll(&raw mut one, 1, -1) };
}

/// True when a call that has failed is to be made again.
fn goes_on(fd: Var, events: i16) -> bool {
    match calls::errno() {
        libc::EINTR => true,
        libc::EAGAIN => {
            wait(fd, events);
            true
        }
        _ => false,
    }
}

/// Sends so many bytes; false after an error.
fn send_whole(fd: Var, len: usize) -> bool {
    let mut left = len;
    let by =
        if matches!(fd.kind, Kind::Writer | Kind::File) { SendBy::Write } else { SendBy::Send };
    while left > 0 {
        match usize::try_from(send_next(fd, left.min(BLOCK * 4), Flags::NOSIGNAL, by)) {
            Ok(n) => left -= n,
            Err(_) if goes_on(fd, libc::POLLOUT) => {}
            Err(_) => return false,
        }
    }
    true
}

fn send_all(fd: Var, len: usize, line: &mut Line) {
    if len > ALWAYS_FITS {
        stretch(fd.stream());
    }
    if send_whole(fd, len) { line.say(format_args!("all")) } else { say_error(line) }
}

/// Receives so many bytes, if they come: how many did, and whether an error ended it.
fn recv_whole(fd: Var, len: usize, seen: &mut Seen) -> (usize, bool) {
    let mut got = 0;
    let failed = scratch(len.min(BLOCK), |bytes| {
        while got < len {
            let part = (len - got).min(bytes.len());
            match recv_next(fd, &mut bytes[..part], Flags(0), RecvBy::Read, seen) {
                0 => return false,
                n => match usize::try_from(n) {
                    Ok(n) => got += n,
                    Err(_) if goes_on(fd, libc::POLLIN) => {}
                    Err(_) => return true,
                },
            }
        }
        false
    });
    (got, failed)
}

fn recv_all(fd: Var, len: usize, line: &mut Line) {
    let mut seen = Seen::default();
    let (got, failed) = recv_whole(fd, len, &mut seen);
    match (got == len, failed) {
        (true, _) => line.say(format_args!("all")),
        (false, false) => line.say(format_args!("end")),
        (false, true) => say_error(line),
    }
    seen.say(&world().board, line);
}

/// Messages back and forth, each of a length that fits everywhere.
fn exchange(fd: Var, times: u32, first: bool, line: &mut Line) {
    let mut seen = Seen::default();
    for turn in 0..times * 2 {
        if (turn % 2 == 0) == first {
            if !send_whole(fd, MESSAGE) {
                return say_error(line);
            }
            continue;
        }
        match recv_whole(fd, MESSAGE, &mut seen) {
            (MESSAGE, _) => {}
            (_, true) => return say_error(line),
            (_, false) => return line.say(format_args!("end")),
        }
    }
    line.say(format_args!("done"));
    seen.say(&world().board, line);
}

/// Pauses with nothing to do, one after the other, after which a direction is taken to be at rest.
const PAUSES: u32 = 5;
/// The same where somebody is still sending, who may look for room no more often than each 0.1 s.
const MORE_PAUSES: u32 = 100;
/// The same of a direction without room: a sender that finds a ring full for 30 ms goes on over TCP.
const FULL_PAUSES: u32 = 25;

/// Waits a little for room or bytes, which come while buffers still grow; false after the last time in a row.
fn pause(count: &mut u32, most: u32) -> bool {
    *count += 1;
    super::processes::sleep(2);
    *count < most
}

fn fill(fd: Var, line: &mut Line) {
    stretch(fd.stream());
    let mut pauses = 0;
    loop {
        let flags = Flags::DONTWAIT | Flags::NOSIGNAL;
        if send_next(fd, BLOCK, flags, SendBy::Send) >= 0 {
            pauses = 0;
        } else if calls::errno() != libc::EAGAIN {
            return say_error(line);
        } else if !pause(&mut pauses, FULL_PAUSES) {
            return line.say(format_args!("full"));
        }
    }
}

fn drain(fd: Var, line: &mut Line) {
    let (mut seen, mut pauses) = (Seen::default(), 0);
    let board = &world().board;
    let last = scratch(BLOCK, |bytes| {
        loop {
            let n = recv_next(fd, bytes, Flags::DONTWAIT, RecvBy::Recv, &mut seen);
            if n > 0 {
                pauses = 0;
                continue;
            }
            // Somebody may be blocked for room, who goes on now. The name may be another connection's.
            let stream = seen.last().unwrap_or(fd.incoming());
            let again = n < 0 && calls::errno() == libc::EAGAIN;
            let comes = again && is_elastic(board, stream);
            let sends = board.stream(stream).senders.load(Relaxed) > 0;
            if !comes || !pause(&mut pauses, if sends { MORE_PAUSES } else { PAUSES }) {
                return n;
            }
        }
    });
    if last == 0 {
        line.say(format_args!("end"));
    } else {
        say_error(line);
    }
    seen.say(board, line);
}

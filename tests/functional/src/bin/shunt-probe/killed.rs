//! Processes that are killed in the middle of a call, on a connection that a relative goes on with: at each system call of
//! that call, and after every so many instructions. What is received then is what was sent, or the connection is reset. These
//! run with `SHUNT_PIN`, and are not compared with kernel TCP.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use shunt_functional::sys::{self, Memory, Private, Stop};

use crate::found::is_copied;
use crate::probe::{Pair, Probe, connect_to, listener};
use crate::processes::in_child;
use crate::zerocopy::{allowed, send};

/// Bytes of a call that is interrupted: all are granted, or pinned, at once.
const LARGE: usize = 80_001;
/// Bytes that a relative sends afterwards, as many again without copies.
const AFTER: usize = 70_001;
/// Times that are sent before the memory is known to the receiver.
const TIMES: usize = 4;
/// Instructions after which a call is interrupted, about: so many of those that it takes.
const PLACES: u32 = 24;
/// More instructions than a call takes that copies nothing.
const MOST: u32 = 20_000;

/// Of the bytes that are sent afterwards.
const LATER: u8 = 0x80;

/// The byte at a place of what is sent.
#[allow(clippy::cast_possible_truncation, reason = "any byte will do")]
fn byte(at: usize) -> u8 {
    (at * 31 + (at >> 8) * 7 + (at >> 16)) as u8 & !LATER
}

fn fill(bytes: &mut [u8], from: usize, kind: u8) {
    bytes.iter_mut().enumerate().for_each(|(n, to)| *to = byte(from + n) | kind);
}

fn are(bytes: &[u8], from: usize, kind: u8) -> bool {
    bytes.iter().enumerate().all(|(n, seen)| *seen == byte(from + n) | kind)
}

/// Where a call is interrupted.
#[derive(Clone, Copy, Debug)]
struct Place {
    after: u32,
    stop: Stop,
}

/// A process that is about to be killed.
struct Victim(libc::pid_t);

/// In a child: does the call that is interrupted.
fn interrupted(call: impl FnOnce() -> io::Result<usize>) -> io::Result<()> {
    sys::be_traced()?;
    sys::stop_self()?;
    call()?;
    sys::stop_self()
}

impl Victim {
    /// Does `body` in a process of its own, in which a call is [`interrupted`].
    fn start(body: impl FnOnce() -> io::Result<()>) -> io::Result<Self> {
        in_child(body).map(Self)
    }

    /// Lets it go as far as that, and kills it: how far it came, and whether that was before the end of the call.
    fn kill_at(self, place: Place) -> io::Result<(u32, bool)> {
        sys::wait_for_stop(self.0)?;
        let mut n = 0;
        let mut is_at_it = true;
        while n < place.after && is_at_it {
            sys::go_on(self.0, place.stop)?;
            is_at_it = sys::wait_for_stop(self.0)?;
            n += 1;
        }
        sys::kill(self.0, libc::SIGKILL)?;
        // So that it is gone, and not a zombie, for whoever looks whether it is there.
        sys::wait_for(self.0)?;
        Ok((n, is_at_it))
    }
}

/// How a round came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// What was received is what was sent.
    Right,
    /// The connection was reset.
    Reset,
    /// Other bytes came.
    Wrong,
}

impl End {
    /// `right`: what was received is.
    fn of(right: io::Result<bool>) -> io::Result<Self> {
        match right {
            Ok(true) => Ok(Self::Right),
            Ok(false) => Ok(Self::Wrong),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(Self::Reset),
            Err(e) => Err(e),
        }
    }
}

/// Interrupts a call everywhere; how many connections were reset.
fn everywhere(
    p: &mut Probe,
    round: impl Fn(Place) -> io::Result<((u32, bool), End)>,
) -> io::Result<usize> {
    let (mut reset, mut wrong) = (0, Vec::new());
    let mut interrupt = |after, stop| {
        let place = Place { after, stop };
        let (course, end) = round(place)?;
        match end {
            End::Right => {}
            End::Reset => reset += 1,
            End::Wrong => wrong.push(place),
        }
        io::Result::Ok(course)
    };
    let mut calls = 0;
    while interrupt(calls, Stop::SystemCall)?.1 {
        calls += 1;
    }
    let (all, is_longer) = interrupt(MOST, Stop::Instruction)?;
    p.say("its instructions are few", !is_longer);
    let step = usize::try_from(all / PLACES + 1).map_err(io::Error::other)?;
    // Other ones on fresh connections than on warm ones.
    let first = if p.warm { 0 } else { all / PLACES / 2 };
    for after in (first..all).step_by(step) {
        interrupt(after, Stop::Instruction)?;
    }
    println!("{calls} stops at system calls, {all} instructions, {reset} resets");
    p.say("it was interrupted", all > PLACES);
    wrong.iter().for_each(|place| println!("wrong: {place:?}"));
    p.say("nobody has received what was not sent", wrong.is_empty());
    Ok(reset)
}

/// Receives all that comes until the end.
fn rest(fd: RawFd) -> io::Result<Vec<u8>> {
    let mut got = vec![0; 1 << 20];
    let n = sys::recv(fd, &mut got, libc::MSG_WAITALL, false)?;
    got.truncate(n);
    Ok(got)
}

/// Sends what comes after a call that was interrupted, and the end.
fn send_after(fd: RawFd, memory: &mut [u8]) -> io::Result<()> {
    fill(memory, 0, LATER);
    sys::send(fd, &memory[..AFTER], libc::MSG_NOSIGNAL)?;
    fill(memory, AFTER, LATER);
    send(fd, &memory[..AFTER])?;
    sys::shutdown(fd, libc::SHUT_WR)
}

/// Receives all: whether it is some of what the call was to send, and then all that comes after it.
fn receive(fd: RawFd) -> io::Result<bool> {
    let got = rest(fd)?;
    let end = got.iter().position(|byte| byte & LATER != 0).unwrap_or(got.len());
    let (before, after) = got.split_at(end);
    Ok(before.len() <= LARGE
        && are(before, 0, 0)
        && after.len() == 2 * AFTER
        && are(after, 0, LATER))
}

/// In a child: sends as often as it takes for the peer to know the memory, and then where it is interrupted.
fn send_and_stop(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    let mut copied = true;
    for _ in 0..TIMES {
        sys::read(fd, &mut [0])?;
        send(fd, bytes)?;
        copied = is_copied(fd)?;
    }
    if copied {
        return Err(io::Error::other("it was copied"));
    }
    interrupted(|| send(fd, bytes))
}

/// The other end of that.
fn take(fd: RawFd) -> io::Result<()> {
    for _ in 0..TIMES {
        sys::write(fd, b"x")?;
        let mut got = vec![0; LARGE];
        sys::recv(fd, &mut got, libc::MSG_WAITALL, false)?;
        if !are(&got, 0, 0) {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// Whoever grants is killed, and a relative sends in its place.
pub fn granting(p: &mut Probe) -> io::Result<()> {
    let reset = everywhere(p, |place| {
        let listener = listener()?;
        let (go, going) = sys::pipe()?;
        let victim = Victim::start(|| {
            // Memory is granted by whoever has made the connection.
            let client = connect_to(&listener)?;
            let fd = client.as_raw_fd();
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
            in_child(|| {
                sys::end_within(20);
                sys::read(go.as_raw_fd(), &mut [0])?;
                send_after(fd, Private::new(AFTER)?.bytes())
            })?;
            let mut memory = Memory::new(LARGE)?;
            fill(memory.bytes(), 0, 0);
            send_and_stop(fd, memory.bytes())
        })?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        take(server.as_raw_fd())?;
        let course = victim.kill_at(place)?;
        sys::write(going.as_raw_fd(), b"x")?;
        Ok((course, End::of(receive(server.as_raw_fd()))?))
    })?;
    p.say("nothing was reset", reset == 0);
    Ok(())
}

/// Makes the pipes of a connection known to the receiver.
fn pinned(p: &Probe) -> io::Result<(Pair, Private)> {
    let (pair, mut memory) = (allowed(p)?, Private::new(LARGE)?);
    fill(memory.bytes(), 0, 0);
    for _ in 0..TIMES {
        sys::write(pair.s(), b"x")?;
        sys::read(pair.c(), &mut [0])?;
        send(pair.c(), memory.bytes())?;
        let mut got = vec![0; LARGE];
        sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false)?;
        is_copied(pair.c())?;
    }
    Ok((pair, memory))
}

/// Whoever pins is killed, and a relative that has the same pipes sends in its place.
pub fn pinning(p: &mut Probe) -> io::Result<()> {
    let base = Probe::new("", p.warm);
    everywhere(p, |place| {
        let (pair, mut memory) = pinned(&base)?;
        let victim = Victim::start(|| send_and_stop(pair.c(), memory.bytes()))?;
        take(pair.s())?;
        let course = victim.kill_at(place)?;
        let sent = send_after(pair.c(), memory.bytes());
        Ok((course, End::of(sent.and_then(|()| receive(pair.s())))?))
    })?;
    Ok(())
}

/// Whoever reads what is pinned is killed, and a relative reads on.
pub fn pulling(p: &mut Probe) -> io::Result<()> {
    let base = Probe::new("", p.warm);
    let reset = everywhere(p, |place| {
        let (pair, mut memory) = pinned(&base)?;
        send(pair.c(), memory.bytes())?;
        let victim = Victim::start(|| {
            let mut got = vec![0; LARGE];
            interrupted(|| sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false))
        })?;
        let course = victim.kill_at(place)?;
        sys::shutdown(pair.c(), libc::SHUT_WR)?;
        let right = rest(pair.s()).map(|got| got.len() <= LARGE && are(&got, LARGE - got.len(), 0));
        Ok((course, End::of(right)?))
    })?;
    p.say("where it cannot be known what was read, the connection is reset", reset > 0);
    Ok(())
}

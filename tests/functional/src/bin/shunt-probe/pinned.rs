//! Private memory that is sent with `MSG_ZEROCOPY`, and pinned for the receiver. These run with `SHUNT_PIN` and a short
//! `SHUNT_GRANT_TIMEOUT`, and are not compared with kernel TCP line by line.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::Duration;

use shunt_api::{Released, Room};
use shunt_functional::shared::{Found, LINK_GROUP, Shared, slots_in_use};
use shunt_functional::sys::{self, Private};
use shunt_shm::grants::{Lane, Part};
use shunt_shm::region::{RegionView, Side};

use crate::found::is_copied;
use crate::probe::{Pair, Probe, listener, settle, warm_up};
use crate::processes::in_child;
use crate::zerocopy::{allowed, awaited, send};

/// Bytes of a call: more than are pinned at once, and not whole pages.
const LARGE: usize = 200_001;
/// Where they begin in the memory: not with a page.
const FROM: usize = 777;

/// The byte at a place of what is sent.
#[allow(clippy::cast_possible_truncation, reason = "any byte will do")]
fn byte(at: usize) -> u8 {
    (at * 31 + (at >> 8) * 7 + (at >> 16)) as u8
}

/// Memory with such bytes.
fn memory() -> io::Result<Private> {
    let mut memory = Private::new(FROM + LARGE)?;
    let bytes = &mut memory.bytes()[FROM..];
    bytes.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    Ok(memory)
}

/// True when the bytes are those from `at` on.
fn are_right(bytes: &[u8], at: usize) -> bool {
    bytes.iter().enumerate().all(|(n, seen)| *seen == byte(at + n))
}

/// Reads `len` bytes, which are to be those from `at` on.
fn reads(fd: RawFd, at: usize, len: usize, flags: i32) -> io::Result<bool> {
    let mut got = vec![0; len];
    let n = sys::recv(fd, &mut got, flags | libc::MSG_WAITALL, false)?;
    Ok(n == len && are_right(&got, at))
}

/// Times that are sent before the pipes are known to the receiver.
const TIMES: usize = 4;

/// Sends all, and waits for the word that it was read; whether it was copied.
fn sends(fd: RawFd, memory: &mut Private) -> io::Result<bool> {
    sys::read(fd, &mut [0])?;
    send(fd, &memory.bytes()[FROM..])?;
    is_copied(fd)
}

/// Makes the pipes known to the receiver; whether what is sent then is not copied.
fn make_known(pair: &Pair, memory: &mut Private) -> io::Result<bool> {
    let mut copied = true;
    for _ in 0..TIMES {
        sys::write(pair.s(), b"x")?;
        sys::read(pair.c(), &mut [0])?;
        send(pair.c(), &memory.bytes()[FROM..])?;
        if !reads(pair.s(), 0, LARGE, 0)? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        copied = is_copied(pair.c())?;
    }
    Ok(!copied)
}

/// What becomes of a sender whose bytes nobody has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It uses the memory again when the error queue says so.
    Completed,
    /// It unmaps the memory.
    Unmapped,
    /// It closes the connection, and uses the memory again.
    Closed,
    /// It writes to the connection by stdio, and uses the memory again.
    HandedOver,
    /// It ends.
    Exited,
    /// It is killed.
    Killed,
}

/// Sends, and ends so: in a process of its own, that tells by `told` whether what it has sent was pinned.
fn send_and_end(client: OwnedFd, end: End, told: RawFd) -> io::Result<()> {
    let mut memory = memory()?;
    let mut copied = true;
    for _ in 0..TIMES {
        copied = sends(client.as_raw_fd(), &mut memory)?;
    }
    send(client.as_raw_fd(), &memory.bytes()[FROM..])?;
    let mut left = (Some(client), Some(memory));
    let client = left.0.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    match end {
        End::Completed if !is_copied(client)? => {
            return Err(io::Error::other("it was not copied"));
        }
        End::Unmapped => drop(left.1.take()),
        End::Closed => drop(left.0.take()),
        End::HandedOver => sys::write_stdio(client, b"the end").map(drop)?,
        End::Completed | End::Exited | End::Killed => {}
    }
    if let Some(memory) = &mut left.1
        && !matches!(end, End::Exited | End::Killed)
    {
        memory.bytes().fill(0xee);
    }
    sys::write(told, &[u8::from(!copied)])?;
    match end {
        End::Exited => return Ok(()),
        End::Killed => thread::sleep(Duration::from_secs(60)),
        _ => thread::sleep(Duration::from_millis(300)),
    }
    Ok(())
}

/// What was sent is received, whatever becomes of the sender and its memory, and then the end that TCP gives.
pub fn ends(p: &mut Probe) -> io::Result<()> {
    use End::{Closed, Completed, Exited, HandedOver, Killed, Unmapped};
    for end in [Completed, Unmapped, Closed, HandedOver, Exited, Killed] {
        let pair = allowed(p)?;
        warm_up(pair.c(), pair.s())?;
        let mut pair = Some(pair);
        let (told, tell) = sys::pipe()?;
        // Of which the child takes its own copy.
        let child = in_child(|| {
            let Some(Pair { client, server }) = pair.take() else { return Ok(()) };
            drop(server);
            send_and_end(client, end, tell.as_raw_fd())
        })?;
        let Some(Pair { client, server }) = pair else { continue };
        drop(client);
        let s = server.as_raw_fd();
        for _ in 0..TIMES {
            sys::write(s, b"x")?;
            p.say("sent", reads(s, 0, LARGE, 0)?);
        }
        let mut is_pinned = [0];
        sys::read(told.as_raw_fd(), &mut is_pinned)?;
        p.say(&format!("{end:?}: sent, and not copied"), is_pinned[0] == 1);
        if end == Killed {
            sys::kill(child, libc::SIGKILL)?;
        }
        if matches!(end, Exited | Killed) {
            sys::wait_for(child)?;
        }
        p.say("the bytes are those that were sent", reads(s, 0, LARGE, 0)?);
        settle();
        let rest = sys::recv(s, &mut [0; 100], libc::MSG_WAITALL, false)?;
        let told = if end == HandedOver { b"the end".len() } else { 0 };
        p.say("and then what was sent by stdio, and the end", rest == told);
        if !matches!(end, Exited | Killed) {
            p.say("the sender came to its end", sys::wait_for(child)? == 0);
        }
    }
    Ok(())
}

/// How a receiver comes to the bytes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It looks at them first.
    Peeked,
    /// It looks at some of them, and the sender takes the others back.
    PeekedAndTakenBack,
    /// It takes some of them, and the sender takes the others back.
    TakenAndTakenBack,
    /// It looks at them in place.
    Borrowed,
    /// The same at some of them, and the sender takes the others back.
    BorrowedAndTakenBack,
    /// It drops some of them.
    Dropped,
    /// It takes a few at a time, by all calls.
    Little,
}

/// A part of the bytes, with which a piece does not end.
const PART: usize = 50_003;

impl Way {
    /// Takes all of them; whether they were right.
    fn take(self, pair: &Pair) -> io::Result<bool> {
        let (c, s) = (pair.c(), pair.s());
        let rest = |at| reads(s, at, LARGE - at, 0);
        match self {
            Self::Peeked => {
                let seen =
                    reads(s, 0, PART, libc::MSG_PEEK)? && reads(s, 0, LARGE, libc::MSG_PEEK)?;
                Ok(seen && rest(0)?)
            }
            Self::PeekedAndTakenBack => {
                let seen = reads(s, 0, PART, libc::MSG_PEEK)?;
                awaited(c)?;
                Ok(seen && rest(0)?)
            }
            Self::TakenAndTakenBack => {
                let taken = reads(s, 0, PART, 0)?;
                awaited(c)?;
                Ok(taken && rest(PART)?)
            }
            Self::Borrowed => borrowed(pair, LARGE, || Ok(())),
            Self::BorrowedAndTakenBack => {
                let lent = borrowed(pair, PART, || awaited(c).map(drop))?;
                Ok(lent && rest(PART)?)
            }
            Self::Dropped => {
                let n =
                    sys::recv(s, &mut vec![0; PART], libc::MSG_TRUNC | libc::MSG_WAITALL, true)?;
                Ok(n == PART && rest(PART)?)
            }
            Self::Little => little(s),
        }
    }
}

/// Looks at `len` bytes in place, and gives them back after `meanwhile`.
fn borrowed(pair: &Pair, len: usize, meanwhile: impl Fn() -> io::Result<()>) -> io::Result<bool> {
    let mut room = Room::new(LARGE);
    let mut at = 0;
    while at < len {
        let lent = room.borrow(&pair.server)?;
        let (mut seen, mut right) = (0, true);
        for piece in lent.pieces() {
            let mut bytes = vec![0; LARGE];
            let n = piece.copy_from(0, &mut bytes);
            right &= are_right(&bytes[..n], at + seen);
            seen += n;
        }
        meanwhile()?;
        let back = seen.min(len - at);
        if !right || back == 0 || lent.release(back)? != Released::Whole {
            return Ok(false);
        }
        at += back;
    }
    Ok(true)
}

fn little(fd: RawFd) -> io::Result<bool> {
    let mut at = 0;
    for (turn, len) in [1, 7001, 4096, 333, 20_000].into_iter().cycle().enumerate() {
        let len = len.min(LARGE - at);
        if len == 0 {
            break;
        }
        let mut got = vec![0; len];
        let n = match turn % 3 {
            0 => sys::read(fd, &mut got)?,
            1 => sys::readv(fd, &mut got, 3)?,
            _ => sys::recv(fd, &mut got, 0, false)?,
        };
        if !are_right(&got[..n], at) {
            return Ok(false);
        }
        at += n;
    }
    Ok(true)
}

/// A receiver gets what was sent, in whichever way it takes it.
pub fn ways(p: &mut Probe) -> io::Result<()> {
    use Way::{
        Borrowed, BorrowedAndTakenBack, Dropped, Little, Peeked, PeekedAndTakenBack,
        TakenAndTakenBack,
    };
    for way in [
        Peeked,
        PeekedAndTakenBack,
        TakenAndTakenBack,
        Borrowed,
        BorrowedAndTakenBack,
        Dropped,
        Little,
    ] {
        let (pair, mut memory) = (allowed(p)?, memory()?);
        let is_pinned = make_known(&pair, &mut memory)?;
        p.say(&format!("{way:?}: known, and not copied"), is_pinned);
        send(pair.c(), &memory.bytes()[FROM..])?;
        p.say("the bytes are those that were sent", way.take(&pair)?);
        // Of which it is told at the latest now, so that the memory is its own.
        awaited(pair.c())?;
        p.say("it goes on", make_known(&pair, &mut memory).is_ok());
    }
    Ok(())
}

/// Bytes that are given back without having been lent, as a second borrower of the same ones does who comes too late, are
/// passed over in the pipe, too.
pub fn unlent(p: &mut Probe) -> io::Result<()> {
    let (pair, mut memory) = (allowed(p)?, memory()?);
    p.say("known, and not copied", make_known(&pair, &mut memory)?);
    send(pair.c(), &memory.bytes()[FROM..])?;
    p.say("all is there", reads(pair.s(), 0, LARGE, libc::MSG_PEEK)?);
    let (mut one, mut other) = (Room::new(LARGE), Room::new(LARGE));
    let (first, second) = (one.borrow(&pair.server)?, other.borrow(&pair.server)?);
    send(pair.c(), &memory.bytes()[FROM..])?;
    p.say("given back by the first", first.release(LARGE)? == Released::Whole);
    p.say("and by the second", second.release(PART)? == Released::Whole);
    p.say("what comes behind is read", reads(pair.s(), PART, LARGE - PART, 0)?);
    Ok(())
}

/// What is pinned goes to who parted before the pipes were offered, comes from who parted after they were made, and is copied
/// once the process has closed the connection that made them.
pub fn relatives(p: &mut Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    warm_up(pair.c(), pair.s())?;
    let mut pair = Some(pair);
    let (told, tell) = sys::pipe()?;
    let sender = in_child(|| {
        let Some(Pair { client, server }) = pair.take() else { return Ok(()) };
        drop(server);
        send_among_relatives(client, tell.as_raw_fd())
    })?;
    let Some(Pair { client, server }) = pair else { return Ok(()) };
    drop(client);
    drop(tell);
    let s = server.as_raw_fd();
    let reader = || {
        let (go_out, go) = sys::pipe()?;
        let reader = in_child(|| {
            sys::read(go_out.as_raw_fd(), &mut [0])?;
            if reads(s, 0, PART, 0)? { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
        })?;
        io::Result::Ok((reader, go))
    };
    let (first, second) = (reader()?, reader()?);
    let next = || sys::write(s, b"x").map(drop);
    let is_told = |what: &str| {
        let mut word = [0];
        sys::read(told.as_raw_fd(), &mut word)?;
        p.say(what, word[0] == 1);
        io::Result::Ok(())
    };
    let takes_part = |(reader, go): (libc::pid_t, OwnedFd)| {
        next()?;
        sys::write(go.as_raw_fd(), &[0])?;
        p.say("a child has read its part", sys::wait_for(reader)? == 0);
        p.say("its parent reads the rest", reads(s, PART, LARGE - PART, 0)?);
        io::Result::Ok(())
    };
    for _ in 0..TIMES {
        next()?;
        p.say("sent", reads(s, 0, LARGE, 0)?);
    }
    is_told("known, and not copied")?;
    takes_part(first)?;
    is_told("it is read, and not copied")?;
    next()?;
    p.say("what a child sends is read", reads(s, 0, LARGE, 0)?);
    is_told("and not copied")?;
    next()?;
    p.say("and what its parent sends then", reads(s, 0, LARGE, 0)?);
    is_told("and not copied")?;
    takes_part(second)?;
    is_told("what was sent after the end of its maker was copied")?;
    p.say("the sender came to its end", sys::wait_for(sender)? == 0);
    Ok(())
}

/// Where a connection of this process to itself is, in what its ends share.
fn slot(groups: &[Shared], pair: &Pair) -> io::Result<(RegionView, usize)> {
    let port = sys::local_addr(pair.c())?.get().map(|addr| addr.port());
    let is_it = |(view, slot): &(RegionView, usize)| {
        Some(view.section(*slot, Side::Client).setup.tuple().local.port) == port
    };
    let views = groups.iter().filter_map(Shared::region);
    let mut slots = views.flat_map(|view| slots_in_use(view).into_iter().map(move |n| (view, n)));
    slots.find(is_it).ok_or_else(|| io::Error::other("it does not go through shared memory"))
}

/// A client that breaks the rules, as it says that bytes of a connection are in the pipes of another one: that one keeps what it
/// has.
pub fn elsewhere(p: &mut Probe) -> io::Result<()> {
    const LEN: usize = 1000;
    let (pair, mut memory) = (allowed(p)?, memory()?);
    p.say("known, and not copied", make_known(&pair, &mut memory)?);
    send(pair.c(), &memory.bytes()[FROM..])?;
    let other = p.pair()?;
    warm_up(other.c(), other.s())?;
    let mut groups = Found::default();
    let groups = groups.look(LINK_GROUP)?;
    let (view, honest) = slot(groups, &pair)?;
    let region = view.section(honest, Side::Server).ctl.accepted.load(Acquire);
    let (view, hostile) = slot(groups, &other)?;
    let prod = &view.section(hostile, Side::Client).prod;
    let at = prod.prod.load(Relaxed);
    let part = Part { at, len: LEN as u64, region, from: Lane { index: 0, at: 0 }.to_word() };
    view.grants(hostile, Side::Server).put(prod, prod.grants.load(Relaxed), &part);
    prod.prod.store(at + LEN as u64, Release);
    let got = sys::recv(other.s(), &mut [0; LEN], libc::MSG_DONTWAIT, false);
    let is_reset = got.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset);
    p.say("the other connection is reset", is_reset);
    p.say("the bytes are those that were sent", reads(pair.s(), 0, LARGE, 0)?);
    p.say("it goes on", make_known(&pair, &mut memory)?);
    Ok(())
}

/// The sender of [`relatives`], which tells by `tell` what has come of its calls.
fn send_among_relatives(client: OwnedFd, tell: RawFd) -> io::Result<()> {
    let (c, mut memory) = (client.as_raw_fd(), memory()?);
    let tell = |word: bool| sys::write(tell, &[u8::from(word)]).map(drop);
    let mut copied = true;
    for _ in 0..TIMES {
        copied = sends(c, &mut memory)?;
    }
    tell(!copied)?;
    tell(!sends(c, &mut memory)?)?;
    let child = in_child(|| tell(!sends(c, &mut memory)?))?;
    sys::wait_for(child)?;
    tell(!sends(c, &mut memory)?)?;
    let (go_out, go) = sys::pipe()?;
    let last = in_child(|| {
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        tell(sends(c, &mut memory)?)?;
        // By which the agent comes to know the process, to count what was sent on a connection that it is the last to have.
        listener().map(drop)
    })?;
    drop(client);
    sys::write(go.as_raw_fd(), &[0])?;
    sys::wait_for(last).map(drop)
}

/// A child that parted before there were any pipes shares a connection: what its parent sends is copied meanwhile, and is
/// received when the receiver leaves the ring and the child is the first to see it.
pub fn shared(p: &mut Probe) -> io::Result<()> {
    let (pair, mut memory) = (allowed(p)?, memory()?);
    let (go_out, go) = sys::pipe()?;
    let child = in_child(|| sys::read(go_out.as_raw_fd(), &mut [0]).map(drop))?;
    p.say("copied while it is shared", !make_known(&pair, &mut memory)?);
    sys::write(go.as_raw_fd(), &[0])?;
    p.say("a child came to its end", sys::wait_for(child)? == 0);
    p.say("and not copied then", make_known(&pair, &mut memory)?);
    drop(pair);

    let pair = allowed(p)?;
    let (c, s) = (pair.c(), pair.s());
    let child = in_child(|| {
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        sys::write(c, b"the end").map(drop)
    })?;
    make_known(&pair, &mut memory)?;
    p.say("all was sent", send(c, &memory.bytes()[FROM..])? == LARGE);
    sys::write_stdio(s, b"x")?;
    sys::write(go.as_raw_fd(), &[0])?;
    p.say("the bytes are those that were sent", reads(s, 0, LARGE, 0)?);
    let n = sys::recv(s, &mut [0; 7], libc::MSG_WAITALL, false)?;
    p.say("and then what the child has sent", n == 7);
    p.say("it came to its end", sys::wait_for(child)? == 0);
    Ok(())
}

/// Places for memory of peers that a process has.
const PLACES: usize = 64;

/// A connection whose receiver has mapped all that it has places for: what comes then is copied, from whatever memory. Places
/// come free as connections end, those of pipes, too.
pub fn crowded(p: &mut Probe) -> io::Result<()> {
    let (crowd, mut memory) = (allowed(p)?, memory()?);
    let mut granted = 0;
    for _ in 0..PLACES + 6 {
        granted += usize::from(is_granted(&crowd)?);
    }
    p.say("as many as have places, and not copied", granted == PLACES);
    let other = allowed(p)?;
    p.say("then what was pinned is copied", !make_known(&other, &mut memory)?);
    p.say("and what was granted", !is_granted(&other)?);
    drop((crowd, other));
    let mut pinned = 0;
    for _ in 0..PLACES + 6 {
        pinned += usize::from(make_known(&allowed(p)?, &mut memory)?);
    }
    p.say("there are places again, and not copied", pinned == PLACES + 6);
    p.say("also for what is granted, and not copied", is_granted(&allowed(p)?)?);
    Ok(())
}

/// Sends from memory of its own; whether it is not copied when the receiver has heard of it.
fn is_granted(pair: &Pair) -> io::Result<bool> {
    let mut memory = sys::Memory::new(LARGE)?;
    memory.bytes().iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    let mut copied = true;
    for _ in 0..3 {
        sys::write(pair.s(), b"x")?;
        sys::read(pair.c(), &mut [0])?;
        send(pair.c(), &memory.bytes()[..LARGE])?;
        if !reads(pair.s(), 0, LARGE, 0)? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        copied = is_copied(pair.c())?;
    }
    Ok(!copied)
}

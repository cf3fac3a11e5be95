//! Registered memory: who reads late or looks in place reads what was sent, whatever becomes of the memory. These run
//! with a short `SHUNT_GRANT_TIMEOUT`, and are not compared with kernel TCP line by line.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use shunt_api::send::{Completion, Hint, hinted};
use shunt_api::{Borrowed, Released, Room};
use shunt_functional::sys;

use crate::probe::{Pair, Probe, settle};
use crate::processes::in_child;
use crate::zerocopy::{ROOM, allowed, awaited, report, send};

/// Bytes of a call that can be granted.
const LARGE: usize = 64 << 10;

/// What is done with memory of which bytes are granted that nobody has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It is used again when the error queue says so.
    Completed,
    /// It is given back.
    Freed,
    /// The connection is closed, and then it is used again.
    Closed,
    /// The connection is written to by stdio, and then it is used again.
    HandedOver,
}

impl End {
    /// Lets it happen to the memory, and to the client, which may be closed then.
    fn come(
        self,
        memory: sys::Memory,
        client: OwnedFd,
    ) -> io::Result<(Option<OwnedFd>, Option<sys::Memory>)> {
        let (mut client, mut memory) = (Some(client), Some(memory));
        match self {
            Self::Completed => {}
            Self::Freed => drop(memory.take()),
            Self::Closed => drop(client.take()),
            Self::HandedOver => {
                let fd = client.as_ref().map_or(-1, AsRawFd::as_raw_fd);
                sys::write_stdio(fd, b"the end")?;
            }
        }
        if let Some(memory) = &mut memory {
            memory.bytes().fill(8);
        }
        Ok((client, memory))
    }
}

/// Memory that the peer of `pair` maps when it reads what is sent from it.
fn known(Pair { client, server }: &Pair) -> io::Result<sys::Memory> {
    let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
    let mut memory = sys::Memory::new(2 * LARGE)?;
    let mut got = vec![0; LARGE];
    for _ in 0..4 {
        sys::write(s, b"x")?;
        sys::read(c, &mut [0])?;
        send(c, &memory.bytes()[..LARGE])?;
        sys::recv(s, &mut got, libc::MSG_WAITALL, false)?;
        awaited(c)?;
        sys::recv_error(c, ROOM)?;
    }
    memory.bytes().fill(7);
    Ok(memory)
}

/// A child that parted before the memory was registered, and whose connection is the same, comes to take it back.
pub fn granted_by_a_relative(p: &mut Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    let (c, s) = (pair.c(), pair.s());
    let (go_out, go) = sys::pipe()?;
    let child = in_child(|| {
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        // A look that finds what nobody has read in time.
        thread::sleep(Duration::from_millis(1300));
        awaited(c)?;
        Ok(())
    })?;
    let mut memory = known(&pair)?;
    let mut got = vec![0; LARGE];
    p.result("sent", send(c, &memory.bytes()[LARGE..]));
    sys::write(go.as_raw_fd(), &[0])?;
    p.say("the child came to its end", sys::wait_for(child)? == 0);
    sys::recv(s, &mut got, libc::MSG_WAITALL, false)?;
    p.say("the bytes are those that were sent", got.iter().all(|byte| *byte == 7));
    Ok(())
}

/// A child that parted before the memory was offered reads what is granted from it.
pub fn granted_to_a_relative(p: &mut Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    let (c, s) = (pair.c(), pair.s());
    let (go_out, go) = sys::pipe()?;
    let child = in_child(|| {
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        let mut got = vec![0; LARGE];
        sys::recv(s, &mut got, libc::MSG_WAITALL, false)?;
        if got.iter().all(|byte| *byte == 7) {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    })?;
    let mut memory = known(&pair)?;
    p.result("sent", send(c, &memory.bytes()[LARGE..]));
    sys::write(go.as_raw_fd(), &[0])?;
    p.say("the child has read what was sent", sys::wait_for(child)? == 0);
    p.say("a completion", awaited(c)?);
    report(p, "which says", c, ROOM);
    Ok(())
}

/// Bytes from registered memory that a slow reader leaves unread: it reads those that were sent, whatever
/// becomes of the memory.
pub fn granted(p: &mut Probe) -> io::Result<()> {
    for end in [End::Completed, End::Freed, End::Closed, End::HandedOver] {
        let pair = allowed(p)?;
        let mut memory = known(&pair)?;
        let Pair { client, server } = pair;
        let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
        let mut got = vec![0; LARGE];
        p.result(&format!("{end:?}: sent"), send(c, &memory.bytes()[LARGE..]));
        if let End::Completed = end {
            p.say("a completion without a reader", awaited(c)?);
            report(p, "which says", c, ROOM);
        }
        let left = end.come(memory, client)?;
        sys::recv(s, &mut got, libc::MSG_WAITALL, false)?;
        p.say("the bytes are those that were sent", got.iter().all(|byte| *byte == 7));
        drop(left);
        settle();
        p.result("and then", sys::recv(s, &mut [0; 100], libc::MSG_WAITALL, false));
    }
    Ok(())
}

/// Requests of whose completion nobody wants to hear, since the answer implies it: the error queue stays empty, nobody is
/// woken for it, and calls that are told of have the numbers that they would have without.
pub fn quiet(p: &mut Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    let (c, s) = (pair.c(), pair.s());
    let mut memory = known(&pair)?;
    let numbers = |fd| sys::recv_error(fd, ROOM).map(|report| report.numbers);
    send(c, &memory.bytes()[..LARGE])?;
    sys::recv(s, &mut vec![0; LARGE], libc::MSG_WAITALL, false)?;
    awaited(c)?;
    let before = numbers(c)?;
    for round in 0..100 {
        memory.bytes().fill(round);
        let part = [IoSlice::new(&memory.bytes()[..LARGE])];
        let sent = hinted(&pair.client, &part, &[Hint::Auto], Completion::Quiet)?;
        let mut got = vec![0; LARGE];
        sys::recv(s, &mut got, libc::MSG_WAITALL, false)?;
        sys::write(s, b"x")?;
        let mut fds = [libc::pollfd { fd: c, events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut fds, Some(Duration::from_secs(5)))?;
        sys::read(c, &mut [0])?;
        let is_silent = numbers(c).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        if sent != LARGE
            || got.iter().any(|byte| *byte != round)
            || fds[0].revents != libc::POLLIN
            || !is_silent
        {
            p.say("each is read, answered and not told of", false);
        }
    }
    send(c, &memory.bytes()[..LARGE])?;
    sys::recv(s, &mut vec![0; LARGE], libc::MSG_WAITALL, false)?;
    awaited(c)?;
    let follows = before.zip(numbers(c)?).is_some_and(|(before, now)| now.0 == before.1 + 1);
    p.say("the next number follows", follows);
    Ok(())
}

/// A receiver that looks at granted bytes where they are while their memory goes: it hears that it has to look once more.
pub fn borrowed(p: &mut Probe) -> io::Result<()> {
    for end in [End::Completed, End::Freed, End::Closed, End::HandedOver] {
        let pair = allowed(p)?;
        let mut memory = known(&pair)?;
        let Pair { client, server } = pair;
        let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
        send(c, &memory.bytes()[LARGE..])?;
        let mut room = Room::new(LARGE);
        let lent = room.borrow(&server)?;
        p.say("the bytes are those that were sent", all(&lent, 7));
        if let End::Completed = end {
            awaited(c)?;
        }
        let _left = end.come(memory, client)?;
        let is_changed = !all(&lent, 7);
        let released = lent.release(1)?;
        p.say(&format!("{end:?}: released"), format!("{released:?}"));
        p.say("it is said that they have changed", !is_changed || released == Released::Stale);
        let rest = LARGE - usize::from(released == Released::Whole);
        let mut got = vec![0; rest];
        let n = sys::recv(s, &mut got, libc::MSG_WAITALL, false)?;
        p.say("what is there is what was sent", n == rest && got.iter().all(|byte| *byte == 7));
    }
    let Pair { client, server } = p.pair()?;
    let mut room = Room::new(LARGE);
    sys::write(client.as_raw_fd(), b"0123456789")?;
    let lent = room.borrow(&server)?;
    p.say("more than there is, given back, is an error", lent.release(11).is_err());
    let mut got = [0; 10];
    let lent = room.borrow(&server)?;
    let n = lent.pieces().next().map_or(0, |piece| piece.copy_from(0, &mut got));
    sys::recv(server.as_raw_fd(), &mut [0; 4], 0, false)?;
    // Another call has taken some of them.
    let _told = lent.release(4);
    p.say("what was lent", String::from_utf8_lossy(&got[..n]).into_owned());
    Ok(())
}

/// True when all of the bytes are of this kind.
fn all(lent: &Borrowed<'_>, kind: u8) -> bool {
    let mut bytes = vec![0; LARGE];
    lent.pieces().all(|piece| {
        let n = piece.copy_from(0, &mut bytes);
        bytes[..n].iter().all(|byte| *byte == kind)
    })
}

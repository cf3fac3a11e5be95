//! Memory that was never asked for of `shunt_alloc`: memfds that the program maps by itself. These run with a short
//! `SHUNT_GRANT_TIMEOUT`, and are not compared with kernel TCP line by line.

use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{F_SEAL_SHRINK, MSG_ZEROCOPY};
use shunt_functional::sys::{self, Mapped};

use crate::probe::{Pair, Probe, settle, warm_up};
use crate::processes::{close_on_exec, in_child};
use crate::zerocopy::{ROOM, allowed, awaited, send};

/// Bytes of a call that can be granted.
const LARGE: usize = 64 << 10;

/// How often little is sent.
const TIMES: usize = 100;

/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const COPIED: u8 = 1;

/// Sends a part of the memory and takes it; what the error queue says of it, and whether the bytes are of this kind.
fn carried(pair: &Pair, memory: &Mapped, from: usize, kind: u8) -> io::Result<(bool, bool)> {
    memory.send(pair.c(), from, LARGE, MSG_ZEROCOPY)?;
    let is_right = received(pair.s(), kind)?;
    Ok((is_copied(pair.c())?, is_right))
}

fn received(fd: RawFd, kind: u8) -> io::Result<bool> {
    let mut got = vec![0; LARGE];
    let n = sys::recv(fd, &mut got, libc::MSG_WAITALL, false)?;
    Ok(n == LARGE && got.iter().all(|byte| *byte == kind))
}

/// Waits for a completion: true when it was by a copy.
pub fn is_copied(fd: RawFd) -> io::Result<bool> {
    awaited(fd)?;
    let report = sys::recv_error(fd, ROOM)?;
    Ok(report.error.is_some_and(|(.., code)| code == COPIED))
}

/// A connection on which memory with these seals, and with 7 in it, is known to the peer as far as it can be.
fn known(p: &Probe, seals: c_int) -> io::Result<(Pair, Mapped)> {
    let pair = allowed(p)?;
    let mut memory = Mapped::new(2 * LARGE, seals)?;
    memory.bytes().fill(7);
    for _ in 0..4 {
        sys::write(pair.s(), b"x")?;
        sys::read(pair.c(), &mut [0])?;
        carried(&pair, &memory, 0, 7)?;
    }
    Ok((pair, memory))
}

/// What is done with a mapping of which bytes are granted that nobody has read.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is used again when the error queue says so.
    Completed,
    /// All of it is unmapped.
    Unmapped,
    /// The part is.
    PartUnmapped,
    /// Private memory is mapped in its place.
    Replaced,
    /// It is moved, and is longer then.
    Moved,
    /// It is cut short, so that the part goes.
    Shortened,
}

impl End {
    fn come(self, pair: &Pair, memory: &mut Mapped) -> io::Result<()> {
        match self {
            Self::Completed => is_copied(pair.c()).map(drop),
            Self::Unmapped => memory.unmap_after(0),
            Self::PartUnmapped => memory.unmap_after(LARGE),
            Self::Replaced => {
                memory.replace(LARGE, LARGE)?;
                memory.bytes()[LARGE..].fill(9);
                Ok(())
            }
            Self::Moved => memory.move_to(3 * LARGE),
            Self::Shortened => memory.shorten(LARGE),
        }
    }
}

/// A mapping that goes while bytes from it are unread: those that were sent are received, though the memory is
/// written to at once.
pub fn found(p: &mut Probe) -> io::Result<()> {
    use End::{Completed, Moved, PartUnmapped, Replaced, Shortened, Unmapped};
    for end in [Completed, Unmapped, PartUnmapped, Replaced, Moved, Shortened] {
        let (pair, mut memory) = known(p, F_SEAL_SHRINK)?;
        p.say(&format!("{end:?}: sent"), memory.send(pair.c(), LARGE, LARGE, MSG_ZEROCOPY)?);
        end.come(&pair, &mut memory)?;
        memory.fill_file(8, 2 * LARGE)?;
        p.say("the bytes are those that were sent", received(pair.s(), 7)?);
        if !matches!(end, Completed) {
            p.say("it was copied", is_copied(pair.c())?);
        }
        match end {
            Replaced => {
                let (copied, is_right) = carried(&pair, &memory, LARGE, 9)?;
                p.say("what is there now is sent", is_right);
                p.say("and copied", copied);
            }
            Completed | PartUnmapped | Moved | Shortened => {
                let (copied, is_right) = carried(&pair, &memory, 0, 8)?;
                p.say("what is left of it is sent", is_right);
                p.say("and not copied", !copied);
            }
            Unmapped => {}
        }
    }
    Ok(())
}

/// From so many bytes on they are granted.
pub fn small(p: &mut Probe) -> io::Result<()> {
    const LEAST: usize = 4096;
    let (pair, memory) = known(p, F_SEAL_SHRINK)?;
    for _ in 0..TIMES {
        memory.send(pair.c(), LARGE, LEAST, MSG_ZEROCOPY)?;
        p.say("all is received", sys::recv(pair.s(), &mut [0; LARGE], 0, false)? == LEAST);
        p.say("and not copied", !is_copied(pair.c())?);
    }
    memory.send(pair.c(), LARGE, LEAST - 1, MSG_ZEROCOPY)?;
    p.say("less is received", sys::recv(pair.s(), &mut [0; LARGE], 0, false)? == LEAST - 1);
    p.say("and copied", is_copied(pair.c())?);
    Ok(())
}

/// A child sends from the memory that it has inherited, on the connection that it has inherited, and so does its parent
/// afterwards.
pub fn inherited(p: &mut Probe) -> io::Result<()> {
    let (pair, mut memory) = known(p, F_SEAL_SHRINK)?;
    let (told, tell) = sys::pipe()?;
    let child = in_child(|| {
        let mut copied = true;
        for _ in 0..4 {
            copied = sent_and_read(&pair, &memory.bytes()[LARGE..])?;
        }
        sys::write(tell.as_raw_fd(), &[u8::from(copied)])?;
        // What it unmaps its parent still has.
        memory.unmap_after(0)
    })?;
    p.say("a child has sent", sys::wait_for(child)? == 0);
    let mut copied = [1];
    sys::read(told.as_raw_fd(), &mut copied)?;
    p.say("and not copied", copied[0] == 0);
    let (copied, is_right) = carried(&pair, &memory, 0, 7)?;
    p.say("its parent goes on", is_right);
    p.say("and not copied", !copied);
    Ok(())
}

/// Sends bytes that are all 7, and reads them; whether they were copied.
fn sent_and_read(pair: &Pair, bytes: &[u8]) -> io::Result<bool> {
    sys::write(pair.s(), b"x")?;
    sys::read(pair.c(), &mut [0])?;
    send(pair.c(), bytes)?;
    if received(pair.s(), 7)? {
        is_copied(pair.c())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// A child sends from memory of its own on the connection that it has inherited, and ends or becomes another program: its parent can put what nobody
/// has read by then to where it is to be, though it has nothing of that memory.
pub fn by_a_child(p: &mut Probe) -> io::Result<()> {
    for (is_asked_for, becomes_another) in [(true, false), (false, false), (false, true)] {
        let pair = allowed(p)?;
        warm_up(pair.c(), pair.s())?;
        let mut pair = Some(pair);
        let (left, leaves) = sys::pipe()?;
        let (go_out, go) = sys::pipe()?;
        let reader = in_child(|| {
            let Some(Pair { client, server }) = pair.take() else { return Ok(()) };
            drop(client);
            read_and_leave(server.as_raw_fd(), go_out.as_raw_fd(), leaves.as_raw_fd())
        })?;
        let Some(Pair { client, server }) = pair else { return Ok(()) };
        drop(server);
        let c = client.as_raw_fd();
        let (told, tell) = sys::pipe()?;
        let send_all = |bytes: &mut [u8]| {
            bytes.fill(7);
            let mut copied = true;
            for _ in 0..4 {
                sys::read(c, &mut [0])?;
                send(c, bytes)?;
                copied = is_copied(c)?;
            }
            send(c, bytes)?;
            sys::write(tell.as_raw_fd(), &[u8::from(copied)])?;
            if becomes_another {
                close_on_exec(&client)?;
                return Err(Command::new("true").exec());
            }
            Ok(())
        };
        // Which it has until it ends.
        let child = in_child(|| match is_asked_for {
            true => send_all(ManuallyDrop::new(sys::Memory::new(LARGE)?).bytes()),
            false => send_all(ManuallyDrop::new(Mapped::new(LARGE, F_SEAL_SHRINK)?).bytes()),
        })?;
        let asked = if is_asked_for { "asked for" } else { "found" };
        let end = if becomes_another { "exec" } else { "exit" };
        p.say(&format!("{asked}, {end}: a child has sent"), sys::wait_for(child)? == 0);
        let mut copied = [1];
        sys::read(told.as_raw_fd(), &mut copied)?;
        p.say("and not copied", copied[0] == 0);
        sys::write(go.as_raw_fd(), &[0])?;
        sys::read(left.as_raw_fd(), &mut [0])?;
        p.result("its parent sends", sys::write(c, b"the end"));
        p.say("what was sent was read", sys::wait_for(reader)? == 0);
    }
    Ok(())
}

/// The reader of what [`by_a_child`] sends: before the last of it it leaves the ring, so that it is sent once more.
fn read_and_leave(fd: RawFd, go: RawFd, leaves: RawFd) -> io::Result<()> {
    let is = |right| if right { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) };
    for _ in 0..4 {
        sys::write(fd, b"x")?;
        is(received(fd, 7)?)?;
    }
    sys::read(go, &mut [0])?;
    sys::write_stdio(fd, b"x")?;
    sys::write(leaves, &[0])?;
    is(received(fd, 7)?)?;
    is(sys::recv(fd, &mut [0; 7], libc::MSG_WAITALL, false)? == 7)
}

/// Huge pages: they are granted where all are there, and copied where one is still to be found, for which whoever reads
/// it may come too late.
pub fn huge(p: &mut Probe) -> io::Result<()> {
    const PAGE: usize = 2 << 20;
    let pair = allowed(p)?;
    for missing in [0, PAGE] {
        let mut memory = huge_pages(2 * PAGE)?;
        memory.bytes()[..2 * PAGE - missing].fill(7);
        let mut last = (true, true);
        for _ in 0..4 {
            sys::write(pair.s(), b"x")?;
            sys::read(pair.c(), &mut [0])?;
            last = carried(&pair, &memory, PAGE - LARGE, 7)?;
        }
        p.say("it is sent", last.1);
        match missing {
            0 => p.say("and not copied", !last.0),
            _ => p.say("and copied", last.0),
        }
    }
    Ok(())
}

/// There are few. Those of before are free when the agent has let go of them, too.
fn huge_pages(len: usize) -> io::Result<Mapped> {
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        match Mapped::huge(len, F_SEAL_SHRINK) {
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => settle(),
            made => return made,
        }
    }
    Mapped::huge(len, F_SEAL_SHRINK)
}

/// What anybody can cut short is copied, and where it was cut short the kernel's error comes.
pub fn unsealed(p: &mut Probe) -> io::Result<()> {
    let (pair, memory) = known(p, 0)?;
    let (copied, is_right) = carried(&pair, &memory, LARGE, 7)?;
    p.say("it is sent", is_right);
    p.say("and copied", copied);
    memory.truncate(LARGE)?;
    let (copied, is_right) = carried(&pair, &memory, 0, 7)?;
    p.say("what is left is sent", is_right);
    p.say("and copied", copied);
    let cut = memory.send(pair.c(), LARGE, LARGE, MSG_ZEROCOPY);
    let error = cut.err().and_then(|e| e.raw_os_error());
    p.say("what is cut off is EFAULT", error == Some(libc::EFAULT));
    let (_, is_right) = carried(&pair, &memory, 0, 7)?;
    p.say("the connection goes on", is_right);
    Ok(())
}

//! splice(2) between connections and pipes, as proxies use it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use shunt_functional::sys;

use crate::probe::{Probe, drain, settle};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    into_a_small_pipe(p)?;
    out_of_a_pipe(p)?;
    neither_is_a_pipe(p)?;
    ends(p)
}

const NONBLOCK: u32 = libc::SPLICE_F_NONBLOCK;
/// The least that a pipe can have.
const SMALL: usize = 4096;

/// A pipe of the smallest size.
fn small_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = sys::pipe()?;
    sys::set_pipe_size(write.as_raw_fd(), SMALL)?;
    Ok((read, write))
}

/// More is there than the pipe takes, and nobody else reads it: what fits is moved, no call waits for
/// what does not.
fn into_a_small_pipe(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = small_pipe()?;
    sys::write(pair.c(), &[5; 5 * SMALL / 2])?;
    settle();
    let splice = |flags| sys::splice(pair.s(), write.as_raw_fd(), 100_000, flags);
    p.result("more than fits", splice(0));
    p.result("into a full pipe", splice(NONBLOCK));
    p.result("from the pipe", sys::read(read.as_raw_fd(), &mut [0; 2 * SMALL]));
    p.result("once more", splice(NONBLOCK));
    p.result("from the pipe", sys::read(read.as_raw_fd(), &mut [0; 2 * SMALL]));
    sys::set_nonblocking(write.as_raw_fd(), true)?;
    p.result("the rest", splice(0));
    sys::set_nonblocking(pair.s(), true)?;
    p.result("nothing left", splice(0));
    p.result("from the pipe", sys::read(read.as_raw_fd(), &mut [0; 2 * SMALL]));
    p.result("still nothing left", splice(NONBLOCK));
    Ok(())
}

/// A sender whose peer does not read is told so, and has lost nothing.
fn out_of_a_pipe(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = small_pipe()?;
    sys::set_nonblocking(pair.c(), true)?;
    let splice = || sys::splice(read.as_raw_fd(), pair.c(), SMALL, NONBLOCK);
    p.result("from an empty pipe", splice());
    let (mut written, mut sent) = (0, 0);
    let stopped = loop {
        // What is in the pipe still is sent first.
        if sys::fionread(read.as_raw_fd())? == 0 {
            written += sys::write(write.as_raw_fd(), &[6; SMALL])?;
        }
        match splice() {
            Ok(n) => sent += n,
            Err(e) => break e,
        }
    };
    p.say("until there is no room", sys::errno_name(&stopped));
    p.say("much was sent", sent > 100_000);
    p.say("all of it arrives", drain(pair.s())? == sent);
    p.say("then the rest", splice()? == written - sent);
    settle();
    p.say("which arrives", drain(pair.s())? == written - sent);
    Ok(())
}

fn neither_is_a_pipe(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let file = sys::memfd(c"splicing")?;
    sys::pwrite_all(file.as_raw_fd(), b"contents")?;
    sys::write(pair.c(), b"abc")?;
    settle();
    for (what, from, to) in [
        ("socket to socket", pair.s(), pair.s()),
        ("socket to file", pair.s(), file.as_raw_fd()),
        ("file to socket", file.as_raw_fd(), pair.s()),
        ("socket to nothing", pair.s(), 1_000_000),
        ("nothing to socket", 1_000_000, pair.s()),
    ] {
        p.result(what, sys::splice(from, to, 10, NONBLOCK));
    }
    p.result("nothing is lost", sys::recv(pair.s(), &mut [0; 10], libc::MSG_DONTWAIT, false));
    Ok(())
}

fn ends(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = small_pipe()?;
    sys::write(pair.c(), b"last")?;
    drop(pair.client);
    settle();
    let server = pair.server.as_raw_fd();
    p.result("last bytes", sys::splice(server, write.as_raw_fd(), 100, 0));
    p.result("the end, behind a full pipe", sys::splice(server, write.as_raw_fd(), 100, NONBLOCK));
    p.result("from the pipe", sys::read(read.as_raw_fd(), &mut [0; 10]));
    p.result("the end", sys::splice(server, write.as_raw_fd(), 100, 0));
    drop(write);
    p.result("a pipe that has ended", sys::splice(read.as_raw_fd(), server, 100, 0));
    Ok(())
}

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
    refused(p)?;
    flags(p)?;
    echoed(p)?;
    proxied(p)?;
    hardly_any_room(p)?;
    used_by_the_kernel(p)?;
    without_readers(p)?;
    without_writers(p)?;
    later(p)?;
    between_pipes(p)?;
    shut_and_reset(p)?;
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

/// Calls that move nothing whatever there is.
fn refused(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = sys::pipe()?;
    let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
    sys::write(pair.c(), b"abc")?;
    sys::write(write, b"piped")?;
    settle();
    for flags in [0x10, 0x8000_0000, u32::MAX] {
        p.result(&format!("flags of {flags:#x}"), sys::splice(pair.s(), write, 10, flags));
        p.result("out of a pipe", sys::splice(read, pair.c(), 10, flags));
        p.result("of nothing", sys::splice(read, pair.c(), 0, flags));
    }
    for (what, from, to) in [
        ("into the wrong end", pair.s(), read),
        ("out of the wrong end", write, pair.c()),
        ("into -1", pair.s(), -1),
        ("out of -1", -1, pair.c()),
        ("from itself into itself", pair.s(), pair.s()),
    ] {
        for len in [0, 10] {
            p.result(&format!("{len} {what}"), sys::splice(from, to, len, NONBLOCK));
        }
    }
    for at in [0, 1, -1] {
        let (mut here, mut there) = (at, at);
        let n = sys::splice_at((pair.s(), Some(&mut here)), (write, None), 10, 0);
        p.result(&format!("from a connection at {at}"), n);
        let n = sys::splice_at((pair.s(), None), (write, Some(&mut there)), 10, 0);
        p.result(&format!("into a pipe at {at}"), n);
        let n = sys::splice_at((read, Some(&mut here)), (pair.c(), None), 10, 0);
        p.result(&format!("from a pipe at {at}"), n);
        let n = sys::splice_at((read, None), (pair.c(), Some(&mut there)), 10, 0);
        p.result(&format!("into a connection at {at}"), n);
        p.say("the offsets", format!("{here} {there}"));
    }
    p.result("tee of a connection", sys::tee(pair.s(), write, 10, 0));
    p.result("tee into a connection", sys::tee(read, pair.c(), 10, 0));
    p.result("vmsplice into a connection", sys::vmsplice(pair.c(), b"abc"));
    let file = sys::memfd(c"refused")?;
    p.result("copy_file_range into it", sys::copy_file_range(file.as_raw_fd(), pair.c(), 10));
    p.result("copy_file_range out of it", sys::copy_file_range(pair.s(), file.as_raw_fd(), 10));
    p.result("copy_file_range to itself", sys::copy_file_range(pair.s(), pair.c(), 10));
    p.result("nothing is lost", sys::recv(pair.s(), &mut [0; 10], libc::MSG_DONTWAIT, false));
    p.result("nothing was added", sys::recv(pair.s(), &mut [0; 10], libc::MSG_DONTWAIT, false));
    p.result("nor to the pipe", sys::read(read, &mut [0; 10]));
    Ok(())
}

/// The flags that proxies set.
fn flags(p: &Probe) -> io::Result<()> {
    use libc::{SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE};
    for flags in [0, SPLICE_F_MOVE, SPLICE_F_MORE, SPLICE_F_MOVE | SPLICE_F_MORE | SPLICE_F_GIFT] {
        for wait in [0, NONBLOCK] {
            let flags = flags | wait;
            let (pair, other) = (p.pair()?, p.pair()?);
            let (read, write) = sys::pipe()?;
            let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
            sys::write(pair.c(), b"0123456789")?;
            settle();
            let what = format!("with flags {flags}");
            p.result(&what, sys::splice(pair.s(), write, 4, flags));
            p.result(&what, sys::splice(pair.s(), write, 100, flags));
            p.result(&what, sys::splice(read, other.c(), 3, flags));
            p.result(&what, sys::splice(read, other.c(), 100, flags));
            if wait != 0 {
                p.result(&what, sys::splice(read, other.c(), 100, flags));
            }
            let mut got = [0; 10];
            sys::recv(other.s(), &mut got, libc::MSG_WAITALL, false)?;
            p.say("arrives", String::from_utf8_lossy(&got));
        }
    }
    Ok(())
}

/// The same connection at both ends.
fn echoed(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = sys::pipe()?;
    for round in 0..20_usize {
        let sent = format!("a message of round {round}").repeat(1 + round * 20);
        sys::write(pair.c(), sent.as_bytes())?;
        let mut left = sent.len();
        while left > 0 {
            let n = sys::splice(pair.s(), write.as_raw_fd(), left, 0)?;
            let mut piped = n;
            while piped > 0 {
                piped -= sys::splice(read.as_raw_fd(), pair.s(), piped, 0)?;
            }
            left -= n;
        }
        let mut got = vec![0; sent.len()];
        sys::recv(pair.c(), &mut got, libc::MSG_WAITALL, false)?;
        p.say("what comes back", got == sent.as_bytes());
    }
    Ok(())
}

/// From one connection to another, without waiting for either.
fn proxied(p: &Probe) -> io::Result<()> {
    const LEN: usize = 3 << 20;
    let bytes: Vec<u8> = (0..LEN).map(|n| (n ^ (n >> 7) ^ (n >> 15)).to_le_bytes()[0]).collect();
    for size in [SMALL, 16 * SMALL, 256 * SMALL] {
        let (from, to) = (p.pair()?, p.pair()?);
        let (read, write) = sys::pipe()?;
        sys::set_pipe_size(write.as_raw_fd(), size)?;
        for fd in [from.s(), to.c()] {
            sys::set_nonblocking(fd, true)?;
        }
        let got = std::thread::scope(|scope| -> io::Result<Vec<u8>> {
            let (source, target, bytes) = (from.c(), to.s(), &bytes);
            scope.spawn(move || {
                let mut sent = 0;
                while let Ok(n @ 1..) = sys::write(source, &bytes[sent..]) {
                    sent += n;
                }
                let _ = sys::shutdown(source, libc::SHUT_WR);
            });
            let reader = scope.spawn(move || {
                let (mut all, mut part) = (Vec::new(), vec![0; 50_000]);
                while let Ok(n @ 1..) = sys::read(target, &mut part) {
                    all.extend_from_slice(&part[..n]);
                }
                all
            });
            let (mut piped, mut over) = (0, false);
            while !over || piped > 0 {
                let mut idle = true;
                if !over {
                    match sys::splice(from.s(), write.as_raw_fd(), 1 << 30, MOVE | NONBLOCK) {
                        Ok(0) => over = true,
                        Ok(n) => (piped, idle) = (piped + n, false),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => return Err(e),
                    }
                }
                if piped > 0 {
                    match sys::splice(read.as_raw_fd(), to.c(), piped, MOVE | NONBLOCK) {
                        Ok(n) => (piped, idle) = (piped - n, false),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => return Err(e),
                    }
                }
                if idle {
                    std::thread::yield_now();
                }
            }
            sys::shutdown(to.c(), libc::SHUT_WR)?;
            reader.join().map_err(|_| io::Error::other("the reader panicked"))
        })?;
        p.say(&format!("through a pipe of {size}"), got == bytes);
    }
    Ok(())
}

const MOVE: u32 = libc::SPLICE_F_MOVE;

/// A pipe with less than a page left, and one with a page.
fn hardly_any_room(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), &[5; 10_000])?;
    settle();
    let (read, write) = sys::pipe()?;
    sys::set_pipe_size(write.as_raw_fd(), 2 * SMALL)?;
    sys::write(write.as_raw_fd(), &[1; SMALL + 100])?;
    p.result("less than a page", sys::splice(pair.s(), write.as_raw_fd(), 10, NONBLOCK));
    p.result("the pipe", sys::read(read.as_raw_fd(), &mut [0; SMALL]));
    p.result("a page", sys::splice(pair.s(), write.as_raw_fd(), 10, NONBLOCK));
    p.result("the pipe", sys::read(read.as_raw_fd(), &mut [0; SMALL]));
    p.say("the connection", drain(pair.s())?);
    Ok(())
}

/// Pipes in which the kernel's own calls have put pages, and which take no hints any more.
fn used_by_the_kernel(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = sys::pipe()?;
    let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
    let file = sys::memfd(c"splicing")?;
    sys::pwrite_all(file.as_raw_fd(), &[8; 10_000])?;
    let mut at = 0;
    p.result("a file", sys::splice_at((file.as_raw_fd(), Some(&mut at)), (write, None), 9000, 0));
    p.result("on to a connection", sys::splice(read, pair.c(), 8000, 0));
    p.result("memory", sys::vmsplice(write, b"from memory"));
    let (copy, into) = sys::pipe()?;
    p.result("a copy", sys::tee(read, into.as_raw_fd(), 500, 0));
    p.result("the copy", sys::splice(copy.as_raw_fd(), pair.c(), 500, 0));
    p.result("the rest", sys::splice(read, pair.c(), 100_000, 0));
    p.result("no more", sys::splice(read, pair.c(), 100_000, NONBLOCK));
    settle();
    p.result("all arrives", sys::splice(pair.s(), write, 100_000, 0).map(|n| n > 0));
    p.result("and none is lost", {
        let piped = sys::fionread(read)?;
        drain(pair.s()).map(|n| n + usize::try_from(piped).unwrap_or(0))
    });
    Ok(())
}

fn without_readers(p: &Probe) -> io::Result<()> {
    sys::set_signal_counter(libc::SIGPIPE)?;
    for bytes in [&b""[..], b"abc"] {
        for flags in [0, NONBLOCK] {
            let pair = p.pair()?;
            let (read, write) = sys::pipe()?;
            sys::write(pair.c(), bytes)?;
            settle();
            drop(read);
            let what = format!("{} bytes into a pipe without readers", bytes.len());
            p.result(&what, sys::splice(pair.s(), write.as_raw_fd(), 10, flags));
            p.result(&what, sys::sendfile_from(write.as_raw_fd(), pair.s(), None, 10));
            p.say("SIGPIPEs", sys::signal_count());
            p.result("nothing is lost", drain(pair.s()));
        }
    }
    sys::reset_signal(libc::SIGPIPE)
}

/// Named pipes may have had no writer yet.
fn without_writers(p: &Probe) -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("fifo");
    let name = std::ffi::CString::new(path.to_string_lossy().into_owned())?;
    // SAFETY: a C string.
    if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let open = |write: bool| {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::File::options();
        options.read(!write).write(write).custom_flags(libc::O_NONBLOCK).open(&path)
    };
    let pair = p.pair()?;
    let read = open(false)?;
    sys::set_nonblocking(read.as_raw_fd(), false)?;
    let splice = |flags| sys::splice(read.as_raw_fd(), pair.c(), 10, flags);
    for flags in [0, NONBLOCK] {
        p.result("before there is a writer", splice(flags));
    }
    let write = open(true)?;
    p.result("with a writer", splice(NONBLOCK));
    sys::write(write.as_raw_fd(), b"abc")?;
    p.result("with bytes", splice(0));
    drop(write);
    for flags in [0, NONBLOCK] {
        p.result("after the last writer", splice(flags));
    }
    settle();
    p.result("arrives", drain(pair.s()));
    Ok(())
}

/// Does `first` a moment after the call has begun to wait.
fn after_a_while(
    first: impl FnOnce() + Send,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            settle();
            first();
        });
        call()
    })
}

/// Calls that wait.
fn later(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (read, write) = sys::pipe()?;
    let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
    let (own, peer) = (pair.s(), pair.c());
    let send = || drop(sys::write(peer, b"sent later"));
    p.result("for bytes to come", after_a_while(send, || sys::splice(own, write, 100, 0)));
    let fill = vec![3; 64 << 10];
    sys::read(read, &mut [0; 100])?;
    sys::write(write, &fill)?;
    sys::write(peer, b"more")?;
    settle();
    let empty = || drop(sys::read(read, &mut [0; 64 << 10]));
    p.result("for room in the pipe", after_a_while(empty, || sys::splice(own, write, 100, 0)));
    sys::read(read, &mut [0; 100])?;
    let put = || drop(sys::write(write, b"put later"));
    p.result("for bytes in the pipe", after_a_while(put, || sys::splice(read, own, 100, 0)));
    settle();
    p.result("which arrive", drain(peer));
    let full = crate::probe::fill(own)?;
    sys::write(write, b"put before")?;
    let mut drained = 0;
    let take = || drained = drain(peer).unwrap_or(0);
    p.result("for room in the connection", after_a_while(take, || sys::splice(read, own, 100, 0)));
    settle();
    p.say("all of which arrives", drained + drain(peer)? == full + 10);
    Ok(())
}

/// Calls that have nothing to do with connections.
fn between_pipes(p: &Probe) -> io::Result<()> {
    let (read, write) = sys::pipe()?;
    let (copy, into) = sys::pipe()?;
    let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
    sys::write(write, b"0123456789")?;
    p.result("tee", sys::tee(read, into.as_raw_fd(), 4, 0));
    p.result("splice", sys::splice(read, into.as_raw_fd(), 6, 0));
    p.result("vmsplice", sys::vmsplice(into.as_raw_fd(), b"memory"));
    let mut bytes = [0; 100];
    let n = sys::read(copy.as_raw_fd(), &mut bytes)?;
    p.say("what was moved", String::from_utf8_lossy(&bytes[..n]));
    p.result("what is left", sys::read(read, &mut bytes));
    Ok(())
}

fn shut_and_reset(p: &Probe) -> io::Result<()> {
    let (read, write) = sys::pipe()?;
    let pair = p.pair()?;
    sys::write(pair.c(), b"abc")?;
    settle();
    sys::shutdown(pair.s(), libc::SHUT_RD)?;
    for _ in 0..2 {
        p.result("after SHUT_RD", sys::splice(pair.s(), write.as_raw_fd(), 10, NONBLOCK));
    }
    p.result("in the pipe", sys::fionread(read.as_raw_fd()));
    let pair = p.pair()?;
    sys::linger(pair.c(), 0)?;
    drop(pair.client);
    settle();
    for _ in 0..2 {
        let n = sys::splice(pair.server.as_raw_fd(), write.as_raw_fd(), 10, NONBLOCK);
        p.result("after a reset", n);
    }
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

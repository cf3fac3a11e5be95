//! Descriptors: their numbers, flags and duplicates.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use shunt_functional::sys;

use crate::probe::{Probe, connect_to, listener, settle, show, try_recv};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    numbers(p)?;
    flags(p)?;
    duplicates(p)?;
    replaced(p)?;
    closed_ranges(p)
}

/// The number that a new descriptor gets.
fn next_number() -> io::Result<RawFd> {
    Ok(sys::memfd(c"probe")?.as_raw_fd())
}

/// A new descriptor has the lowest free number.
fn numbers(p: &Probe) -> io::Result<()> {
    let base = next_number()?;
    let listener = listener()?;
    let client = connect_to(&listener)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    let numbers = [&listener, &client, &server].map(|fd| fd.as_raw_fd() - base);
    p.say("listener, client, server", format!("{numbers:?}"));
    crate::probe::warm_up(client.as_raw_fd(), server.as_raw_fd())?;
    p.say("the next one", next_number()? - base);
    let free = client.as_raw_fd();
    drop(client);
    p.say("a number that became free", next_number()? == free);
    let pair = p.pair_with(&listener)?;
    p.say("a pair", format!("{} {}", pair.c() - base, pair.s() - base));
    drop((pair, server, listener));
    p.say("everything is closed", next_number()? - base);
    Ok(())
}

fn flags(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    for (name, flags) in [
        ("none", 0),
        ("CLOEXEC", libc::SOCK_CLOEXEC),
        ("NONBLOCK", libc::SOCK_NONBLOCK),
        ("both", libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK),
    ] {
        let _client = connect_to(&listener)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), flags)?;
        let fd = server.as_raw_fd();
        let closes = sys::fd_flags(fd)? & libc::FD_CLOEXEC != 0;
        let status = sys::status_flags(fd)?;
        p.say(
            &format!("accept4 with {name}"),
            format!("close-on-exec {closes}, O_NONBLOCK {}", status & libc::O_NONBLOCK != 0),
        );
    }
    // The listener's O_NONBLOCK is not inherited.
    sys::set_nonblocking(listener.as_raw_fd(), true)?;
    let _client = connect_to(&listener)?;
    settle();
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    p.say("O_NONBLOCK of the accepted", sys::status_flags(server.as_raw_fd())? & libc::O_NONBLOCK);
    p.say("wrong flags", show(sys::accept(listener.as_raw_fd(), 1 << 30).map(|_| "a socket")));
    Ok(())
}

fn duplicates(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let copy = sys::dup(pair.s())?;
    sys::write(pair.c(), b"abcdef")?;
    settle();
    p.result("read through one", sys::read(pair.s(), &mut [0; 3]));
    p.result("and the other", sys::read(copy.as_raw_fd(), &mut [0; 10]));
    sys::set_nonblocking(copy.as_raw_fd(), true)?;
    p.result("O_NONBLOCK is common to both", sys::read(pair.s(), &mut [0; 3]));
    drop(pair.server);
    settle();
    p.result("no end while a duplicate is open", try_recv(pair.client.as_raw_fd(), 10));
    p.result("write through the duplicate", sys::write(copy.as_raw_fd(), b"xyz"));
    settle();
    p.result("arrives", try_recv(pair.client.as_raw_fd(), 10));
    sys::shutdown(copy.as_raw_fd(), libc::SHUT_WR)?;
    settle();
    p.result("shutdown through the duplicate", try_recv(pair.client.as_raw_fd(), 10));
    drop(copy);
    let pair = p.pair()?;
    let copies: Vec<OwnedFd> = (0..5).map(|_| sys::dup(pair.c())).collect::<io::Result<_>>()?;
    for copy in &copies {
        sys::write(copy.as_raw_fd(), b"12345")?;
    }
    drop(copies);
    settle();
    p.result("what five duplicates wrote", try_recv(pair.s(), 100));
    p.result("no end", try_recv(pair.s(), 100));
    Ok(())
}

/// dup2 and dup3 close what they replace.
fn replaced(p: &Probe) -> io::Result<()> {
    let (one, two) = (p.pair()?, p.pair()?);
    p.result("dup2 over a connection", sys::dup2(one.s(), &two.server).map(|fd| fd == two.s()));
    settle();
    p.result("the replaced one has ended", try_recv(two.c(), 10));
    sys::write(one.c(), b"for both")?;
    settle();
    p.result("the number is the other one now", try_recv(two.s(), 100));
    drop(one.server);
    settle();
    p.result("which lives on", try_recv(one.client.as_raw_fd(), 10));
    sys::write(two.s(), b"still")?;
    settle();
    p.result("and carries bytes", try_recv(one.client.as_raw_fd(), 10));

    let (one, file) = (p.pair()?, sys::memfd(c"probe")?);
    let set = sys::dup3(one.s(), &file, libc::O_CLOEXEC);
    p.result("dup3 over a file", set.map(|fd| fd == file.as_raw_fd()));
    p.say("close-on-exec", sys::fd_flags(file.as_raw_fd())?);
    p.result("dup2 onto itself", sys::dup2(one.s(), &one.server).map(|fd| fd == one.s()));
    sys::write(one.c(), b"abc")?;
    settle();
    p.result("it is a socket", try_recv(file.as_raw_fd(), 10));
    let null = sys::memfd(c"probe")?;
    sys::dup2(null.as_raw_fd(), &one.client)?;
    settle();
    p.result("a file over a connection ends it", try_recv(one.s(), 10));
    p.result("and is a file", sys::write(one.c(), b"abc"));
    Ok(())
}

/// close_range takes connections, too, and nothing of the library's own.
fn closed_ranges(p: &Probe) -> io::Result<()> {
    let keep = p.pair()?;
    let pair = p.pair()?;
    let last = sys::dup(pair.s())?;
    let (first, end) = (pair.c().min(pair.s()), last.as_raw_fd());
    // The numbers are given up here and closed below.
    let numbers = [pair.client, pair.server, last].map(std::os::fd::IntoRawFd::into_raw_fd);
    let (first, end) = (first.cast_unsigned(), end.cast_unsigned());
    // SAFETY: the range holds the three descriptors given up above and nothing else: numbers are
    // given out from the lowest, and all three are new.
    let ret = unsafe { libc::close_range(first, end, 0) };
    p.say(
        "close_range",
        if ret == 0 { "done".into() } else { show::<i32>(Err(io::Error::last_os_error())) },
    );
    p.say("all are closed", format!("{:?}", numbers.map(|fd| sys::fd_flags(fd).is_err())));
    crate::probe::warm_up(keep.c(), keep.s())?;
    p.say("others live on", "yes");
    let again = p.pair()?;
    crate::probe::warm_up(again.c(), again.s())?;
    p.say("new ones work", "yes");
    Ok(())
}

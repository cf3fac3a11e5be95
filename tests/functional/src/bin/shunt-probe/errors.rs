//! What calls return, and which errors.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use shunt_functional::sys::{self, ListenOptions};

use crate::probe::{
    Probe, address, done, drain, fill, listener, loopback, settle, show, try_recv, try_send,
};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    empty_socket(p)?;
    lengths_of_zero(p)?;
    broken_pipe(p)?;
    flags_of_recv(p)?;
    low_water_mark(p)?;
    full_socket(p)?;
    out_of_band(p)?;
    bad_descriptors(p)?;
    bad_addresses(p)?;
    connecting(p)?;
    options(p)?;
    unreadable(p)?;
    waiting_bytes(p)?;
    disconnected(p)?;
    printed(p)
}

fn empty_socket(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    p.result("recv with MSG_DONTWAIT on an empty socket", try_recv(pair.s(), 10));
    sys::set_nonblocking(pair.s(), true)?;
    p.result("read of an empty O_NONBLOCK socket", sys::read(pair.s(), &mut [0; 10]));
    p.result("readv of the same", sys::readv(pair.s(), &mut [0; 10], 2));
    p.result("recvmsg of the same", sys::recvmsg(pair.s(), &mut [0; 10], 2, 0).map(|r| r.len));
    p.result("recvmmsg of the same", sys::recvmmsg(pair.s(), &mut [0; 10], 2, 0).map(|r| r.len));
    p.result(
        "MSG_WAITALL on the same",
        sys::recv(pair.s(), &mut [0; 10], libc::MSG_WAITALL, false),
    );
    p.result("MSG_PEEK on the same", sys::recv(pair.s(), &mut [0; 10], libc::MSG_PEEK, false));
    sys::set_nonblocking(pair.s(), false)?;
    sys::set_nonblocking_ioctl(pair.s(), true)?;
    p.result("read after FIONBIO", sys::read(pair.s(), &mut [0; 10]));
    p.say("O_NONBLOCK after FIONBIO", sys::status_flags(pair.s())? & libc::O_NONBLOCK != 0);
    Ok(())
}

fn lengths_of_zero(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    p.result("send of nothing", try_send(pair.c(), &[]));
    p.result("write of nothing", sys::write(pair.c(), &[]));
    p.result("recv of nothing without data", try_recv(pair.s(), 0));
    sys::write(pair.c(), b"x")?;
    settle();
    p.result("recv of nothing with data", try_recv(pair.s(), 0));
    p.result("read of nothing with data", sys::read(pair.s(), &mut []));
    p.result("the data is still there", try_recv(pair.s(), 10));
    Ok(())
}

fn broken_pipe(p: &Probe) -> io::Result<()> {
    sys::set_signal_counter(libc::SIGPIPE)?;
    let pair = p.pair()?;
    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    p.result("write after own shutdown", sys::write(pair.c(), b"x"));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("send with MSG_NOSIGNAL", sys::send(pair.c(), b"x", libc::MSG_NOSIGNAL));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("writev", sys::writev(pair.c(), b"xy", 2));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("sendmsg with MSG_NOSIGNAL", sys::sendmsg(pair.c(), b"x", 1, libc::MSG_NOSIGNAL));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("the other direction works", sys::write(pair.s(), b"abc"));
    settle();
    p.result("and arrives", try_recv(pair.c(), 10));

    let pair = p.pair()?;
    drop(pair.server);
    settle();
    let fd = pair.client.as_raw_fd();
    p.result("first write after the peer's close", sys::write(fd, b"x"));
    settle();
    p.result("second write", sys::write(fd, b"x"));
    p.say("SIGPIPEs", sys::signal_count());
    p.result("read after that", try_recv(fd, 10));
    sys::reset_signal(libc::SIGPIPE)
}

fn flags_of_recv(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"0123456789")?;
    settle();
    let mut four = [0; 4];
    for what in ["peek", "peek again"] {
        let n = sys::recv(pair.s(), &mut four, libc::MSG_PEEK, false);
        p.say(what, format!("{} {:?}", show(n), four.map(char::from)));
    }
    p.result("FIONREAD after peeking", sys::fionread(pair.s()));
    p.result("MSG_TRUNC with NULL", sys::recv(pair.s(), &mut four, libc::MSG_TRUNC, true));
    p.result("FIONREAD after discarding", sys::fionread(pair.s()));
    let message = sys::recvmsg(pair.s(), &mut four, 2, 0)?;
    p.say("recvmsg", format!("{message:?} {:?}", four.map(char::from)));
    let mut addr = [0; 4];
    let (n, len) = sys::recvfrom(pair.s(), &mut addr, 0)?;
    p.say("recvfrom", format!("{n} bytes, address length {len}"));
    sys::write(pair.c(), b"abcdef")?;
    settle();
    let peeked = sys::recvmsg(pair.s(), &mut [0; 3], 1, libc::MSG_PEEK)?;
    p.say("recvmsg with MSG_PEEK", format!("{peeked:?}"));
    p.result("recvmmsg", sys::recvmmsg(pair.s(), &mut [0; 4], 2, 0).map(|r| format!("{r:?}")));
    p.result(
        "recvmmsg with MSG_WAITFORONE and too little",
        sys::recvmmsg(pair.s(), &mut [0; 8], 2, libc::MSG_WAITFORONE).map(|r| r.len),
    );
    Ok(())
}

fn low_water_mark(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let set = sys::set_option(pair.s(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100);
    p.say("SO_RCVLOWAT of 100", done(set));
    p.result("reads back", sys::get_option(pair.s(), libc::SOL_SOCKET, libc::SO_RCVLOWAT));
    sys::write(pair.c(), &[1; 50])?;
    settle();
    let mut fds = [libc::pollfd { fd: pair.s(), events: libc::POLLIN, revents: 0 }];
    p.result("poll with 50 bytes", sys::poll(&mut fds, Some(Duration::ZERO)));
    p.result("FIONREAD with 50 bytes", sys::fionread(pair.s()));
    sys::write(pair.c(), &[1; 60])?;
    settle();
    p.result("poll with 110 bytes", sys::poll(&mut fds, Some(Duration::ZERO)));
    p.result("recv of 300", try_recv(pair.s(), 300));
    sys::write(pair.c(), &[1; 20])?;
    settle();
    p.result("recv of 300 without waiting", try_recv(pair.s(), 300));
    Ok(())
}

fn full_socket(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let sent = fill(pair.c())?;
    p.say("it took some bytes", sent > 10_000);
    p.result("send into a full socket", try_send(pair.c(), b"x"));
    let mut fds = [libc::pollfd { fd: pair.c(), events: libc::POLLOUT, revents: 0 }];
    p.result("poll for room", sys::poll(&mut fds, Some(Duration::ZERO)));
    sys::set_timeout(pair.c(), libc::SO_SNDTIMEO, Duration::from_millis(60))?;
    // A connection that was just promoted has the ring's room beside the socket's.
    let more = sys::write(pair.c(), b"x");
    let waited = more.as_ref().err().is_none_or(|e| e.kind() == io::ErrorKind::WouldBlock);
    p.say("blocking send with SO_SNDTIMEO", waited);
    p.say("all of it arrives", drain(pair.s())? == sent + more.unwrap_or(0));
    settle();
    p.result("poll for room after that", sys::poll(&mut fds, Some(Duration::from_secs(5))));
    p.result("and there is room", try_send(pair.c(), b"x"));
    Ok(())
}

fn out_of_band(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"before")?;
    p.result("send with MSG_OOB", sys::send(pair.c(), b"!", libc::MSG_OOB));
    sys::write(pair.c(), b"after")?;
    settle();
    let mut fds = [libc::pollfd { fd: pair.s(), events: libc::POLLPRI, revents: 0 }];
    p.result("poll for urgent data", sys::poll(&mut fds, Some(Duration::from_secs(1))));
    let mut urgent = [0; 1];
    let n = sys::recv(pair.s(), &mut urgent, libc::MSG_OOB, false);
    p.say("the urgent byte", format!("{} {:?}", show(n), char::from(urgent[0])));
    p.result("bytes up to it", try_recv(pair.s(), 100));
    p.result("bytes after it", try_recv(pair.s(), 100));
    Ok(())
}

fn bad_descriptors(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let number = pair.s();
    drop(pair);
    p.result("recv of a closed descriptor", try_recv(number, 1));
    p.result("send to a closed descriptor", try_send(number, b"x"));
    p.say("shutdown of a closed descriptor", done(sys::shutdown(number, libc::SHUT_WR)));
    p.result("read of -1", sys::read(-1, &mut [0]));
    let file = sys::memfd(c"probe")?;
    p.result("recv of a file", try_recv(file.as_raw_fd(), 1));
    let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    p.result("recv before connect", try_recv(fresh.as_raw_fd(), 1));
    p.result("send before connect", try_send(fresh.as_raw_fd(), b"x"));
    p.say("shutdown before connect", done(sys::shutdown(fresh.as_raw_fd(), libc::SHUT_RD)));
    let listener = listener()?;
    p.result("recv of a listener", try_recv(listener.as_raw_fd(), 1));
    sys::set_nonblocking(listener.as_raw_fd(), true)?;
    p.result("accept of nothing", sys::accept(listener.as_raw_fd(), 0).map(|_| "a socket"));
    p.result("accept of a stream", sys::accept(fresh.as_raw_fd(), 0).map(|_| "a socket"));
    Ok(())
}

fn bad_addresses(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let raw = client.as_raw_fd();
    p.say("connect to an address nowhere", done(sys::connect_without_address(raw)));
    sys::connect(raw, address(&listener)?)?;
    let accepted = sys::accept_without_length(listener.as_raw_fd());
    p.result("accept with a length nowhere", accepted.map(|_| "a socket"));
    p.result("its client reads", sys::read(raw, &mut [0]));
    Ok(())
}

fn connecting(p: &Probe) -> io::Result<()> {
    // A port that has an owner, so that nobody comes to listen there.
    let bound = sys::listen(loopback(0), ListenOptions { backlog: None, ..Default::default() })?;
    let gone = address(&bound)?;
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    p.say("connect to nobody", done(sys::connect(fd.as_raw_fd(), gone)));

    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let raw = fd.as_raw_fd();
    // The refusal may be there at once or not.
    let refused = match sys::connect(raw, gone).map_err(|e| e.raw_os_error()) {
        Err(Some(libc::EINPROGRESS)) => {
            let mut fds = [libc::pollfd { fd: raw, events: libc::POLLOUT, revents: 0 }];
            sys::poll(&mut fds, Some(Duration::from_secs(5)))?;
            sys::get_option(raw, libc::SOL_SOCKET, libc::SO_ERROR)?
        }
        Err(Some(code)) => code,
        other => return Err(io::Error::other(format!("{other:?}"))),
    };
    p.say(
        "non-blocking connect to nobody",
        sys::errno_name(&io::Error::from_raw_os_error(refused)),
    );
    p.result("SO_ERROR after it was read", sys::get_option(raw, libc::SOL_SOCKET, libc::SO_ERROR));

    let listener = listener()?;
    let addr = address(&listener)?;
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let raw = fd.as_raw_fd();
    let begun = match sys::connect(raw, addr) {
        Ok(()) => true,
        Err(e) => e.raw_os_error() == Some(libc::EINPROGRESS),
    };
    p.say("non-blocking connect begins", begun);
    let mut fds = [libc::pollfd { fd: raw, events: libc::POLLOUT, revents: 0 }];
    p.result("poll for the connection", sys::poll(&mut fds, Some(Duration::from_secs(5))));
    p.result("SO_ERROR of it", sys::get_option(raw, libc::SOL_SOCKET, libc::SO_ERROR));
    // The first call after an asynchronous connect may only say that it is done.
    let _first = sys::connect(raw, addr);
    p.say("connect again", done(sys::connect(raw, addr)));
    p.say("connect elsewhere", done(sys::connect(raw, loopback(1))));
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    sys::write(server.as_raw_fd(), b"hello")?;
    settle();
    p.result("and it carries bytes", try_recv(raw, 10));
    Ok(())
}

fn options(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::set_option(pair.c(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 0)?;
    for (name, level, option) in [
        ("SO_TYPE", libc::SOL_SOCKET, libc::SO_TYPE),
        ("SO_DOMAIN", libc::SOL_SOCKET, libc::SO_DOMAIN),
        ("SO_PROTOCOL", libc::SOL_SOCKET, libc::SO_PROTOCOL),
        ("SO_ERROR", libc::SOL_SOCKET, libc::SO_ERROR),
        ("SO_ACCEPTCONN", libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
        ("SO_KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        ("SO_RCVLOWAT", libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        ("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY),
        ("TCP_CORK", libc::IPPROTO_TCP, libc::TCP_CORK),
        ("no such option", libc::SOL_SOCKET, 9999),
    ] {
        p.result(&format!("getsockopt {name}"), sys::get_option(pair.c(), level, option));
    }
    for (name, option) in [("TCP_NODELAY", libc::TCP_NODELAY), ("TCP_CORK", libc::TCP_CORK)] {
        p.say(
            &format!("set {name}"),
            done(sys::set_option(pair.c(), libc::IPPROTO_TCP, option, 1)),
        );
        p.result("reads back", sys::get_option(pair.c(), libc::IPPROTO_TCP, option));
    }
    sys::write(pair.c(), b"corked")?;
    sys::set_option(pair.c(), libc::IPPROTO_TCP, libc::TCP_CORK, 0)?;
    settle();
    p.result("bytes after the cork is out", try_recv(pair.s(), 10));
    let set = sys::set_option(pair.c(), libc::SOL_SOCKET, libc::SO_SNDBUF, 100_000);
    p.say("set SO_SNDBUF", done(set));
    p.result("reads back", sys::get_option(pair.c(), libc::SOL_SOCKET, libc::SO_SNDBUF));
    Ok(())
}

fn length(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Pointers to no memory.
fn unreadable(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    for (name, at) in [("null", 0), ("a small number", 0x1000), ("-1", usize::MAX)] {
        let at = ptr::without_provenance_mut(at);
        // SAFETY: the kernel, or who stands for it, refuses the address.
        let n = unsafe { libc::send(pair.c(), at, 10, libc::MSG_NOSIGNAL) };
        p.result(&format!("send from {name}"), length(n));
        sys::write(pair.c(), b"abc")?;
        settle();
        // SAFETY: the kernel, or the library in its place, refuses the address.
        let n = unsafe { libc::recv(pair.s(), at, 10, libc::MSG_DONTWAIT) };
        p.result(&format!("recv to {name}"), length(n));
        p.result("what is there after that", try_recv(pair.s(), 10));
    }
    unreadable_addresses(p)
}

/// Addresses to connect to that are not, or not all, in memory.
fn unreadable_addresses(p: &Probe) -> io::Result<()> {
    const PAGE: usize = 4096;
    let mut pages = sys::Private::new(3 * PAGE)?;
    let family = libc::sa_family_t::try_from(libc::AF_INET6).map_err(io::Error::other)?;
    let start = PAGE - 8;
    pages.bytes()[start..start + 2].copy_from_slice(&family.to_ne_bytes());
    let (at, _) = pages.place();
    // SAFETY: the middle page of the mapping, to which nothing refers.
    let forbidden =
        unsafe { libc::mprotect(ptr::without_provenance_mut(at + PAGE), PAGE, libc::PROT_NONE) };
    p.say("a page is forbidden", forbidden);
    let lens = [0, 1, 2, 16, 28, 128, 129, 2 * PAGE, usize::MAX >> 32];
    for (name, at) in
        [("null", 0), ("a small number", 0x1000), ("-1", usize::MAX), ("the end", at + start)]
    {
        for len in lens {
            let socket = sys::socket(libc::AF_INET6, libc::SOCK_STREAM)?;
            let size = libc::socklen_t::try_from(len).map_err(io::Error::other)?;
            // SAFETY: the kernel, or who stands for it, refuses the address.
            let result =
                unsafe { libc::connect(socket.as_raw_fd(), ptr::without_provenance(at), size) };
            let what = if result == 0 { Ok(0) } else { Err(io::Error::last_os_error()) };
            p.result(&format!("connect to {len} bytes at {name}"), what);
        }
    }
    Ok(())
}

/// FIONREAD wherever the bytes are.
fn waiting_bytes(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    for n in 1..6 {
        sys::write(pair.c(), &[1; 100])?;
        settle();
        p.result(&format!("FIONREAD after {n} writes"), sys::fionread(pair.s()));
        p.result("a peek", sys::recv(pair.s(), &mut [0; 1000], libc::MSG_PEEK, false));
    }
    p.result("read a part", try_recv(pair.s(), 150));
    p.result("FIONREAD after that", sys::fionread(pair.s()));
    Ok(())
}

/// connect(2) with `AF_UNSPEC`, and a new connection of the same socket.
fn disconnected(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = sys::Epoll::new(8)?;
    epoll.control(libc::EPOLL_CTL_ADD, pair.c(), libc::EPOLLIN.cast_unsigned(), 7)?;
    // SAFETY: all zero is a valid address of the family AF_UNSPEC.
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    let len = libc::socklen_t::try_from(size_of::<libc::sockaddr>()).unwrap_or(0);
    // SAFETY: the address is valid.
    let result = unsafe { libc::connect(pair.c(), &raw const nowhere, len) };
    p.say("connect to AF_UNSPEC", result);
    settle();
    p.result("then: send", try_send(pair.c(), b"x"));
    p.result("then: recv", try_recv(pair.c(), 10));
    p.result("the peer: recv", try_recv(pair.s(), 10));
    p.result("the peer: recv again", try_recv(pair.s(), 10));
    p.result("the peer: send", try_send(pair.s(), b"x"));
    let listener = listener()?;
    p.say("connect again", done(sys::connect(pair.c(), address(&listener)?)));
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    crate::probe::warm_up(pair.c(), server.as_raw_fd())?;
    p.result("it carries bytes: send", try_send(pair.c(), b"abc"));
    settle();
    p.result("it carries bytes: recv", try_recv(server.as_raw_fd(), 10));
    p.result(
        "a set that had it before: nothing",
        epoll.wait(Some(Duration::ZERO)).map(|e| e.len()),
    );
    sys::write(server.as_raw_fd(), b"back")?;
    p.result(
        "a set that had it before: bytes",
        epoll
            .wait(Some(Duration::from_secs(5)))
            .map(|found| found.iter().map(|e| e.data).sum::<u64>()),
    );
    Ok(())
}

unsafe extern "C" {
    fn dprintf(fd: libc::c_int, format: *const libc::c_char, ...) -> libc::c_int;
}

/// `dprintf`, which writes by the C library's inner functions.
fn printed(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"in front ")?;
    let (name, number) = (c"name", 1.5_f64);
    // SAFETY: the arguments are what the format asks for.
    let n = unsafe {
        dprintf(pair.c(), c"%s %d %.2f %.1f ".as_ptr(), name.as_ptr(), 7, number, -2.5_f64)
    };
    p.say("dprintf", n);
    sys::write(pair.c(), b"behind")?;
    settle();
    let mut text = [0; 100];
    let n = sys::recv(pair.s(), &mut text, libc::MSG_DONTWAIT, false)?;
    p.say("what arrives", String::from_utf8_lossy(&text[..n]));
    Ok(())
}

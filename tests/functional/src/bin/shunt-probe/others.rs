//! Sockets and descriptors that are none of Shunt's business.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, ListenOptions};

use crate::probe::{Probe, address, loopback, settle, show, try_recv, try_send, warm_up};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    datagrams(p)?;
    unix_sockets(p)?;
    pipes_and_files(p)?;
    self_connection(p)?;
    many_at_once(p)
}

fn datagrams(p: &Probe) -> io::Result<()> {
    let one = bound_datagram()?;
    let two = bound_datagram()?;
    sys::connect(one.as_raw_fd(), address(&two)?)?;
    p.result("UDP send", sys::send(one.as_raw_fd(), b"datagram", 0));
    settle();
    let mut short = [0; 4];
    p.result("UDP peek", sys::recv(two.as_raw_fd(), &mut short, libc::MSG_PEEK, false));
    let cut = sys::recvmsg(two.as_raw_fd(), &mut short, 1, libc::MSG_TRUNC)?;
    p.say("UDP with MSG_TRUNC", format!("{cut:?}"));
    p.result("UDP empty", try_recv(two.as_raw_fd(), 10));
    p.result("UDP send of nothing", sys::send(one.as_raw_fd(), &[], 0));
    settle();
    p.result("UDP receive of nothing", try_recv(two.as_raw_fd(), 10));
    p.result("UDP sendmmsg", sys::sendmmsg(one.as_raw_fd(), b"abcdef", 3, 0));
    settle();
    let got = sys::recvmmsg(two.as_raw_fd(), &mut [0; 12], 3, libc::MSG_DONTWAIT);
    p.result("UDP recvmmsg", got.map(|r| format!("{} bytes, {} messages", r.len, r.messages)));
    Ok(())
}

fn bound_datagram() -> io::Result<OwnedFd> {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    let raw = sys::RawAddr::from(loopback(0));
    // SAFETY: raw holds an address of raw.len bytes.
    match unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unix_sockets(p: &Probe) -> io::Result<()> {
    for (name, kind) in [
        ("stream", libc::SOCK_STREAM),
        ("datagram", libc::SOCK_DGRAM),
        ("seqpacket", libc::SOCK_SEQPACKET),
    ] {
        let (one, two) = sys::pair(kind)?;
        p.result(&format!("UNIX {name}: send"), try_send(one.as_raw_fd(), b"hello"));
        p.result(&format!("UNIX {name}: send"), try_send(one.as_raw_fd(), b"again"));
        p.result(&format!("UNIX {name}: receive"), try_recv(two.as_raw_fd(), 100));
        drop(one);
        p.result(&format!("UNIX {name}: after close"), try_recv(two.as_raw_fd(), 100));
        p.result(&format!("UNIX {name}: then"), try_recv(two.as_raw_fd(), 100));
    }
    Ok(())
}

fn pipes_and_files(p: &Probe) -> io::Result<()> {
    let (read, write) = sys::pipe()?;
    p.result("pipe: write", sys::write(write.as_raw_fd(), b"abc"));
    p.result("pipe: read", sys::read(read.as_raw_fd(), &mut [0; 10]));
    p.result("pipe: send", try_send(write.as_raw_fd(), b"abc"));
    let file = sys::memfd(c"probe")?;
    sys::pwrite_all(file.as_raw_fd(), b"contents")?;
    p.result("file: read", sys::read(file.as_raw_fd(), &mut [0; 10]));
    let pair = p.pair()?;
    p.result("sendfile", sys::sendfile(pair.c(), file.as_raw_fd(), 8));
    p.result("sendfile beyond the end", sys::sendfile(pair.c(), file.as_raw_fd(), 100));
    settle();
    p.result("arrives", try_recv(pair.s(), 100));
    let from_socket = sys::sendfile(file.as_raw_fd(), pair.c(), 8);
    p.say("sendfile from a socket", show(from_socket));
    Ok(())
}

/// TCP lets a socket connect to itself.
fn self_connection(p: &Probe) -> io::Result<()> {
    let fd = sys::listen(loopback(0), ListenOptions { backlog: None, ..Default::default() })?;
    sys::connect(fd.as_raw_fd(), address(&fd)?)?;
    p.result("a socket connected to itself: send", try_send(fd.as_raw_fd(), b"echo"));
    settle();
    p.result("receive", try_recv(fd.as_raw_fd(), 10));
    Ok(())
}

/// Many connections between two threads' worth of sets in one process.
fn many_at_once(p: &Probe) -> io::Result<()> {
    let pairs = (0..300).map(|_| p.pair()).collect::<io::Result<Vec<_>>>()?;
    let mut epoll = Epoll::new(512)?;
    for (n, pair) in pairs.iter().enumerate() {
        warm_up(pair.c(), pair.s())?;
        epoll.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), n as u64)?;
    }
    p.say("300 connections: ready", epoll.wait(Some(Duration::ZERO))?.len());
    for pair in pairs.iter().step_by(3) {
        sys::write(pair.c(), b"x")?;
    }
    settle();
    let mut found: Vec<u64> =
        epoll.wait(Some(Duration::from_secs(1)))?.iter().map(|e| e.data).collect();
    found.sort_unstable();
    let right = found.iter().copied().eq((0..300).step_by(3));
    p.say("300 connections: those with data", right);
    Ok(())
}

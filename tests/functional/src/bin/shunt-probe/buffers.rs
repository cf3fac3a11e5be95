//! Buffers whose sizes the program has set: a sender is stopped when its reader does not read, and goes
//! on when it does. Where exactly is the kernel's secret, so the transcript says whether it is sane.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use shunt_functional::pattern;
use shunt_functional::sys::{self, Epoll, ListenOptions};

use crate::probe::{Pair, Probe, address, fill, loopback, settle, try_send};
use crate::readiness::bits;

/// What programs set that want a small buffer.
const SMALL: i32 = 4096;
/// And a large one.
const LARGE: i32 = 150_000;
/// A sender with small buffers gets no more than that out; the kernel itself is not stingy.
const SANE: usize = 160 << 10;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for when in [When::Before, When::After, When::AtListener] {
        stopped(p, when)?;
    }
    sender_alone(p)?;
    changed(p)?;
    raised_while_full(p)?;
    much_at_once(p)?;
    arrived(p)?;
    a_little_room(p)?;
    one_after_the_other(p)
}

/// When the program sets the sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Before,
    After,
    AtListener,
}

/// A connection with buffers of this size at both ends.
fn pair_with(p: &Probe, when: When, size: i32) -> io::Result<Pair> {
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    if when != When::After {
        sys::set_buffers(listener.as_raw_fd(), size)?;
    }
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    if when == When::Before {
        sys::set_buffers(client.as_raw_fd(), size)?;
    }
    sys::connect(client.as_raw_fd(), address(&listener)?)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    let pair = Pair { client, server };
    if when == When::AtListener {
        sys::set_buffers(pair.c(), size)?;
    }
    let pair = p.ready(pair)?;
    if when == When::After {
        sys::set_buffers(pair.c(), size)?;
        sys::set_buffers(pair.s(), size)?;
    }
    Ok(pair)
}

/// Reads `len` bytes, for as long as they keep coming: the kernel may let some of them wait for a probe
/// of the window.
fn take(fd: RawFd, len: usize) -> io::Result<bool> {
    let mut got = 0;
    let mut block = vec![0; 64 << 10];
    while got < len {
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        if sys::poll(&mut fds, Some(Duration::from_secs(5)))? == 0 {
            break;
        }
        got += sys::read(fd, &mut block)?;
    }
    Ok(got == len)
}

/// Waits until the kernel has heard that everything arrived.
fn unsent(fd: RawFd) -> io::Result<i32> {
    for _ in 0..100 {
        if sys::outq(fd)? == 0 {
            break;
        }
        settle();
    }
    sys::outq(fd)
}

fn room(fd: RawFd) -> io::Result<String> {
    let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    sys::poll(&mut fds, Some(Duration::ZERO))?;
    Ok(bits(fds[0].revents.into()))
}

fn stopped(p: &Probe, when: When) -> io::Result<()> {
    let pair = pair_with(p, when, SMALL)?;
    let name = format!("set {when:?}");
    for (who, from, to) in [("client", pair.c(), pair.s()), ("server", pair.s(), pair.c())] {
        let sent = fill(from)?;
        let sane = sent > 0 && sent <= SANE;
        p.say(&format!("{name}: the {who} is stopped in time"), sane);
        p.say("room while it is", room(from)?);
        p.result("a byte more", try_send(from, b"x"));
        let waiting = usize::try_from(sys::outq(from)?).unwrap_or(usize::MAX);
        p.say("TIOCOUTQ speaks of some of it", waiting > 0 && waiting <= sent);
        p.say("all of it arrives", take(to, sent)?);
        p.result("TIOCOUTQ after that", unsent(from));
        p.say("room after that", room(from)?);
        p.result("a byte after that", try_send(from, b"x"));
        p.say("which arrives", take(to, 1)?);
    }
    for fd in [pair.c(), pair.s()] {
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            p.result("reads back", sys::get_option(fd, libc::SOL_SOCKET, option));
        }
    }
    Ok(())
}

/// Only the sender has set anything.
fn sender_alone(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::set_option(pair.c(), libc::SOL_SOCKET, libc::SO_SNDBUF, SMALL)?;
    let sent = fill(pair.c())?;
    p.say("SO_SNDBUF alone stops the sender in time", sent > 0 && sent <= 2 * SANE);
    p.say("all of it arrives", take(pair.s(), sent)?);
    Ok(())
}

/// A running connection is told of other sizes.
fn changed(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut sent = Vec::new();
    for size in [SMALL, LARGE] {
        // Of the sender alone: the kernel takes seconds to widen a window again.
        sys::set_option(pair.c(), libc::SOL_SOCKET, libc::SO_SNDBUF, size)?;
        sent.push(transfer(p, &pair)?);
    }
    p.say("small: stopped in time", sent[0] > 0 && sent[0] <= 2 * SANE);
    p.say("larger: more than that", sent[1] > sent[0]);
    let pair = p.pair()?;
    for (size, most) in [(LARGE, usize::MAX), (SMALL, SANE)] {
        sys::set_buffers(pair.c(), size)?;
        sys::set_buffers(pair.s(), size)?;
        let sent = transfer(p, &pair)?;
        p.say(&format!("both {size}: stopped in time"), sent > 0 && sent <= most);
    }
    Ok(())
}

/// As many bytes as the client gets out while nobody reads; then they are read.
fn transfer(p: &Probe, pair: &Pair) -> io::Result<usize> {
    let sent = fill(pair.c())?;
    p.say("all of it arrives", take(pair.s(), sent)?);
    p.result("nothing is left", unsent(pair.c()));
    Ok(sent)
}

/// More room for a sender that waits for it, though nobody reads.
fn raised_while_full(p: &Probe) -> io::Result<()> {
    let pair = pair_with(p, When::After, SMALL)?;
    let own = pair.c();
    fill(own)?;
    let mut epoll = Epoll::new(1)?;
    let asked = (libc::EPOLLOUT | libc::EPOLLET).cast_unsigned();
    epoll.control(libc::EPOLL_CTL_ADD, own, asked, 1)?;
    p.say("epoll while it is full", epoll.wait(Some(Duration::from_millis(20)))?.len());
    let woken = thread::scope(|scope| {
        let waits = scope.spawn(|| epoll.wait(Some(Duration::from_secs(10))));
        settle();
        sys::set_buffers(own, LARGE)?;
        waits.join().map_err(|_| io::Error::other("the waiter panicked"))?
    })?;
    p.say("epoll when the buffer is larger", woken.len());
    p.say("room then", room(own)?);
    p.say("some more can be sent", fill(own)? > 0);
    Ok(())
}

/// What has arrived is out of the sender's queue, whether it is read or not.
fn arrived(p: &Probe) -> io::Result<()> {
    for size in [None, Some(LARGE)] {
        let pair = match size {
            None => p.pair()?,
            Some(size) => pair_with(p, When::Before, size)?,
        };
        for (from, to) in [(pair.c(), pair.s()), (pair.s(), pair.c())] {
            for len in [1, 1000, 20_000] {
                sys::write(from, &vec![5; len])?;
                p.result(&format!("TIOCOUTQ after {len} that nobody reads"), unsent(from));
                p.result("SIOCOUTQNSD", sys::unsent(from));
            }
            p.say("all of it arrives", take(to, 21_001)?);
        }
    }
    Ok(())
}

/// Room for a few bytes is none, to those who ask and to those who wait (`sk_stream_is_writeable` in
/// include/net/sock.h: a third of the buffer is free).
fn a_little_room(p: &Probe) -> io::Result<()> {
    for when in [When::Before, When::AtListener] {
        let pair = pair_with(p, when, SMALL)?;
        let (own, peer) = (pair.c(), pair.s());
        let sent = fill(own)?;
        let mut edges = Epoll::new(1)?;
        let asked = (libc::EPOLLOUT | libc::EPOLLET).cast_unsigned();
        edges.control(libc::EPOLL_CTL_ADD, own, asked, 1)?;
        p.say("an edge of a full one", edges.wait(Some(Duration::ZERO))?.len());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut fds = [libc::pollfd { fd: own, events: libc::POLLOUT, revents: 0 }];
                let n = sys::poll(&mut fds, Some(Duration::from_secs(10)));
                is_over.store(true, Ordering::SeqCst);
                n
            });
            settle();
            for _ in 0..20 {
                sys::recv(peer, &mut [0; 5], libc::MSG_WAITALL, false)?;
            }
            settle();
            p.say("room for a hundred bytes", room(own)?);
            p.say("an edge of it", edges.wait(Some(Duration::ZERO))?.len());
            p.say("a wait goes on", !is_over.load(Ordering::SeqCst));
            p.say("the rest arrives", take(peer, sent - 100)?);
            p.result("a wait is over", waits.join().unwrap_or(Ok(0)));
            p.say("an edge of all", edges.wait(Some(Duration::from_secs(10)))?.len());
            p.say("room", room(own)?);
            io::Result::Ok(())
        })?;
    }
    Ok(())
}

/// One call with far more than fits.
fn much_at_once(p: &Probe) -> io::Result<()> {
    const MUCH: usize = 1 << 20;
    for size in [SMALL, 1] {
        let pair = pair_with(p, When::Before, size)?;
        let (own, peer) = (pair.c(), pair.s());
        let mut bytes = vec![0; MUCH];
        pattern::fill(7, 0, &mut bytes);
        let mut got = vec![0; MUCH];
        thread::scope(|scope| {
            let sends = scope.spawn(|| sys::write(own, &bytes));
            p.result("it is received", sys::recv(peer, &mut got, libc::MSG_WAITALL, false));
            p.result("one large write", sends.join().unwrap_or(Ok(0)));
        });
        p.say("byte for byte", got == bytes);
    }
    Ok(())
}

/// A sender that epoll wakes as soon as its reader has made room: neither waits for a time to pass.
fn one_after_the_other(p: &Probe) -> io::Result<()> {
    const ROUNDS: usize = 200;
    let pair = pair_with(p, When::After, SMALL)?;
    let (own, peer) = (pair.c(), pair.s());
    sys::set_nonblocking(own, true)?;
    let mut epoll = Epoll::new(1)?;
    let asked = (libc::EPOLLOUT | libc::EPOLLET).cast_unsigned();
    epoll.control(libc::EPOLL_CTL_ADD, own, asked, 1)?;
    let (mut sent, mut got, mut right) = (0_u64, 0_u64, true);
    let (mut out, mut block) = (vec![0; 8192], vec![0; 64 << 10]);
    for _ in 0..ROUNDS {
        loop {
            pattern::fill(3, sent, &mut out);
            match try_send(own, &out) {
                Ok(n) => sent += n as u64,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        epoll.wait(Some(Duration::ZERO))?;
        while got < sent {
            let n = sys::read(peer, &mut block)?;
            let mut expected = vec![0; n];
            pattern::fill(3, got, &mut expected);
            right &= block[..n] == expected;
            got += n as u64;
        }
        let woken = epoll.wait(Some(Duration::from_secs(10)))?;
        right &= woken.len() == 1;
    }
    p.say("as many bytes as were sent, in order, and a wake-up each time", right);
    p.say("to the end", sent == got);
    Ok(())
}

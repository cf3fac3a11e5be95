//! What is sent while nobody reads: programs whose ends write before they read rely on the kernel's
//! buffers, which take a few megabytes.

use std::io;
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use shunt_functional::pattern;
use shunt_functional::sys::{self, Epoll};

use crate::probe::{Pair, Probe, try_send};

/// Bytes of a direction, which the kernel's buffers take: more than a ring holds.
const MANY: usize = 2_000_000;
/// Connections beside the one that is used: with so many, rings are shorter.
const BESIDE: usize = 12;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for how in [How::Blocking, How::Poll, How::Select, How::EpollLevel, How::EpollEdge] {
        for len in [700_000, MANY] {
            p.say("both ends write first", format!("{how:?} {len}"));
            both_write_first(p, how, len)?;
        }
        p.say("nobody reads until all is written", format!("{how:?}"));
        one_direction(p, how)?;
    }
    let beside: Vec<Pair> = (0..BESIDE).map(|_| p.pair()).collect::<io::Result<_>>()?;
    p.say("with connections beside it", beside.len());
    both_write_first(p, How::Blocking, MANY)?;
    sized(p)?;
    promises(p)?;
    again_and_again(p)
}

/// Whoever reads when it is told that there is something finds something, whatever way it came.
fn promises(p: &Probe) -> io::Result<()> {
    const LEN: usize = 8192;
    let pair = p.pair()?;
    let (from, to) = (pair.c(), pair.s());
    let bytes = stream(6, MANY);
    let mut got = Vec::with_capacity(MANY);
    let mut empty = 0;
    let mut pauses = 0;
    let mut set = Epoll::new(1)?;
    set.control(libc::EPOLL_CTL_ADD, to, libc::EPOLLIN.cast_unsigned(), 1)?;
    thread::scope(|scope| {
        scope.spawn(|| write_all(from, How::Blocking, &bytes));
        while got.len() < MANY {
            // Slow enough for the ring to be full for long, now and then.
            if got.len() / (32 * LEN) > pauses {
                pauses += 1;
                thread::sleep(Duration::from_millis(50));
            }
            if set.wait(Some(Duration::from_secs(20)))?.is_empty() {
                break;
            }
            let mut piece = [0; LEN];
            loop {
                match sys::recv(to, &mut piece, libc::MSG_DONTWAIT, false) {
                    Ok(n) => got.extend_from_slice(&piece[..n]),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => empty += 1,
                    Err(e) => return Err(e),
                }
                if got.len() >= MANY || sys::fionread(to)? == 0 {
                    break;
                }
            }
        }
        Ok(())
    })?;
    p.say("told of nothing", empty);
    p.say("read what was told of", got == bytes);
    Ok(())
}

/// Buffers of a size that the program has set, which is more than a ring holds here.
fn sized(p: &Probe) -> io::Result<()> {
    const SIZE: i32 = 200_000;
    const LESS: usize = 250_000;
    let pair = p.pair()?;
    for fd in [pair.c(), pair.s()] {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SIZE)?;
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, SIZE)?;
    }
    exchange(p, &pair, How::Blocking, LESS);
    p.result("messages go on", messages(&pair));
    Ok(())
}

/// How an end waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Blocking,
    Poll,
    Select,
    EpollLevel,
    EpollEdge,
}

/// Writes all; gives up after a while.
fn write_all(fd: RawFd, how: How, bytes: &[u8]) -> io::Result<()> {
    let mut epoll = Epoll::new(1)?;
    let edge = if how == How::EpollEdge { libc::EPOLLET } else { 0 };
    let asked = (libc::EPOLLOUT | edge).cast_unsigned();
    if matches!(how, How::EpollLevel | How::EpollEdge) {
        epoll.control(libc::EPOLL_CTL_ADD, fd, asked, 1)?;
    }
    let patience = Some(Duration::from_secs(20));
    let mut done = 0;
    while done < bytes.len() {
        let sent = match how {
            How::Blocking => sys::write(fd, &bytes[done..]),
            _ => try_send(fd, &bytes[done..]),
        };
        match sent {
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                let ready = match how {
                    How::Poll => sys::poll(&mut fds, patience)?,
                    How::Select => sys::select(&mut fds, patience)?,
                    _ => epoll.wait(patience)?.len(),
                };
                if ready == 0 {
                    return Err(io::Error::other(format!("no room after {done} bytes")));
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn stream(label: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pattern::fill(label, 0, &mut bytes);
    bytes
}

fn read_all(fd: RawFd, len: usize) -> io::Result<Vec<u8>> {
    let mut got = vec![0; len];
    let n = sys::recv(fd, &mut got, libc::MSG_WAITALL, false)?;
    got.truncate(n);
    Ok(got)
}

fn both_write_first(p: &Probe, how: How, len: usize) -> io::Result<()> {
    let pair = p.pair()?;
    exchange(p, &pair, how, len);
    p.result("messages go on", messages(&pair));
    Ok(())
}

fn exchange(p: &Probe, pair: &Pair, how: How, len: usize) {
    let (there, back) = (stream(1, len), stream(2, len));
    let exchange = |fd, mine: &[u8]| {
        write_all(fd, how, mine)?;
        read_all(fd, len)
    };
    let (at_client, at_server) = thread::scope(|scope| {
        let client = scope.spawn(|| exchange(pair.c(), &there));
        let at_server = exchange(pair.s(), &back);
        (client.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))), at_server)
    });
    p.result("right at the client", at_client.map(|got| got == back));
    p.result("right at the server", at_server.map(|got| got == there));
}

fn one_direction(p: &Probe, how: How) -> io::Result<()> {
    let pair = p.pair()?;
    let bytes = stream(3, MANY);
    p.result("written", write_all(pair.c(), how, &bytes).map(|()| bytes.len()));
    p.result("read", read_all(pair.s(), MANY).map(|got| got == bytes));
    p.result("messages go on", messages(&pair));
    Ok(())
}

/// The way over TCP and back, several times on one connection.
fn again_and_again(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    for round in 0..4 {
        let bytes = stream(10 + round, 900_000);
        write_all(pair.c(), How::Blocking, &bytes)?;
        p.result("read again", read_all(pair.s(), bytes.len()).map(|got| got == bytes));
        p.result("messages go on", messages(&pair));
    }
    Ok(())
}

/// Small messages both ways; how many were right.
fn messages(pair: &Pair) -> io::Result<usize> {
    let mut right = 0;
    for round in 0..20_u64 {
        for (from, to) in [(pair.c(), pair.s()), (pair.s(), pair.c())] {
            let message = stream(100 + round, 96);
            sys::write(from, &message)?;
            right += usize::from(read_all(to, message.len())? == message);
        }
    }
    Ok(right)
}

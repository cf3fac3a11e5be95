//! Threads with the least stack that there may be (`PTHREAD_STACK_MIN`): each call finds room there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, Forked, ListenOptions};

use crate::probe::{Pair, Probe, connect_to, loopback, show, warm_up};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// Does the call on a thread with little stack. Printing, which needs more, is left to this one.
fn on_little<T: Send>(call: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let (mut call, mut result) = (Some(call), None);
    sys::on_least_stack(&mut || result = call.take().map(|call| call()))?;
    result.unwrap_or_else(|| Err(io::Error::other("did not run")))
}

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    // The first calls, in which the library introduces itself.
    let listener = on_little(|| sys::listen(loopback(0), ListenOptions::default()))?;
    let client = on_little(|| connect_to(&listener))?;
    let (server, _) = on_little(|| sys::accept(listener.as_raw_fd(), 0))?;
    let pair = Pair { client, server };
    for fd in [pair.c(), pair.s()] {
        on_little(|| sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1))?;
    }
    on_little(|| warm_up(pair.c(), pair.s()))?;
    p.say("carries bytes", true);
    readiness(p, &pair)?;
    bytes(p, &pair)?;
    descriptors(p, pair)?;
    on_little(|| {
        for _ in 0..4 {
            let client = connect_to(&listener)?;
            let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
            warm_up(client.as_raw_fd(), server.as_raw_fd())?;
        }
        Ok(())
    })?;
    p.say("others carry bytes, too", true);
    on_little(|| {
        drop(listener);
        Ok(())
    })
}

fn readiness(p: &Probe, pair: &Pair) -> io::Result<()> {
    let entry = |fd: RawFd, events| libc::pollfd { fd, events, revents: 0 };
    let asked = [entry(pair.c(), libc::POLLOUT), entry(pair.s(), libc::POLLIN)];
    let soon = Some(Duration::from_millis(30));
    for patience in [AT_ONCE, soon] {
        for only in [0..2, 1..2] {
            let asked = || asked[only.clone()].to_vec();
            let (mut one, mut other, mut third) = (asked(), asked(), asked());
            p.result("poll", on_little(|| sys::poll(&mut one, patience)));
            p.result("ppoll", on_little(|| sys::ppoll(&mut other, patience)));
            p.result("select", on_little(|| sys::select(&mut third, patience)));
        }
    }
    let mut epoll = on_little(|| Epoll::new(4))?;
    for (fd, edge) in [(pair.c(), 0), (pair.s(), libc::EPOLLET)] {
        let events = (libc::EPOLLIN | libc::EPOLLOUT | edge).cast_unsigned();
        let added = on_little(|| epoll.control(libc::EPOLL_CTL_ADD, fd, events, 1));
        p.result("added", added.map(|()| "done"));
    }
    p.result("epoll", on_little(|| epoll.wait(soon).map(|events| events.len())));
    let events = libc::EPOLLIN.cast_unsigned();
    for fd in [pair.c(), pair.s()] {
        on_little(|| epoll.control(libc::EPOLL_CTL_MOD, fd, events, 1))?;
    }
    p.result("a wait", on_little(|| epoll.wait(soon).map(|events| events.len())));
    on_little(|| epoll.control(libc::EPOLL_CTL_DEL, pair.c(), 0, 0))?;
    on_little(|| {
        drop(epoll);
        Ok(())
    })
}

fn bytes(p: &Probe, pair: &Pair) -> io::Result<()> {
    let sent = vec![7; 100_000];
    let mut got = vec![0; sent.len()];
    for flags in [0, libc::MSG_NOSIGNAL, libc::MSG_ZEROCOPY] {
        if flags == libc::MSG_ZEROCOPY {
            on_little(|| sys::set_option(pair.c(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1))?;
        }
        p.result("send", on_little(|| sys::send(pair.c(), &sent, flags)));
        let all = libc::MSG_WAITALL;
        p.result("looks", on_little(|| sys::recv(pair.s(), &mut got[..9], libc::MSG_PEEK, false)));
        p.result("recv", on_little(|| sys::recv(pair.s(), &mut got, all, false)));
        p.say("right", got == sent);
    }
    p.result("write", on_little(|| sys::write(pair.c(), b"bytes")));
    p.result("waiting", on_little(|| sys::fionread(pair.s())));
    p.result("read", on_little(|| sys::read(pair.s(), &mut got)));
    Ok(())
}

fn descriptors(p: &Probe, Pair { client, server }: Pair) -> io::Result<()> {
    let fd = server.as_raw_fd();
    let copy: OwnedFd = on_little(|| sys::dup(fd))?;
    p.say("dup2", show(on_little(|| sys::dup2(fd, &copy)).map(|new| new == copy.as_raw_fd())));
    for on in [true, false] {
        on_little(|| sys::set_nonblocking(fd, on))?;
    }
    let forked = on_little(|| match sys::fork()? {
        Forked::Child => {
            drop((client.as_raw_fd(), sys::write(fd, b"of a child")));
            sys::exit_now(0)
        }
        Forked::Parent(pid) => sys::wait_for(pid),
    });
    p.result("a child", forked);
    p.result("sends", on_little(|| sys::read(client.as_raw_fd(), &mut [0; 20])));
    on_little(|| {
        drop(copy);
        sys::shutdown(fd, libc::SHUT_WR)?;
        Ok(())
    })?;
    p.result("the end", on_little(|| sys::read(client.as_raw_fd(), &mut [0; 20])));
    on_little(|| {
        drop((client, server));
        Ok(())
    })
}

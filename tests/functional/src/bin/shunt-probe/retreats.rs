//! What a program does to itself that leaves no place for a library: a strict filter of system calls,
//! io_uring.

use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, Forked, raw, uring};

use crate::probe::{Pair, Probe, connect_to, listener, recv_soon, settle, show};

/// Longest wait for what comes for sure.
const PATIENCE: Duration = Duration::from_secs(20);

/// The checks. Each in a child: there is no way back.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for (what, retreat) in [
        ("a filter", filtered as fn(&Probe) -> io::Result<()>),
        ("a filter beside threads that wait", filtered_beside),
        ("an inherited connection", filtered_child),
        ("io_uring", ring),
        ("an io_uring that nobody sees", unseen_ring),
    ] {
        match sys::fork()? {
            Forked::Child => {
                let result = retreat(p);
                if let Err(e) = result {
                    p.say(what, format!("stopped by {e}"));
                }
                sys::exit_now(0);
            }
            Forked::Parent(pid) => p.say(what, format!("status {}", sys::wait_for(pid)?)),
        }
    }
    Ok(())
}

/// Bytes both ways.
fn talk(p: &Probe, pair: &Pair) -> io::Result<()> {
    for (what, from, to) in [("to the server", pair.c(), pair.s()), ("back", pair.s(), pair.c())] {
        p.result(what, sys::write(from, b"after"));
        let mut got = [0; 100];
        settle();
        let n = sys::read(to, &mut got)?;
        p.say("arrives", String::from_utf8_lossy(&got[..n]));
    }
    Ok(())
}

fn filtered(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let pair = p.pair_with(&listener)?;
    let mut set = Epoll::new(8)?;
    set.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), 5)?;
    p.say("before", set.wait(Some(Duration::ZERO))?.len());
    p.result("asks for filters", sys::ask_for_filters());
    sys::forbid_all_but_bytes()?;
    sys::write(pair.c(), b"then ")?;
    let events = |set: &mut Epoll| -> io::Result<String> {
        Ok(format!("{:?}", set.wait(Some(Duration::from_millis(50)))?))
    };
    p.say("epoll", events(&mut set)?);
    talk(p, &pair)?;
    p.say("epoll with nothing there", events(&mut set)?);
    sys::write(pair.c(), b"more")?;
    p.say("epoll with more", events(&mut set)?);
    p.result("read", sys::read(pair.s(), &mut [0; 10]));
    let other = connect_to(&listener)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    talk(p, &Pair { client: other, server })?;
    drop(pair.client);
    p.result("the end", sys::read(pair.server.as_raw_fd(), &mut [0; 10]));
    Ok(())
}

/// One thread sets a filter, while others wait in calls: theirs go on as if nothing had happened.
fn filtered_beside(p: &Probe) -> io::Result<()> {
    const MANY: usize = 6 << 20;
    let [receives, polls, waits, sends] = [p.pair()?, p.pair()?, p.pair()?, p.pair()?];
    let mut set = Epoll::new(8)?;
    set.control(libc::EPOLL_CTL_ADD, waits.s(), libc::EPOLLIN.cast_unsigned(), 5)?;
    let bytes = vec![7; MANY];
    let received = |fd| {
        let mut got = [0; 100];
        sys::read(fd, &mut got).map(|n| String::from_utf8_lossy(&got[..n]).into_owned())
    };
    thread::scope(|scope| {
        let receiver = scope.spawn(|| received(receives.s()));
        let poller = scope.spawn(|| {
            let mut fds = [libc::pollfd { fd: polls.s(), events: libc::POLLIN, revents: 0 }];
            sys::poll(&mut fds, Some(PATIENCE))?;
            Ok::<_, io::Error>((fds[0].revents, received(polls.s())?))
        });
        let waiter = scope.spawn(|| {
            let events = format!("{:?}", set.wait(Some(PATIENCE))?);
            Ok::<_, io::Error>((events, received(waits.s())?))
        });
        let sender = scope.spawn(|| sys::write(sends.c(), &bytes));
        settle();
        sys::forbid_nothing()?;
        settle();
        for pair in [&receives, &polls, &waits] {
            sys::write(pair.c(), b"after")?;
        }
        let mut got = vec![0; MANY];
        p.result("many bytes", sys::recv(sends.s(), &mut got, libc::MSG_WAITALL, false));
        p.say("all right", got == bytes);
        let failed = |_| io::Error::other("a thread panicked");
        p.result("recv", receiver.join().map_err(failed)?);
        p.say("poll", format!("{:?}", poller.join().map_err(failed)?));
        p.say("epoll_wait", format!("{:?}", waiter.join().map_err(failed)?));
        p.result("send", sender.join().map_err(failed)?);
        io::Result::Ok(())
    })?;
    talk(p, &receives)
}

/// A child forbids itself everything and serves, as sshd's does; its parent is the client, and then
/// goes on where the child was.
fn filtered_child(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    match sys::fork()? {
        Forked::Child => {
            drop(pair.client);
            // The question is there, or under way.
            sys::forbid_all_but_bytes()?;
            let mut got = [0; 100];
            let n = sys::read(pair.server.as_raw_fd(), &mut got)?;
            sys::write(pair.server.as_raw_fd(), &got[..n])?;
            sys::exit_now(0);
        }
        Forked::Parent(pid) => {
            p.result("asks", sys::write(pair.c(), b"question"));
            p.result("is answered", recv_soon(pair.c(), 100));
            p.result("the child", sys::wait_for(pid));
            talk(p, &pair)
        }
    }
}

/// A program that talks over a ring, and by the usual calls.
fn ring(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut ring = match uring::Ring::new(uring::by_libc) {
        // Where there is none, there is none with Shunt.
        Err(e) => {
            p.say("no ring", sys::errno_name(&e));
            return Ok(());
        }
        Ok(ring) => ring,
    };
    let mut got = [0; 100];
    p.result("sent by libc", sys::write(pair.c(), b"first"));
    settle();
    p.result("received by the ring", ring.recv(pair.s(), &mut got));
    p.result("sent by the ring", ring.send(pair.s(), b"by the ring"));
    settle();
    p.result("received by libc", sys::read(pair.c(), &mut got));
    p.result("sent by libc", raw::write(pair.c(), b"by libc"));
    settle();
    p.say("received by the ring", show(ring.recv(pair.s(), &mut got)));
    // A connection that is made now.
    let later = p.pair()?;
    p.result("sent by libc", sys::write(later.s(), b"later"));
    settle();
    p.result("received by the ring", ring.recv(later.c(), &mut got));
    p.result("sent by the ring", ring.send(later.c(), b"thanks"));
    settle();
    p.result("received by libc", sys::read(later.s(), &mut got));
    Ok(())
}

/// A client that connects by libc, and does the rest by a ring of which the library knows nothing.
fn unseen_ring(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let client = connect_to(&listener)?;
    let mut ring = match uring::Ring::new(uring::unseen) {
        Err(e) => {
            p.say("no ring", sys::errno_name(&e));
            return Ok(());
        }
        Ok(ring) => ring,
    };
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    for _ in 0..3 {
        p.result("answer", sys::write(server.as_raw_fd(), b"hello"));
        p.result("received by the ring", ring.recv(client.as_raw_fd(), &mut [0; 100]));
        p.result("sent by the ring", ring.send(client.as_raw_fd(), b"question"));
        p.result("received by libc", sys::read(server.as_raw_fd(), &mut [0; 100]));
    }
    Ok(())
}

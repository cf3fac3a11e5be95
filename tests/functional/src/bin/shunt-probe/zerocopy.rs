//! `MSG_ZEROCOPY` and its completions on the error queue.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use libc::{EPOLLERR, EPOLLET, EPOLLIN, MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET};
use shunt_functional::sys::{self, Epoll, ListenOptions};

use crate::probe::{Pair, Probe, done, drain, listener, settle, try_recv};
use crate::processes::in_child;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    in_another_process(p)?;
    option(p)?;
    one_by_one(p)?;
    by_all_calls(p)?;
    many(p)?;
    until_full(p)?;
    little_room(p)?;
    watched(p)?;
    from_another_thread(p)?;
    inherited(p)?;
    version_6(p)?;
    no_number(p)?;
    mapped(p)
}

/// Room for any report.
pub const ROOM: usize = 256;
/// Longest wait for a completion: an acknowledgement may be delayed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection whose client may send without copies.
pub fn allowed(p: &Probe) -> io::Result<Pair> {
    let pair = p.pair()?;
    sys::set_option(pair.c(), SOL_SOCKET, SO_ZEROCOPY, 1)?;
    Ok(pair)
}

/// send(2) with `MSG_ZEROCOPY`.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    sys::send(fd, bytes, MSG_ZEROCOPY | libc::MSG_NOSIGNAL)
}

/// Waits for something on the error queue, as programs do that wait for nothing else: what poll says.
pub fn awaited(fd: RawFd) -> io::Result<String> {
    let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
    let n = sys::poll(&mut fds, Some(PATIENCE))?;
    Ok(format!("{n} {:#x}", fds[0].revents))
}

/// Says what the error queue tells.
pub fn report(p: &Probe, what: &str, fd: RawFd, room: usize) {
    p.result(what, sys::recv_error(fd, room));
}

fn option(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let get = || sys::get_option(pair.c(), SOL_SOCKET, SO_ZEROCOPY);
    p.result("SO_ZEROCOPY at first", get());
    p.result("a call that may not", send(pair.c(), &[1; 1000]));
    settle();
    report(p, "its completion", pair.c(), ROOM);
    p.say("set to 2", done(sys::set_option(pair.c(), SOL_SOCKET, SO_ZEROCOPY, 2)));
    p.say("set to 1", done(sys::set_option(pair.c(), SOL_SOCKET, SO_ZEROCOPY, 1)));
    p.result("SO_ZEROCOPY then", get());
    p.result("a call that may", send(pair.c(), &[2; 1000]));
    p.result("poll", awaited(pair.c()));
    report(p, "its completion", pair.c(), ROOM);
    p.say("set to 0", done(sys::set_option(pair.c(), SOL_SOCKET, SO_ZEROCOPY, 0)));
    p.result("a call that may not any more", send(pair.c(), &[3; 1000]));
    settle();
    report(p, "its completion", pair.c(), ROOM);
    p.result("what came", try_recv(pair.s(), 5000));
    Ok(())
}

fn one_by_one(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    report(p, "an empty queue", pair.c(), ROOM);
    for size in [1000, 1, 70_000] {
        p.result("sent", send(pair.c(), &vec![7; size]));
        p.result("received", sys::recv(pair.s(), &mut vec![0; size], libc::MSG_WAITALL, false));
        p.result("poll", awaited(pair.c()));
        p.result("SO_ERROR", sys::get_option(pair.c(), SOL_SOCKET, libc::SO_ERROR));
        report(p, "completion", pair.c(), ROOM);
        report(p, "and no other", pair.c(), ROOM);
    }
    let mut fds = [libc::pollfd { fd: pair.c(), events: 0, revents: 0 }];
    p.result("poll with nothing there", sys::poll(&mut fds, Some(Duration::ZERO)));
    p.result("sent without the flag", sys::send(pair.c(), &[7; 1000], 0));
    settle();
    report(p, "completion", pair.c(), ROOM);
    p.result("sent", send(pair.c(), &[7; 1000]));
    p.result("poll", awaited(pair.c()));
    let discarded = sys::recv(pair.c(), &mut [0; 10], libc::MSG_ERRQUEUE, false);
    p.result("recv with MSG_ERRQUEUE", discarded);
    report(p, "has taken it", pair.c(), ROOM);
    p.result("sent to a duplicate", send(sys::dup(pair.c())?.as_raw_fd(), &[7; 1000]));
    p.result("poll", awaited(pair.c()));
    report(p, "completion", pair.c(), ROOM);
    Ok(())
}

fn by_all_calls(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    let flags = MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
    let bytes = [5; 3000];
    let calls: [(&str, &dyn Fn() -> io::Result<usize>); 4] = [
        ("sendmsg", &|| sys::sendmsg(pair.c(), &bytes, 3, flags)),
        ("sendto", &|| sys::sendto(pair.c(), &bytes, flags)),
        ("sendmmsg", &|| sys::sendmmsg(pair.c(), &bytes, 1, flags)),
        ("syscall", &|| sys::raw::send(pair.c(), &bytes, flags)),
    ];
    for (what, call) in calls {
        p.result(what, call());
        p.result("received", sys::recv(pair.s(), &mut [0; 3000], libc::MSG_WAITALL, false));
        p.result("poll", awaited(pair.c()));
        report(p, "completion", pair.c(), ROOM);
    }
    Ok(())
}

/// The numbers that are told until there are so many, and whether they came in their order.
fn collect(fd: RawFd, count: u32) -> io::Result<String> {
    let (mut next, mut in_order, mut copied) = (0, true, true);
    let started = Instant::now();
    while next < count && started.elapsed() < PATIENCE {
        match sys::recv_error(fd, ROOM) {
            Ok(report) => {
                let (first, last) = report.numbers.unwrap_or_default();
                in_order &= first == next && last >= first;
                copied &= report.error.is_some_and(|(.., code)| code == 1);
                next = last.wrapping_add(1);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
                sys::poll(&mut fds, Some(Duration::from_millis(100)))?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(format!("{next}, in order {in_order}, copied {copied}"))
}

fn many(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    let mut count = 0;
    for size in [10, 2000, 30_000].into_iter().cycle().take(40) {
        send(pair.c(), &vec![1; size])?;
        sys::recv(pair.s(), &mut vec![0; size], libc::MSG_WAITALL, false)?;
        count += 1;
    }
    p.result("numbers of many calls", collect(pair.c(), count));
    Ok(())
}

/// As many calls as have sent something have a number.
fn until_full(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    sys::set_nonblocking(pair.c(), true)?;
    let (mut count, mut sent) = (0, 0);
    // The kernel may say first that too many wait for their completion.
    while let Ok(n) = send(pair.c(), &[4; 50_000]) {
        count += 1;
        sent += n;
    }
    let mut got = 0;
    while got < sent {
        got += drain(pair.s())?;
    }
    let told = collect(pair.c(), count)?;
    p.say("all bytes came", got == sent);
    p.say("all calls were told of", told == format!("{count}, in order true, copied true"));
    report(p, "and no more", pair.c(), ROOM);
    p.result("the next one", send(pair.c(), &[4; 10]));
    p.result("poll", awaited(pair.c()));
    p.say("has the next number", sys::recv_error(pair.c(), ROOM)?.numbers == Some((count, count)));
    Ok(())
}

fn little_room(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    for room in [0, 8, 16, 20, 31, 32, 40, 48, 56, 64] {
        send(pair.c(), &[1; 100])?;
        sys::recv(pair.s(), &mut [0; 100], libc::MSG_WAITALL, false)?;
        awaited(pair.c())?;
        report(p, &format!("with room for {room}"), pair.c(), room);
    }
    Ok(())
}

fn watched(p: &Probe) -> io::Result<()> {
    for edge in [false, true] {
        let pair = allowed(p)?;
        let mut epoll = Epoll::new(4)?;
        let mode = if edge { EPOLLET } else { 0 };
        let events = (EPOLLIN | mode).cast_unsigned();
        epoll.control(libc::EPOLL_CTL_ADD, pair.c(), events, 1)?;
        let mut wait = |what: &str, patience| {
            let found = epoll.wait(Some(patience))?;
            let errors = found.iter().map(|e| e.events & EPOLLERR.cast_unsigned() != 0);
            p.say(&format!("{what}, edge {edge}"), format!("{:?}", errors.collect::<Vec<_>>()));
            Ok::<_, io::Error>(())
        };
        let short = Duration::from_millis(50);
        wait("nothing yet", short)?;
        for _ in 0..2 {
            send(pair.c(), &[1; 100])?;
            sys::recv(pair.s(), &mut [0; 100], libc::MSG_WAITALL, false)?;
            wait("a completion", PATIENCE)?;
            wait("not taken", short)?;
            report(p, "taken", pair.c(), ROOM);
            wait("and then", short)?;
        }
        let mut fds = [libc::pollfd { fd: pair.c(), events: libc::POLLIN, revents: 0 }];
        send(pair.c(), &[1; 100])?;
        awaited(pair.c())?;
        p.result("select says that it can be read", sys::select(&mut fds, Some(PATIENCE)));
    }
    Ok(())
}

/// One thread waits for completions, another sends.
fn from_another_thread(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    let fd = pair.c();
    for by_epoll in [false, true] {
        let waiting = thread::spawn(move || {
            if !by_epoll {
                return awaited(fd);
            }
            let mut epoll = Epoll::new(4)?;
            epoll.control(libc::EPOLL_CTL_ADD, fd, 0, 1)?;
            let found = epoll.wait(Some(PATIENCE))?;
            Ok(found.iter().map(|e| format!("{:#x}", e.events)).collect())
        });
        settle();
        settle();
        send(fd, &[1; 100])?;
        sys::recv(pair.s(), &mut [0; 100], libc::MSG_WAITALL, false)?;
        let found = waiting.join().map_err(|_| io::Error::other("a panic"))?;
        p.result(&format!("a thread that waits, by epoll {by_epoll}"), found);
        report(p, "completion", fd, ROOM);
    }
    Ok(())
}

/// Parent and child count together.
fn in_another_process(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    send(pair.c(), &[1; 100])?;
    let child = in_child(|| {
        send(pair.c(), &[2; 100])?;
        Ok(())
    })?;
    p.say("a child that sends", sys::wait_for(child)?);
    send(pair.c(), &[3; 100])?;
    p.result("received", sys::recv(pair.s(), &mut [0; 300], libc::MSG_WAITALL, false));
    p.result("numbers of both", collect(pair.c(), 3));
    Ok(())
}

/// Accepted sockets have the option of their listener.
fn inherited(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    sys::set_option(listener.as_raw_fd(), SOL_SOCKET, SO_ZEROCOPY, 1)?;
    let pair = p.pair_with(&listener)?;
    p.result("SO_ZEROCOPY", sys::get_option(pair.s(), SOL_SOCKET, SO_ZEROCOPY));
    p.result("sent", send(pair.s(), &[1; 100]));
    p.result("received", sys::recv(pair.c(), &mut [0; 100], libc::MSG_WAITALL, false));
    p.result("poll", awaited(pair.s()));
    report(p, "completion", pair.s(), ROOM);
    Ok(())
}

fn version_6(p: &Probe) -> io::Result<()> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let listener = sys::listen(any, ListenOptions::default())?;
    let port = crate::probe::address(&listener)?.port();
    let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    for ip in [Ipv6Addr::LOCALHOST, mapped] {
        let client = sys::socket(libc::AF_INET6, libc::SOCK_STREAM)?;
        sys::connect(client.as_raw_fd(), SocketAddr::from((ip, port)))?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let pair = p.ready(Pair { client, server })?;
        sys::set_option(pair.c(), SOL_SOCKET, SO_ZEROCOPY, 1)?;
        send(pair.c(), &[1; 100])?;
        sys::recv(pair.s(), &mut [0; 100], libc::MSG_WAITALL, false)?;
        awaited(pair.c())?;
        report(p, "completion over IPv6", pair.c(), ROOM);
    }
    Ok(())
}

/// Calls that send nothing have no number.
fn no_number(p: &Probe) -> io::Result<()> {
    let pair = allowed(p)?;
    p.result("nothing", send(pair.c(), &[]));
    p.result("one byte", send(pair.c(), &[1]));
    p.result("received", sys::recv(pair.s(), &mut [0; 1], libc::MSG_WAITALL, false));
    p.result("poll", awaited(pair.c()));
    report(p, "completion", pair.c(), ROOM);
    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    p.result("after the end", send(pair.c(), &[1]));
    settle();
    report(p, "completion", pair.c(), ROOM);
    let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    sys::set_option(fresh.as_raw_fd(), SOL_SOCKET, SO_ZEROCOPY, 1)?;
    p.result("before connect", send(fresh.as_raw_fd(), &[1]));
    report(p, "completion", fresh.as_raw_fd(), ROOM);
    Ok(())
}

/// `TCP_ZEROCOPY_RECEIVE` where nothing can be mapped: how much there is to be read as usual.
fn mapped(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let s = server.as_raw_fd();
    let ask = |what: &str, address, room| {
        let answer = sys::zerocopy_receive(s, address, room);
        p.result(what, answer.map(|answer| format!("{answer:?}")));
    };
    ask("to map with nothing there", 0, 64);
    sys::write(client.as_raw_fd(), &[1; 100])?;
    settle();
    ask("to map", 0, 64);
    ask("to map, with little room", 0, 16);
    ask("to map, with too little room", 0, 15);
    ask("to map at an odd address", 100, 64);
    p.result("received", sys::recv(s, &mut [0; 60], 0, false));
    ask("to map what is left", 0, 64);
    drop(client);
    settle();
    ask("to map in front of the end", 0, 64);
    p.result("received", sys::recv(s, &mut [0; 60], 0, false));
    ask("to map at the end", 0, 64);
    Ok(())
}

//! What poll, select and epoll say in each state of a connection.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Epoll};

use crate::probe::{Pair, Probe, connect_to, drain, fill, listener, settle, show, try_recv};

/// How a connection is brought into a state; the state of `server` is looked at.
type Prepare = fn(&mut State) -> io::Result<()>;

/// A connection whose client end may go.
struct State {
    client: Option<std::os::fd::OwnedFd>,
    server: std::os::fd::OwnedFd,
}

impl State {
    fn c(&self) -> RawFd {
        self.client.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd)
    }

    fn s(&self) -> RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.server)
    }
}

fn urgent(state: &State) -> io::Result<()> {
    sys::send(state.c(), b"!", libc::MSG_OOB).map(drop)
}

const STATES: &[(&str, Prepare)] = &[
    ("idle", |_| Ok(())),
    ("data", |s| sys::write(s.c(), b"data").map(drop)),
    ("peer half-closed", |s| sys::shutdown(s.c(), libc::SHUT_WR)),
    ("data, peer half-closed", |s| {
        sys::write(s.c(), b"data")?;
        sys::shutdown(s.c(), libc::SHUT_WR)
    }),
    ("data, both half-closed", |s| {
        sys::write(s.c(), b"data")?;
        sys::shutdown(s.s(), libc::SHUT_WR)?;
        sys::shutdown(s.c(), libc::SHUT_WR)
    }),
    ("data, half-closed, peer closed", |s| {
        sys::write(s.c(), b"data")?;
        sys::shutdown(s.s(), libc::SHUT_WR)?;
        s.client = None;
        Ok(())
    }),
    ("data, both ends shut by this one", |s| {
        sys::write(s.c(), b"data")?;
        settle();
        sys::shutdown(s.s(), libc::SHUT_RDWR)
    }),
    ("data, peer reset", |s| {
        sys::write(s.c(), b"data")?;
        sys::linger(s.c(), 0)?;
        s.client = None;
        Ok(())
    }),
    ("data, peer closed with bytes unread", |s| {
        sys::write(s.c(), b"data")?;
        sys::write(s.s(), b"unread")?;
        settle();
        s.client = None;
        Ok(())
    }),
    ("urgent", |s| urgent(s)),
    ("data, urgent", |s| {
        sys::write(s.c(), b"data")?;
        urgent(s)
    }),
    ("data, urgent, data", |s| {
        sys::write(s.c(), b"data")?;
        urgent(s)?;
        sys::write(s.c(), b"more").map(drop)
    }),
    ("data, urgent, the data are read", |s| {
        sys::write(s.c(), b"data")?;
        urgent(s)?;
        settle();
        try_recv(s.s(), 10).map(drop)
    }),
    ("data, urgent, and that is read", |s| {
        sys::write(s.c(), b"data")?;
        urgent(s)?;
        settle();
        sys::recv(s.s(), &mut [0], libc::MSG_OOB, false).map(drop)
    }),
    ("fewer bytes than asked for, urgent", |s| {
        sys::set_option(s.s(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100)?;
        sys::write(s.c(), b"data")?;
        urgent(s)
    }),
    ("data, urgent inline", |s| {
        sys::set_option(s.s(), libc::SOL_SOCKET, libc::SO_OOBINLINE, 1)?;
        sys::write(s.c(), b"data")?;
        urgent(s)
    }),
    ("half-closed", |s| sys::shutdown(s.s(), libc::SHUT_WR)),
    ("reading shut", |s| sys::shutdown(s.s(), libc::SHUT_RD)),
    ("both half-closed", |s| {
        sys::shutdown(s.s(), libc::SHUT_WR)?;
        sys::shutdown(s.c(), libc::SHUT_WR)
    }),
    ("peer closed", |s| {
        s.client = None;
        Ok(())
    }),
    ("data, peer closed", |s| {
        sys::write(s.c(), b"data")?;
        s.client = None;
        Ok(())
    }),
    ("peer reset", |s| {
        sys::linger(s.c(), 0)?;
        s.client = None;
        Ok(())
    }),
    ("full", |s| fill(s.s()).map(drop)),
    ("full, and the peer reads a byte", |s| {
        fill(s.s())?;
        try_recv(s.c(), 1).map(drop)
    }),
    ("full, then drained", |s| {
        fill(s.s())?;
        drain(s.c()).map(drop)
    }),
];

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for (name, prepare) in STATES {
        let Pair { client, server } = p.pair()?;
        let mut state = State { client: Some(client), server };
        prepare(&mut state)?;
        settle();
        p.say(name, masks(state.s())?);
    }
    listening(p)?;
    invalid_times(p)?;
    timeouts(p)
}

/// Times that are none, for calls with nothing to wait for.
fn invalid_times(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"data")?;
    settle();
    let epoll = Epoll::new(1)?;
    epoll.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), 1)?;
    for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MIN, 0), (-1, -1)] {
        let results = sys::with_time(pair.s(), epoll.fd(), tv_sec, tv_nsec);
        let text: Vec<String> =
            results.into_iter().map(|(name, n)| format!("{name} {}", show(n))).collect();
        p.say(&format!("{tv_sec} s and {tv_nsec} ns"), text.join(", "));
    }
    p.result("the bytes are there still", try_recv(pair.s(), 10));
    Ok(())
}

/// The masks of every call for one descriptor.
fn masks(fd: RawFd) -> io::Result<String> {
    let now = Some(Duration::ZERO);
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP | libc::POLLRDNORM;
    let mut out = Vec::new();
    for (name, call) in [("poll", sys::poll as fn(&mut _, _) -> _), ("ppoll", sys::ppoll)] {
        let mut fds = [libc::pollfd { fd, events: all, revents: 0 }];
        let n = call(&mut fds, now)?;
        out.push(format!("{name} {n} {}", bits(i32::from(fds[0].revents))));
    }
    for events in [0, libc::POLLIN, libc::POLLOUT, libc::POLLPRI, libc::POLLRDHUP] {
        let mut fds = [libc::pollfd { fd, events, revents: 0 }];
        let n = sys::poll(&mut fds, now)?;
        let (asked, told) = (bits(events.into()), bits(fds[0].revents.into()));
        out.push(format!("poll for {asked} {n} {told}"));
    }
    for (name, call) in [("select", sys::select as fn(&mut _, _) -> _), ("pselect", sys::pselect)] {
        let mut fds = [libc::pollfd { fd, events: all, revents: 0 }];
        let n = call(&mut fds, now)?;
        out.push(format!("{name} {n} {}", bits(i32::from(fds[0].revents))));
    }
    let all = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP;
    let ways = [
        ("lt", all, 0),
        ("et", all, libc::EPOLLET),
        ("oneshot", all, libc::EPOLLONESHOT),
        ("lt for IN", libc::EPOLLIN, 0),
        ("et for IN", libc::EPOLLIN, libc::EPOLLET),
    ];
    for (name, asked, extra) in ways {
        let mut epoll = Epoll::new(8)?;
        epoll.control(libc::EPOLL_CTL_ADD, fd, (asked | extra).cast_unsigned(), 42)?;
        let rounds: Vec<String> = (0..2)
            .map(|_| -> io::Result<String> {
                let found = epoll.wait(now)?;
                Ok(found
                    .iter()
                    .map(|e| format!("{}={}", e.data, bits(e.events.cast_signed())))
                    .collect())
            })
            .collect::<io::Result<_>>()?;
        out.push(format!("epoll {name} {rounds:?}"));
    }
    Ok(out.join(", "))
}

/// The names of the bits: poll's, which are epoll's too.
pub fn bits(mask: i32) -> String {
    let names = [
        (libc::EPOLLIN, "IN"),
        (libc::EPOLLPRI, "PRI"),
        (libc::EPOLLOUT, "OUT"),
        (libc::EPOLLERR, "ERR"),
        (libc::EPOLLHUP, "HUP"),
        (libc::POLLNVAL.into(), "NVAL"),
        (libc::EPOLLRDNORM, "RDNORM"),
        (libc::EPOLLRDHUP, "RDHUP"),
    ];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, n)| *n).collect();
    if set.is_empty() { "none".into() } else { set.join("|") }
}

fn listening(p: &Probe) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let listener = listener()?;
    p.say("listener without connections", masks(listener.as_raw_fd())?);
    let client = connect_to(&listener)?;
    settle();
    p.say("listener with one", masks(listener.as_raw_fd())?);
    p.say("its client", masks(client.as_raw_fd())?);
    let (_server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    p.say("listener after accept", masks(listener.as_raw_fd())?);
    let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    p.say("socket before connect", masks(fresh.as_raw_fd())?);
    Ok(())
}

/// Waits that find nothing take their time, and no more.
fn timeouts(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let limit = Some(Duration::from_millis(40));
    let mut fds = [libc::pollfd { fd: pair.s(), events: libc::POLLIN, revents: 0 }];
    let mut epoll = Epoll::new(1)?;
    epoll.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), 1)?;
    let check = |name: &str, call: &mut dyn FnMut() -> io::Result<usize>| -> io::Result<()> {
        let started = Instant::now();
        let n = call()?;
        let took = started.elapsed();
        let right = took >= Duration::from_millis(39) && took < Duration::from_secs(2);
        p.say(&format!("{name} with a timeout"), format!("{n}, in time {right}"));
        Ok(())
    };
    check("poll", &mut || sys::poll(&mut fds, limit))?;
    check("ppoll", &mut || sys::ppoll(&mut fds, limit))?;
    check("select", &mut || sys::select(&mut fds, limit))?;
    check("pselect", &mut || sys::pselect(&mut fds, limit))?;
    check("epoll_wait", &mut || epoll.wait(limit).map(|found| found.len()))
}

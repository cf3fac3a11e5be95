//! How much a receiver asks for at once: `SO_RCVLOWAT`, `MSG_WAITALL`, and looks (`MSG_PEEK`) that wait for
//! as much.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use libc::{MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, c_int};
use shunt_functional::sys::{self, Epoll, ListenOptions};

use crate::probe::{Pair, Probe, address, done, loopback, settle, try_recv, try_send};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    looks_that_wait(p)?;
    looks_that_end(p)?;
    long_looks(p)?;
    marks(p)?;
    inherited_marks(p)?;
    high_marks(p)?;
    offsets(p)?;
    what_is_left(p)
}

fn low_water(fd: RawFd, bytes: c_int) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

fn look(fd: RawFd, len: usize, flags: c_int) -> io::Result<usize> {
    sys::recv(fd, &mut vec![0; len], MSG_PEEK | flags, false)
}

/// Bytes that come one by one, and the looks that wait for several of them: by low-water mark, room, flags.
const LOOKS: [(c_int, usize, c_int); 8] = [
    (1, 5, MSG_WAITALL),
    (1, 8, 0),
    (5, 16, 0),
    (5, 3, 0),
    (3, 6, MSG_WAITALL),
    (5, 16, MSG_TRUNC),
    (5, 16, MSG_DONTWAIT),
    (5, 16, MSG_WAITALL | MSG_DONTWAIT),
];

fn looks_that_wait(p: &Probe) -> io::Result<()> {
    for (mark, len, flags) in LOOKS {
        let pair = p.pair()?;
        low_water(pair.s(), mark)?;
        sys::write(pair.c(), b"x")?;
        settle();
        let seen = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..7 {
                    settle();
                    sys::write(pair.c(), b"x")?;
                }
                io::Result::Ok(())
            });
            look(pair.s(), len, flags)
        });
        // On a busy machine it may be late, and see more.
        let enough = match flags {
            _ if flags & MSG_DONTWAIT != 0 => 1,
            _ if flags & MSG_WAITALL != 0 => len,
            _ => len.min(usize::try_from(mark).unwrap_or(1)),
        };
        let seen = seen.map(|seen| seen.min(enough));
        p.result(&format!("a look at {len} from {mark} on, flags {flags:#x}"), seen);
        settle();
        p.result("what there is then", look(pair.s(), 100, MSG_DONTWAIT));
        p.result("all of it", sys::recv(pair.s(), &mut [0; 8], MSG_WAITALL, false));
        p.result("and no more", try_recv(pair.s(), 8));
    }
    Ok(())
}

/// What ends a direction, by the sender and the receiver's number.
type End = fn(OwnedFd, RawFd) -> io::Result<Option<OwnedFd>>;

/// How a look ends that does not come to see as much as it is to.
const ENDS: [(&str, End); 4] = [
    ("a half-close", |client, _| {
        sys::shutdown(client.as_raw_fd(), libc::SHUT_WR).map(|()| Some(client))
    }),
    ("a close", |_, _| Ok(None)),
    ("a reset", |client, _| sys::linger(client.as_raw_fd(), 0).map(|()| None)),
    ("the receiver's own end", |client, server| {
        sys::shutdown(server, libc::SHUT_RD).map(|()| Some(client))
    }),
];

fn looks_that_end(p: &Probe) -> io::Result<()> {
    for (name, end) in ENDS {
        let Pair { client, server } = p.pair()?;
        let fd = server.as_raw_fd();
        sys::write(client.as_raw_fd(), b"abc")?;
        settle();
        let _client = thread::scope(|scope| {
            let ends = scope.spawn(|| {
                settle();
                end(client, fd)
            });
            p.result(&format!("a look that {name} ends"), look(fd, 10, MSG_WAITALL));
            ends.join().map_err(|_| io::Error::other("panicked"))?
        })?;
        p.result("another one", look(fd, 10, MSG_WAITALL));
        p.result("a read", sys::recv(fd, &mut [0; 10], MSG_WAITALL, false));
        p.result("the next one", try_recv(fd, 10));
    }
    let pair = p.pair()?;
    sys::write(pair.c(), b"abc")?;
    settle();
    sys::set_timeout(pair.s(), libc::SO_RCVTIMEO, Duration::from_millis(40))?;
    p.result("a look that a timeout ends", look(pair.s(), 10, MSG_WAITALL));
    low_water(pair.s(), 10)?;
    p.result("another one", look(pair.s(), 20, 0));
    p.result("a read", try_recv(pair.s(), 10));
    Ok(())
}

/// A look at more than a ring holds.
fn long_looks(p: &Probe) -> io::Result<()> {
    const MANY: usize = 700_000;
    for flags in [MSG_WAITALL, 0] {
        let pair = p.pair()?;
        low_water(pair.s(), c_int::try_from(MANY).unwrap_or(c_int::MAX))?;
        let block: Vec<u8> = (0..MANY).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let (seen, got) = thread::scope(|scope| {
            scope.spawn(|| sys::write(pair.c(), &block));
            let mut seen = vec![0; MANY];
            let n = sys::recv(pair.s(), &mut seen, MSG_PEEK | flags, false);
            p.result(&format!("a long look, flags {flags:#x}"), n);
            let mut got = vec![0; MANY];
            p.result("a read", sys::recv(pair.s(), &mut got, MSG_WAITALL, false));
            (seen, got)
        });
        p.say("both are right", (seen == block, got == block) == (true, true));
    }
    Ok(())
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// What waits for bytes say: poll, and epoll, level and edge.
fn waits(fd: RawFd, time: Option<Duration>) -> io::Result<String> {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let polled = sys::poll(&mut fds, time)?;
    let mut found = vec![polled];
    for mode in [0, libc::EPOLLET] {
        let mut epoll = Epoll::new(1)?;
        let asked = (libc::EPOLLIN | mode).cast_unsigned();
        epoll.control(libc::EPOLL_CTL_ADD, fd, asked, 1)?;
        found.push(epoll.wait(time)?.len());
    }
    Ok(format!("{found:?}"))
}

fn marks(p: &Probe) -> io::Result<()> {
    for mark in [5, 1000] {
        let pair = p.pair()?;
        low_water(pair.s(), mark)?;
        let some = usize::try_from(mark).unwrap_or(1);
        sys::write(pair.c(), &vec![1; some - 1])?;
        settle();
        p.result(&format!("below {mark}"), waits(pair.s(), Some(Duration::ZERO)));
        sys::write(pair.c(), b"x")?;
        p.result("at it", waits(pair.s(), PATIENCE));
        p.result("a byte is read", try_recv(pair.s(), 1));
        p.result("below it again", waits(pair.s(), Some(Duration::ZERO)));
        sys::shutdown(pair.c(), libc::SHUT_WR)?;
        p.result("at the end", waits(pair.s(), PATIENCE));
    }
    Ok(())
}

/// A mark that is set before there is a connection counts for it, and a listener's for all that it accepts.
fn inherited_marks(p: &Probe) -> io::Result<()> {
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    low_water(listener.as_raw_fd(), 50)?;
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    low_water(client.as_raw_fd(), 60)?;
    sys::connect(client.as_raw_fd(), address(&listener)?)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    let pair = Pair { client, server };
    for (from, to, mark) in [(pair.c(), pair.s(), 50), (pair.s(), pair.c(), 60)] {
        // The first goes over TCP.
        for round in 0..3 {
            sys::write(from, &vec![1; mark - 1])?;
            settle();
            let below = waits(to, Some(Duration::ZERO));
            p.result(&format!("below an inherited {mark}, round {round}"), below);
            sys::write(from, b"x")?;
            p.result("at it", waits(to, PATIENCE));
            p.result("read", sys::recv(to, &mut vec![0; mark], 0, false));
        }
    }
    Ok(())
}

/// How a sender comes to know of room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    Blocking,
    Polling,
    /// Its buffer is small.
    Small,
}

fn send_all(fd: RawFd, how: Sender, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = match how {
            Sender::Blocking | Sender::Small => sys::write(fd, bytes)?,
            Sender::Polling => {
                let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                if sys::poll(&mut fds, PATIENCE)? == 0 {
                    return Err(io::Error::other("no room"));
                }
                try_send(fd, &bytes[..bytes.len().min(10_000)])?
            }
        };
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Marks above what a ring holds, or its sender puts there.
fn high_marks(p: &Probe) -> io::Result<()> {
    for how in [Sender::Blocking, Sender::Polling, Sender::Small] {
        for mark in [60_000, 400_000, 600_000] {
            let pair = p.pair()?;
            if how == Sender::Small {
                sys::set_option(pair.c(), libc::SOL_SOCKET, libc::SO_SNDBUF, 16_384)?;
            }
            low_water(pair.s(), mark)?;
            let bytes = vec![3; usize::try_from(mark).unwrap_or(1)];
            let name = format!("{how:?} sends {mark}");
            thread::scope(|scope| {
                let sends = scope.spawn(|| send_all(pair.c(), how, &bytes));
                p.result(&format!("{name}: found"), waits(pair.s(), PATIENCE));
                if how == Sender::Small {
                    // The kernel may take very long to open the window of such a connection again.
                    sys::shutdown(pair.c(), libc::SHUT_RDWR)?;
                    return sends.join().map(drop).map_err(|_| io::Error::other("panicked"));
                }
                // The kernel would not wake a receive that waits for fewer bytes than the mark.
                low_water(pair.s(), 1)?;
                let mut got = vec![0; bytes.len()];
                p.result(&name, sys::recv(pair.s(), &mut got, MSG_WAITALL, false));
                p.say("right", got == bytes);
                sends.join().map_err(|_| io::Error::other("panicked"))?
            })?;
        }
    }
    Ok(())
}

fn offset(fd: RawFd, at: c_int) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, at)
}

/// Looks that begin where the last one ended (`SO_PEEK_OFF`): of a connection, of one that comes to be, of
/// what a listener accepts.
fn offsets(p: &Probe) -> io::Result<()> {
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    for when in ["after", "before", "at the listener"] {
        if when == "at the listener" {
            p.say("SO_PEEK_OFF", done(offset(listener.as_raw_fd(), 0)));
        }
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        if when == "before" {
            p.say("SO_PEEK_OFF", done(offset(client.as_raw_fd(), 0)));
        }
        sys::connect(client.as_raw_fd(), address(&listener)?)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let mut pair = p.ready(Pair { client, server })?;
        if when == "before" {
            pair = Pair { client: pair.server, server: pair.client };
        }
        if when == "after" {
            p.say("SO_PEEK_OFF", done(offset(pair.s(), 0)));
        }
        let name = |what: &str| format!("{what}, set {when}");
        for round in 0..2 {
            sys::write(pair.c(), b"0123456789")?;
            settle();
            p.result(&name("first"), look(pair.s(), 3, 0));
            p.result(&name("next"), look(pair.s(), 16, 0));
            p.result(&name("nothing is left"), look(pair.s(), 16, MSG_DONTWAIT));
            p.result(&name("read"), sys::recv(pair.s(), &mut [0; 4], 0, false));
            sys::write(pair.c(), b"abc")?;
            settle();
            p.result(&name("what came then"), look(pair.s(), 16, 0));
            p.say(&name("from the start"), done(offset(pair.s(), 0)));
            let at = sys::get_option(pair.s(), libc::SOL_SOCKET, libc::SO_PEEK_OFF);
            p.result(&name("says"), at);
            p.result(&name("again"), look(pair.s(), 16, 0));
            p.result(&name("all"), sys::recv(pair.s(), &mut [0; 9], MSG_WAITALL, false));
            p.say("round", round);
        }
        p.say(&name("no more of that"), done(offset(pair.s(), -1)));
        sys::write(pair.c(), b"0123456789")?;
        settle();
        p.result(&name("a look"), look(pair.s(), 16, 0));
        p.result(&name("another"), look(pair.s(), 16, 0));
    }
    Ok(())
}

/// Receives tell what is left (`TCP_INQ`), the end included.
fn what_is_left(p: &Probe) -> io::Result<()> {
    /// `include/uapi/linux/tcp.h`.
    const TCP_INQ: c_int = 36;
    const ROOM: usize = 64;
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    for when in ["after", "before", "at the listener"] {
        let ask = |fd: RawFd, on| sys::set_option(fd, libc::IPPROTO_TCP, TCP_INQ, on);
        if when == "at the listener" {
            ask(listener.as_raw_fd(), 1)?;
        }
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        if when == "before" {
            ask(client.as_raw_fd(), 1)?;
        }
        sys::connect(client.as_raw_fd(), address(&listener)?)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let mut pair = p.ready(Pair { client, server })?;
        if when == "before" {
            pair = Pair { client: pair.server, server: pair.client };
        }
        let (from, to) = (pair.c(), pair.s());
        if when == "after" {
            sys::write(from, b"abc")?;
            settle();
            p.result("nobody has asked", sys::recv_inq(to, 2, 0, ROOM));
            ask(to, 1)?;
            p.result("asked", sys::recv_inq(to, 2, 0, ROOM));
        }
        for round in 0..3 {
            let name = |what: &str| format!("{what}, set {when}, round {round}");
            sys::write(from, b"0123456789")?;
            settle();
            p.result(&name("a look"), sys::recv_inq(to, 4, MSG_PEEK, ROOM));
            p.result(&name("four"), sys::recv_inq(to, 4, 0, ROOM));
            p.result(&name("little room"), sys::recv_inq(to, 1, 0, 18));
            p.result(&name("too little"), sys::recv_inq(to, 1, 0, 8));
            p.result(&name("no room"), sys::recv_inq(to, 1, 0, 0));
            p.result(&name("the rest"), sys::recv_inq(to, 10, 0, ROOM));
            p.result(&name("nothing"), sys::recv_inq(to, 10, MSG_DONTWAIT, ROOM));
        }
        ask(to, 0)?;
        sys::write(from, b"abc")?;
        settle();
        p.result("no more of that", sys::recv_inq(to, 2, 0, ROOM));
        ask(to, 1)?;
        sys::write(from, b"de")?;
        sys::shutdown(from, libc::SHUT_WR)?;
        settle();
        p.result("before the end", sys::recv_inq(to, 1, 0, ROOM));
        p.result("the last", sys::recv_inq(to, 2, 0, ROOM));
        p.result("the end", sys::recv_inq(to, 2, 0, ROOM));
    }
    Ok(())
}

//! What the two ends of a connection do with it: one of them is tested, the other does what makes the first one wait,
//! follow, or find its ring full.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Forked, Memory, Private};

use crate::signals;
use crate::wire::{Bad, Style, Wire, bad};

/// Bytes each way: more than a ring holds.
const BULK: usize = 700_000;
/// Time for the other end to fall asleep, or to fill its ring.
const MOMENT: Duration = Duration::from_millis(2);
/// The same on a futex, which is given up after a while.
const LONG: Duration = Duration::from_millis(25);
const PATIENCE: Duration = Duration::from_secs(10);

/// What the tested end does besides sending and receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    /// Blocking calls.
    Blocking,
    /// The same, which wait for long.
    Idle,
    /// A thread for each direction.
    Duplex,
    /// Waits in poll(2).
    Poll,
    /// In select(2).
    Select,
    /// In epoll_wait(2).
    Epoll,
    /// Sends registered memory without copies.
    Granted,
    /// The same with private memory.
    Pinned,
    /// sendfile(2) and splice(2).
    Files,
    /// Leaves the ring.
    Leaves,
    /// The other end leaves it.
    Follows,
    /// Forks, and its child uses the connection.
    Forks,
    /// Closes and duplicates descriptors.
    Duplicates,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Blocking,
        Self::Idle,
        Self::Duplex,
        Self::Poll,
        Self::Select,
        Self::Epoll,
        Self::Granted,
        Self::Pinned,
        Self::Files,
        Self::Leaves,
        Self::Follows,
        Self::Forks,
        Self::Duplicates,
    ];

    const fn style(self) -> Style {
        match self {
            Self::Poll => Style::Poll,
            Self::Select => Style::Select,
            Self::Epoll => Style::Epoll,
            _ => Style::Blocking,
        }
    }
}

/// Where an end's connections come from.
pub enum Way {
    /// It connects to this.
    Connect(SocketAddr),
    /// It accepts here.
    Accept(OwnedFd),
}

impl Way {
    /// True for an end that connects.
    pub const fn is_client(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    fn open(&self, style: Style) -> Result<OwnedFd, Bad> {
        let stage = "open";
        let failed = |what: &'static str| move |e: io::Error| bad(stage, what, &e);
        let listener = match self {
            Self::Accept(listener) => listener,
            Self::Connect(to) => {
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)
                    .map_err(failed("socket"))?;
                if style == Style::Blocking {
                    sys::connect(fd.as_raw_fd(), *to).map_err(failed("connect"))?;
                    return Ok(fd);
                }
                sys::set_nonblocking(fd.as_raw_fd(), true).map_err(failed("O_NONBLOCK"))?;
                match sys::connect(fd.as_raw_fd(), *to) {
                    Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => {
                        return Err(failed("connect")(e));
                    }
                    _ => {}
                }
                let events = libc::POLLOUT;
                let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }];
                again(|| sys::poll(&mut fds, Some(PATIENCE))).map_err(failed("poll"))?;
                return Ok(fd);
            }
        };
        if style == Style::Epoll {
            let mut epoll = sys::Epoll::new(4).map_err(failed("epoll_create"))?;
            let wanted = u32::from(libc::POLLIN.cast_unsigned());
            let added = epoll.control(libc::EPOLL_CTL_ADD, listener.as_raw_fd(), wanted, 9);
            added.map_err(failed("EPOLL_CTL_ADD"))?;
            again(|| epoll.wait(Some(PATIENCE)).map(drop)).map_err(failed("epoll_wait"))?;
        }
        let accepted = sys::accept(listener.as_raw_fd(), libc::SOCK_CLOEXEC);
        accepted.map(|(fd, _)| fd).map_err(failed("accept"))
    }
}

/// The end that is tested.
pub fn tested(way: &Way, kind: Kind, number: u64) -> Result<(), Bad> {
    let is_client = way.is_client();
    signals::concern(-1);
    let mut wire = Wire::new(way.open(kind.style())?, kind.style(), is_client, number)?;
    signals::concern(wire.raw());
    let result = uses(&mut wire, kind, is_client, number);
    signals::concern(-1);
    result
}

fn uses(wire: &mut Wire, kind: Kind, is_client: bool, number: u64) -> Result<(), Bad> {
    wire.warm_up(is_client)?;
    if kind == Kind::Duplex {
        duplex(wire, is_client, number)?;
    } else {
        if kind == Kind::Duplicates {
            duplicates(wire)?;
        }
        if !is_client {
            bulk_in(wire, kind)?;
        }
        bulk_out(wire, kind)?;
        if is_client {
            bulk_in(wire, kind)?;
        }
    }
    wire.end()
}

/// The other one.
pub fn other(way: &Way, kind: Kind, number: u64) -> Result<(), Bad> {
    let is_client = way.is_client();
    let mut wire = Wire::new(way.open(Style::Blocking)?, Style::Blocking, is_client, number)?;
    wire.warm_up(is_client)?;
    if kind == Kind::Duplex {
        duplex(&mut wire, is_client, number)?;
    } else {
        if is_client {
            slowly_out(&mut wire, kind)?;
        }
        slowly_in(&mut wire, kind)?;
        if !is_client {
            slowly_out(&mut wire, kind)?;
        }
    }
    wire.end()
}

/// Both directions at once.
fn duplex(wire: &mut Wire, is_client: bool, number: u64) -> Result<(), Bad> {
    wire.stage = "duplex";
    let copy = wire.check("dup", sys::dup(wire.raw()))?;
    let mut sender = Wire::new(copy, Style::Blocking, is_client, number)?;
    sender.stage = "duplex";
    (sender.sent, sender.got) = (wire.sent, wire.got);
    thread::scope(|scope| {
        let sending = scope.spawn(|| sender.send(BULK));
        let received = wire.recv(BULK);
        let sent = sending.join().map_err(|_| Bad::Wrong("a thread is gone".into()))?;
        match (received, sent) {
            // The kernel tells a reset once: the other thread finds an end.
            (_, Err(Bad::Reset(stage))) => Err(Bad::Reset(stage)),
            (received, sent) => received.and(sent),
        }
    })?;
    wire.sent = sender.sent;
    Ok(())
}

fn slowly_in(wire: &mut Wire, kind: Kind) -> Result<(), Bad> {
    wire.stage = "bulk to it";
    thread::sleep(if kind == Kind::Idle { LONG } else { MOMENT });
    wire.recv(BULK / 3)?;
    if kind == Kind::Follows {
        // What is in the ring by now comes once more.
        thread::sleep(MOMENT);
        let given = sys::open_stdio(wire.raw());
        wire.check("fdopen", given)?;
    }
    wire.recv(BULK - BULK / 3)
}

fn slowly_out(wire: &mut Wire, kind: Kind) -> Result<(), Bad> {
    wire.stage = "bulk from it";
    thread::sleep(if kind == Kind::Idle { LONG } else { MOMENT });
    wire.send(BULK / 3)?;
    thread::sleep(MOMENT);
    wire.send(BULK - BULK / 3)
}

fn bulk_out(wire: &mut Wire, kind: Kind) -> Result<(), Bad> {
    wire.stage = "bulk out";
    match kind {
        Kind::Granted => {
            let memory = Memory::new(BULK);
            let mut memory = wire.check("memory", memory)?;
            without_copies(wire, memory.bytes())
        }
        Kind::Pinned => {
            let memory = Private::new(BULK);
            let mut memory = wire.check("memory", memory)?;
            without_copies(wire, memory.bytes())
        }
        Kind::Files => send_files(wire),
        Kind::Forks => {
            forked(wire, |wire| wire.send(1000), |wire| wire.sent += 1000)?;
            wire.send(BULK - 1000)
        }
        Kind::Follows => {
            wire.send(BULK / 2)?;
            thread::sleep(MOMENT);
            wire.send(BULK - BULK / 2)
        }
        _ => wire.send(BULK),
    }
}

fn bulk_in(wire: &mut Wire, kind: Kind) -> Result<(), Bad> {
    wire.stage = "bulk in";
    match kind {
        Kind::Files => splice_in(wire),
        Kind::Leaves => {
            wire.recv(1000)?;
            thread::sleep(MOMENT);
            let given = sys::open_stdio(wire.raw());
            wire.check("fdopen", given)?;
            wire.recv(BULK - 1000)
        }
        Kind::Forks => {
            forked(wire, |wire| wire.recv(1000), |wire| wire.got += 1000)?;
            wire.recv(BULK - 2000)?;
            // It fails, and what was handed over for it goes on.
            sys::exec_nothing(wire.raw());
            wire.recv(1000)
        }
        _ => wire.recv(BULK),
    }
}

/// From memory that is not used again before all calls are complete.
fn without_copies(wire: &mut Wire, memory: &mut [u8]) -> Result<(), Bad> {
    let fd = wire.raw();
    let asked = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    wire.check("SO_ZEROCOPY", asked)?;
    let all = wire.next_out(memory.len());
    memory.copy_from_slice(&all);
    let first = wire.sent;
    let (mut calls, mut told) = (0_u64, 0_u64);
    let base = &*memory;
    let mut at = 0;
    while at < base.len() {
        let piece = &base[at..base.len().min(at + 130_000)];
        match sys::send(fd, piece, libc::MSG_NOSIGNAL | libc::MSG_ZEROCOPY) {
            Ok(n) => {
                at += n;
                calls += 1;
                wire.sent = first + at as u64;
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                told += completions(wire)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(bad(wire.stage, "send", &e)),
        }
    }
    let until = Instant::now() + PATIENCE;
    while told < calls {
        let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
        let waited = again(|| sys::poll(&mut fds, Some(Duration::from_millis(200))));
        wire.check("poll", waited)?;
        told += completions(wire)?;
        if Instant::now() > until {
            return Err(wire.wrong(format!("told of {told} of {calls} calls")));
        }
    }
    Ok(())
}

/// A call that a signal has ended is made again.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Calls of which the error queue tells.
fn completions(wire: &Wire) -> Result<u64, Bad> {
    let mut told = 0;
    loop {
        match sys::recv_error(wire.raw(), 256) {
            Ok(report) => {
                let Some((first, last)) = report.numbers else {
                    return Err(wire.wrong(format!("an unknown report: {report}")));
                };
                told += u64::from(last - first) + 1;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(told),
            Err(e) => return Err(bad(wire.stage, "error queue", &e)),
        }
    }
}

fn send_files(wire: &mut Wire) -> Result<(), Bad> {
    wire.send_by(BULK / 2, |fd, bytes| {
        let file = sys::memfd(c"shunt-points")?;
        sys::pwrite_all(file.as_raw_fd(), bytes)?;
        sys::sendfile(fd, file.as_raw_fd(), bytes.len())
    })?;
    let made = sys::pipe();
    let (from, to) = wire.check("pipe", made)?;
    let mut left = BULK - BULK / 2;
    while left > 0 {
        let bytes = wire.next_out(left.min(30_000));
        let written = sys::write(to.as_raw_fd(), &bytes);
        let mut piped = wire.check("write", written)?;
        left -= piped;
        while piped > 0 {
            let moved = again(|| sys::splice(from.as_raw_fd(), wire.raw(), piped, 0));
            let n = wire.check("splice", moved)?;
            if n == 0 {
                return Err(wire.wrong("splice moves nothing"));
            }
            wire.sent += n as u64;
            piped -= n;
        }
    }
    Ok(())
}

fn splice_in(wire: &mut Wire) -> Result<(), Bad> {
    let made = sys::pipe();
    let (from, to) = wire.check("pipe", made)?;
    let mut left = BULK;
    let mut buffer = vec![0; 30_000];
    while left > 0 {
        let most = left.min(buffer.len());
        let moved = again(|| sys::splice(wire.raw(), to.as_raw_fd(), most, 0));
        let mut n = wire.check("splice", moved)?;
        if n == 0 {
            return Err(wire.wrong(format!("the end comes at byte {}", wire.got)));
        }
        left -= n;
        while n > 0 {
            let read = sys::read(from.as_raw_fd(), &mut buffer[..n]);
            let got = wire.check("read", read)?;
            wire.take_in(&buffer[..got])?;
            n -= got;
        }
    }
    Ok(())
}

/// A child does a part.
fn forked(
    wire: &mut Wire,
    part: impl FnOnce(&mut Wire) -> Result<(), Bad>,
    note: impl FnOnce(&mut Wire),
) -> Result<(), Bad> {
    let forked = sys::fork();
    match wire.check("fork", forked)? {
        Forked::Child => {
            let code = match part(wire) {
                Ok(()) => 0,
                Err(Bad::Reset(_)) => 1,
                Err(Bad::Wrong(what)) => {
                    eprintln!("the child: {what}");
                    2
                }
            };
            sys::exit_now(code);
        }
        Forked::Parent(pid) => {
            let ended = sys::wait_for(pid);
            match wire.check("wait", ended)? {
                0 => note(wire),
                // The peer's word for it counts.
                1 => return Err(Bad::Reset(wire.stage)),
                code => return Err(wire.wrong(format!("the child ends with {code}"))),
            }
            Ok(())
        }
    }
}

/// Descriptors come and go.
fn duplicates(wire: &mut Wire) -> Result<(), Bad> {
    wire.stage = "duplicates";
    let other = sys::pair(libc::SOCK_STREAM);
    let (over, _kept) = wire.check("socketpair", other)?;
    for _ in 0..2 {
        let copy = sys::dup(wire.raw());
        let copy = wire.check("dup", copy)?;
        let onto = sys::dup2(wire.raw(), &over);
        wire.check("dup2", onto)?;
        // Away from the connection again, and back.
        let made = sys::pipe();
        let (from, _to) = wire.check("pipe", made)?;
        let onto = sys::dup2(from.as_raw_fd(), &over);
        wire.check("dup2", onto)?;
        drop(copy);
    }
    let onto = sys::dup3(wire.raw(), &over, libc::O_CLOEXEC);
    wire.check("dup3", onto)?;
    let outq = sys::outq(over.as_raw_fd());
    wire.check("TIOCOUTQ", outq).map(drop)
}

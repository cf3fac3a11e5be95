//! Who has sent what nobody reads, and waits while the receiver is killed: it hears at once, in whichever way it waits. These
//! run with a long `SHUNT_GRANT_TIMEOUT`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
use libc::{POLLHUP, POLLIN, POLLOUT, SO_ZEROCOPY, SOL_SOCKET};
use shunt_functional::sys::{self, Epoll, Memory, Private};

use crate::probe::{Probe, connect_to, listener, show, try_recv, try_send};
use crate::processes::in_child;
use crate::zerocopy::{ROOM, send};

/// Bytes of a call: few enough for all to be on their way at once.
const LARGE: usize = 16 << 10;
/// Calls that are read, by which the receiver comes to know the memory.
const TIMES: usize = 4;
/// Longest wait for what is to come at once.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is said of who hears nothing before that is over.
const TOO_LATE: &str = "too late";
/// Time for who waits to be asleep.
const ASLEEP: Duration = Duration::from_millis(60);

/// Where the bytes lie that nobody reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    /// They are copied.
    Copied,
    /// In memory of `shunt_alloc`.
    Asked,
    /// In private memory.
    Private,
}

/// Memory of that kind.
enum Bytes {
    Asked(Memory),
    Private(Private),
}

impl Bytes {
    fn new(from: From) -> io::Result<Self> {
        Ok(match from {
            From::Asked => Self::Asked(Memory::new(LARGE)?),
            From::Copied | From::Private => Self::Private(Private::new(LARGE)?),
        })
    }

    fn get(&mut self) -> &mut [u8] {
        match self {
            Self::Asked(memory) => memory.bytes(),
            Self::Private(memory) => memory.bytes(),
        }
    }
}

/// How the sender waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// In poll, for errors alone, as those do who wait for completions.
    Errors,
    /// The same while another thread waits for bytes.
    ErrorsBesideAReader,
    /// In poll, for room, of which there is none.
    Room,
    /// In poll, with room to send: it never sleeps.
    Busy,
    /// In select.
    Select,
    /// In epoll, for errors alone.
    Epoll,
    /// In epoll, for everything, once.
    Edge,
}

/// What comes after that.
#[derive(Clone, Copy, Debug)]
enum Call {
    Read,
    Send,
    /// `SO_ERROR`.
    Option,
}

impl Call {
    fn run(self, fd: RawFd) -> io::Result<i64> {
        let len = |n: usize| i64::try_from(n).map_err(io::Error::other);
        match self {
            Self::Read => try_recv(fd, 10).and_then(len),
            Self::Send => try_send(fd, b"x").and_then(len),
            Self::Option => sys::get_option(fd, SOL_SOCKET, libc::SO_ERROR).map(i64::from),
        }
    }
}

/// A receiver that reads the first calls, and then nothing.
struct Receiver {
    pid: libc::pid_t,
    client: OwnedFd,
}

impl Receiver {
    fn new() -> io::Result<Self> {
        let listener = listener()?;
        let pid = in_child(|| {
            sys::end_with_parent()?;
            let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
            let mut got = vec![0; LARGE];
            loop {
                sys::write(server.as_raw_fd(), b"x")?;
                let n = sys::recv(server.as_raw_fd(), &mut got, libc::MSG_WAITALL, false)?;
                if got[..n].contains(&LAST) {
                    thread::sleep(Duration::from_secs(600));
                }
            }
        })?;
        let client = connect_to(&listener)?;
        let ready = Self { pid, client };
        for _ in 0..2 * TIMES {
            sys::read(ready.fd(), &mut [0])?;
            sys::write(ready.fd(), &[0; LARGE])?;
        }
        Ok(ready)
    }

    fn fd(&self) -> RawFd {
        self.client.as_raw_fd()
    }

    /// It is killed while somebody is in `wait`.
    fn is_killed_in<T>(&self, wait: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        thread::scope(|scope| {
            let killing = scope.spawn(|| {
                thread::sleep(ASLEEP);
                sys::kill(self.pid, libc::SIGKILL)
            });
            let waited = wait();
            killing.join().map_err(|_| io::Error::other("a thread has panicked"))??;
            waited
        })
    }
}

/// A byte of the last call that is read.
const LAST: u8 = 9;

/// Takes what the error queue has; how many calls are complete then, of which `before` were.
fn complete(fd: RawFd, before: u32) -> io::Result<u32> {
    let mut complete = before;
    loop {
        match sys::recv_error(fd, ROOM) {
            Ok(report) => {
                complete = report.numbers.map_or(complete, |(_, last)| complete.max(last + 1));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(complete),
            Err(e) => return Err(e),
        }
    }
}

fn poll(fd: RawFd, events: i16, patience: Duration) -> io::Result<i16> {
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    sys::poll(&mut fds, Some(patience))?;
    Ok(fds[0].revents)
}

impl Wait {
    /// One wait: what it has said, and whether the connection was over then.
    fn once(self, fd: RawFd, epoll: &mut Epoll) -> io::Result<(i32, bool)> {
        let (events, patience) = match self {
            Self::Errors | Self::ErrorsBesideAReader => (0, PATIENCE),
            Self::Room => (POLLOUT, PATIENCE),
            Self::Busy => (POLLIN | POLLOUT, Duration::ZERO),
            Self::Select => {
                let mut fds = [libc::pollfd { fd, events: POLLIN, revents: 0 }];
                let n = sys::select(&mut fds, Some(PATIENCE))?;
                return Ok((i32::from(n > 0), poll(fd, 0, Duration::ZERO)? & POLLHUP != 0));
            }
            Self::Epoll | Self::Edge => {
                let events = epoll.wait(Some(PATIENCE))?;
                let said = events.first().map_or(0, |event| event.events.cast_signed());
                return Ok((said, said & EPOLLHUP != 0));
            }
        };
        let said = poll(fd, events, patience)?;
        // A reset does not come all at once.
        Ok((i32::from(said & !POLLIN), said & POLLHUP != 0))
    }

    /// What a wait has said that ended with the connection. Completions that come before that are taken.
    fn until_the_end(self, fd: RawFd, told: &mut u32) -> io::Result<String> {
        let mut epoll = Epoll::new(1)?;
        if matches!(self, Self::Epoll | Self::Edge) {
            let all = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
            let events = if self == Self::Edge { all } else { 0 };
            epoll.control(EPOLL_CTL_ADD, fd, events.cast_unsigned(), 1)?;
        }
        let started = Instant::now();
        loop {
            let (said, is_over) = self.once(fd, &mut epoll)?;
            // A wait that comes to its end may have a look of its own.
            if started.elapsed() >= PATIENCE {
                return Ok(TOO_LATE.to_owned());
            }
            if is_over {
                return Ok(format!("{said:#x}"));
            }
            *told = complete(fd, *told)?;
        }
    }

    /// The same while the receiver is killed.
    fn run(self, receiver: &Receiver, told: &mut u32) -> io::Result<String> {
        let fd = receiver.fd();
        let waited = || self.until_the_end(fd, told);
        if self != Self::ErrorsBesideAReader {
            return receiver.is_killed_in(waited);
        }
        thread::scope(|scope| {
            let reading = scope.spawn(|| sys::recv(fd, &mut [0], 0, false));
            // The error is told to one of the two, and maybe before the other one looks.
            let is_late = receiver.is_killed_in(waited)? == TOO_LATE;
            let read = reading.join().map_err(|_| io::Error::other("a thread has panicked"))?;
            let said = if is_late { TOO_LATE } else { "the end" };
            Ok(format!("{said}, and the reader {}", show(read)))
        })
    }
}

fn wait(p: &Probe, from: From, wait: Wait) -> io::Result<()> {
    let receiver = Receiver::new()?;
    let fd = receiver.fd();
    let mut bytes = Bytes::new(from)?;
    let mut called = 0;
    let mut send = |fd: RawFd, bytes: &[u8]| match from {
        From::Copied => sys::write(fd, bytes),
        From::Asked | From::Private => send(fd, bytes).inspect(|_| called += 1),
    };
    sys::set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1)?;
    let mut told = 0;
    for n in 1..=TIMES {
        sys::read(fd, &mut [0])?;
        bytes.get().fill(if n == TIMES { LAST } else { 1 });
        send(fd, bytes.get())?;
        while from != From::Copied && told < u32::try_from(n).unwrap_or(0) {
            poll(fd, 0, PATIENCE)?;
            told = complete(fd, told)?;
        }
    }
    // Nobody reads any of these.
    send(fd, bytes.get())?;
    if wait == Wait::Room {
        while try_send(fd, &[1; 1 << 16]).is_ok() {}
    }
    let what = format!("{from:?}, {wait:?}");
    p.result(&format!("{what}: hears"), wait.run(&receiver, &mut told));
    told = complete(fd, told)?;
    p.say(&format!("{what}: all calls are complete"), told == called);
    p.result(
        &format!("{what}: poll says"),
        poll(fd, POLLIN | POLLOUT, Duration::ZERO).map(|r| format!("{r:#x}")),
    );
    // The first of these has the error.
    let mut calls = [Call::Read, Call::Send, Call::Option, Call::Read, Call::Send];
    match wait {
        Wait::Errors | Wait::Room => calls.swap(0, 1),
        Wait::Epoll | Wait::Busy => calls.swap(0, 2),
        _ => {}
    }
    for call in calls {
        p.result(&format!("{what}: {call:?}"), call.run(fd));
    }
    sys::wait_for(receiver.pid)?;
    Ok(())
}

/// The receiver is killed in all kinds of waits.
pub fn run(p: &mut Probe) -> io::Result<()> {
    use Wait::{Busy, Edge, Epoll, Errors, ErrorsBesideAReader, Room, Select};
    // These have always carried bytes.
    if !p.warm {
        return Ok(());
    }
    for from in [From::Copied, From::Asked, From::Private] {
        for how in [Errors, ErrorsBesideAReader, Room, Busy, Select, Epoll, Edge] {
            wait(p, from, how)?;
        }
    }
    Ok(())
}

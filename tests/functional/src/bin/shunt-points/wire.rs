//! One end of a connection whose every byte is known from its position.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use shunt_functional::{pattern, sys};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a call.
const CALL: usize = 150_000;

/// How an end waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// In the call itself.
    Blocking,
    /// In poll(2).
    Poll,
    /// In select(2).
    Select,
    /// In epoll_wait(2).
    Epoll,
}

/// What has ended a connection before its time.
#[derive(Debug)]
pub enum Bad {
    /// A reset, where.
    Reset(&'static str),
    /// What must not be.
    Wrong(String),
}

/// Where an end has come to, and what it has seen.
pub struct Wire {
    fd: OwnedFd,
    style: Style,
    epoll: Option<sys::Epoll>,
    /// What of the connection is under way.
    pub stage: &'static str,
    label_in: u64,
    label_out: u64,
    /// Bytes that were received.
    pub got: u64,
    /// Bytes that were sent.
    pub sent: u64,
}

/// Tells a reset from what must not be.
pub fn bad(stage: &'static str, what: &str, error: &io::Error) -> Bad {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    match error.kind() {
        // ENOTCONN is what shutdown says after a reset.
        ConnectionReset | BrokenPipe | NotConnected => Bad::Reset(stage),
        _ => Bad::Wrong(format!("{stage}: {what}: {}", sys::errno_name(error))),
    }
}

impl Wire {
    /// An end of a connection; `number` names it, the same at both ends.
    pub fn new(fd: OwnedFd, style: Style, is_client: bool, number: u64) -> Result<Self, Bad> {
        let labels = [number << 1 | 1 << 40, number << 1 | 1 << 40 | 1];
        let [label_out, label_in] = if is_client { labels } else { [labels[1], labels[0]] };
        let stage = "open";
        let mut wire = Self { fd, style, epoll: None, stage, label_in, label_out, got: 0, sent: 0 };
        let fd = wire.raw();
        let nodelay = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        wire.check("TCP_NODELAY", nodelay)?;
        if style != Style::Blocking {
            wire.check("O_NONBLOCK", sys::set_nonblocking(fd, true))?;
        }
        if style == Style::Epoll {
            let epoll = wire.check("epoll_create", sys::Epoll::new(4))?;
            let added = epoll.control(libc::EPOLL_CTL_ADD, fd, events(libc::POLLIN), 7);
            wire.check("EPOLL_CTL_ADD", added)?;
            wire.epoll = Some(epoll);
        }
        Ok(wire)
    }

    /// The descriptor.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The result, or what is bad about it.
    pub fn check<T>(&self, what: &str, result: io::Result<T>) -> Result<T, Bad> {
        result.map_err(|e| bad(self.stage, what, &e))
    }

    /// What must not be.
    pub fn wrong(&self, what: impl Into<String>) -> Bad {
        Bad::Wrong(format!("{}: {}", self.stage, what.into()))
    }

    /// The next bytes that are to be sent.
    pub fn next_out(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern::fill(self.label_out, self.sent, &mut bytes);
        bytes
    }

    /// Takes bytes for received, which must be the next ones.
    pub fn take_in(&mut self, bytes: &[u8]) -> Result<(), Bad> {
        if let Err(e) = pattern::verify(self.label_in, self.got, bytes, &mut Vec::new()) {
            return Err(self.wrong(e));
        }
        self.got += bytes.len() as u64;
        Ok(())
    }

    /// Waits until the socket is ready for something.
    pub fn wait(&mut self, wanted: i16) -> Result<(), Bad> {
        let fd = self.raw();
        let mut fds = [libc::pollfd { fd, events: wanted, revents: 0 }];
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let ready = match (self.style, &mut self.epoll) {
                (Style::Blocking, _) => return Ok(()),
                (Style::Epoll, Some(epoll)) => {
                    let changed = epoll.control(libc::EPOLL_CTL_MOD, fd, events(wanted), 7);
                    changed.and_then(|()| epoll.wait(Some(PATIENCE))).map(|found| {
                        if found.iter().any(|event| event.data != 7) {
                            return usize::MAX;
                        }
                        found.len()
                    })
                }
                (Style::Select, _) => sys::select(&mut fds, Some(PATIENCE)),
                _ => sys::poll(&mut fds, Some(PATIENCE)),
            };
            match ready {
                Ok(0) => break,
                Ok(usize::MAX) => return Err(self.wrong("an event of data that nobody gave")),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(bad(self.stage, "wait", &e)),
            }
        }
        Err(self.wrong(format!("nothing comes of a wait for {wanted}, {:?}", self.style)))
    }

    /// Sends the next `len` bytes by `call`.
    pub fn send_by(
        &mut self,
        len: usize,
        mut call: impl FnMut(RawFd, &[u8]) -> io::Result<usize>,
    ) -> Result<(), Bad> {
        let mut left = len;
        while left > 0 {
            let bytes = self.next_out(left.min(CALL));
            match call(self.raw(), &bytes) {
                Ok(0) => return Err(self.wrong("nothing is sent")),
                Ok(n) if n <= bytes.len() => {
                    left -= n;
                    self.sent += n as u64;
                }
                Ok(n) => return Err(self.wrong(format!("{n} of {} bytes are sent", bytes.len()))),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(libc::POLLOUT)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(bad(self.stage, "send", &e)),
            }
        }
        Ok(())
    }

    /// Sends the next `len` bytes.
    pub fn send(&mut self, len: usize) -> Result<(), Bad> {
        self.send_by(len, |fd, bytes| sys::send(fd, bytes, libc::MSG_NOSIGNAL))
    }

    /// One receiving call for up to `most` bytes; 0: the end.
    pub fn recv_some(&mut self, most: usize) -> Result<usize, Bad> {
        let mut buffer = vec![0; most];
        loop {
            match sys::recv(self.raw(), &mut buffer, 0, false) {
                Ok(n) if n > most => return Err(self.wrong(format!("{n} of {most} bytes come"))),
                Ok(n) => {
                    self.take_in(&buffer[..n])?;
                    return Ok(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(libc::POLLIN)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(bad(self.stage, "recv", &e)),
            }
        }
    }

    /// Receives the next `len` bytes.
    pub fn recv(&mut self, len: usize) -> Result<(), Bad> {
        let mut left = len;
        while left > 0 {
            match self.recv_some(left.min(CALL))? {
                0 => return Err(self.wrong(format!("the end comes at byte {}", self.got))),
                n => left -= n,
            }
        }
        Ok(())
    }

    /// A few short messages to and fro, so that both directions come into the ring.
    pub fn warm_up(&mut self, is_client: bool) -> Result<(), Bad> {
        self.stage = "warm up";
        for _ in 0..4 {
            if is_client {
                self.send(100)?;
                self.recv(100)?;
            } else {
                self.recv(100)?;
                self.send(100)?;
            }
        }
        Ok(())
    }

    /// Ends its direction, and waits for the other one's end.
    pub fn end(&mut self) -> Result<(), Bad> {
        self.stage = "end";
        self.check("shutdown", sys::shutdown(self.raw(), libc::SHUT_WR))?;
        match self.recv_some(100)? {
            0 => Ok(()),
            n => Err(self.wrong(format!("{n} bytes too many"))),
        }
    }
}

fn events(poll: i16) -> u32 {
    u32::from(poll.cast_unsigned())
}

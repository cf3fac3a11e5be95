//! Sending without copies: from memory that is used again, for other bytes, as soon as the error queue has said that
//! it may be. Who says so too early sends what was not meant.

use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Mapped, Memory, Private};

use crate::options::SendCall;

/// Buffers, each with room for so much.
const BUFFERS: usize = 4;
const ROOM: usize = 256 << 10;
/// Room for any report from the error queue.
const REPORT: usize = 256;
/// Longest wait for a buffer that is free again.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is sent from.
enum Source {
    /// Memory of `shunt_alloc`.
    Asked(Memory),
    /// A memfd that nobody can cut short.
    Found(Mapped),
    /// What is the process's own alone.
    Private(Private),
}

impl Source {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Asked(memory) => memory.bytes(),
            Self::Found(memory) => memory.bytes(),
            Self::Private(memory) => memory.bytes(),
        }
    }
}

/// What is sent from, and which of it is not free again.
pub struct Zero {
    memory: Source,
    /// The number of the call that has sent from it last, until that is complete.
    busy: [Option<u32>; BUFFERS],
    next: u32,
    told: u32,
    /// What was told of before its turn.
    early: Vec<(u32, u32)>,
    /// Calls may be told of before their turn.
    any_order: bool,
}

impl Zero {
    /// Asks for SO_ZEROCOPY, and gets memory for calls of this kind.
    pub fn new(fd: RawFd, call: SendCall, any_order: bool) -> io::Result<Self> {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
        let len = BUFFERS * ROOM;
        let memory = match call {
            SendCall::SendFound => Source::Found(Mapped::new(len, libc::F_SEAL_SHRINK)?),
            SendCall::SendPrivate => Source::Private(Private::new(len)?),
            _ => Source::Asked(Memory::new(len)?),
        };
        let (busy, early) = ([None; BUFFERS], Vec::new());
        Ok(Self { memory, busy, next: 0, told: 0, early, any_order })
    }

    /// Takes what the error queue has; each number is told once, and in its order unless that may
    /// be any.
    pub fn reap(&mut self, fd: RawFd) -> io::Result<()> {
        loop {
            let report = match sys::recv_error(fd, REPORT) {
                Ok(report) => report,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            let Some((first, last)) = report.numbers else {
                return Err(io::Error::other(format!("an unknown report: {report}")));
            };
            let again = self.early.iter().any(|early| first <= early.1 && early.0 <= last);
            let is_right = first == self.told || (self.any_order && first > self.told);
            if !is_right || again || last < first || last >= self.next {
                let known = format!("{} to {}", self.told, self.next);
                return Err(io::Error::other(format!("told of {first} to {last} of {known}")));
            }
            self.early.push((first, last));
            while let Some(at) = self.early.iter().position(|early| early.0 == self.told) {
                self.told = self.early.swap_remove(at).1 + 1;
            }
            for busy in &mut self.busy {
                busy.take_if(|number| (first..=last).contains(number));
            }
        }
    }

    /// Sends some of the bytes.
    pub fn send(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
        let started = Instant::now();
        let free = loop {
            self.reap(fd)?;
            if let Some(free) = self.busy.iter().position(Option::is_none) {
                break free;
            }
            // Who has one thread for both directions must receive meanwhile.
            if sys::status_flags(fd)? & libc::O_NONBLOCK != 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("no word of call {}", self.told)));
            }
            let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
            sys::poll(&mut fds, Some(PATIENCE))?;
        };
        let len = bytes.len().min(ROOM);
        let buffer = &mut self.memory.bytes()[free * ROOM..][..len];
        buffer.copy_from_slice(&bytes[..len]);
        match sys::send(fd, buffer, libc::MSG_NOSIGNAL | libc::MSG_ZEROCOPY) {
            Ok(0) => Ok(0),
            Ok(n) => {
                self.busy[free] = Some(self.next);
                self.next += 1;
                Ok(n)
            }
            // Too many calls wait: this one goes by a copy.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                sys::send(fd, buffer, libc::MSG_NOSIGNAL)
            }
            Err(e) => Err(e),
        }
    }
}

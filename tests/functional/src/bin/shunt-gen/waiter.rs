//! The readiness calls behind one face.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use libc::pollfd;
use shunt_functional::sys::{self, Epoll};

use crate::options::Style;

/// What a descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interest {
    /// Bytes, a connection, or the end.
    pub read: bool,
    /// Room to send.
    pub write: bool,
}

/// What a wait found.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The caller's number for the descriptor.
    pub key: usize,
    /// Worth a try to receive.
    pub read: bool,
    /// Worth a try to send.
    pub write: bool,
    /// The peer has closed its direction, or there is an error.
    pub hangup: bool,
}

/// A set of descriptors to wait for.
pub enum Waiter {
    /// poll, ppoll, select, pselect: the set goes with every call.
    Set {
        /// Which of them.
        style: Style,
        /// (key, descriptor, interest), by key.
        members: Vec<(usize, RawFd, Interest)>,
    },
    /// epoll: the kernel keeps the set.
    Epoll {
        /// Level-triggered, edge-triggered, one-shot.
        style: Style,
        /// The instance.
        epoll: Epoll,
    },
}

fn epoll_bits(style: Style, interest: Interest) -> u32 {
    let input = (libc::EPOLLIN * i32::from(interest.read)).cast_unsigned();
    let output = (libc::EPOLLOUT * i32::from(interest.write)).cast_unsigned();
    match style {
        // An edge-triggered set asks once for everything.
        _ if style.is_edge_triggered() => {
            (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET).cast_unsigned()
        }
        Style::EpollOneshot => input | output | libc::EPOLLONESHOT.cast_unsigned(),
        _ => input | output,
    }
}

fn poll_bits(interest: Interest) -> i16 {
    (libc::POLLIN * i16::from(interest.read)) | (libc::POLLOUT * i16::from(interest.write))
}

impl Waiter {
    /// An empty set.
    pub fn new(style: Style) -> io::Result<Self> {
        Ok(match style {
            Style::EpollLt | Style::EpollEt | Style::EpollCounted | Style::EpollOneshot => {
                Self::Epoll { style, epoll: Epoll::new(128)? }
            }
            _ => Self::Set { style, members: Vec::new() },
        })
    }

    /// Adds a descriptor.
    pub fn add(&mut self, key: usize, fd: RawFd, interest: Interest) -> io::Result<()> {
        match self {
            Self::Set { members, .. } => members.push((key, fd, interest)),
            Self::Epoll { style, epoll } => {
                let bits = epoll_bits(*style, interest);
                epoll.control(libc::EPOLL_CTL_ADD, fd, bits, key as u64)?;
            }
        }
        Ok(())
    }

    /// Says after some work what is wanted now; `before` is what was wanted until then.
    pub fn update(
        &mut self,
        key: usize,
        fd: RawFd,
        before: Interest,
        now: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Set { members, .. } if before != now => {
                if let Some(member) = members.iter_mut().find(|m| m.0 == key) {
                    member.2 = now;
                }
            }
            Self::Set { .. } => {}
            // A one-shot registration has to be armed again whether it changes or not.
            Self::Epoll { style, .. } if style.is_edge_triggered() => {}
            Self::Epoll { style, epoll } => {
                if before != now || *style == Style::EpollOneshot {
                    let bits = epoll_bits(*style, now);
                    epoll.control(libc::EPOLL_CTL_MOD, fd, bits, key as u64)?;
                }
            }
        }
        Ok(())
    }

    /// Takes a descriptor out. Every other one is left to the close, as many programs do.
    pub fn remove(&mut self, key: usize, fd: RawFd) -> io::Result<()> {
        match self {
            Self::Set { members, .. } => members.retain(|m| m.0 != key),
            Self::Epoll { epoll, .. } => {
                if key.is_multiple_of(2) {
                    epoll.control(libc::EPOLL_CTL_DEL, fd, 0, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Waits. An interrupted wait finds nothing.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
        let found = match self {
            Self::Set { style, members } => wait_set(*style, members, timeout),
            Self::Epoll { epoll, .. } => wait_epoll(epoll, timeout),
        };
        match found {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            other => other,
        }
    }
}

fn wait_set(
    style: Style,
    members: &[(usize, RawFd, Interest)],
    timeout: Option<Duration>,
) -> io::Result<Vec<Ready>> {
    let mut fds: Vec<pollfd> = members
        .iter()
        .map(|&(_, fd, interest)| pollfd { fd, events: poll_bits(interest), revents: 0 })
        .collect();
    let n = match style {
        Style::Ppoll => sys::ppoll(&mut fds, timeout),
        Style::Select => sys::select(&mut fds, timeout),
        Style::Pselect => sys::pselect(&mut fds, timeout),
        _ => sys::poll(&mut fds, timeout),
    }?;
    let found: Vec<Ready> = members
        .iter()
        .zip(&fds)
        .filter(|(_, p)| p.revents != 0)
        .map(|(&(key, _, _), p)| {
            let hangup = p.revents & (libc::POLLHUP | libc::POLLERR) != 0;
            Ready {
                key,
                read: hangup || p.revents & libc::POLLIN != 0,
                write: hangup || p.revents & libc::POLLOUT != 0,
                hangup,
            }
        })
        .collect();
    if fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return Err(io::Error::other(format!("{style}: POLLNVAL for an open descriptor")));
    }
    // select counts a descriptor once per set, poll once.
    let right = match style {
        Style::Select | Style::Pselect => (n == 0) == found.is_empty(),
        _ => n == found.len(),
    };
    if !right {
        return Err(io::Error::other(format!("{style} returned {n} with {} ready", found.len())));
    }
    Ok(found)
}

fn wait_epoll(epoll: &mut Epoll, timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
    let bit = |events: u32, mask: i32| events & mask.cast_unsigned() != 0;
    epoll
        .wait(timeout)?
        .into_iter()
        .map(|e| {
            let error = bit(e.events, libc::EPOLLHUP | libc::EPOLLERR);
            let hangup = error || bit(e.events, libc::EPOLLRDHUP);
            Ok(Ready {
                key: usize::try_from(e.data).map_err(io::Error::other)?,
                read: hangup || bit(e.events, libc::EPOLLIN),
                write: error || bit(e.events, libc::EPOLLOUT),
                hangup,
            })
        })
        .collect()
}

//! Servers that wait in poll(2) or select(2), and then call recv(2).

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::select::{FD_SETSIZE, FdSet};
use nix::sys::time::TimeVal;

use super::conn::{Conn, Service};

/// Goes on after a signal.
fn interrupted<T>(result: nix::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(Errno::EINTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Calls `recv` for the connections that are ready, and drops those that have ended.
fn receive(conns: &mut Vec<Conn>, is_ready: impl Fn(usize) -> bool) {
    let mut index = 0;
    conns.retain_mut(|conn| {
        let ready = is_ready(index);
        index += 1;
        // A connection that breaks is no reason to end.
        !ready || conn.receive().unwrap_or(false)
    });
}

/// All connections in one thread, with poll(2).
pub fn poll(listener: &TcpListener, service: Service) -> io::Result<()> {
    let mut conns: Vec<Conn> = Vec::new();
    let mut ready: Vec<bool> = Vec::new();
    loop {
        let all = conns.iter().map(AsFd::as_fd).chain([listener.as_fd()]);
        let mut fds: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if interrupted(nix::poll::poll(&mut fds, PollTimeout::NONE))?.is_none() {
            continue;
        }
        ready.clear();
        ready.extend(fds.iter().map(|fd| fd.any().unwrap_or(true)));
        let coming = ready.pop().unwrap_or(false);
        receive(&mut conns, |index| ready[index]);
        if coming {
            conns.extend(Conn::accept(listener, service)?);
        }
    }
}

/// All connections in one thread, with select(2).
pub fn select(listener: &TcpListener, service: Service) -> io::Result<()> {
    let mut conns: Vec<Conn> = Vec::new();
    let mut ready: Vec<bool> = Vec::new();
    loop {
        let mut set = FdSet::new();
        for fd in conns.iter().map(AsFd::as_fd).chain([listener.as_fd()]) {
            set.insert(selectable(fd)?);
        }
        let selected = nix::sys::select::select(None, &mut set, None, None, None::<&mut TimeVal>);
        if interrupted(selected)?.is_none() {
            continue;
        }
        ready.clear();
        ready.extend(conns.iter().map(|conn| set.contains(conn.as_fd())));
        let coming = set.contains(listener.as_fd());
        receive(&mut conns, |index| ready[index]);
        if coming {
            conns.extend(Conn::accept(listener, service)?);
        }
    }
}

/// Descriptors above a limit do not fit into the set.
fn selectable(fd: BorrowedFd<'_>) -> io::Result<BorrowedFd<'_>> {
    if usize::try_from(fd.as_raw_fd()).is_ok_and(|fd| fd < FD_SETSIZE) {
        return Ok(fd);
    }
    Err(io::Error::other("select cannot have this many connections"))
}

/// One connection, with poll(2) before each recv(2), as a thread of its own does it.
pub fn session(mut conn: Conn) -> io::Result<()> {
    loop {
        let mut fds = [PollFd::new(conn.as_fd(), PollFlags::POLLIN)];
        let ready = interrupted(nix::poll::poll(&mut fds, PollTimeout::NONE))?;
        if ready.is_some() && !conn.receive()? {
            return Ok(());
        }
    }
}

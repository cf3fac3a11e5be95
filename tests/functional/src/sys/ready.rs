//! The calls that wait for readiness.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use libc::{c_int, fd_set, pollfd, timespec};

use super::check;

/// Milliseconds as poll and epoll_wait want them; `None` waits for ever.
fn millis(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |t| c_int::try_from(t.as_millis()).unwrap_or(c_int::MAX))
}

/// As [`millis`] for calls that take a timespec.
fn spec(timeout: Duration) -> timespec {
    timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

/// The number of ready descriptors that a call returned.
fn ready(ret: c_int) -> io::Result<usize> {
    check(ret).map(|n| usize::try_from(n).unwrap_or(0))
}

/// `poll(2)`.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let count = fds.len() as libc::nfds_t;
    // SAFETY: fds is valid over its length.
    ready(unsafe { libc::poll(fds.as_mut_ptr(), count, millis(timeout)) })
}

/// `ppoll(2)` without a signal mask.
pub fn ppoll(fds: &mut [pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let spec = timeout.map(spec);
    let spec = spec.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = fds.len() as libc::nfds_t;
    // SAFETY: fds is valid over its length, spec is NULL or valid.
    ready(unsafe { libc::ppoll(fds.as_mut_ptr(), count, spec, ptr::null()) })
}

/// Three sets filled from the `events` of `fds`; and the largest descriptor plus one.
fn sets_of(fds: &[pollfd]) -> io::Result<([fd_set; 3], c_int)> {
    // SAFETY: an fd_set is plain data; all zeroes is the empty set.
    let mut sets: [fd_set; 3] = unsafe { mem::zeroed() };
    let mut top = 0;
    for p in fds {
        if usize::try_from(p.fd).is_ok_and(|fd| fd >= libc::FD_SETSIZE) {
            return Err(io::Error::other(format!("select cannot wait for descriptor {}", p.fd)));
        }
        let wanted = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        for (set, event) in sets.iter_mut().zip(wanted) {
            if p.events & event != 0 {
                // SAFETY: the descriptor is below FD_SETSIZE.
                unsafe { libc::FD_SET(p.fd, set) };
            }
        }
        top = top.max(p.fd + 1);
    }
    Ok((sets, top))
}

/// Writes what select found into the `revents` of `fds`.
fn sets_into(sets: &[fd_set; 3], fds: &mut [pollfd]) {
    for p in fds {
        p.revents = 0;
        let found = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        for (set, event) in sets.iter().zip(found) {
            // SAFETY: sets_of has checked that the descriptor is below FD_SETSIZE.
            if unsafe { libc::FD_ISSET(p.fd, set) } {
                p.revents |= event;
            }
        }
    }
}

/// `select(2)`, spoken in poll's terms: POLLIN, POLLOUT and POLLPRI stand for the three sets.
pub fn select(fds: &mut [pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let (mut sets, top) = sets_of(fds)?;
    let mut time = timeout.map(|t| libc::timeval {
        tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_usec: t.subsec_micros().into(),
    });
    let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let [r, w, e] = &mut sets;
    // SAFETY: the sets are valid and cover `top`; time is NULL or valid.
    let n = ready(unsafe { libc::select(top, r, w, e, time) })?;
    sets_into(&sets, fds);
    Ok(n)
}

/// `pselect(2)`, as [`select`].
pub fn pselect(fds: &mut [pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let (mut sets, top) = sets_of(fds)?;
    let time = timeout.map(spec);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let [r, w, e] = &mut sets;
    // SAFETY: the sets are valid and cover `top`; time is NULL or valid; no signal mask.
    let n = ready(unsafe { libc::pselect(top, r, w, e, time, ptr::null()) })?;
    sets_into(&sets, fds);
    Ok(n)
}

/// One event of an [`Epoll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// The caller's number for the descriptor.
    pub data: u64,
    /// EPOLLIN and so on.
    pub events: u32,
}

/// An epoll instance.
pub struct Epoll {
    fd: OwnedFd,
    room: Vec<libc::epoll_event>,
}

impl Epoll {
    /// `epoll_create1(2)` with room for `max` events per wait.
    pub fn new(max: usize) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the call returned a new descriptor, which nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, room: vec![libc::epoll_event { events: 0, u64: 0 }; max] })
    }

    /// Its descriptor.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `epoll_ctl(2)`.
    pub fn control(&self, op: c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: event is valid.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &raw mut event) }).map(drop)
    }

    /// `epoll_wait(2)`.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<EpollEvent>> {
        let max = c_int::try_from(self.room.len()).unwrap_or(c_int::MAX);
        let (fd, room) = (self.fd.as_raw_fd(), self.room.as_mut_ptr());
        // SAFETY: room has space for max events.
        let n = ready(unsafe { libc::epoll_wait(fd, room, max, millis(timeout)) })?;
        Ok(self.room[..n].iter().map(|e| EpollEvent { data: e.u64, events: e.events }).collect())
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

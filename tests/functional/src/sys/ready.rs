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

/// `ppoll(2)` for a time that may be none.
pub fn ppoll_for(fds: &mut [pollfd], time: timespec) -> io::Result<usize> {
    let count = fds.len() as libc::nfds_t;
    // SAFETY: fds is valid over its length, the time is memory that can be read.
    ready(unsafe { libc::ppoll(fds.as_mut_ptr(), count, &raw const time, ptr::null()) })
}

/// A set with one descriptor below `FD_SETSIZE`.
fn set_with(fd: RawFd) -> fd_set {
    // SAFETY: an fd_set is plain data; all zeroes is the empty set.
    let mut set: fd_set = unsafe { mem::zeroed() };
    // SAFETY: the callers' promise.
    unsafe { libc::FD_SET(fd, &mut set) };
    set
}

/// `pselect(2)` for bytes at one descriptor, as [`ppoll_for`].
pub fn pselect_for(fd: RawFd, time: timespec) -> io::Result<usize> {
    let (mut set, null) = (set_with(fd), ptr::null_mut());
    // SAFETY: the set covers the descriptor, the time is memory that can be read; no signal mask.
    let n =
        unsafe { libc::pselect(fd + 1, &raw mut set, null, null, &raw const time, ptr::null()) };
    ready(n)
}

/// `select(2)`, as [`pselect_for`].
pub fn select_for(fd: RawFd, seconds: i64, micros: i64) -> io::Result<usize> {
    let (mut set, null) = (set_with(fd), ptr::null_mut());
    let mut time = libc::timeval { tv_sec: seconds, tv_usec: micros };
    // SAFETY: the set covers the descriptor, the time is valid memory.
    ready(unsafe { libc::select(fd + 1, &raw mut set, null, null, &raw mut time) })
}

/// `epoll_pwait2(2)` for one event, as [`ppoll_for`].
pub fn epoll_pwait2_for(set: RawFd, time: timespec) -> io::Result<usize> {
    unsafe extern "C" {
        fn epoll_pwait2(
            set: c_int,
            events: *mut libc::epoll_event,
            max: c_int,
            time: *const timespec,
            mask: *const libc::sigset_t,
        ) -> c_int;
    }
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for one event, the time is memory that can be read; no signal mask.
    ready(unsafe { epoll_pwait2(set, &raw mut event, 1, &raw const time, ptr::null()) })
}

/// The calls of [`select_up_to`].
pub const SELECTS: [Select; 3] = [Select::Select, Select::Pselect, Select::System];

/// One of the calls on sets.
#[derive(Clone, Copy, Debug)]
pub enum Select {
    /// `select(2)`.
    Select,
    /// `pselect(2)`.
    Pselect,
    /// The system call itself.
    System,
}

/// Asks for bytes at one descriptor, with a set of `FD_SETSIZE` bits and more descriptors than that: what the
/// call found, and whether the memory behind the set, of which each byte is `beyond`, is what it was.
pub fn select_up_to(call: Select, count: c_int, fd: RawFd, beyond: u8) -> io::Result<String> {
    const BEYOND: usize = 1 << 14;
    #[repr(C)]
    struct Set {
        set: fd_set,
        beyond: [u8; BEYOND],
    }
    // Calls that look at all of these bits stay in the structure.
    let count = count.min(1 << 17);
    let mut set = Set { set: set_with(fd), beyond: [beyond; BEYOND] };
    let at: *mut fd_set = (&raw mut set).cast();
    let null = ptr::null_mut();
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let mut spec = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: there is memory for far more descriptors than the process has places for.
    let n = unsafe {
        match call {
            Select::Select => libc::select(count, at, null, null, &raw mut time),
            Select::Pselect => libc::pselect(count, at, null, null, &raw const spec, ptr::null()),
            Select::System => {
                let time = &raw mut spec;
                let n = libc::syscall(libc::SYS_pselect6, count, at, null, null, time, null);
                c_int::try_from(n).unwrap_or(-1)
            }
        }
    };
    let n = ready(n)?;
    // SAFETY: the descriptor is below FD_SETSIZE.
    let is_set = unsafe { libc::FD_ISSET(fd, &raw const set.set) };
    let is_whole = set.beyond.iter().all(|byte| *byte == beyond);
    Ok(format!("{n}, set {is_set}, whole {is_whole}"))
}

/// Each call that takes a time, about a readable descriptor and an epoll instance that watches it.
pub fn with_time(
    fd: RawFd,
    epoll: RawFd,
    tv_sec: libc::time_t,
    tv_nsec: libc::c_long,
) -> [(&'static str, io::Result<usize>); 5] {
    let mut spec = timespec { tv_sec, tv_nsec };
    let mut val = libc::timeval { tv_sec, tv_usec: tv_nsec.min(999_999) };
    let mut fds = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let (null, mask) = (ptr::null_mut(), ptr::null());
    // SAFETY: an fd_set and an mmsghdr are plain data; all zeroes are the empty ones.
    let (mut set, mut message): (fd_set, libc::mmsghdr) = unsafe { mem::zeroed() };
    let mut read = || {
        // SAFETY: the descriptor is below FD_SETSIZE.
        unsafe { libc::FD_SET(fd, &raw mut set) };
        &raw mut set
    };
    // SAFETY: sets, times, events and messages are valid; there is no signal mask.
    unsafe {
        [
            ("select", ready(libc::select(fd + 1, read(), null, null, &raw mut val))),
            ("pselect", ready(libc::pselect(fd + 1, read(), null, null, &raw const spec, mask))),
            ("ppoll", ready(libc::ppoll(fds.as_mut_ptr(), 1, &raw const spec, mask))),
            (
                "epoll_pwait2",
                ready(libc::epoll_pwait2(epoll, &raw mut event, 1, &raw const spec, mask)),
            ),
            ("recvmmsg", ready(libc::recvmmsg(fd, &raw mut message, 1, 0, &raw mut spec))),
        ]
    }
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

    /// The same without end and for one event, in any number of threads.
    pub fn wait_for_one(&self) -> io::Result<EpollEvent> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        check(unsafe { libc::epoll_wait(self.fd.as_raw_fd(), &raw mut event, 1, -1) })?;
        Ok(EpollEvent { data: event.u64, events: event.events })
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

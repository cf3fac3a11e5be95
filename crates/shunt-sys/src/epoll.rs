//! epoll(7) through libc, for programs that are to be preloaded: unlike the rest of this crate,
//! these calls do reach the library's hooks, and set `errno`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libc::c_int;

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The caller's number for the descriptor.
    pub data: u64,
    /// `EPOLLIN` and so on.
    pub events: u32,
}

/// Something can be read, or the end is there.
pub const IN: u32 = libc::EPOLLIN.cast_unsigned();
/// Something can be written.
pub const OUT: u32 = libc::EPOLLOUT.cast_unsigned();

/// An epoll instance, level-triggered, and room for the events of one wait.
pub struct Epoll {
    fd: OwnedFd,
    room: Vec<libc::epoll_event>,
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Epoll {
    /// With room for `events` at once.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new(events: usize) -> io::Result<Self> {
        // SAFETY: no pointers; what it returns, if not negative, is an open descriptor of ours.
        let fd = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { fd, room: vec![libc::epoll_event { events: 0, u64: 0 }; events.max(1)] })
    }

    fn control(&self, op: c_int, fd: BorrowedFd<'_>, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: `event` is live.
        let rc =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Watches `fd` for `events`, which are reported with `data`.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: BorrowedFd<'_>, events: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, data)
    }

    /// Changes what `fd` is watched for.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn modify(&self, fd: BorrowedFd<'_>, events: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, data)
    }

    /// Waits for events; none when the time is over. `None` waits for ever.
    ///
    /// # Errors
    /// Those of epoll_wait(2), except `EINTR`, after which it goes on waiting.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = Event> + '_> {
        let millis = timeout.map_or(-1, |t| c_int::try_from(t.as_millis()).unwrap_or(c_int::MAX));
        let room = c_int::try_from(self.room.len()).unwrap_or(c_int::MAX);
        loop {
            // SAFETY: the room is as long as is said.
            let n = unsafe {
                libc::epoll_wait(self.fd.as_raw_fd(), self.room.as_mut_ptr(), room, millis)
            };
            if let Ok(n) = usize::try_from(n) {
                let found = self.room.iter().take(n);
                return Ok(found.map(|e| Event { data: e.u64, events: e.events }));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

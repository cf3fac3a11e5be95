//! What a session waits for, in one epoll instance.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::port::Wait;

/// A time-out that does not wait.
const NOW: i32 = 0;
/// A time-out that does not end.
const NEVER: i32 = -1;

/// What lanes' descriptors have as their token; others have their place among those of the session.
const LANE: u64 = u64::MAX;

/// See the module's description.
#[derive(Debug)]
pub struct Waiter<const N: usize> {
    epoll: Epoll,
    /// What lanes wait for.
    armed: Wait,
}

/// What has become readable.
#[derive(Clone, Copy, Debug)]
pub struct Ready<const N: usize> {
    /// The descriptors of the session, in order.
    pub fds: [bool; N],
    /// One of the lanes', or their time has come.
    pub lane: bool,
}

impl<const N: usize> Waiter<N> {
    /// Waits for these, as many as there are, and for lanes.
    ///
    /// # Errors
    /// Those of epoll_create(2) and epoll_ctl(2).
    pub fn new(fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for (token, fd) in (0..).zip(fds) {
            let event = EpollEvent::new(EventSet::IN, token);
            epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)?;
        }
        Ok(Self { epoll, armed: Wait::default() })
    }

    /// Looks, and does not wait.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub fn look(&self) -> io::Result<Ready<N>> {
        self.collect(NOW)
    }

    /// Waits for one of them, or for one that the lanes want, `until` at the most.
    ///
    /// # Errors
    /// Those of epoll_ctl(2) and epoll_wait(2).
    pub fn wait(&mut self, wanted: &Wait, until: Option<Instant>) -> io::Result<Ready<N>> {
        let epoll = &self.epoll;
        self.armed.follow(
            wanted,
            |fd| {
                let _left = epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
            },
            |new| {
                let out = if new.writable { EventSet::OUT } else { EventSet::empty() };
                let event = EpollEvent::new(EventSet::IN | out, LANE);
                epoll.ctl(ControlOperation::Add, new.fd, event)
            },
        )?;
        let until = until.into_iter().chain(wanted.until).min();
        let left = until.map_or(NEVER, |until| {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: too early would be another look.
            let left = left.saturating_add(Duration::from_micros(999)).as_millis();
            i32::try_from(left).unwrap_or(i32::MAX)
        });
        let mut ready = self.collect(left)?;
        ready.lane |= wanted.until.is_some_and(|until| until <= Instant::now());
        Ok(ready)
    }

    fn collect(&self, timeout: i32) -> io::Result<Ready<N>> {
        let mut events = [EpollEvent::default(); 8];
        let count = match self.epoll.wait(timeout, &mut events) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            count => count?,
        };
        let mut ready = Ready { fds: [false; N], lane: false };
        for event in &events[..count] {
            let place = usize::try_from(event.data()).ok();
            match place.and_then(|place| ready.fds.get_mut(place)) {
                Some(fd) => *fd = true,
                None => ready.lane = true,
            }
        }
        Ok(ready)
    }
}

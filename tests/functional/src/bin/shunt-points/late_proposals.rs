//! A thread waits for the first bytes of a connection that it has accepted, before the client's proposal is there. The look behind
//! its first arming finds the proposal: it arms once more, as those bytes come through the ring. Or another thread finds it, while the
//! first one sleeps.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, points};

use crate::steps::{Ends, Held, PATIENCE, expect_nothing, send};
use crate::watch;

/// After so long a call that can sleep does.
const SOON: Duration = Duration::from_millis(50);

const IN: u32 = libc::EPOLLIN.cast_unsigned();

/// A call that waits, and by what.
#[derive(Clone, Copy)]
enum By {
    Poll,
    Select,
    Epoll,
    /// poll(2) waits for an instance that watches the connection.
    PollOfEpoll,
    /// One instance waits for another one that does.
    EpollOfEpoll,
}

impl By {
    const ALL: [(Self, &str); 5] = [
        (Self::Poll, "poll"),
        (Self::Select, "select"),
        (Self::Epoll, "epoll"),
        (Self::PollOfEpoll, "poll of epoll"),
        (Self::EpollOfEpoll, "epoll of epoll"),
    ];

    /// Where it has armed.
    const fn armed(self) -> &'static str {
        match self {
            Self::Poll | Self::Select | Self::PollOfEpoll => "poll.armed",
            Self::Epoll | Self::EpollOfEpoll => "epoll.armed",
        }
    }

    /// True where a point tells that it is about to sleep.
    const fn is_seen_to_sleep(self) -> bool {
        matches!(self, Self::Poll | Self::Select)
    }

    /// True when it was told of bytes.
    fn wait(self, fd: RawFd) -> io::Result<bool> {
        let watching = |fd| {
            let set = Epoll::new(4)?;
            set.control(libc::EPOLL_CTL_ADD, fd, IN, 0)?;
            io::Result::Ok(set)
        };
        let poll = |fd| {
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            match self {
                Self::Select => sys::select(&mut fds, Some(PATIENCE))?,
                _ => sys::poll(&mut fds, Some(PATIENCE))?,
            };
            Ok(fds[0].revents & libc::POLLIN != 0)
        };
        let wait = |mut set: Epoll| {
            Ok(set.wait(Some(PATIENCE))?.iter().any(|event| event.events & IN != 0))
        };
        match self {
            Self::Poll | Self::Select => poll(fd),
            Self::Epoll => wait(watching(fd)?),
            Self::PollOfEpoll => poll(watching(fd)?.as_raw_fd()),
            Self::EpollOfEpoll => {
                let inner = watching(fd)?;
                wait(watching(inner.as_raw_fd())?)
            }
        }
    }
}

/// What happens beside the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// It finds the proposal itself, behind its first arming.
    Itself,
    /// Another thread finds it, while the call sleeps.
    Another,
}

impl Finds {
    const ALL: [(Self, &str); 2] = [(Self::Itself, "itself"), (Self::Another, "another thread")];
}

/// True when the call was told of the bytes, and had armed for the ring where that can be seen.
fn hears(ends: &Ends, by: By, finds: Finds) -> io::Result<bool> {
    let connects = Held::at("connect.done")?;
    thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.client());
        connects.wait()?;
        let server = ends.accept()?;
        let fd = server.as_raw_fd();
        let arms = (finds == Finds::Itself).then(|| Held::at(by.armed())).transpose()?;
        let waiting = scope.spawn(move || by.wait(fd));
        match &arms {
            Some(arms) => arms.wait()?,
            // It sleeps by then.
            None => thread::sleep(SOON),
        }
        connects.go_on()?;
        let gone = |_| io::Error::other("a thread is gone");
        let client = connecting.join().map_err(gone)??;
        let send = || send(client.as_raw_fd(), b"first");
        let has_armed = match &arms {
            Some(arms) if by.is_seen_to_sleep() => {
                let sleeps = Held::at("poll.found-nothing")?;
                arms.go_on()?;
                sleeps.wait()?;
                // One that does not finds the bytes somewhat later all the same.
                let has_armed = points::passed("poll.armed") == 1;
                send()?;
                sleeps.go_on()?;
                has_armed
            }
            Some(arms) => {
                arms.go_on()?;
                thread::sleep(SOON);
                send()?;
                true
            }
            None => {
                expect_nothing(fd)?;
                send()?;
                true
            }
        };
        Ok(waiting.join().map_err(gone)?? && has_armed)
    })
}

/// All calls, in both ways.
pub fn all() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for (by, name) in By::ALL {
        for (finds, who) in Finds::ALL {
            let what = format!("{name}, where it is found by {who}");
            watch::begin(&what);
            let does_hear = hears(&ends, by, finds)?;
            is_right &= does_hear;
            println!("{what}: {}", if does_hear { "hears" } else { "deaf" });
        }
    }
    Ok(is_right)
}

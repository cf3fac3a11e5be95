//! A thread waits for the first bytes of a connection that it has accepted, before the client's proposal is there. The look behind
//! its first arming finds the proposal: it arms once more, as those bytes come through the ring. Or another thread finds it, while the
//! first one sleeps.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, points};

use crate::steps::{Ends, Held, PATIENCE, send};
use crate::watch;

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

/// True when the call was told of the bytes, and had armed for the ring.
fn hears(ends: &Ends, (by, name): (By, &str)) -> io::Result<bool> {
    watch::begin(&format!("{name} before the proposal"));
    let connects = Held::at("connect.done")?;
    thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.client());
        connects.wait()?;
        let server = ends.accept()?;
        let fd = server.as_raw_fd();
        let arms = Held::at(by.armed())?;
        let waiting = scope.spawn(move || by.wait(fd));
        arms.wait()?;
        connects.go_on()?;
        let gone = |_| io::Error::other("a thread is gone");
        let client = connecting.join().map_err(gone)??;
        let mut has_armed = true;
        if matches!(by, By::Poll | By::Select) {
            let sleeps = Held::at("poll.found-nothing")?;
            arms.go_on()?;
            sleeps.wait()?;
            // One that does not finds the bytes somewhat later all the same.
            has_armed = points::passed("poll.armed") == 1;
            send(client.as_raw_fd(), b"first")?;
            sleeps.go_on()?;
        } else {
            arms.go_on()?;
            thread::sleep(Duration::from_millis(50));
            send(client.as_raw_fd(), b"first")?;
        }
        Ok(waiting.join().map_err(gone)?? && has_armed)
    })
}

/// True when the call was told of the bytes, though another thread has taken the proposal up while it slept.
fn hears_beside_another(ends: &Ends, (by, name): (By, &str)) -> io::Result<bool> {
    watch::begin(&format!("{name} beside another thread"));
    let connects = Held::at("connect.done")?;
    thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.client());
        connects.wait()?;
        let server = ends.accept()?;
        let fd = server.as_raw_fd();
        let waiting = scope.spawn(move || by.wait(fd));
        // It sleeps by then, or finds the proposal itself.
        thread::sleep(Duration::from_millis(50));
        connects.go_on()?;
        let gone = |_| io::Error::other("a thread is gone");
        let client = connecting.join().map_err(gone)??;
        match sys::recv(fd, &mut [0; 10], libc::MSG_DONTWAIT, false) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return Err(io::Error::other(format!("{other:?} of nothing"))),
        }
        send(client.as_raw_fd(), b"first")?;
        waiting.join().map_err(gone)?
    })
}

/// All calls, in both ways.
pub fn all() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for call in By::ALL {
        for does_hear in [hears(&ends, call)?, hears_beside_another(&ends, call)?] {
            is_right &= does_hear;
            println!("{}: {}", call.1, if does_hear { "hears" } else { "deaf" });
        }
    }
    Ok(is_right)
}

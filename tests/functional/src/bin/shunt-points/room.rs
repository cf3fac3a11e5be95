//! A thread waits for room in a connection that sends over TCP, as nobody has accepted it. Between its look and its sleep another
//! thread enters the ring, which is empty: the first one hears of that room.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll};

use crate::steps::{Ends, Held, PATIENCE, exchange};
use crate::watch;

const OUT: u32 = libc::EPOLLOUT.cast_unsigned();

/// A call that waits for room, and where it is when it has found none.
const CALLS: [(&str, &str); 3] = [
    ("poll", "poll.found-nothing"),
    ("select", "poll.found-nothing"),
    ("epoll", "epoll.found-no-room"),
];

/// Sends until the kernel takes nothing for a while; how many bytes.
fn fill(fd: RawFd) -> io::Result<usize> {
    let (bytes, mut sent, mut in_vain) = (vec![b's'; 1 << 20], 0, 0);
    while in_vain < 3 {
        match sys::send(fd, &bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(n) => (sent, in_vain) = (sent + n, 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                in_vain += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}

fn drain(fd: RawFd, mut left: usize) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        match sys::recv(fd, &mut buffer, 0, false)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => left -= n,
        }
    }
    Ok(())
}

fn wait(call: &str, fd: RawFd, set: &mut Epoll) -> io::Result<bool> {
    let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    match call {
        "epoll" => {
            return Ok(set.wait(Some(PATIENCE))?.iter().any(|event| event.events & OUT != 0));
        }
        "select" => sys::select(&mut fds, Some(PATIENCE))?,
        _ => sys::poll(&mut fds, Some(PATIENCE))?,
    };
    Ok(fds[0].revents & libc::POLLOUT != 0)
}

fn enters_meanwhile(ends: &Ends, call: &str, point: &str) -> io::Result<bool> {
    watch::begin(&format!("{call} held at {point}"));
    let client = ends.client()?;
    let (fd, mut set) = (client.as_raw_fd(), Epoll::new(1)?);
    if call == "epoll" {
        set.control(libc::EPOLL_CTL_ADD, fd, OUT, 0)?;
        wait(call, fd, &mut set)?;
    }
    // Nobody has accepted it: so it goes over TCP.
    let sent = fill(fd)?;
    let held = Held::at(point)?;
    thread::scope(|scope| {
        let called = scope.spawn(|| wait(call, fd, &mut set));
        held.wait()?;
        let server = ends.accept()?;
        drain(server.as_raw_fd(), sent)?;
        exchange(&client, &server)?;
        held.go_on()?;
        called.join().map_err(|_| io::Error::other("a thread is gone"))?
    })
}

/// All calls. True when each is told of room.
pub fn all() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for (call, point) in CALLS {
        let is_told = enters_meanwhile(&ends, call, point)?;
        is_right &= is_told;
        println!("{call} held at {point}: {}", if is_told { "room" } else { "no room" });
    }
    Ok(is_right)
}

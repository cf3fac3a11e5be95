//! Programs that go to the kernel by `syscall(2)`, all the time or now and then.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use shunt_functional::sys::{self, Epoll, raw};

use crate::probe::{Probe, settle, show, try_recv};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    bytes(p)?;
    closed_and_used_again(p)?;
    duplicates(p)?;
    readiness(p)?;
    p.result("a call that nobody knows", raw::unknown());
    Ok(())
}

fn bytes(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    p.result("write", raw::write(pair.c(), b"abc"));
    p.result("read", raw::read(pair.s(), &mut [0; 10]));
    p.result("send by libc", sys::send(pair.s(), b"defgh", 0));
    p.result("recvfrom", raw::recv(pair.c(), &mut [0; 10], 0));
    p.result("sendto", raw::send(pair.c(), b"ij", libc::MSG_NOSIGNAL));
    p.result("recv by libc", sys::recv(pair.s(), &mut [0; 10], 0, false));
    p.result("nothing there", raw::recv(pair.s(), &mut [0; 10], libc::MSG_DONTWAIT));
    p.result("peek at nothing", raw::recv(pair.s(), &mut [], libc::MSG_PEEK | libc::MSG_DONTWAIT));
    Ok(())
}

/// The number of a connection that was closed so is another file's next.
fn closed_and_used_again(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let number = pair.c();
    p.result("close", raw::close(pair.client));
    settle();
    p.result("the other end", try_recv(pair.server.as_raw_fd(), 10));
    let file = sys::memfd(c"raw")?;
    p.say("the number is used again", file.as_raw_fd() == number);
    sys::pwrite_all(file.as_raw_fd(), b"contents")?;
    p.result("a file in its place", sys::read(file.as_raw_fd(), &mut [0; 10]));
    p.result("and again", sys::read(file.as_raw_fd(), &mut [0; 10]));
    Ok(())
}

fn duplicates(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let twin = raw::dup(pair.c())?;
    // SAFETY: the number is a new descriptor's.
    let twin = unsafe { OwnedFd::from_raw_fd(twin) };
    p.result("close the first", raw::close(pair.client));
    p.result("write to the second", raw::write(twin.as_raw_fd(), b"twin"));
    p.result("read", raw::read(pair.server.as_raw_fd(), &mut [0; 10]));
    p.result("close the second", raw::close(twin));
    settle();
    p.result("the end", raw::read(pair.server.as_raw_fd(), &mut [0; 10]));
    Ok(())
}

fn readiness(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let wait = Duration::from_millis(20);
    let look = |what: &str, wait| {
        let mut fds = [libc::pollfd { fd: pair.s(), events: libc::POLLIN, revents: 0 }];
        let found = raw::ppoll(&mut fds, wait).map(|(n, left)| format!("{n}, time left {left}"));
        p.say(what, format!("{}, events {}", show(found), fds[0].revents));
    };
    let set = Epoll::new(4)?;
    set.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), 77)?;
    let events = || show(raw::epoll_pwait(set.fd(), 20).map(|data| format!("{data:?}")));
    look("ppoll with nothing there", wait);
    p.say("epoll_pwait with nothing there", events());
    sys::write(pair.c(), b"x")?;
    settle();
    look("ppoll with a byte there", Duration::from_secs(10));
    p.say("epoll_pwait with a byte there", events());
    p.result("read", raw::read(pair.s(), &mut [0; 10]));
    look("ppoll after it", wait);
    p.say("epoll_pwait after it", events());
    Ok(())
}

//! A connection is given to somebody who may know nothing of Shunt, in mid-stream.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Command, Stdio};

use shunt_functional::sys;

use crate::options::HandOver;

/// Gives it away and sends some of `bytes`, as that other one would or afterwards; says how many.
pub fn send(how: HandOver, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    match how {
        HandOver::Stdio => sys::write_stdio(fd, bytes),
        HandOver::Scm => {
            let (put, take) = sys::pair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
            sys::pass(put.as_raw_fd(), fd)?;
            let passed = sys::take(take.as_raw_fd())?;
            sys::send(passed.as_raw_fd(), bytes, flags)
        }
        HandOver::Spawn => {
            let copy = sys::dup(fd)?;
            let done = Command::new("true").env_clear().stdin(Stdio::from(copy)).status()?;
            succeeded(done.success())?;
            sys::send(fd, bytes, flags)
        }
        HandOver::Shell => {
            // As dup makes it, a program that is started inherits it.
            let copy = sys::dup(fd)?;
            succeeded(sys::system(c"true") == 0)?;
            sys::send(copy.as_raw_fd(), bytes, flags)
        }
    }
}

fn succeeded(did: bool) -> io::Result<()> {
    if did { Ok(()) } else { Err(io::Error::other("the program has failed")) }
}

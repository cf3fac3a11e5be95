//! The process that makes inspectors: it is made before there is anything in this one that they should not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use shunt_sys::fds::close_all_but;
use shunt_sys::process::{end_with_parent, fork_to};
use shunt_sys::seqpacket;

use crate::inspector;

/// What processes of this kind are called.
const NAME: &core::ffi::CStr = c"shunt-inspector";

/// The last of the standard streams.
const STDERR: i32 = 2;

/// Its way to the process that makes inspectors.
#[derive(Debug)]
pub struct Spawner {
    socket: OwnedFd,
    pid: Pid,
}

impl Spawner {
    /// Makes that process.
    ///
    /// # Errors
    /// Those of socketpair(2) and fork(2).
    pub fn start() -> io::Result<Self> {
        let (socket, end) = seqpacket::pair()?;
        // SAFETY: the child makes system calls, and a little memory, which libc's fork leaves in order.
        let pid = unsafe { fork_to(|| spawn_for(&end)) }?;
        Ok(Self { socket, pid })
    }

    /// Has an inspector made that has these ends of pairs.
    ///
    /// # Errors
    /// Those of sending them there; `EPIPE` when the process is gone.
    pub fn spawn(&self, ends: [&OwnedFd; 2]) -> Result<(), Errno> {
        seqpacket::send(&self.socket, &[0], &ends.map(AsFd::as_fd), Duration::ZERO)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        // It is this process's child until it has been waited for, and does nothing that cannot be ended.
        let _ = kill_process(self.pid, Signal::KILL);
        while let Err(Errno::INTR) = waitpid(Some(self.pid), WaitOptions::empty()) {}
    }
}

/// Leaves the process it was made from, but for these.
fn leave_all_but<const N: usize>(kept: [&OwnedFd; N]) {
    // SAFETY: the process has just been made, and what it will use is `kept`.
    unsafe { close_all_but(kept.map(AsFd::as_fd)) };
    // What is received must not be taken for a standard stream.
    while let Some(Ok(filler)) = kept.first().map(|fd| fcntl_dupfd_cloexec(fd, 0)) {
        if filler.as_raw_fd() > STDERR {
            break;
        }
        let _ = filler.into_raw_fd();
    }
    let _ = rustix::thread::set_name(NAME);
}

fn spawn_for(master: &OwnedFd) {
    leave_all_but([master]);
    // Signals from a terminal are for whom it works.
    let _ = rustix::process::setsid();
    shunt_sys::signals::forget_children();
    let Ok(flags) = fcntl_getfl(master) else { return };
    if fcntl_setfl(master, flags - OFlags::NONBLOCK).is_err() {
        return;
    }
    let own = getpid();
    loop {
        let mut given = Vec::new();
        match seqpacket::recv_all(master, &mut [0], |fd| given.push(fd)) {
            Ok((1.., _)) => {}
            _ => return,
        }
        let [end, grave] = &given[..] else { continue };
        let inspector = || {
            leave_all_but([end, grave]);
            // Whoever is stuck when it ends is killed.
            if end_with_parent(own).is_ok() {
                let _ = inspector::run(end, grave);
            }
        };
        // SAFETY: this process has one thread. Where there can be no other one the end closes, which tells.
        let _ = unsafe { fork_to(inspector) };
    }
}

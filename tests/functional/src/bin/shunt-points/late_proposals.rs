//! A thread waits for the first bytes of a connection that it has accepted, before the client's proposal is there. The look behind
//! its first arming finds the proposal: it arms once more, as those bytes come through the ring.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread;

use shunt_functional::sys::{self, points};

use crate::steps::{Ends, Held, PATIENCE, send};
use crate::watch;

fn wait(call: &str, fd: RawFd) -> io::Result<bool> {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    match call {
        "select" => sys::select(&mut fds, Some(PATIENCE))?,
        _ => sys::poll(&mut fds, Some(PATIENCE))?,
    };
    Ok(fds[0].revents & libc::POLLIN != 0)
}

/// True when the call was told of the bytes, and had armed for the ring.
fn arms_for_the_ring(ends: &Ends, call: &str) -> io::Result<bool> {
    watch::begin(&format!("{call} before the proposal"));
    let connects = Held::at("connect.done")?;
    thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.client());
        connects.wait()?;
        let server = ends.accept()?;
        let fd = server.as_raw_fd();
        let arms = Held::at("poll.armed")?;
        let waiting = scope.spawn(move || wait(call, fd));
        arms.wait()?;
        connects.go_on()?;
        let gone = |_| io::Error::other("a thread is gone");
        let client = connecting.join().map_err(gone)??;
        let sleeps = Held::at("poll.found-nothing")?;
        arms.go_on()?;
        sleeps.wait()?;
        let has_armed = points::passed("poll.armed") == 1;
        send(client.as_raw_fd(), b"first")?;
        sleeps.go_on()?;
        Ok(waiting.join().map_err(gone)?? && has_armed)
    })
}

/// All calls.
pub fn all() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for call in ["poll", "select"] {
        let is_armed = arms_for_the_ring(&ends, call)?;
        is_right &= is_armed;
        println!("{call}: {}", if is_armed { "armed" } else { "deaf" });
    }
    Ok(is_right)
}

//! Messages to the service manager (sd_notify(3)), and descriptors for it to keep.
//!
//! The crate `sd-notify` sends both, too. Its sends wait as long as the manager does not read, while a
//! server that restarts must not hang; it has no barrier, and knows the manager of the environment alone.

use std::env;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::pipe::{PipeFlags, pipe_with};
use shunt_sys::seqpacket;
use tracing::warn;

/// How long it may take to take a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<OwnedFd>,
}

impl Notifier {
    /// To the one that `NOTIFY_SOCKET` names.
    #[must_use]
    pub fn from_environment() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
            path => SocketAddrUnix::new(path),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = address.and_then(|address| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            connect(&socket, &address).map(|()| socket)
        });
        if let Err(e) = &socket {
            warn!("the service manager cannot be reached at NOTIFY_SOCKET: {e}");
        }
        Self { socket: socket.ok() }
    }

    /// Over this connected datagram socket.
    #[must_use]
    pub const fn over(socket: OwnedFd) -> Self {
        Self { socket: Some(socket) }
    }

    /// True when there is one.
    #[must_use]
    pub const fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Tells it something.
    pub fn tell(&mut self, what: &str) {
        self.send(what, &[]);
    }

    /// Has it keep a descriptor for the next start.
    pub fn store(&mut self, name: &str, fd: BorrowedFd<'_>) {
        // What is kept stays, however the connection ends: its end is to be announced by the next server.
        self.send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), &[fd]);
    }

    /// Has it close what it keeps under these names.
    pub fn forget(&mut self, names: &[String]) {
        for name in names {
            self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]);
        }
    }

    /// Waits until it has heard everything: it does not heed a process that has ended.
    pub fn settle(&mut self) {
        let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC) else { return };
        self.send("BARRIER=1", &[writer.as_fd()]);
        drop(writer);
        let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&reader, PollFlags::empty())], Some(&patience));
    }

    fn send(&mut self, what: &str, fds: &[BorrowedFd<'_>]) {
        let Some(socket) = &self.socket else { return };
        if let Err(e) = seqpacket::send(socket, what.as_bytes(), fds, PATIENCE) {
            warn!("the service manager cannot be told anything any more: {e}");
            self.socket = None;
        }
    }
}

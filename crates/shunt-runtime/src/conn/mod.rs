//! TCP connections that this process holds.
//!
//! A [`Sock`] is the process's own part of a connection; what parent and child must agree on lies
//! in the arena's [`Record`](shunt_shm::arena::Record). A [`Conn`] is a connection as a call names
//! it, and a [`Hold`] keeps it for a call that waits.
//!
//! **A call stays with its connection.** Another thread may close the descriptor under a call, and
//! open another file by that number. A [`Conn`] knows which use of its sock it means, so it never
//! leads to another connection. Each step of a call holds a direction's lock and asks for
//! [`Conn::kernel`] under it; who closes the descriptor takes the number out of the table and then
//! waits for both locks. So no step uses a number that has become another file's. A call that is
//! not done after its first step holds the connection: then the descriptor's end is not the
//! connection's, as it is not in the kernel, and the kernel socket gets a descriptor of the
//! library's own.

pub mod brevity;
pub mod hold;
mod left;
mod locked;
pub mod patience;
mod pipes;
mod sock;

use core::ffi::c_int;
use core::ops::Deref;

pub use hold::Hold;
pub use left::Left;
pub use locked::Locked;
pub use pipes::{Ends, Pipes};
pub use shunt_engine::conn::flags::*;
pub use sock::{END, Sock};

use crate::fds::fd_table::{self, Entry, Kind};

/// A connection as a call names it: which one, and by which descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Conn {
    sock: &'static Sock,
    /// The use of the sock that is meant.
    entry: Entry,
    by: By,
}

/// What leads to the kernel socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// A descriptor, as long as the table says so.
    Descriptor(c_int),
    /// One that is out of the table and not closed yet.
    Closing(c_int),
    /// Nothing: it was closed behind the library's back, or stands for something else.
    Nothing,
}

impl Deref for Conn {
    type Target = Sock;

    #[inline]
    fn deref(&self) -> &Sock {
        self.sock
    }
}

impl Conn {
    /// The connection that a call on `fd` concerns; `None`: the kernel's function does it.
    #[inline]
    #[must_use]
    pub fn named(fd: c_int) -> Option<Self> {
        let entry = fd_table::lookup(fd);
        if entry.is_stream() { Self::of(fd, entry) } else { None }
    }

    /// The connection of a descriptor and its entry, also of one that is TCP for good.
    #[inline]
    #[must_use]
    pub fn of(fd: c_int, entry: Entry) -> Option<Self> {
        Sock::of(entry).map(|sock| Self { sock, entry, by: By::Descriptor(fd) })
    }

    /// A connection that `fd` stands for, or is about to.
    #[must_use]
    pub fn new(fd: c_int, sock: &'static Sock) -> Self {
        Self { sock, entry: sock.entry(Kind::Stream), by: By::Descriptor(fd) }
    }

    /// The connection of a descriptor that was taken out of the table and is to be closed.
    #[must_use]
    pub fn closing(fd: c_int, entry: Entry) -> Option<Self> {
        Sock::of(entry).map(|sock| Self { sock, entry, by: By::Closing(fd) })
    }

    /// A connection without a descriptor.
    #[must_use]
    pub fn gone(sock: &'static Sock) -> Self {
        Self { sock, entry: sock.entry(Kind::Stream), by: By::Nothing }
    }

    /// The process's part of it.
    #[inline]
    #[must_use]
    pub const fn sock(&self) -> &'static Sock {
        self.sock
    }

    /// The entry by which it was found.
    #[inline]
    #[must_use]
    pub const fn entry(&self) -> Entry {
        self.entry
    }

    /// The descriptor by which the program knows it; -1: none.
    #[inline]
    #[must_use]
    pub const fn descriptor(&self) -> c_int {
        match self.by {
            By::Descriptor(fd) => fd,
            By::Closing(_) | By::Nothing => -1,
        }
    }

    /// True while the descriptor stands for it.
    #[inline]
    #[must_use]
    pub fn is_named(&self) -> bool {
        match self.by {
            By::Descriptor(fd) => self.is_entry(fd),
            By::Closing(_) | By::Nothing => false,
        }
    }

    /// True while the table says so of this number. The entry here is a connection's.
    #[inline]
    fn is_entry(&self, fd: c_int) -> bool {
        let now = fd_table::lookup(fd);
        now.object() == self.entry.object() && now.is_connection()
    }

    /// True for what [`Conn::closing`] gives.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        matches!(self.by, By::Closing(_))
    }

    /// True while the sock is in the use that is meant.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.sock.is_in_use(self.entry)
    }

    /// A descriptor of the kernel socket; `None`: this end is closed. It stays what it is while a
    /// direction's lock is held that was taken before.
    #[inline]
    #[must_use]
    pub fn kernel(&self) -> Option<c_int> {
        match self.by {
            By::Descriptor(fd) if self.is_entry(fd) => Some(fd),
            By::Descriptor(fd) if self.is_current() => self.sock.lingering().or_else(|| {
                // The library has stepped back, and the number is the program's business again.
                fd_table::is_closed().then_some(fd)
            }),
            By::Closing(fd) => Some(fd),
            By::Descriptor(_) | By::Nothing => None,
        }
    }

    /// What `look` says of the kernel socket, which it leaves as it is. Without a lock: where the
    /// number came to be another file's meanwhile, it is asked again. `None`: this end is closed.
    #[inline]
    pub fn ask<T>(&self, mut look: impl FnMut(c_int) -> T) -> Option<T> {
        loop {
            let fd = self.kernel()?;
            let answer = look(fd);
            if self.kernel() == Some(fd) {
                return Some(answer);
            }
        }
    }
}

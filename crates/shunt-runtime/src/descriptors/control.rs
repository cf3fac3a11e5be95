//! fcntl and ioctl.

use core::ffi::{c_int, c_long, c_ulong};

use crate::conn::{APPENDS, Conn, NONBLOCK, Sock};
use crate::descriptors::duplicate::duplicate;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::stream::options;
use crate::stream::unread;
use crate::system::errno::{self, KeepErrno};

/// `include/uapi/asm-generic/sockios.h`.
const SIOCATMARK: c_ulong = 0x8905;
/// Bytes that were not sent (include/uapi/linux/sockios.h).
const SIOCOUTQNSD: c_ulong = 0x894b;

/// fcntl(2).
pub fn fcntl(fd: c_int, cmd: c_int, arg: c_long, kernel: impl FnOnce() -> c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    match entry.kind() {
        Kind::Own => errno::fail(libc::EBADF),
        // Also for the kernel's: the number that it gives out may be in the table still.
        _ if matches!(cmd, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => duplicate(fd, kernel),
        Kind::Kernel => kernel(),
        _ => {
            let result = kernel();
            if cmd == libc::F_SETFL && result == 0 {
                set_nonblocking(entry, arg & c_long::from(libc::O_NONBLOCK) != 0);
                raise_signals(fd, arg & c_long::from(libc::O_ASYNC) != 0);
                set_appending(entry, arg & c_long::from(libc::O_APPEND) != 0);
            }
            result
        }
    }
}

/// Commands that mean the same to fcntl(2) and to libc's function, which for others speaks of other structures.
#[must_use]
pub const fn is_known_fcntl(command: c_int) -> bool {
    matches!(
        command,
        libc::F_DUPFD
            | libc::F_DUPFD_CLOEXEC
            | libc::F_GETFD
            | libc::F_SETFD
            | libc::F_GETFL
            | libc::F_SETFL
    )
}

/// The kernel raises a signal when bytes come, or room, or the end (`O_ASYNC`): to its own socket.
fn raise_signals(fd: c_int, on: bool) {
    if on {
        options::go_to_kernel(fd);
    }
}

fn set_nonblocking(entry: Entry, on: bool) {
    let _keep = KeepErrno::new();
    if let Some(sock) = Sock::of(entry) {
        sock.put(NONBLOCK, on);
    }
}

/// The answer to an ioctl(2) that the ring alone can tell: programs ask before each read.
#[inline]
pub fn known(entry: Entry, request: c_ulong) -> Option<c_int> {
    (request == libc::FIONREAD).then(|| unread::in_ring(entry)).flatten()
}

/// The answer to an ioctl(2) which the kernel has done, where it is another one. `number`: the one that the kernel has just
/// read.
pub fn was_called(
    fd: c_int,
    entry: Entry,
    request: c_ulong,
    number: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if request == libc::FIOASYNC {
        raise_signals(fd, number() != 0);
        return None;
    }
    if !entry.is_object() {
        return None;
    }
    match request {
        libc::FIONBIO => {
            // Any number but 0 is on.
            set_nonblocking(entry, number() != 0);
            None
        }
        // Also SIOCINQ and SIOCOUTQ, which are the same numbers.
        libc::FIONREAD => Conn::of(fd, entry).and_then(unread::fionread),
        // What has not arrived was not sent either: the receiver's window is closed.
        libc::TIOCOUTQ | SIOCOUTQNSD => unread::outq(fd, entry),
        SIOCATMARK => unread::has_unread(entry).then_some(0),
        _ => None,
    }
}

/// sockatmark(3), which asks by libc's inner call: what lies in a ring comes before any mark.
pub fn at_mark(fd: c_int, libc: impl FnOnce() -> c_int) -> c_int {
    if unread::has_unread(fd_table::lookup(fd)) { 0 } else { libc() }
}

/// `O_APPEND` was set to this on a descriptor of the object.
fn set_appending(entry: Entry, on: bool) {
    if let Some(sock) = Sock::of(entry).filter(|sock| sock.has(APPENDS) != on) {
        sock.put(APPENDS, on);
    }
}

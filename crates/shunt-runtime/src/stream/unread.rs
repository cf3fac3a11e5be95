//! The number of unread bytes, and of those that have not arrived: the answers of ioctl(2) and
//! getsockopt(2).

use core::ffi::c_int;

use shunt_engine::conn::End;

use crate::conn::{Conn, LEFTOVER, Sock};
use crate::fds::fd_table::Entry;
use crate::stream::tcp::Socket;
use crate::stream::{again, leftover, promote};

/// Bytes that a read would find when that is told by the ring alone: the connection is in a ring
/// stretch that has no end yet.
pub fn in_ring(entry: Entry) -> Option<c_int> {
    c_int::try_from(Sock::of(entry)?.end()?.unread_in_ring_alone()?).ok()
}

/// Bytes that a read would find, or `None` for what the kernel says.
pub fn fionread(conn: Conn) -> Option<c_int> {
    promote::advance(conn);
    let sock = conn.sock();
    let lock = sock.lock_rx();
    let (fd, end) = (conn.kernel()?, sock.end()?);
    if end.may_settle() && !lock.nested() {
        again::settle_locked(sock, fd);
    }
    c_int::try_from(end.unread(&Socket(fd))?).ok()
}

/// True while there are bytes in the ring that come before whatever the kernel socket has.
pub fn has_unread(entry: Entry) -> bool {
    let Some(sock) = Sock::of(entry) else { return false };
    let Some(end) = sock.end() else { return false };
    let lock = sock.lock_rx();
    if sock.has(LEFTOVER)
        && !lock.nested()
        && let Some(fd) = sock.descriptor()
    {
        leftover::sync(sock, fd);
    }
    end.reads_ring_first()
}

/// Bytes that have not arrived yet, as the kernel would count those in the ring, or `None` for what it says: they
/// arrive when the receiver's buffer has room for them, and not when they are read.
pub fn outq(_fd: c_int, entry: Entry) -> Option<c_int> {
    let sock = Sock::of(entry)?;
    let end = sock.end().filter(End::sends_through_ring)?;
    let _lock = sock.lock_tx();
    c_int::try_from(end.not_arrived()?).ok()
}

//! Looks at received bytes (`MSG_PEEK`) that wait until there are as many as `SO_RCVLOWAT` says, or as the
//! call has room for (`MSG_WAITALL`).
//!
//! Such a look takes nothing, so each one begins anew (`tcp_recvmsg_locked` in net/ipv4/tcp.c, where it comes
//! back from its sleep), and that there are bytes is no reason to look again: it waits for more than it saw.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_engine::kernel::has_ended;
use shunt_engine::stretch::{Path, path};
use shunt_sys::sockinfo;

use crate::conn::{Conn, SHUT_RD, Sock};
use crate::stream::tcp::{self, Socket};

/// Something else whenever bytes have come by the ring, or a stretch or the direction has ended.
pub fn arrivals(sock: &Sock) -> u64 {
    sock.end().map_or(0, |end| end.arrivals())
}

/// True when nothing will come any more that could be seen, as far as the kernel or the peer has told.
pub fn is_over(conn: Conn) -> bool {
    conn.has(SHUT_RD)
        || is_cut_off(conn)
        || conn.sections().is_some_and(|(_, theirs)| theirs.prod.fin.load(Acquire) != 0)
        || conn.ask(|fd| has_ended(&Socket(fd))).unwrap_or(true)
}

/// Looks at the kernel socket behind bytes there that come a second time, with the lock held. Not before Linux 6.9,
/// where there is no way to it.
pub fn behind(fd: i32, again: u64, look: impl FnOnce()) {
    if again == 0 {
        return look();
    }
    if sockinfo::begin_looks_at(tcp::borrow(fd), i32::try_from(again).ok()) {
        look();
        sockinfo::begin_looks_at(tcp::borrow(fd), None);
    }
}

/// True where a look cannot see what comes: behind the end of a ring that its sender has left, on an older kernel.
fn is_cut_off(conn: Conn) -> bool {
    let marks = conn.record().rx.marks.load(Relaxed);
    let is_left = path(marks) == Path::Ring
        && conn.sections().is_some_and(|(_, theirs)| theirs.prod.marks.load(Acquire) != marks);
    is_left && conn.ask(|fd| sockinfo::begin_looks_at(tcp::borrow(fd), None)) != Some(true)
}

/// When one that has waited for so long looks for itself, both in nanoseconds. `None`: all that can come comes by
/// the ring, or the kernel tells of it. Of more bytes in its socket it does not where there are some.
pub fn next_look(sock: &Sock, waited: u64) -> Option<u64> {
    const SHORTEST: u64 = 1_000_000;
    const LONGEST: u64 = 100_000_000;
    let marks = sock.record().rx.marks.load(Relaxed);
    let in_ring = |theirs: &shunt_shm::region::Section| {
        path(marks) == Path::Ring && theirs.prod.marks.load(Relaxed) == marks
    };
    let is_told = sock.sections().is_some_and(|(_, theirs)| in_ring(theirs));
    (!is_told).then(|| (waited / 8).clamp(SHORTEST, LONGEST))
}

//! Looks at received bytes (`MSG_PEEK`) that wait until there are as many as `SO_RCVLOWAT` says, or as the
//! call has room for (`MSG_WAITALL`).
//!
//! Such a look takes nothing, so each one begins anew (`tcp_recvmsg_locked` in net/ipv4/tcp.c, where it comes
//! back from its sleep), and that there are bytes is no reason to look again: it waits for more than it saw.

use core::sync::atomic::Ordering::Relaxed;

use shunt_engine::stretch::{Path, path};
use shunt_sys::sockinfo;

use crate::conn::Sock;
use crate::system::abi;

/// Something else whenever bytes have come by the ring, or a stretch or the direction has ended.
pub fn arrivals(sock: &Sock) -> u64 {
    sock.end().map_or(0, |end| end.arrivals())
}

/// Looks at the kernel socket behind bytes there that come a second time, with the lock held. Not before Linux 6.9,
/// where there is no way to it.
pub fn behind(fd: i32, again: u64, look: impl FnOnce()) {
    if again == 0 {
        return look();
    }
    if sockinfo::begin_looks_at(abi::borrow(fd), i32::try_from(again).ok()) {
        look();
        sockinfo::begin_looks_at(abi::borrow(fd), None);
    }
}

/// True where a look behind them can be had.
pub fn is_possible_behind(fd: i32) -> bool {
    sockinfo::begin_looks_at(abi::borrow(fd), None)
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

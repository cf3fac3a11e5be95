//! The way back to TCP of both directions at once: when the descriptor goes to a program that may
//! not run under Shunt (exec, `SCM_RIGHTS`, stdio), or asks for what only the kernel can do.
//!
//! The side that leaves marks the end of its own direction, stops taking bytes from the ring
//! (freezes), and says so. The peer, when it next looks at the connection, sends what was left in the
//! ring once more, over TCP. From then on the kernel socket has it all, in order.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use shunt_core::stretch::{Path, path};
use shunt_shm::region::RING;
use shunt_shm::ring::TxCursor;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::conn::{FROZEN, Sock, WANT_TCP};
use crate::endpoint;
use crate::fd_table;
use crate::stream::{broken, notify, promote, tcp, tid};

/// Longest wait for room in the kernel socket while ring bytes are sent once more.
const PATIENCE: i64 = 2;

/// This side leaves shared memory.
pub fn leave(sock: &'static Sock, fd: i32, why: Reason) {
    promote::glance(sock, fd);
    let Some((mine, _)) = sock.sections() else { return };
    let record = sock.record();
    {
        let _lock = record.rx.lock.lock(tid());
        if sock.has(FROZEN) {
            return;
        }
        sock.put(FROZEN, true);
    }
    {
        let _lock = record.tx.lock.lock(tid());
        sock.put(WANT_TCP, true);
        let marks = record.tx.marks.load(Relaxed);
        if path(marks) == Path::Ring {
            TxCursor::set_mark(&mine.prod, record.tx.cursor.pos());
            record.tx.marks.store(marks.wrapping_add(1), Relaxed);
        }
    }
    mine.ctl.handed_over.store(1, Release);
    record.id.mode.store(0, Relaxed);
    record.id.reason.store(why as u32, Relaxed);
    endpoint::count(Counter::Demoted, 1);
    notify::all(sock);
}

/// Follows a peer that has left: sends what it did not take. True when there was something to do.
#[cold]
pub fn follow(sock: &'static Sock, fd: i32) -> bool {
    let (Some(link), Some((mine, theirs))) = (sock.link(), sock.sections()) else { return false };
    let record = sock.record();
    let _lock = record.tx.lock.lock(tid());
    // Closed by another thread meanwhile: the slot may be another connection's by now.
    if !Sock::of(fd_table::lookup(fd)).is_some_and(|now| core::ptr::eq(now, sock)) {
        return false;
    }
    sock.put(WANT_TCP, true);
    let marks = record.tx.marks.load(Relaxed);
    if path(marks) == Path::Tcp {
        return false;
    }
    let cursor = &record.tx.cursor;
    let Ok(free) = cursor.refresh(&theirs.cons, RING as u64) else {
        broken(sock);
        return true;
    };
    let left = RING as u64 - free;
    let taken = cursor.pos() - left;
    let bytes = cursor.unread(link.view().buffer(record.slot(), record.side().other()), RING, left);
    TxCursor::set_mark(&mine.prod, taken);
    record.tx.marks.store(marks.wrapping_add(1), Relaxed);
    record.id.mode.store(0, Relaxed);
    record.id.reason.store(Reason::HandedOver as u32, Relaxed);
    endpoint::count(Counter::Demoted, 1);
    if !send_all(fd, &bytes) {
        broken(sock);
    }
    true
}

/// True when the peer has left and this side has not followed yet.
#[inline]
pub fn is_due(sock: &Sock) -> bool {
    sock.sections().is_some_and(|(_, theirs)| theirs.ctl.handed_over.load(Acquire) != 0)
        && path(sock.record().tx.marks.load(Relaxed)) == Path::Ring
}

fn send_all(fd: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match send(tcp::borrow(fd), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(tcp::borrow(fd), PollFlags::OUT)];
                let time = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
                if poll(&mut fds, Some(&time)) == Ok(0) {
                    return false;
                }
            }
            // The connection is over, and the kernel will say so.
            Err(_) => return true,
        }
    }
    true
}

//! Bytes that come twice. A sender that goes on over TCP while bytes lie unread in the ring sends these once
//! more, in front of the others: so a program that takes over the receiver's end, and knows of no ring,
//! finds the whole stream in the kernel socket. A receiver that stays reads the ring to its end, and then drops
//! from the kernel socket what it has had.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shunt_engine::kernel::{KernelSocket, Look, look};
use shunt_engine::stretch::{Path, had, path};
use shunt_shm::arena::Record;
use shunt_shm::region::Section;
use shunt_shm::ring::RxCursor;

use crate::clock;
use crate::conn::{Conn, FROZEN, Sock};
use crate::errno::KeepErrno;
use crate::kernel_poll;
use crate::next;
use crate::signals::{Uncancelled, Uninterrupted};
use crate::stream::tcp::Socket;
use crate::stream::{broken, call};

/// Longest wait, in nanoseconds, of a side that leaves for bytes that it has had.
const PATIENCE: u64 = 2_000_000_000;

/// Passes an even mark, with the receiving direction's lock held. `had`: bytes behind it that were taken
/// from the ring.
pub fn pass(record: &Record, mine: &Section, marks: u32, had: u64) {
    let next = marks.wrapping_add(1);
    record.rx.again.store(u32::try_from(had).unwrap_or(u32::MAX), Relaxed);
    record.rx.marks.store(next, Relaxed);
    mine.cons.marks_passed.store(next, Release);
}

/// How many bytes of those that come next over TCP this receiver has had, if it is at the even mark that ends
/// the ring. One who takes nothing from it any more stands there wherever it is.
pub fn at_mark(sock: &Sock, theirs: &Section, is_done: bool) -> Option<u64> {
    let rx = &sock.record().rx;
    let marks = rx.marks.load(Relaxed);
    if path(marks) == Path::Tcp {
        return None;
    }
    let at = RxCursor::next_mark(&theirs.prod, marks).ok().flatten()?;
    let pos = rx.cursor.pos();
    // The mark is set behind all that was put into the ring.
    let is_done = is_done || theirs.prod.prod.load(Acquire) == pos;
    had(at, pos, sock.ring() as u64).filter(|_| is_done)
}

/// True while bytes are to come over TCP that were taken from the ring already.
#[inline]
pub fn is_awaited(sock: &Sock) -> bool {
    sock.record().rx.again.load(Relaxed) != 0
}

/// True when [`settle`] may find something to do.
#[inline]
pub fn is_open(sock: &Sock, theirs: &Section) -> bool {
    let rx = &sock.record().rx;
    let marks = rx.marks.load(Relaxed);
    is_awaited(sock) || (path(marks) == Path::Ring && theirs.prod.marks.load(Relaxed) != marks)
}

/// Before the kernel is asked what there is to read: what comes twice is no news. False where a signal handler
/// has to leave that to the call which it has interrupted.
#[cold]
pub fn settle(conn: Conn) -> bool {
    let lock = conn.lock_rx();
    if lock.nested() && !call::may_intrude(&conn.record().rx.copying) {
        return false;
    }
    if let Some(fd) = conn.kernel() {
        settle_locked(conn.sock(), fd);
    }
    true
}

/// The same with the lock held.
pub fn settle_locked(sock: &Sock, fd: i32) {
    let Some((mine, theirs)) = sock.sections() else { return };
    let record = sock.record();
    let is_frozen = sock.has(FROZEN);
    if let Some(had) = at_mark(sock, theirs, is_frozen) {
        // To one who has left everything is sent from where it has stopped.
        pass(record, mine, record.rx.marks.load(Relaxed), if is_frozen { 0 } else { had });
    }
    if path(record.rx.marks.load(Relaxed)) == Path::Tcp {
        drop_had(sock, fd);
    }
}

/// Drops what has come a second time, with the lock held. True when no more of it is to come.
pub fn drop_had(sock: &Sock, fd: i32) -> bool {
    let again = &sock.record().rx.again;
    loop {
        let left = again.load(Relaxed);
        if left == 0 {
            return true;
        }
        match look(&Socket(fd)) {
            Look::Silent => return false,
            // The sender had to end before all was sent once more: nothing comes behind it.
            Look::Eof | Look::Error => again.store(0, Relaxed),
            Look::Bytes(there) => {
                let (_uninterrupted, _uncancelled) = (Uninterrupted::begin(), Uncancelled::begin());
                let _keep = KeepErrno::new();
                let n = usize::try_from(there.min(left.into())).unwrap_or(0);
                let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
                // SAFETY: TCP drops the bytes, and writes nothing (tcp(7), MSG_TRUNC).
                let n = unsafe { next::recv(fd, core::ptr::null_mut(), n, flags) };
                let Ok(n) = u32::try_from(n) else { return false };
                again.store(left.saturating_sub(n), Relaxed);
            }
        }
    }
}

/// Bytes in the kernel socket that the program has not had, nor finds in the ring, as far as is known.
pub fn waiting(sock: &Sock, theirs: &Section, fd: i32) -> u64 {
    let rx = &sock.record().rx;
    let marks = rx.marks.load(Relaxed);
    let to_come = match RxCursor::ring_end(&theirs.prod, marks) {
        Ok(Some(at)) if sock.has(FROZEN) => rx.cursor.pos().saturating_sub(at),
        Ok(Some(at)) => theirs.prod.prod.load(Acquire).saturating_sub(at),
        _ => rx.again.load(Relaxed).into(),
    };
    Socket(fd).waiting().saturating_sub(to_come)
}

/// Before another program gets the descriptor: it must not read a second time what was read here.
pub fn finish(conn: Conn) {
    let until = clock::now().saturating_add(PATIENCE);
    while is_awaited(&conn) {
        let is_done = settle(conn) && !is_awaited(&conn);
        let Some(fd) = conn.kernel().filter(|_| !is_done) else { return };
        if clock::now() >= until {
            let _lock = conn.lock_rx();
            broken(conn);
            return;
        }
        kernel_poll::await_one(fd, libc::POLLIN, 100_000_000);
    }
}

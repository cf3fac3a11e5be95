//! Bytes that lie unread in a ring when the program becomes another one (exec), or has another one
//! started.
//!
//! The connection goes back to TCP (`demote.rs`), and the peer sends the unread bytes once more. It
//! does so late where it does not look at the connection soon, and not at all where it has ended
//! its direction. So a copy goes along with the new program, in memory of its own
//! ([`shunt_shm::leftover`]) by a descriptor that exec does not close ([`pass`]). The library there
//! finds the copy when it starts ([`take`]), closes the descriptor, and puts the bytes into a new
//! ring, with marks of a peer that has left by itself. A read drains the ring, then drops the
//! repetition from the kernel socket, as everywhere (`again.rs`).
//!
//! **Several programs** may have the descriptor then: a shell and its children. Each byte goes to
//! one of them. A word that all of them share counts the bytes taken. The kernel counts the bytes
//! read of its socket, and so the dropped part of the repetition. One program at a time drops, by a
//! lock of the kernel's on the memory (fcntl(2)), which the kernel takes back from a killed one.
//!
//! A program without the library reads the repetition, and has thereby taken those bytes. So that
//! all agree, all programs read the repetition where it has come before any of them took some of it
//! from the memory.

pub mod pass;
mod program;
pub mod take;

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use rustix::fs::FlockOperation;
use shunt_engine::kernel::{KernelSocket, Look, Progress, look, progress};
use shunt_engine::stretch::{Path, path};
use shunt_shm::leftover::Facts;

use crate::conn::{Conn, LEFTOVER, Left, Sock};
use crate::stream::tcp::Socket;
use crate::system::clock;
use crate::system::errno::KeepErrno;
use crate::system::kernel_poll;
use crate::system::next;
use crate::threads::signals::{Uncancelled, Uninterrupted};

pub use program::Program;

/// Longest wait, in nanoseconds, for bytes that come twice, before a program without the library starts.
const PATIENCE: u64 = 2_000_000_000;

impl Sock {
    /// What a program before exec has left of it; only with the receiving direction's lock held, under which it goes.
    fn left(&self) -> Option<&Left> {
        // SAFETY: null, or set by `take` to what lives until `release` takes it out, under the same lock.
        unsafe { self.leftover.load(Acquire).as_ref() }
    }
}

/// This process has no use for it any more. With the receiving direction's lock held, or where nobody has the connection.
pub fn release(sock: &Sock) {
    let left = sock.leftover.swap(ptr::null_mut(), AcqRel);
    if !left.is_null() {
        // SAFETY: made by Box::into_raw, and out of the sock from now on.
        drop(unsafe { Box::from_raw(left) });
    }
}

/// How far the kernel socket was read, as far as that is of interest here.
fn read_so_far(fd: c_int, facts: &Facts) -> u64 {
    progress(&Socket(fd), facts.end()).map_or(facts.start, |Progress { read, .. }| read)
}

/// True for bytes that a program before exec has left, after [`sync`]. With the lock held.
#[cold]
pub fn is_left(sock: &Sock, fd: c_int) -> bool {
    let is_left = sock.has(LEFTOVER);
    if is_left {
        sync(sock, fd);
    }
    is_left
}

/// Before this program looks at the bytes: passes what others have taken of them. With the lock held.
#[cold]
pub fn sync(sock: &Sock, fd: c_int) {
    let (Some(left), Some((mine, _))) = (sock.left(), sock.sections()) else { return };
    let cursor = &sock.record().rx.cursor;
    let (pos, facts) = (cursor.pos(), left.memory.known());
    if pos >= facts.len {
        return;
    }
    let read = read_so_far(fd, facts);
    let by_reading = facts.taken_by(read).max(facts.len - facts.again);
    // The repetition is there, and nobody has had any of it here: so it is read there, also by those who keep the
    // connection that was left, and have no part in this memory.
    let has_come = || facts.again > 0 && read >= facts.start && Socket(fd).waiting() > 0;
    if pos >= facts.len - facts.again && pos <= by_reading && has_come() {
        let _ = left.memory.leave_to_kernel(by_reading);
    }
    let taken = left.memory.taken().max(facts.taken_by(read));
    if let Some(more) = taken.checked_sub(pos).filter(|more| *more > 0) {
        // The receiver of a ring that nobody fills tells nobody of room.
        let _ = cursor.consume(&mine.cons, sock.ring() as u64, more);
    }
}

/// This program has copied the next `n` bytes: they are its own from now on. False when another one has taken some of
/// them. With the lock held.
#[cold]
pub fn claim(sock: &Sock, n: usize) -> bool {
    let at = sock.record().rx.cursor.pos();
    sock.left().is_none_or(|left| left.memory.take(at, n as u64))
}

/// Gives back what [`claim`] has taken, but for the first `n` of `of` bytes.
#[cold]
pub fn unclaim(sock: &Sock, n: usize, of: usize) {
    let end = sock.record().rx.cursor.pos() + of as u64;
    if let Some(left) = sock.left().filter(|_| n < of) {
        left.memory.give_back(end, (of - n) as u64);
    }
}

/// Drops what comes a second time of the bytes, all of which were taken, with the lock held. `None`: all is
/// dropped; else how many bytes are still to come.
#[cold]
pub fn drop_again(sock: &Sock, fd: c_int) -> Option<u64> {
    let left = sock.left()?;
    let is_to_drop = !left.memory.is_left_to_kernel();
    let to_come = is_to_drop.then(|| drop_up_to(left, fd, left.memory.known().end())).flatten();
    if to_come.is_none() {
        sock.put(LEFTOVER, false);
        release(sock);
    }
    to_come
}

/// Drops bytes of the kernel socket until so many were read there; those that are still to come.
fn drop_up_to(left: &Left, fd: c_int, end: u64) -> Option<u64> {
    let facts = left.memory.known();
    loop {
        let to_come = end.checked_sub(read_so_far(fd, facts)).filter(|n| *n > 0)?;
        match look(&Socket(fd)) {
            Look::Silent | Look::OwnEnd => return Some(to_come),
            // The sender had to end before all was sent once more: nothing comes behind it.
            Look::Eof | Look::Error => return None,
            Look::Bytes(_) => {}
        }
        let (_uninterrupted, _uncancelled) = (Uninterrupted::begin(), Uncancelled::begin());
        let _keep = KeepErrno::new();
        let lock = |how| rustix::fs::fcntl_lock(left.fd.borrow(), how);
        let is_alone = lock(FlockOperation::LockExclusive).is_ok();
        let most = end.saturating_sub(read_so_far(fd, facts)).min(Socket(fd).waiting());
        let most = usize::try_from(most).unwrap_or(0);
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: TCP drops the bytes, and writes nothing (tcp(7), MSG_TRUNC).
        let n = if most > 0 { unsafe { next::recv(fd, ptr::null_mut(), most, flags) } } else { 0 };
        if is_alone {
            let _ = lock(FlockOperation::Unlock);
        }
        if n < 0 {
            return Some(to_come);
        }
    }
}

/// Before the kernel socket is used past the library: what was taken of the bytes must not be read there a second
/// time. `waits`: also if it has not come yet. The rest stays, for who reads by the library, or comes a second time.
pub fn catch_up(conn: Conn, waits: bool) {
    let until = clock::now().saturating_add(PATIENCE);
    loop {
        let lock = conn.lock_rx();
        let (Some(fd), false) = (conn.kernel(), lock.nested()) else { return };
        sync(conn.sock(), fd);
        let rx = &conn.record().rx;
        let Some(left) = conn.sock().left().filter(|_| path(rx.marks.load(Relaxed)) == Path::Ring)
        else {
            return;
        };
        let facts = left.memory.known();
        let taken = rx.cursor.pos().saturating_sub(facts.len - facts.again);
        let is_to_drop = taken > 0 && !left.memory.is_left_to_kernel();
        let is_done = !is_to_drop || drop_up_to(left, fd, facts.start + taken).is_none();
        drop(lock);
        if is_done || !waits || clock::now() >= until {
            return;
        }
        kernel_poll::await_one(fd, libc::POLLIN, 100_000_000);
    }
}

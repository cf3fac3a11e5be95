//! The way back to TCP of both directions at once: when the descriptor goes to a program that may
//! not run under Shunt (exec, `SCM_RIGHTS`, stdio), or asks for what only the kernel can do.
//!
//! The side that leaves marks the end of its own direction, stops taking bytes from the ring
//! (freezes), and says so. The peer, when it next looks at the connection, sends what was left in the
//! ring once more, over TCP, as its kernel socket has room, before anything else. From then on the kernel socket has it all, in order.
//! A peer that has left the ring before has sent that already (`again.rs`).
//!
//! A program that keeps the descriptor (it has only run another one) reads on in the ring until the peer comes to repeat
//! what is there, and then drops what it has had ([`stay`]).
//!
//! A peer that has ended its direction by then can send nothing more: what lies unread is lost to the program that
//! took over, not to one that keeps the descriptor.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_engine::call::may_intrude;
use shunt_engine::conn::repeated::are_pending;
use shunt_engine::kernel::has_failed;
use shunt_engine::stretch::{Path, path};
use shunt_shm::arena::Record;
use shunt_shm::handover;
use shunt_sys::sockinfo;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::conn::{Conn, FROZEN, Locked, SHUT_WR, Sock, WANT_TCP};
use crate::control::endpoint;
use crate::control::link::Link;
use crate::point;
use crate::processes::in_doubt::InDoubt;
use crate::stream::tcp::Socket;
use crate::stream::{again, broken, doubt, grants, killed, notify, promote};
use crate::system::abi;
use crate::system::clock;
use crate::system::errno::{self, KeepErrno};
use crate::system::kernel_poll;
use crate::system::next;
use crate::threads::signals::{Uncancelled, Uninterrupted};

/// Longest wait, in nanoseconds, of a side that ends for room in the kernel socket for ring bytes that
/// are sent once more.
const PATIENCE: u64 = 2_000_000_000;

/// This side leaves shared memory.
pub fn leave(conn: Conn, why: Reason) {
    promote::glance(conn);
    let sock = conn.sock();
    if sock.sections().is_none() {
        return;
    }
    let record = sock.record();
    if !freeze(conn) {
        again::finish(conn);
        return;
    }
    let in_doubt = InDoubt::begins(conn);
    {
        let lock = sock.lock_tx();
        sock.put(WANT_TCP, true);
        // In a signal handler above a call that grants something just now, that stays as it is.
        let all_in_ring =
            (!lock.nested() || may_intrude(&record.tx.copying)) && grants::take_back(sock);
        let marks = record.tx.marks.load(Relaxed);
        if is_due(sock) {
            // The peer has left first, and takes nothing of what it has not taken by then.
            follow_locked(conn, &lock);
        } else if path(marks) == Path::Ring {
            leave_ring(sock, if all_in_ring { untaken_with_room(conn) } else { 0 });
        }
    }
    point!(leave_marked);
    left(record, why);
    in_doubt.ends();
    doubt::end_quietly(conn);
    notify::all(sock);
    again::finish(conn);
}

/// What the peer, which stays, has not taken, if the kernel socket has room for it now. Otherwise that is
/// left in the ring, as this side can wait for nothing.
fn untaken_with_room(conn: Conn) -> u64 {
    let Some((_, theirs)) = conn.sections() else { return 0 };
    let untaken = conn.record().tx.cursor.refresh(&theirs.cons).unwrap_or(0);
    // Half of the memory, as what the kernel keeps beside the bytes counts.
    let room = conn.ask(|fd| sockinfo::memory_to_send(abi::borrow(fd)).map_or(0, |room| room / 2));
    if untaken <= u64::from(room.unwrap_or(0)) { untaken } else { 0 }
}

/// Takes nothing from the ring from now on, and says so. False when that is so already.
fn freeze(conn: Conn) -> bool {
    let sock = conn.sock();
    let Some(end) = sock.end() else { return false };
    let record = sock.record();
    let _lock = sock.lock_rx();
    if sock.has(FROZEN) {
        return false;
    }
    // Bytes that the peer would send once more were read by somebody who was killed.
    if record.rx.pulls.are_open() {
        broken(conn);
        return false;
    }
    let in_doubt = InDoubt::begins(conn);
    let _uninterrupted = Uninterrupted::begin();
    sock.put(FROZEN, true);
    point!(leave_frozen);
    handover::leave(&end.mine.ctl.handed_over, || {
        if let Some(had) = end.had_at_mark(true) {
            end.pass_into_tcp(had);
        }
        record.rx.marks.load(Relaxed)
    });
    point!(leave_said);
    in_doubt.ends();
    true
}

/// This side has left, and reads on in the ring although the peer is to leave it: it has the descriptor still, and the peer may
/// not look at the connection for long. False when the peer has left meanwhile. With the receiving direction's lock held.
#[cold]
pub fn stay(sock: &'static Sock) -> bool {
    let Some((mine, theirs)) = sock.sections() else { return false };
    let _in_doubt = InDoubt::on(sock);
    let _uninterrupted = Uninterrupted::begin();
    let marks = sock.record().rx.marks.load(Relaxed);
    let is_marked = || theirs.prod.marks.load(Acquire) != marks;
    let stays = handover::stay(&mine.ctl.handed_over, is_marked);
    if stays {
        sock.put(FROZEN, false);
    }
    stays
}

/// Leaves the ring, with the lock of the sending direction held: the last `untaken` bytes in it are to be
/// sent once more over TCP.
pub fn leave_ring(sock: &'static Sock, untaken: u64) {
    let Some(end) = sock.end() else { return };
    let _in_doubt = InDoubt::on(sock);
    let _uninterrupted = Uninterrupted::begin();
    end.leave_ring(untaken, || point!(follow_marked));
}

/// Notes that the connection is out of shared memory, and why: the first reason counts.
fn left(record: &Record, why: Reason) {
    if record.id.mode.swap(0, Relaxed) != 0 {
        record.id.reason.store(why as u32, Relaxed);
        endpoint::count(Counter::Demoted, 1);
    }
}

/// Follows a peer that has left: what it did not take is to be sent once more, and is sent as far as
/// there is room. False in a signal handler that has to leave that to the call which it interrupted.
#[cold]
pub fn follow(conn: Conn) -> bool {
    follow_locked(conn, &conn.lock_tx())
}

fn follow_locked(conn: Conn, lock: &Locked) -> bool {
    let sock = conn.sock();
    // Closed by another thread meanwhile: the slot may be another connection's by now.
    let Some(fd) = conn.kernel() else { return true };
    let (Some(link), Some((_, theirs))) = (sock.link(), sock.sections()) else { return true };
    let record = sock.record();
    let tx = &record.tx;
    if lock.nested() && !may_intrude(&tx.copying) {
        return false;
    }
    point!(follow_locked);
    sock.put(WANT_TCP, true);
    // What cannot be put into the ring cannot be sent once more.
    if !grants::take_back(sock) {
        broken(conn);
        return true;
    }
    let marks = tx.marks.load(Relaxed);
    // After its end this side can send nothing; the other one reads on in the ring.
    if path(marks) == Path::Ring && !sock.has(SHUT_WR) {
        let Ok(untaken) = tx.cursor.refresh(&theirs.cons) else {
            broken(conn);
            return true;
        };
        leave_ring(sock, untaken);
        point!(follow_noted);
        left(record, Reason::HandedOver);
    }
    flush(sock, link, fd);
    true
}

/// Goes on with them. Without the sending direction's lock, which this takes.
#[cold]
pub fn go_on(conn: Conn) {
    let lock = conn.lock_tx();
    if let (Some(fd), Some(link)) = (conn.kernel(), conn.link().filter(|_| !lock.nested())) {
        flush(conn.sock(), link, fd);
    }
}

/// Before this side's end, or before the descriptor goes to a program that knows of no ring: nobody
/// would send once more what waits for it, and what comes after the end in the kernel socket is lost. The descriptor may be
/// gone from the table, but nobody else has the connection then.
pub fn finish(conn: Conn) {
    if is_due(&conn) {
        follow(conn);
    }
    let until = clock::now().saturating_add(PATIENCE);
    while are_pending(conn.record()) && clock::now() < until {
        let Some(fd) = conn.kernel() else { return };
        kernel_poll::await_one(fd, libc::POLLOUT, 100_000_000);
        go_on(conn);
    }
}

/// Sends ring bytes once more, without waiting, with the lock held. True when none is left.
pub fn flush(sock: &'static Sock, link: &Link, fd: i32) -> bool {
    let _in_doubt = InDoubt::on(sock);
    let record = sock.record();
    let replay = &record.tx.replay;
    loop {
        let Some(left) = sock.end().and_then(|end| end.to_repeat()) else { return false };
        if left == 0 {
            return true;
        }
        // The program is to hear of a reset, which the kernel tells once.
        if has_failed(&Socket(fd)) {
            replay.store(0, Relaxed);
            continue;
        }
        let (at, len) = record.tx.cursor.last(left, sock.ring() as u64).head;
        let ring = link.view().buffer(record.slot(), record.side().other());
        let (_uninterrupted, _uncancelled) = (Uninterrupted::begin(), Uncancelled::begin());
        let _keep = KeepErrno::new();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the span lies in the ring, by this side's own cursor. What the peer may write there meanwhile
        // are bytes that go to itself.
        let n = unsafe { next::send(fd, ring.add(at).as_ptr().cast(), len, flags) };
        match (u64::try_from(n), errno::get()) {
            (Ok(n), _) => {
                replay.store(left.saturating_sub(n), Relaxed);
                point!(flush_sent);
            }
            (Err(_), libc::EINTR) => {}
            (Err(_), libc::EAGAIN) => return false,
            // The connection is over, and the kernel will say so; or has just said it.
            (Err(_), error) => {
                if error == libc::ECONNRESET {
                    killed::tell_later(sock);
                }
                replay.store(0, Relaxed);
            }
        }
    }
}

/// True when the peer has left and this side has not followed yet.
#[inline]
pub fn is_due(sock: &Sock) -> bool {
    sock.end().is_some_and(|end| end.is_to_follow())
}

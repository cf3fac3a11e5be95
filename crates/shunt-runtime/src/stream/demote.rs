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

use core::sync::atomic::Ordering::Relaxed;

use shunt_engine::call::Errno;
use shunt_engine::conn::leave::{Below, Frozen, Leaving, Moment, Repeating};
use shunt_engine::conn::repeated::{are_known, are_pending};
use shunt_engine::kernel::KernelSocket;
use shunt_shm::Violation;
use shunt_sys::sockinfo;
use shunt_wire::counter::Counter;
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;

use crate::calls::{self, Late};
use crate::conn::{Conn, Locked, Sock};
use crate::control::{endpoint, link::Link};
use crate::point;
use crate::stream::in_doubt::InDoubt;
use crate::stream::tcp::Socket;
use crate::stream::{again, broken, grants, liveness, notify, peer_death, promote};
use crate::system::errno::{self, KeepErrno};
use crate::system::{abi, clock, kernel_poll, next};
use crate::threads::signals::{Uncancelled, Uninterrupted};

/// Longest wait, in nanoseconds, of a side that ends for room in the kernel socket for ring bytes that
/// are sent once more.
const PATIENCE: u64 = 2_000_000_000;

/// The way out of the ring: what repeats bytes of it over the kernel socket.
struct Out<'a> {
    conn: Conn,
    link: &'a Link,
    /// The kernel socket, where one is at hand.
    fd: i32,
    /// What it is called to leave.
    leaves: Decision,
}

impl Repeating for Out<'_> {
    fn socket(&self) -> impl KernelSocket {
        Socket(self.fd)
    }

    fn send_again(&self, at: usize, len: usize, note: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        let record = self.conn.record();
        let ring = self.link.view().buffer(record.slot(), record.side().other());
        let _uncancelled = Uncancelled::begin();
        let _keep = KeepErrno::new();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the span lies in the ring, by this side's own cursor. What the peer may write there meanwhile
        // are bytes that go to itself.
        let n = unsafe { next::send(self.fd, ring.add(at).as_ptr().cast(), len, flags) };
        let n = u64::try_from(n).map_err(|_| Errno::from_raw_os_error(errno::get()))?;
        note(n);
        point!(flush_sent);
        Ok(())
    }

    fn is_orphaned(&self) -> bool {
        liveness::is_orphaned(self.conn.sock())
    }

    fn was_reset(&self) {
        peer_death::tell_later(self.conn.sock());
    }

    fn uninterrupted(&self, step: impl FnOnce()) {
        let _in_doubt = InDoubt::begins(self.conn);
        let _uninterrupted = Uninterrupted::begin();
        step();
    }
}

impl Leaving for Out<'_> {
    fn take_back(&self) -> bool {
        grants::take_back(self.conn.sock())
    }

    /// Half of the memory, as what the kernel keeps beside the bytes counts.
    fn room(&self) -> u64 {
        let ask = |fd| sockinfo::memory_to_send(abi::borrow(fd)).map_or(0, |room| room / 2);
        self.conn.ask(ask).unwrap_or(0).into()
    }

    fn has_left(&self) {
        let why = self.conn.record().id.reason.load(Relaxed);
        let why = u8::try_from(why).ok().and_then(Reason::from_code);
        self.conn.sock().note(self.leaves, why);
        endpoint::count(Counter::Demoted, 1);
    }

    fn tell(&self) {
        let sock = self.conn.sock();
        if let Some((_, theirs)) = sock.sections() {
            notify::data(sock, self.link, &theirs.ctl, sock.record().slot());
        }
    }

    fn reaches(&self, moment: Moment) {
        match moment {
            Moment::Marked => point!(follow_marked),
            Moment::Follows => point!(follow_locked),
            Moment::Noted => point!(follow_noted),
        }
    }
}

/// What a handler that leaves for this reason is above, with the lock of the direction. The only thing that one may do by which
/// another program gets the connection is to become it.
const fn below(lock: &Locked, why: Reason) -> Below {
    match (lock.nested(), why) {
        (false, _) => Below::Nothing,
        (true, Reason::HandedOver) => Below::IsOver,
        (true, _) => Below::GoesOn,
    }
}

/// This side leaves shared memory. In a handler of a signal above a step that would be surprised it does so when that is over.
pub fn leave(conn: Conn, why: Reason) {
    promote::poll_handshake(conn);
    let (Some(end), Some(link)) = (conn.end(), conn.link()) else { return };
    let frozen = freeze(conn, why);
    let is_done = frozen == Frozen::Before && !end.is_to_leave();
    if is_done || frozen == Frozen::InDoubt {
        again::finish(conn);
        return;
    }
    let mut is_later = frozen == Frozen::Later;
    let in_doubt = InDoubt::begins(conn);
    let mut out = Out { conn, link, fd: -1, leaves: Decision::Demoted };
    {
        let lock = conn.lock_tx();
        let fd = conn.kernel();
        out.fd = fd.unwrap_or(-1);
        // Closed by another thread meanwhile: there is nothing to follow with.
        let is_gone = fd.is_none() && end.is_to_follow();
        let left = if is_gone { Ok(true) } else { end.leave(below(&lock, why), &out) };
        is_later |= left == Ok(false);
        if left.is_err() {
            broken(conn);
        }
    }
    if is_later && !calls::do_later(conn.descriptor(), conn.entry(), Late::Leave(why)) {
        broken(conn);
    }
    point!(leave_marked);
    end.notes_left(why, &out);
    liveness::end_quietly(conn);
    notify::all(conn.sock());
    in_doubt.ends();
    // Others of this process that sleep on its words are to hear the kernel from now on.
    notify::own(conn.sock());
    again::finish(conn);
}

/// Takes nothing from the ring from now on, and says so.
fn freeze(conn: Conn, why: Reason) -> Frozen {
    let Some(end) = conn.end() else { return Frozen::Before };
    let lock = conn.lock_rx();
    let in_doubt = InDoubt::begins(conn);
    let frozen = {
        let _uninterrupted = Uninterrupted::begin();
        let frozen = end.freeze(below(&lock, why), || point!(leave_frozen));
        if frozen == Frozen::Now {
            point!(leave_said);
        }
        frozen
    };
    in_doubt.ends();
    if frozen == Frozen::InDoubt {
        broken(conn);
    }
    frozen
}

/// This side has left, and reads on in the ring: [`shunt_engine::conn::End::stay`]. With the receiving direction's lock held.
#[cold]
pub fn stay(sock: &'static Sock) -> bool {
    let Some(end) = sock.end() else { return false };
    let _in_doubt = InDoubt::on(sock);
    let _uninterrupted = Uninterrupted::begin();
    end.stay()
}

/// Leaves the ring, with the lock of the sending direction held: the last `untaken` bytes in it are to be
/// sent once more over TCP.
pub fn leave_ring(sock: &'static Sock, untaken: u64) {
    let Some(end) = sock.end() else { return };
    let _in_doubt = InDoubt::on(sock);
    let _uninterrupted = Uninterrupted::begin();
    end.leave_ring(untaken, || point!(follow_marked));
}

/// Follows a peer that has left: what it did not take is to be sent once more, and is sent as far as
/// there is room. False in a signal handler that has to leave that to the call which it interrupted.
#[cold]
pub fn follow(conn: Conn) -> bool {
    let lock = conn.lock_tx();
    // Closed by another thread meanwhile: the slot may be another connection's by now.
    let Some(fd) = conn.kernel() else { return true };
    let (Some(link), Some(end)) = (conn.link(), conn.end()) else { return true };
    let followed = end.follow(lock.nested(), &Out { conn, link, fd, leaves: Decision::Followed });
    followed.unwrap_or_else(|_: Violation| {
        broken(conn);
        true
    })
}

/// Goes on with them. Without the sending direction's lock, which this takes.
#[cold]
pub fn go_on(conn: Conn) {
    let _lock = conn.lock_tx();
    if let (Some(fd), Some(link)) = (conn.kernel(), conn.link()) {
        flush(conn.sock(), link, fd);
    }
}

/// Before this side's end, as [`finish`].
pub fn finish_to_end(conn: Conn) {
    if let Some(end) = conn.end() {
        end.begins_to_end();
    }
    finish(conn);
}

/// Before this side's end, or before the descriptor goes to a program that knows of no ring: nobody
/// would send once more what waits for it, and what comes after the end in the kernel socket is lost. The descriptor may be
/// gone from the table, but nobody else has the connection then.
pub fn finish(conn: Conn) {
    if is_due(&conn) {
        follow(conn);
    }
    let until = clock::now().saturating_add(PATIENCE);
    // Where the link to another host has failed, both agents are about to say where this side goes on.
    while conn.end().is_some_and(|end| end.is_being_settled()) && clock::now() < until {
        kernel_poll::await_one(-1, 0, 1_000_000);
        if is_due(&conn) {
            follow(conn);
        }
    }
    while are_pending(conn.record()) && clock::now() < until {
        let Some(fd) = conn.kernel() else { return };
        // How much it is the peer may be about to say: then room is no news.
        let (events, longest) =
            if are_known(conn.record()) { (libc::POLLOUT, 100_000_000) } else { (0, 1_000_000) };
        kernel_poll::await_one(fd, events, longest);
        go_on(conn);
    }
}

/// Sends ring bytes once more, without waiting, with the lock held. True when none is left.
pub fn flush(sock: &'static Sock, link: &Link, fd: i32) -> bool {
    sock.end().is_some_and(|end| {
        end.repeat(&Out { conn: Conn::gone(sock), link, fd, leaves: Decision::Followed })
    })
}

/// True when the peer has left and this side has not followed yet.
#[inline]
pub fn is_due(sock: &Sock) -> bool {
    sock.end().is_some_and(|end| end.is_to_follow())
}

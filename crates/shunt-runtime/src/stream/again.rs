//! Bytes that come twice ([`shunt_engine::conn::repeated`]), of the connections of this process.

use core::sync::atomic::Ordering::Relaxed;

use shunt_engine::call::enter;
use shunt_engine::conn::repeated::are_awaited;
use shunt_engine::stretch::Path;

use crate::conn::{Conn, LEFTOVER, SHUT_RD, Sock};
use crate::stream::tcp::Socket;
use crate::stream::{broken, leftover};
use crate::system::clock;
use crate::system::kernel_poll;

/// Longest wait, in nanoseconds, of a side that leaves for bytes that it has had.
const PATIENCE: u64 = 2_000_000_000;

/// Before the kernel is asked what there is to read: what comes twice is no news. False where a signal handler
/// has to leave that to the call which it has interrupted.
#[cold]
pub fn settle(conn: Conn) -> bool {
    let lock = conn.lock_rx();
    let Some(_entered) = enter(lock.nested(), &conn.record().rx.copying) else { return false };
    if let Some(fd) = conn.kernel() {
        settle_locked(conn.sock(), fd);
    }
    true
}

/// The same with the lock held.
pub fn settle_locked(sock: &Sock, fd: i32) {
    let Some(end) = sock.end() else { return };
    if sock.has(LEFTOVER) {
        leftover::sync(sock, fd);
    }
    if end.pass_end_of_ring() == Path::Tcp {
        drop_had(sock, fd);
    }
}

/// Drops what has come a second time, with the lock held. True when no more of it is to come.
pub fn drop_had(sock: &Sock, fd: i32) -> bool {
    let again = &sock.record().rx.again;
    if sock.has(LEFTOVER) && are_awaited(sock.record()) {
        let to_come = leftover::drop_again(sock, fd);
        let to_come = to_come.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        again.store(to_come, Relaxed);
        return to_come == 0;
    }
    sock.end().is_none_or(|end| end.drop_repeated(&Socket(fd)))
}

/// Before another program gets the descriptor: it must not read a second time what was read here.
pub fn finish(conn: Conn) {
    let until = clock::now().saturating_add(PATIENCE);
    while are_awaited(conn.record()) {
        let is_done = settle(conn) && !are_awaited(conn.record());
        let Some(fd) = conn.kernel().filter(|_| !is_done) else { return };
        if clock::now() >= until {
            let _lock = conn.lock_rx();
            broken(conn);
            return;
        }
        // Where the program has ended its own reading the kernel tells of that all the time.
        let (events, longest) = match conn.has(SHUT_RD) {
            true => (0, 1_000_000),
            false => (libc::POLLIN, 100_000_000),
        };
        kernel_poll::await_one(fd, events, longest);
    }
}

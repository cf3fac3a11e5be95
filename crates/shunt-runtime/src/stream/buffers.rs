//! The sizes of buffers that the program has set (`SO_SNDBUF`, `SO_RCVBUF`), which limit the unread
//! bytes.
//!
//! The library asks the kernel when a connection begins and after each `setsockopt`, so the origin
//! of a size does not matter: a listener, a parent, a program before exec. It does not ask where it
//! has seen that no size was set. The receiver reports its share to the peer; the sender keeps its
//! own and adds them up whenever it looks for room.

use core::sync::atomic::Ordering::Relaxed;

use rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};
use shunt_engine::buffers::share;
use shunt_engine::handshake::Phase;
use shunt_shm::region::LONG_RING;
use shunt_sys::sockinfo;

use crate::conn::{Conn, SIZED};
use crate::epoll::tell;
use crate::stream::notify;
use crate::system::abi;
use crate::system::errno::KeepErrno;

/// The connection begins. `sized`: the program may have set a size, or `SO_RCVLOWAT`.
pub fn begin(conn: Conn, sized: bool) {
    if sized {
        announce(conn);
        learn(conn);
        learn_mark(conn);
    }
}

/// Learns `SO_RCVLOWAT`.
fn learn_mark(conn: Conn) {
    let mark = conn.ask(|fd| sockinfo::low_water(abi::borrow(fd))).flatten();
    conn.record().rx.low_water.store(mark.unwrap_or(0), Relaxed);
}

/// The program has just set `SO_RCVLOWAT`, which may be news to those who wait for bytes (`tcp_set_rcvlowat`).
pub fn mark_changed(conn: Conn) {
    let _keep = KeepErrno::new();
    learn_mark(conn);
    notify::own(conn.sock());
    tell::look_again(conn.sock());
}

/// Tells the peer how much the receive buffer should hold.
fn announce(conn: Conn) {
    if let Some((mine, _)) = conn.sections() {
        let size = conn.ask(|fd| socket_recv_buffer_size(abi::borrow(fd)).ok()).flatten();
        let window = size.map_or(0, |size| share(word(size)));
        mine.ctl.window.store(window, Relaxed);
    }
}

/// Learns whether the program has set the size of the send buffer.
fn learn(conn: Conn) {
    let set = conn.ask(|fd| sockinfo::send_buffer_is_set(abi::borrow(fd))).flatten();
    let size = match set {
        Some(false) => None,
        _ => conn.ask(|fd| socket_send_buffer_size(abi::borrow(fd)).ok()).flatten(),
    };
    // A kernel that does not say gives a local connection far more by itself.
    let size = size.filter(|size| set.is_some() || size / 2 < LONG_RING);
    conn.record().tx.buffer.store(size.map_or(0, |size| share(word(size))), Relaxed);
}

fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// The program has just set the size of a buffer.
pub fn changed(conn: Conn) {
    let _keep = KeepErrno::new();
    let sock = conn.sock();
    let active = sock.phase() == Phase::Active;
    sock.put(SIZED, true);
    announce(conn);
    learn(conn);
    if active {
        // There may be room at once, for who sends here and for who sends there.
        notify::own(sock);
        notify::sender(sock);
    }
}

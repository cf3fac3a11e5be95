//! `TCP_INQ`: each recvmsg(2) tells how much is left to be read (`tcp_recvmsg` and `tcp_inq_hint` in net/ipv4/tcp.c).

use libc::{CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, IPPROTO_TCP, c_int, msghdr};
use shunt_engine::events;
use shunt_engine::kernel::{KernelSocket, is_failure};
use shunt_sys::sockinfo::{self, TCP_INQ};

use crate::conn::{Conn, INQ, INQ_KNOWN};
use crate::stream::tcp::Socket;
use crate::stream::unread;
use crate::stream::{tcp, zerocopy};
use crate::system::abi;
use crate::system::errno::KeepErrno;

/// Whether the program has asked for it: on the connection, before there was one, or on its listener. The kernel is
/// asked at the first message with room for it.
#[inline]
pub fn is_told(conn: Conn, room: usize) -> bool {
    conn.has(INQ) || (room > 0 && !conn.has(INQ_KNOWN) && learn(conn))
}

/// Asks the kernel.
#[cold]
pub fn learn(conn: Conn) -> bool {
    let _keep = KeepErrno::new();
    // With which the library itself sets it for a moment.
    let _lock = conn.lock_rx();
    let on = conn.ask(|fd| sockinfo::tells_inq(abi::borrow(fd))).unwrap_or(false);
    conn.put(INQ, on);
    conn.put(INQ_KNOWN, true);
    on
}

/// Completes the answer of a call that has received something, or the end. `room`: what the program gave for control
/// messages, unless the kernel has filled it in.
#[cold]
pub fn tell(conn: Conn, msg: &mut msghdr, room: Option<usize>) {
    let _keep = KeepErrno::new();
    let there = match (unread::fionread(conn), room) {
        (Some(there), _) => there,
        // All of it is the kernel's, who has told.
        (None, None) => return,
        (None, Some(_)) => {
            let waiting = |fd| Some(conn.end()?.not_repeated(Socket(fd).waiting()));
            c_int::try_from(conn.ask(waiting).flatten().unwrap_or(0)).unwrap_or(c_int::MAX)
        }
    };
    // Its FIN counts as a byte, also when that was read.
    let told = conn.ask(|fd| tcp::readiness(fd, events::RDHUP)).unwrap_or(0);
    let is_end = told & events::RDHUP != 0 && !is_failure(told);
    let there = there.saturating_add(c_int::from(is_end)).to_ne_bytes();
    match room {
        Some(room) => {
            msg.msg_controllen = room;
            zerocopy::put(msg, IPPROTO_TCP, TCP_INQ, &there);
        }
        None => correct(msg, there),
    }
}

/// The kernel knows of its own bytes alone.
fn correct(msg: &mut msghdr, there: [u8; 4]) {
    // SAFETY: the kernel has filled the message in; the macros stay inside msg_controllen.
    unsafe {
        let mut header = CMSG_FIRSTHDR(msg);
        while let Some(found) = header.as_ref() {
            let is_it = (found.cmsg_level, found.cmsg_type) == (IPPROTO_TCP, TCP_INQ);
            if is_it && found.cmsg_len >= CMSG_LEN(4) as usize {
                core::ptr::copy_nonoverlapping(there.as_ptr(), CMSG_DATA(header), there.len());
            }
            header = CMSG_NXTHDR(msg, header);
        }
    }
}

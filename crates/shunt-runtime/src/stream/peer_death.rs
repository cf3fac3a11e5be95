//! Resets that the kernel does not tell the next call of ([`shunt_engine::conn::reset`]), of the connections of this process.

use libc::c_int;
use shunt_engine::conn::reset;

use crate::conn::{CUT_OFF, Conn, Sock};
use crate::stream::tcp::Socket;

/// The kernel has told its reset to a call that returns something else.
#[cold]
pub fn tell_later(sock: &Sock) {
    reset::tell_later(sock.record());
}

/// True when a call that is to hear of the reset is the first one, which fails with `ECONNRESET`. The next ones find what the
/// kernel gives after a reset. With a direction's lock held, under which `fd` is the kernel socket.
pub fn fails(sock: &Sock, fd: c_int) -> bool {
    reset::fails(sock.record(), sock.end(), &Socket(fd))
}

/// True when that is what `SO_ERROR` is to say.
pub fn is_pending(conn: Conn) -> bool {
    // Known since poll(2) has said so, or the like.
    if !conn.has(CUT_OFF) {
        return false;
    }
    let _lock = conn.lock_rx();
    conn.kernel().is_some_and(|fd| fails(&conn, fd))
}

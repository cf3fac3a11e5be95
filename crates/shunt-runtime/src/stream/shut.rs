//! shutdown(2).

use shunt_engine::conn::End;
use shunt_shm::sync::store_load_fence;

use crate::conn::{Conn, KERNEL_HINT, SHUT_RD, SHUT_WR, Sock};
use crate::point;
use crate::stream::{demote, doubt, notify, promote};
use crate::system::abi::c_int;
use crate::system::errno;

/// Tells the peer what is shut, if it has a place where to look. Else whoever promotes the connection does.
fn announce(sock: &Sock, what: fn(&End<'static>)) {
    // The flag before the look: promotion does it in the other order.
    store_load_fence();
    if let Some(end) = sock.end() {
        what(&end);
    }
}

/// Ends directions of a connection; `kernel` does so on a descriptor of the kernel socket.
pub fn shut(conn: Conn, how: c_int, kernel: impl FnOnce(c_int) -> c_int) -> c_int {
    promote::advance(conn);
    let sock = conn.sock();
    let writing = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
    if writing {
        demote::finish(conn);
    }
    let result = {
        let _lock = sock.lock_tx();
        let Some(fd) = conn.kernel() else { return errno::fail(libc::EBADF) };
        // Announced before the FIN: an end that comes unannounced is that of a process that died.
        let before = sock.has(SHUT_WR);
        if writing {
            sock.put(SHUT_WR, true);
            announce(sock, End::announce_end);
        }
        point!(shutdown_announced);
        let result = kernel(fd);
        point!(shutdown_done);
        if result != 0 && !before {
            sock.put(SHUT_WR, false);
            if let Some(end) = sock.end() {
                end.take_end_back();
            }
        }
        if result == 0 && writing {
            doubt::end_loudly(conn);
        }
        result
    };
    if result == 0 {
        if how != libc::SHUT_WR {
            sock.put(SHUT_RD | KERNEL_HINT, true);
        }
        announce(sock, End::announce_shut);
        notify::those_on_futexes(sock);
        notify::own(sock);
    }
    result
}

//! shutdown(2).

use rustix::net::Shutdown;
use shunt_engine::call::enter;
use shunt_engine::conn::close::{self, Shut};
use shunt_engine::conn::repeated::are_pending;
use shunt_engine::handshake::Phase;
use shunt_shm::capture::flag;
use shunt_shm::sync::store_load_fence;

use crate::calls::{self, Late};
use crate::conn::{Conn, SHUT_WR};
use crate::fds::fd_table::Entry;
use crate::point;
use crate::stream::in_doubt::InDoubt;
use crate::stream::{capture, demote, liveness, marked, notify, promote};
use crate::system::abi::c_int;
use crate::system::{abi, errno};

/// Ends directions of a connection; `kernel` does so on a descriptor of the kernel socket.
pub fn shut(conn: Conn, how: c_int, kernel: impl FnOnce(c_int) -> c_int) -> c_int {
    let sock = conn.sock();
    if promote::advance(conn) == Phase::Proposed {
        marked::await_answer(conn, false);
    }
    let what = match how {
        libc::SHUT_RD => Shut::Receiving,
        libc::SHUT_WR => Shut::Sending,
        libc::SHUT_RDWR => Shut::Both,
        _ => return conn.kernel().map_or_else(|| errno::fail(libc::EBADF), kernel),
    };
    if what.ends_sending() {
        demote::finish_to_end(conn);
    }
    let alone = promote::hold_off(conn);
    let in_doubt = InDoubt::begins(conn);
    let result = {
        let lock = sock.lock_tx();
        // In a handler of a signal above a step of this thread's: bytes of that may not be visible yet, and would come behind
        // the end. One that only copies notices, and sends nothing.
        let entered = enter(lock.nested(), &sock.record().tx.copying);
        if entered.is_none() && calls::do_later(conn.descriptor(), conn.entry(), Late::Shut(how)) {
            in_doubt.ends();
            return 0;
        }
        let Some(fd) = conn.kernel() else {
            in_doubt.ends();
            return errno::fail(libc::EBADF);
        };
        let before = sock.has(SHUT_WR);
        let mut result = 0;
        close::shut(
            sock.record(),
            what,
            || sock.end(),
            || {
                point!(shutdown_announced);
                result = kernel(fd);
                point!(shutdown_done);
                result == 0
            },
        );
        if result == 0 && what.ends_sending() {
            if !before && capture::is_wanted(sock.record()) {
                capture::ends(sock, Some(fd), flag::FIN);
            }
            liveness::end_loudly(conn);
        }
        result
    };
    if result == 0 {
        // The flags before the look: promotion does it in the other order.
        store_load_fence();
        if let Some(end) = sock.end() {
            end.announce_shut();
        }
        drop(alone);
        notify::those_on_futexes(sock);
        notify::all_if_of_host(sock);
        notify::own(sock);
    }
    in_doubt.ends();
    result
}

/// What a handler has put off above a step, which is over now.
pub fn do_late(fd: c_int, entry: Entry, what: Late) {
    let Some(conn) = Conn::of(fd, entry).filter(Conn::is_named) else { return };
    match what {
        Late::Shut(how) => shut_late(conn, how),
        Late::Leave(why) => {
            demote::leave(conn, why);
            if are_pending(conn.record()) {
                demote::go_on(conn);
            }
        }
    }
}

fn shut_late(conn: Conn, how: c_int) {
    let how_far = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        _ => Shutdown::Both,
    };
    let kernel = |fd| rustix::net::shutdown(abi::borrow(fd), how_far).map_or(-1, |()| 0);
    shut(conn, how, kernel);
}

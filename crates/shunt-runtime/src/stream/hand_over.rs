//! The way back to TCP, for programs that know of no ring.

use core::ffi::c_int;

use shunt_engine::conn::is_half_settled;
use shunt_engine::conn::repeated::are_pending;
use shunt_engine::handshake::Phase;
use shunt_wire::reason::Reason;

use crate::conn::{Conn, Hold, LEFTOVER, Sock};
use crate::fds::fd_table::Entry;
use crate::point;
use crate::stream::agree;
use crate::stream::decline::decline;
use crate::stream::in_doubt::InDoubt;
use crate::stream::{self, demote, leftover, promote};
use crate::threads::handlers::Seen;

/// A handler that reads all the time keeps no program from being started.
const MOST: u32 = 32;

/// `fd` (or a duplicate) goes to a program that may not run under Shunt: it must work there as
/// the kernel socket that it is.
pub fn hand_over(fd: c_int, entry: Entry) {
    let Some(conn) = Conn::of(fd, entry) else { return };
    // Another thread may close it meanwhile, and its place be another connection's.
    let mut hold = Hold::none();
    hold.keep(&conn);
    if hold.sock().is_none() {
        return;
    }
    let hand_over = || {
        let in_doubt = InDoubt::begins(conn);
        point!(exec_hands_over);
        promote::is_left_to_others(&conn);
        give_back(conn, Reason::HandedOver);
        in_doubt.ends();
    };
    until_none_comes_back(hand_over, || has_come_back(&conn));
}

/// Takes `step`, in which connections are handed over, once more where a handler of a signal above it `has_come_back` to one, and
/// has read on in the ring that was left before: the other program would have those bytes, too.
pub fn until_none_comes_back<T>(step: impl Fn() -> T, has_come_back: impl Fn() -> bool) -> T {
    for _ in 1..MOST {
        let seen = Seen::now();
        let done = step();
        // Another thread may read on as it likes.
        if !seen.is_old() || !has_come_back() {
            return done;
        }
    }
    step()
}

/// It was left, and this program reads on in the ring.
pub fn has_come_back(sock: &Sock) -> bool {
    sock.end().is_some_and(|end| end.has_come_back())
}

/// The connection goes on over TCP.
pub fn give_back(conn: Conn, why: Reason) {
    if conn.has(LEFTOVER) {
        // It is on TCP but for what was left, which goes on to the next program, or stays.
        return leftover::catch_up(conn, false);
    }
    match conn.phase() {
        Phase::Proposed if agree::withdraw(&conn) => decline(conn, why),
        Phase::Candidate if !is_half_settled(conn.record()) => decline(conn, why),
        // Also where the acceptor was quicker than the withdrawal, or was killed as it answered.
        Phase::Candidate | Phase::Proposed | Phase::Active => {
            demote::leave(conn, why);
            demote::finish(conn);
            if are_pending(conn.record()) {
                // Nobody would send the rest, in front of what the other program sends.
                let _lock = conn.lock_tx();
                stream::broken(conn);
            }
        }
        Phase::Tcp | Phase::Broken => {}
    }
}

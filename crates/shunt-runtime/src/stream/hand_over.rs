//! The way back to TCP, for programs that know of no ring.

use core::ffi::c_int;

use shunt_engine::conn::repeated::are_pending;
use shunt_engine::handshake::Phase;
use shunt_wire::reason::Reason;

use crate::conn::{Conn, LEFTOVER};
use crate::fds::fd_table::Entry;
use crate::point;
use crate::stream::agree;
use crate::stream::decline::decline;
use crate::stream::in_doubt::InDoubt;
use crate::stream::{self, demote, leftover, promote};

/// `fd` (or a duplicate) goes to a program that may not run under Shunt: it must work there as
/// the kernel socket that it is.
pub fn hand_over(fd: c_int, entry: Entry) {
    let Some(conn) = Conn::of(fd, entry) else { return };
    let in_doubt = InDoubt::begins(conn);
    point!(exec_hands_over);
    promote::is_left_to_others(&conn);
    give_back(conn, Reason::HandedOver);
    in_doubt.ends();
}

/// The connection goes on over TCP.
pub fn give_back(conn: Conn, why: Reason) {
    if conn.has(LEFTOVER) {
        // It is on TCP but for what was left, which goes on to the next program, or stays.
        return leftover::catch_up(conn, false);
    }
    match conn.phase() {
        Phase::Proposed if agree::withdraw(&conn) => decline(conn, why),
        // Also where the acceptor was quicker than the withdrawal.
        Phase::Proposed | Phase::Active => {
            demote::leave(conn, why);
            demote::finish(conn);
            if are_pending(conn.record()) {
                // Nobody would send the rest, in front of what the other program sends.
                let _lock = conn.lock_tx();
                stream::broken(conn);
            }
        }
        Phase::Candidate => decline(conn, why),
        Phase::Tcp | Phase::Broken => {}
    }
}

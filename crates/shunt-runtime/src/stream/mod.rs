//! The data path of a shunted connection: receiving, sending, waiting, and the handshake that is
//! completed on the way.

mod acquaint;
pub mod again;
pub mod agree;
pub mod alarm;
pub mod ancillary;
pub mod borrow;
pub mod brokered;
pub mod buffers;
pub mod bytes;
pub mod call;
pub mod capture;
pub mod copy_mode;
pub mod decline;
pub mod demote;
mod drain;
pub mod files;
pub mod granted;
pub mod grants;
pub mod hand_over;
pub mod hints;
pub mod in_doubt;
pub mod inq;
pub mod leftover;
pub mod liveness;
pub mod mapped;
mod marked;
pub mod notify;
pub mod options;
pub mod peek;
pub mod peer_death;
pub mod pipe_rx;
pub mod pipe_tx;
pub mod promote;
pub mod recv;
pub mod rw_flags;
pub mod send;
pub mod several;
pub mod shut;
pub mod sleep;
pub mod spin;
pub mod tcp;
pub mod transfer;

pub mod offer_budget;
pub mod trim;
pub mod unread;
pub mod zerocopy;

use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::conn::Conn;
use crate::control::endpoint;

/// The agent may be gone that brings what comes from another host: the connection ends, if it cannot go on without.
#[cold]
pub fn has_lost_agent(conn: Conn) {
    if liveness::is_cut_off(&conn) && liveness::is_stranded(&conn) {
        let _lock = conn.lock_tx();
        broken(conn);
    }
}

/// The peer broke the protocol, or nobody brings any more what it sends from another host: this connection, and no other, answers
/// `ECONNRESET` from now on, at both ends. With the lock of a direction held.
#[cold]
pub fn broken(conn: Conn) {
    let why = match conn.link() {
        Some(link) if link.is_cut_off() => Reason::NoAgent,
        // As the agent has said before it broke the connection off.
        Some(link) if link.is_to_kernel() => conn
            .sections()
            .and_then(|(_, theirs)| theirs.setup.reason())
            .unwrap_or(Reason::SmcReset),
        // What comes from there this host's agent has checked, which says so where the other one is gone.
        Some(link) if link.is_of_host() => Reason::PeerGone,
        _ => Reason::ProtocolViolation,
    };
    if conn.break_off(why) {
        if why == Reason::ProtocolViolation {
            endpoint::count(Counter::Violations, 1);
        }
        endpoint::decline(why);
    }
    // Threads may wait for what will not come, by words that the peer can have written to. What wakes
    // them all is the kernel's end. The other end must not take it for an end in good order.
    let abort = || {
        if let Some(fd) = conn.kernel() {
            tcp::abort(fd);
        }
    };
    match conn.end() {
        Some(end) => end.reset(abort),
        None => abort(),
    }
    notify::own(conn.sock());
}

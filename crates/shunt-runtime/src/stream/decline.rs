//! A connection that stays on TCP for good.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::Phase;
use shunt_wire::decision::Decision;
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::conn::{Conn, NUMBERED};
use crate::control::endpoint;
use crate::epoll::tell;
use crate::fds::fd_table::{self, Kind};
use crate::stream::liveness;

/// It does, for this reason.
pub fn decline(conn: Conn, why: Reason) {
    let id = &conn.record().id;
    id.reason.store(why as u32, Ordering::Relaxed);
    id.offer.store(Offer::None.to_word(), Ordering::Release);
    conn.set_phase(Phase::Tcp);
    conn.sock().note(Decision::Declined, Some(why));
    // From now on it ends as TCP does, in whatever program.
    liveness::end_quietly(conn);
    endpoint::decline(why);
    // The kernel would begin its numbers anew.
    let fd = conn.descriptor();
    let (old, new) = (conn.sock().entry(Kind::Stream), conn.sock().entry(Kind::Tracked));
    if !conn.has(NUMBERED) && fd_table::replace_if(fd, old, new) {
        tell::on_declined(fd);
    }
}

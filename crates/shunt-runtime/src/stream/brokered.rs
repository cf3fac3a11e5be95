//! Connections that may lead to another party of this host, or to another network: the client
//! offers its socket to the agent before it connects, and the acceptor asks the agent about the
//! accepted one.
//!
//! Until the answer the client's end is a candidate, as an acceptor's is. All bytes go over TCP,
//! and every call on the socket looks at one word of its record, in which the agent answers.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::course::Time;
use shunt_shm::region::{SLOTS, Side};
use shunt_shm::registry::Scope;
use shunt_sys::sockinfo::{self, OFFERED};
use shunt_wire::agent::RegionId;
use shunt_wire::reason::Reason;

use crate::conn::{ASKED, Conn, ELSEWHERE, SHUT_WR, Sock, TO_BE_CLAIMED};
use crate::control::{agent_client, link};
use crate::stream::agree;
use crate::stream::offer_budget::{CLAIMS, Key};
use crate::stream::{buffers, liveness};
use crate::system::abi;

/// An acceptor has the connection that was offered: takes its place.
pub(super) fn take_place(conn: Conn, region: RegionId, slot: usize) -> Result<(), Reason> {
    let sock = conn.sock();
    let fd = conn.kernel().ok_or(Reason::NotAccepted)?;
    if slot >= SLOTS {
        return Err(Reason::Internal);
    }
    let link = link::fetch(region, slot, abi::borrow(fd))?;
    let mine = link.view().section(slot, Side::Client);
    let generation = mine.setup.generation.load(Ordering::Relaxed);
    sock.put(ELSEWHERE, true);
    agree::settle(sock, link, Side::Client, (slot, generation));
    link::detach(link);
    has_place(conn);
    Ok(())
}

/// The connection has its place: what the program has done to the socket before counts there.
pub(super) fn has_place(conn: Conn) {
    buffers::begin(conn, true);
    if conn.has(SHUT_WR) {
        liveness::end_loudly(conn);
    }
}

/// Looks whether the other end of what was just accepted at `listener` was offered; an error is why it stays on TCP
/// though it may have been.
pub fn look_at_accepted(sock: &Sock, new: i32, listener: i32) -> Result<(), Reason> {
    let socket = abi::borrow(new);
    if sock.endpoint().registry.scope() != Scope::Marked
        || sockinfo::syn_count(socket) != Some(OFFERED)
    {
        return Err(Reason::Remote);
    }
    // The program is to see what it would see otherwise: what the listener has.
    if let Some(inherited) = sockinfo::syn_count(abi::borrow(listener)) {
        sockinfo::set_syn_count(socket, inherited);
    }
    if !CLAIMS.permits(Key::of_origin(&sock.record().id.tuple())) {
        return Err(Reason::ShortLived);
    }
    sock.put(TO_BE_CLAIMED, true);
    Ok(())
}

/// Asks the agent, once, for an accepted connection's place if the other end was offered. An error is why it stays on
/// TCP though it was.
pub(super) fn claim(conn: Conn, time: Time) -> Result<bool, Reason> {
    let sock = conn.sock();
    if !sock.has(TO_BE_CLAIMED) {
        return Ok(false);
    }
    sock.put(TO_BE_CLAIMED, false);
    sock.put(ASKED, true);
    let fd = conn.kernel().ok_or(Reason::NoProposal)?;
    let (link, claimed) = match link::claim(abi::borrow(fd)) {
        Ok(found) => found,
        Err(Reason::NoProposal) => return Ok(false),
        Err(why) => return Err(why),
    };
    let place = (claimed.slot, claimed.generation);
    let peer = link.peers.find(claimed.owner);
    let taken = peer.ok_or(Reason::NoResources).map(|peer| {
        sock.put(ELSEWHERE, true);
        agree::answer(sock, link, place, peer, time);
        has_place(conn);
    });
    link::detach(link);
    taken.map(|()| true)
}

/// The program is about to listen at a socket: clients elsewhere on this host may find it.
pub fn before_listen(fd: i32) {
    if agent_client::endpoint().is_ok_and(|endpoint| endpoint.registry.scope() == Scope::Marked) {
        // Without it they stay on TCP.
        let _ = agent_client::await_clients(abi::borrow(fd));
    }
}

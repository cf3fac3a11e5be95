//! Connections that may lead to another party of this host, or to another network: the client offers its socket to the
//! agent before it connects, and the acceptor asks the agent for what it has accepted.
//!
//! Until then the client's end is a candidate, as an acceptor's is: all goes over TCP, and every call on the
//! socket looks at one word of its record, in which the agent answers.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::{CLIENT_LOOKS, Phase, gives_up};
use shunt_shm::arena::Record;
use shunt_shm::region::{SLOTS, Side};
use shunt_shm::registry::Scope;
use shunt_sys::sockinfo::{self, OFFERED};
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::conn::{ASKED, Conn, ELSEWHERE, SHUT_WR, Sock, TO_BE_CLAIMED};
use crate::control::{agent_client, link};
use crate::stream::agree::{self, Time};
use crate::stream::worth::{CLAIMS, Key, UNANSWERED};
use crate::stream::{buffers, doubt};
use crate::system::abi;
use crate::system::clock;

/// True for a client's end that was offered and is not declined.
pub fn is_offered(sock: &Sock) -> bool {
    sock.record().id.offer.load(Ordering::Relaxed) != Offer::None.to_word()
}

/// The client has enough of waiting, or has closed the connection.
pub fn withdraw(record: &Record) {
    record.id.offer.store(Offer::None.to_word(), Ordering::Release);
}

/// Looks for the agent's answer; an error is why the connection stays on TCP for good. Under the
/// handshake's lock.
pub fn look(conn: Conn) -> Result<Phase, Reason> {
    let sock = conn.sock();
    let id = &sock.record().id;
    let word = id.offer.load(Ordering::Acquire);
    let outcome = match Offer::from_word(word) {
        Offer::Open(_) => {
            let looks = id.looks.fetch_add(1, Ordering::Relaxed);
            let age = clock::now().saturating_sub(id.since.load(Ordering::Relaxed));
            let none = Offer::None.to_word();
            let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
            let enough = looks.is_multiple_of(CLIENT_LOOKS) && gives_up(looks, age);
            if enough && id.offer.compare_exchange(word, none, ok, no).is_ok() {
                Err(Reason::NotAccepted)
            } else {
                Ok(Phase::Candidate)
            }
        }
        // SYNC POINT offer.
        Offer::Claimed { region, slot } => take_up(conn, region, slot.into()),
        Offer::Declined(why) => {
            if why == Reason::PeerNotShunted {
                UNANSWERED.close(Key::of_destination(&id.tuple().peer));
            }
            Err(why)
        }
        Offer::None => Err(Reason::Internal),
    };
    if outcome.is_err() {
        // So that no other thread declines it a second time.
        sock.set_phase(Phase::Tcp);
    }
    outcome
}

/// The same for one who only asks for readiness: declines nothing.
pub fn glance(conn: Conn) -> Phase {
    match Offer::from_word(conn.record().id.offer.load(Ordering::Acquire)) {
        Offer::Claimed { region, slot } => {
            take_up(conn, region, slot.into()).unwrap_or(Phase::Candidate)
        }
        _ => Phase::Candidate,
    }
}

/// An acceptor has the connection: it goes on as one that was proposed.
fn take_up(conn: Conn, region: u64, slot: usize) -> Result<Phase, Reason> {
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
    buffers::begin(conn, true);
    if sock.has(SHUT_WR) {
        doubt::end_loudly(conn);
    }
    sock.set_phase(Phase::Proposed);
    Ok(agree::answered(sock).unwrap_or(Phase::Proposed))
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
        buffers::begin(conn, true);
        if sock.has(SHUT_WR) {
            doubt::end_loudly(conn);
        }
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

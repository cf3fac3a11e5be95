//! Connections that may lead to another party of this host, or to another network: the client offers its socket to the
//! agent before it connects, and the acceptor asks the agent for what it has accepted.
//!
//! Until then the client's end is a candidate, as an acceptor's is: all goes over TCP, and every call on the
//! socket looks at one word of its record, in which the agent answers.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsFd;
use shunt_core::handshake::{CLIENT_LOOKS, Phase, gives_up};
use shunt_shm::arena::Record;
use shunt_shm::region::{SLOTS, Side};
use shunt_shm::registry::Scope;
use shunt_sys::sockinfo;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::conn::{ASKED, ELSEWHERE, NONBLOCK, Sock};
use crate::endpoint::Endpoint;
use crate::fd_table::{self, Kind};
use crate::ops::listener::track;
use crate::stream::promote::{self, Time};
use crate::stream::{buffers, tcp};
use crate::{agent_client, clock, link, ops};

/// Destinations at which nobody could claim a connection a moment ago, each in the place of its hash: an offer costs a
/// message to the agent.
static UNANSWERED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// For how long such a destination is left alone, in seconds.
const LEFT_ALONE: u64 = 2;

/// The place of a destination, and the word there when it has not answered in this second.
fn unanswered(to: &Addr, second: u64) -> (&'static AtomicU64, u64) {
    let hash = FourTuple { local: Addr::default(), peer: *to }.hash64();
    let place = usize::try_from(hash % 64).unwrap_or(0);
    (&UNANSWERED[place], hash & !SECONDS | second & SECONDS)
}

/// The part of such a word that says when it was.
const SECONDS: u64 = 0xff_ffff;

fn second() -> u64 {
    clock::now() / 1_000_000_000
}

/// Nobody can claim what goes to this destination.
fn note_unanswered(to: &Addr) {
    let (place, word) = unanswered(to, second());
    place.store(word, Ordering::Relaxed);
}

/// True when an offer would come to nothing, as a moment ago.
fn is_unanswered(to: &Addr) -> bool {
    let now = second();
    (0..=LEFT_ALONE).any(|ago| {
        let (place, word) = unanswered(to, now.wrapping_sub(ago));
        place.load(Ordering::Relaxed) == word
    })
}

/// A connection that was offered and is being made.
pub struct Open {
    sock: &'static Sock,
}

/// Offers the socket `fd`, which is about to be connected.
pub fn open(fd: i32, to: &Addr) -> Result<Open, Reason> {
    /// Numbers of this process's offers: a record's uses are told by them.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if is_unanswered(to) {
        return Err(Reason::PeerNotShunted);
    }
    let tuple = FourTuple { local: Addr::default(), peer: *to };
    let sock = track(fd, &tuple).ok_or(Reason::TooManyConnections)?;
    let record = sock.record();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let index = sock.endpoint().arena.index_of(record);
    record.id.offer.store(Offer::Open(number).to_word(), Ordering::Release);
    let offered = u32::try_from(index)
        .map_err(|_| Reason::Internal)
        .and_then(|index| agent_client::offer(index, number, tcp::borrow(fd)));
    let open = Open { sock };
    match offered {
        Ok(()) => Ok(open),
        Err(why) => {
            open.failed();
            Err(why)
        }
    }
}

impl Open {
    /// connect(2) has failed.
    pub fn failed(&self) {
        withdraw(self.sock.record());
        self.sock.release(|_| ());
    }

    /// It has succeeded, or goes on.
    pub fn connected(&self, fd: i32, to: &Addr, nonblocking: bool) {
        let Ok(local) = sockinfo::local_addr(tcp::borrow(fd).as_fd()) else {
            return self.failed();
        };
        let sock = self.sock;
        let id = &sock.record().id;
        id.set_tuple(&FourTuple { local, peer: *to });
        id.since.store(clock::now(), Ordering::Relaxed);
        id.reason.store(Reason::Pending as u32, Ordering::Relaxed);
        sock.put(NONBLOCK, nonblocking);
        sock.set_phase(Phase::Candidate);
        fd_table::set(fd, sock.entry(Kind::Stream));
        ops::epoll::on_connected(sock, fd);
    }
}

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
pub fn look(sock: &'static Sock, fd: i32) -> Result<Phase, Reason> {
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
        Offer::Claimed { region, slot } => take_up(sock, fd, region, slot.into()),
        Offer::Declined(why) => {
            if why == Reason::PeerNotShunted {
                note_unanswered(&id.tuple().peer);
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
pub fn glance(sock: &'static Sock, fd: i32) -> Phase {
    match Offer::from_word(sock.record().id.offer.load(Ordering::Acquire)) {
        Offer::Claimed { region, slot } => {
            take_up(sock, fd, region, slot.into()).unwrap_or(Phase::Candidate)
        }
        _ => Phase::Candidate,
    }
}

/// An acceptor has the connection: it goes on as one that was proposed.
fn take_up(sock: &'static Sock, fd: i32, region: u64, slot: usize) -> Result<Phase, Reason> {
    if slot >= SLOTS {
        return Err(Reason::Internal);
    }
    let link = link::fetch(region, slot, tcp::borrow(fd))?;
    let mine = link.view().section(slot, Side::Client);
    let generation = mine.setup.generation.load(Ordering::Relaxed);
    sock.put(ELSEWHERE, true);
    promote::settle(sock, link, Side::Client, (slot, generation));
    link::detach(link);
    buffers::begin(sock, fd, true);
    sock.set_phase(Phase::Proposed);
    Ok(promote::answered(sock).unwrap_or(Phase::Proposed))
}

/// Whether the agent may know the other end of what is accepted now.
pub fn may_be_offered(endpoint: &Endpoint) -> bool {
    // The agent has said so before it let the client connect.
    Endpoint::current().unwrap_or(endpoint).registry.awaited()
}

/// Asks the agent, once, whether the other end of an accepted connection was offered. An error is why it stays on
/// TCP though it was.
pub(super) fn claim(sock: &'static Sock, fd: i32, time: Time) -> Result<bool, Reason> {
    if sock.has(ASKED) || !may_be_offered(sock.endpoint()) {
        return Ok(false);
    }
    sock.put(ASKED, true);
    let (link, claimed) = match link::claim(tcp::borrow(fd)) {
        Ok(found) => found,
        Err(Reason::NoProposal) => return Ok(false),
        Err(why) => return Err(why),
    };
    let place = (claimed.slot, claimed.generation);
    let peer = link.peers.find(claimed.owner);
    let taken = peer.ok_or(Reason::NoResources).map(|peer| {
        sock.put(ELSEWHERE, true);
        promote::answer(sock, link, place, peer, time);
        buffers::begin(sock, fd, true);
    });
    link::detach(link);
    taken.map(|()| true)
}

/// The program is about to listen at a socket: clients elsewhere on this host may find it.
pub fn before_listen(fd: i32) {
    if agent_client::endpoint().is_ok_and(|endpoint| endpoint.registry.scope() == Scope::Marked) {
        // Without it they stay on TCP.
        let _ = agent_client::await_clients(tcp::borrow(fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_answered_is_left_alone_for_a_moment() {
        let (one, other) = (Addr::any_v4(7001), Addr::any_v4(7002));
        assert!(!is_unanswered(&one));
        note_unanswered(&one);
        assert!(is_unanswered(&one) && !is_unanswered(&other));
        let (place, word) = unanswered(&one, second().wrapping_sub(LEFT_ALONE + 1));
        place.store(word, Ordering::Relaxed);
        assert!(!is_unanswered(&one));
    }
}

//! The handshake as the calls on a connection complete it: a server looks for the client's proposal
//! when the program first uses the accepted socket (not in accept itself: a process that forks then
//! leaves it to the child, who is the one to be woken), a client looks for the answer.

use core::sync::atomic::Ordering;

use shunt_core::handshake::{CLIENT_LOOKS, Missed, Phase, gives_up, missed};
use shunt_shm::arena::Record;
use shunt_shm::region::Side;
use shunt_shm::sync::store_load_fence;
use shunt_shm::table::{Place, Ticket};
use shunt_wire::clc::{Answer, Proposal};
use shunt_wire::reason::Reason;

use crate::clock;
use crate::conn::{SHUT_WR, Sock};
use crate::link::{self, Link};
use crate::stream::{tcp, tid};

/// Looks after the handshake before a call on `fd`. Returns where the connection stands.
#[inline]
pub fn advance(sock: &'static Sock, fd: i32) -> Phase {
    match sock.phase() {
        Phase::Active if sock.link().is_some() => Phase::Active,
        Phase::Candidate => look_for_proposal(sock, fd),
        Phase::Proposed => look_for_answer(sock, fd),
        Phase::Active => adopt(sock, fd),
        other => other,
    }
}

/// The same for one who only asks for readiness and may hold locks: never gives up.
#[inline]
pub fn glance(sock: &'static Sock, fd: i32) -> Phase {
    match sock.phase() {
        Phase::Active if sock.link().is_some() => Phase::Active,
        Phase::Active => adopt(sock, fd),
        Phase::Proposed => answered(sock).unwrap_or(Phase::Proposed),
        Phase::Candidate => {
            let lock = sock.record().id.handshake.lock(tid());
            if lock.nested() || sock.phase() != Phase::Candidate {
                return sock.phase();
            }
            let accepted = sock.listener().is_some_and(|listener| {
                let ticket = listener.table.find(&sock.record().id.tuple());
                ticket.is_some_and(|ticket| accept(sock, fd, listener, &ticket).is_ok())
            });
            if accepted { Phase::Active } else { Phase::Candidate }
        }
        other => other,
    }
}

#[cold]
fn look_for_proposal(sock: &'static Sock, fd: i32) -> Phase {
    let found = {
        // Another thread may be at it: what it finds is gone from the table before it says so.
        let lock = sock.record().id.handshake.lock(tid());
        match sock.phase() {
            // A signal handler above the very call that is at it.
            phase if lock.nested() => return phase,
            Phase::Candidate => propose_to(sock, fd),
            other => return other,
        }
    };
    // Without the lock: epoll instances are told, and they ask us with their own locks held.
    match found {
        Ok(phase) => phase,
        Err(why) => {
            sock.decline(fd, why);
            Phase::Tcp
        }
    }
}

/// Takes a proposal for the candidate up; an error is why it stays on TCP for good.
fn propose_to(sock: &'static Sock, fd: i32) -> Result<Phase, Reason> {
    let listener = sock.listener().ok_or(Reason::NoProposal)?;
    let id = &sock.record().id;
    let connecting = listener.table.connecting();
    let declined = match listener.table.find(&id.tuple()) {
        Some(ticket) => match accept(sock, fd, listener, &ticket) {
            Ok(()) => return Ok(Phase::Active),
            Err(why) => why,
        },
        None => {
            let age = clock::now().saturating_sub(id.since.load(Ordering::Relaxed));
            match missed(age, connecting) {
                Missed::LookAgain => return Ok(Phase::Candidate),
                Missed::Decline(why) => why,
            }
        }
    };
    // So that no other thread declines it a second time.
    sock.set_phase(Phase::Tcp);
    Err(declined)
}

fn accept(
    sock: &'static Sock,
    fd: i32,
    listener: &crate::ops::listener::Listener,
    ticket: &Ticket,
) -> Result<(), Reason> {
    let Place { region, slot, .. } = ticket.place();
    let link = link::attach(region, slot, tcp::borrow(fd))?;
    let accepted = accept_in(sock, listener, ticket, link);
    link::detach(link);
    accepted
}

fn accept_in(
    sock: &'static Sock,
    listener: &crate::ops::listener::Listener,
    ticket: &Ticket,
    link: &'static Link,
) -> Result<(), Reason> {
    let Place { slot, generation, .. } = ticket.place();
    let view = link.view();
    let (mine, theirs) = (view.section(slot, Side::Server), view.section(slot, Side::Client));
    // The slot must speak of this very connection: the table is open to all clients of the listener,
    // the region is not.
    if theirs.setup.state.load(Ordering::Acquire) == Proposal::Withdrawn as u32 {
        return Err(Reason::NoProposal);
    }
    if theirs.setup.state.load(Ordering::Acquire) != Proposal::Proposed as u32
        || theirs.setup.generation.load(Ordering::Relaxed) != generation
        || theirs.setup.tuple().reversed() != sock.record().id.tuple()
    {
        return Err(Reason::ProtocolViolation);
    }
    if !link.owner_lives() {
        return Err(Reason::PeerGone);
    }
    let owner = theirs.setup.endpoint.load(Ordering::Relaxed);
    let peer = link.peers.find(owner).ok_or(Reason::ProtocolViolation)?;
    if !listener.table.take(ticket) {
        peer.release();
        return Err(Reason::NoProposal);
    }
    sock.activate(link, Side::Server, slot, generation);
    sock.set_link(link);
    sock.set_peer(peer);
    // The link before the flag: shutdown does it in the other order, so one of us announces it.
    store_load_fence();
    if sock.has(SHUT_WR) {
        mine.prod.fin.store(1, Ordering::Release);
    }
    // Nobody watches the connection here yet, whoever watched the one before in this slot.
    link.watch[slot].store(0, Ordering::Release);
    mine.setup.generation.store(generation, Ordering::Relaxed);
    mine.setup.endpoint.store(link.endpoint.id, Ordering::Relaxed);
    // SYNC POINT answer: pairs with the Acquire in look_for_answer.
    mine.setup.state.store(Answer::Accepted as u32, Ordering::Release);
    sock.set_phase(Phase::Active);
    sock.count_shunted();
    Ok(())
}

/// The phase that the acceptor's answer leads to; `None` without an answer that settles anything.
fn answered(sock: &'static Sock) -> Option<Phase> {
    let (_, theirs) = sock.sections()?;
    // SYNC POINT answer.
    let answer = Answer::from_code(theirs.setup.state.load(Ordering::Acquire));
    if answer != Some(Answer::Accepted) {
        return None;
    }
    let endpoint = theirs.setup.endpoint.load(Ordering::Relaxed);
    // Without the acceptor's doorbells this side could not wake it: then it goes on over TCP, and
    // reads what comes through the ring all the same.
    let peer = sock.link()?.acquaint(endpoint).ok()?;
    sock.set_peer(peer);
    sock.set_phase(Phase::Active);
    sock.count_shunted();
    Some(Phase::Active)
}

#[cold]
fn look_for_answer(sock: &'static Sock, fd: i32) -> Phase {
    if sock.link().is_none() {
        // Proposed by the process that this one was forked from, after the fork.
        return Phase::Tcp;
    }
    if let Some(phase) = answered(sock) {
        return phase;
    }
    let id = &sock.record().id;
    let looks = id.looks.fetch_add(1, Ordering::Relaxed);
    if looks.is_multiple_of(CLIENT_LOOKS)
        && gives_up(looks, clock::now().saturating_sub(id.since.load(Ordering::Relaxed)))
    {
        give_up(sock, fd)
    } else {
        Phase::Proposed
    }
}

fn give_up(sock: &'static Sock, fd: i32) -> Phase {
    if !withdraw(sock) {
        // The acceptor was quicker; its answer is on the way.
        return Phase::Proposed;
    }
    sock.decline(fd, Reason::NotAccepted);
    Phase::Tcp
}

/// Takes an open proposal back. False: it has been taken up.
pub fn withdraw(sock: &Sock) -> bool {
    sock.link().is_none_or(|link| withdraw_from(link, sock.record()))
}

/// The same for the connection of a record.
pub fn withdraw_from(link: &Link, record: &Record) -> bool {
    let Some(target) = link::Target::of(link) else { return true };
    let id = &record.id;
    let place = Place {
        region: link.region,
        slot: record.slot(),
        generation: id.slot_generation.load(Ordering::Relaxed),
    };
    let words = (id.ticket[0].load(Ordering::Relaxed), id.ticket[1].load(Ordering::Relaxed));
    if !target.table.take(&Ticket::from_words(words, place)) {
        return false;
    }
    let mine = link.view().section(place.slot, Side::Client);
    // The slot stays taken until the connection ends: another thread may still be looking at it.
    mine.setup.state.store(Proposal::Withdrawn as u32, Ordering::Release);
    true
}

/// An active connection whose link group this process does not have: it was promoted by the parent
/// or child with which it is shared.
#[cold]
fn adopt(sock: &'static Sock, fd: i32) -> Phase {
    let id = &sock.record().id;
    let region = id.region.load(Ordering::Relaxed);
    let slot = sock.record().slot();
    let link = match sock.record().side() {
        Side::Server => link::attach(region, slot, tcp::borrow(fd)).ok(),
        Side::Client => link::all().find(|l| l.region == region && l.side == Side::Client),
    };
    let Some(link) = link else { return Phase::Broken };
    sock.set_link(link);
    if link.side == Side::Server {
        link::detach(link);
    }
    if let Some(endpoint) = sock.peer_endpoint()
        && let Ok(peer) = link.acquaint(endpoint)
    {
        sock.set_peer(peer);
    }
    Phase::Active
}

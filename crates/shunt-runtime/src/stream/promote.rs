//! The handshake as the calls on a connection complete it: a server looks for the client's proposal
//! when the program first uses the accepted socket, a client looks for the answer.
//!
//! Not in accept itself, at first: the process may leave the connection to a child, who then is the one
//! to be woken, or to another program, which knows of no ring. One that was seen to use what it accepts
//! looks in accept already, so that the first bytes are in the ring.

use core::sync::atomic::{AtomicU32, Ordering};

use shunt_engine::handshake::{CLIENT_LOOKS, Missed, Phase, gives_up, missed};
use shunt_shm::region::Side;
use shunt_shm::table::{Place, Table, Ticket};
use shunt_wire::reason::Reason;

use crate::conn::{Conn, SIZED, Sock};
use crate::control::link::{self, Link};
use crate::control::listener::Listener;
use crate::point;
use crate::stream::agree;
use crate::stream::agree::Time;
use crate::stream::agree::answer;
use crate::stream::agree::answered;
use crate::stream::decline::decline;
use crate::stream::in_doubt::InDoubt;
use crate::stream::spin::{self, Spun};
use crate::stream::{buffers, offered};
use crate::system::abi;
use crate::system::clock;
use crate::threads::signals::SettingUp;

/// Longest wait, in nanoseconds, of a first send for the answer: for an acceptor that has just been woken.
const ANSWER_PATIENCE: u64 = 50_000;

/// For whom this process accepts connections, as far as was seen: [`NOT_KNOWN`], ...
static ACCEPTS: AtomicU32 = AtomicU32::new(NOT_KNOWN);
const NOT_KNOWN: u32 = 0;
/// It uses them itself.
const FOR_ITSELF: u32 = 1;
/// It has left one, which it had not used, to somebody else.
const FOR_OTHERS: u32 = 2;

/// The first bytes that an acceptor sends are sent through this library: it uses its connections itself,
/// and nothing goes to the kernel behind our back.
pub fn is_used_here() {
    let (ok, no) = (Ordering::Relaxed, Ordering::Relaxed);
    let _ = ACCEPTS.compare_exchange(NOT_KNOWN, FOR_ITSELF, ok, no);
}

/// In a forked child: what the parent does with its connections says nothing of it.
pub fn forget_in_child() {
    ACCEPTS.store(NOT_KNOWN, Ordering::Relaxed);
}

/// A connection goes to a child or to another program. If this process accepted it and has not used
/// it, that is what it does with its connections.
pub fn is_left_to_others(sock: &Sock) {
    let record = sock.record();
    if sock.listener().is_some()
        && sock.phase() != Phase::Tcp
        && record.rx.bytes.load(Ordering::Relaxed) + record.tx.bytes.load(Ordering::Relaxed) == 0
    {
        ACCEPTS.store(FOR_OTHERS, Ordering::Relaxed);
    }
}

/// Looks for the proposal of a connection that has just been accepted.
pub fn at_accept(conn: Conn) {
    if ACCEPTS.load(Ordering::Relaxed) == FOR_ITSELF {
        look_for_proposal(conn, Time::AtAccept);
    }
}

/// A first send on a connection whose proposal has not been answered: the acceptor may be waking up just
/// now, so that a short wait saves the bytes, and the answer to them, the way through the kernel. How
/// long it takes, if it comes at all, is learnt per listener.
#[cold]
pub fn await_answer(conn: Conn) {
    let sock = conn.sock();
    let first = sock.record().id.looks.load(Ordering::Relaxed) <= 1;
    let (Some(link), Some(end), true) = (sock.link(), sock.end(), first) else {
        return;
    };
    let Some(target) = link::Target::of(link) else { return };
    let has_answered = || end.answerer().is_some();
    let spun = spin::spin_patiently(&target.answers, ANSWER_PATIENCE, has_answered);
    spin::count(spun);
    // Another thread may have closed the descriptor meanwhile.
    if spun == Spun::Found && sock.phase() == Phase::Proposed && conn.is_named() {
        answered(sock);
    }
}

/// Looks after the handshake before a call on `fd`. Returns where the connection stands.
#[inline]
pub fn advance(conn: Conn) -> Phase {
    match conn.phase() {
        Phase::Active if conn.link().is_some() => Phase::Active,
        Phase::Candidate => look_for_proposal(conn, Time::AtUse),
        Phase::Proposed => look_for_answer(conn),
        Phase::Active => adopt(conn),
        other => other,
    }
}

/// The same for one who only asks for readiness and may hold locks: never gives up.
#[inline]
pub fn glance(conn: Conn) -> Phase {
    let sock = conn.sock();
    match sock.phase() {
        Phase::Active if sock.link().is_some() => Phase::Active,
        Phase::Active => adopt(conn),
        Phase::Proposed => {
            if sock.link().is_none() && offered::is_offered(sock) {
                join(conn);
            }
            answered(sock).unwrap_or(Phase::Proposed)
        }
        Phase::Candidate => {
            let Some(_setting_up) = SettingUp::begin() else { return Phase::Candidate };
            let lock = sock.lock_handshake();
            point!(promote_locked);
            if lock.nested() || sock.phase() != Phase::Candidate {
                return sock.phase();
            }
            if offered::is_offered(sock) {
                return offered::glance(conn);
            }
            let accepted = sock.listener().is_some_and(|listener| {
                let tuple = sock.record().id.tuple();
                let ticket = listener.proposals(&tuple).and_then(|table| table.find(&tuple));
                ticket.is_some_and(|ticket| accept(conn, &ticket, Time::AtUse).is_ok())
            });
            if accepted { Phase::Active } else { Phase::Candidate }
        }
        other => other,
    }
}

#[cold]
fn look_for_proposal(conn: Conn, time: Time) -> Phase {
    let sock = conn.sock();
    let Some(_setting_up) = SettingUp::begin() else { return Phase::Candidate };
    let found = {
        // Another thread may be at it: what it finds is gone from the table before it says so.
        let lock = sock.lock_handshake();
        point!(promote_locked);
        match sock.phase() {
            // A signal handler above the very call that is at it.
            phase if lock.nested() => return phase,
            Phase::Candidate => propose_to(conn, time),
            other => return other,
        }
    };
    // Without the lock: epoll instances are told, and they ask us with their own locks held.
    match found {
        Ok(phase) => phase,
        Err(why) => {
            decline(conn, why);
            Phase::Tcp
        }
    }
}

/// Takes a proposal for the candidate up; an error is why it stays on TCP for good.
fn propose_to(conn: Conn, time: Time) -> Result<Phase, Reason> {
    let sock = conn.sock();
    if offered::is_offered(sock) {
        return offered::look(conn);
    }
    let listener = sock.listener().ok_or(Reason::NoProposal)?;
    let id = &sock.record().id;
    let tuple = id.tuple();
    // None for what comes from another network of this host, which is offered instead.
    let table = listener.proposals(&tuple);
    let find = || table.and_then(|table| table.find(&tuple));
    // Whether somebody is connecting is asked before the look that counts: who posts between the two is
    // found by it.
    let mut connecting = false;
    let found = find().or_else(|| {
        connecting = table.is_some_and(Table::connecting);
        find()
    });
    let declined = match found {
        Some(ticket) => match accept(conn, &ticket, time) {
            Ok(()) => return Ok(Phase::Active),
            Err(why) => why,
        },
        None => match offered::claim(conn, time) {
            Ok(true) => return Ok(Phase::Active),
            Ok(false) => {
                let age = clock::now().saturating_sub(id.since.load(Ordering::Relaxed));
                match missed(age, connecting) {
                    Missed::LookAgain => return Ok(Phase::Candidate),
                    Missed::Decline(why) => why,
                }
            }
            Err(why) => why,
        },
    };
    // So that no other thread declines it a second time.
    sock.set_phase(Phase::Tcp);
    Err(declined)
}

fn accept(conn: Conn, ticket: &Ticket, time: Time) -> Result<(), Reason> {
    let sock = conn.sock();
    let Place { region, slot, .. } = ticket.place();
    // The agent compares the socket's addresses with the proposal's.
    let fd = conn.kernel().ok_or(Reason::NoProposal)?;
    let link = link::attach(region, slot, abi::borrow(fd))?;
    point!(promote_attached);
    let accepted = accept_in(sock, ticket, time, link);
    link::detach(link);
    if accepted.is_ok() {
        let sized = sock.has(SIZED) || sock.listener().is_none_or(Listener::is_sized);
        buffers::begin(conn, sized);
    }
    accepted
}

fn accept_in(
    sock: &'static Sock,
    ticket: &Ticket,
    time: Time,
    link: &'static Link,
) -> Result<(), Reason> {
    let listener = sock.listener().ok_or(Reason::NoProposal)?;
    let Place { slot, generation, .. } = ticket.place();
    let view = link.view();
    if slot >= view.geometry().slots() {
        return Err(Reason::ProtocolViolation);
    }
    let theirs = view.section(slot, Side::Client);
    let speaks_of_it = theirs.setup.proposes(generation, &sock.record().id.tuple());
    let owner = theirs.setup.endpoint.load(Ordering::Relaxed);
    let peer = if speaks_of_it { link.peers.find(owner) } else { None };
    // A client that takes its proposal back may use the slot for the next one at once; but it takes the
    // entry first. One whose entry is still there tells two stories.
    let table = listener.proposals(&sock.record().id.tuple()).ok_or(Reason::NoProposal)?;
    if !table.take(ticket) {
        if let Some(peer) = peer {
            peer.release();
        }
        return Err(Reason::NoProposal);
    }
    let _in_doubt = InDoubt::on(sock);
    point!(promote_taken);
    let peer = peer.ok_or(Reason::ProtocolViolation)?;
    answer(sock, link, (slot, generation), peer, time);
    Ok(())
}

#[cold]
fn look_for_answer(conn: Conn) -> Phase {
    let sock = conn.sock();
    if sock.link().is_none() && !(offered::is_offered(sock) && join(conn)) {
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
        give_up(conn)
    } else {
        Phase::Proposed
    }
}

fn give_up(conn: Conn) -> Phase {
    if !agree::withdraw(&conn) {
        // The acceptor was quicker; its answer is on the way.
        return Phase::Proposed;
    }
    decline(conn, Reason::NotAccepted);
    Phase::Tcp
}

/// An active connection whose link group this process does not have: it was promoted by the parent
/// or child with which it is shared.
#[cold]
fn adopt(conn: Conn) -> Phase {
    let sock = conn.sock();
    if !join(conn) {
        // The call says of a descriptor that was closed what is to be said.
        return if conn.kernel().is_some() { Phase::Broken } else { Phase::Active };
    }
    if let Some(endpoint) = sock.peer_endpoint()
        && let Some(link) = sock.link()
        && let Ok(peer) = link.acquaint(endpoint)
    {
        sock.has_met(peer);
    }
    Phase::Active
}

/// Takes part in the link group of a connection that parent or child has settled in it. False when it cannot be had.
fn join(conn: Conn) -> bool {
    let sock = conn.sock();
    let Some(fd) = conn.kernel() else { return false };
    let id = &sock.record().id;
    let region = id.region.load(Ordering::Relaxed);
    let slot = sock.record().slot();
    let (link, counted) = match sock.record().side() {
        Side::Server => (link::attach(region, slot, abi::borrow(fd)).ok(), true),
        Side::Client if offered::is_offered(sock) => {
            (link::fetch(region, slot, abi::borrow(fd)).ok(), true)
        }
        Side::Client => {
            let inherited =
                |l: &&Link| l.region == region && l.side == Side::Client && l.holds(slot);
            (link::all().find(inherited), false)
        }
    };
    let Some(link) = link else { return false };
    sock.set_link(link);
    if counted {
        link::detach(link);
    }
    true
}

//! The handshake as the calls on a connection complete it: the engine's course ([`shunt_engine::handshake::course`]), for the
//! connections of this process.
//!
//! A server does not look for the client's proposal in accept itself, at first: the process may leave the connection to a child,
//! who then is the one to be woken, or to another program, which knows of no ring. One that was seen to use what it accepts
//! looks in accept already, so that the first bytes are in the ring.

use core::sync::atomic::{AtomicU32, Ordering};

use shunt_engine::conn::{End, is_settled};
use shunt_engine::handshake::Phase;
use shunt_engine::handshake::course::{self, AtEnd, Course, Time, is_offered};
use shunt_engine::handshake::proposals;
use shunt_shm::arena::Record;
use shunt_shm::region::Side;
use shunt_shm::table::{Place, Table, Ticket};
use shunt_wire::agent::{EndpointId, RegionId};
use shunt_wire::reason::Reason;

use crate::conn::{Conn, Hold, Locked, SIZED, Sock};
use crate::control::link::{self, Link};
use crate::control::listener::Listener;
use crate::control::peer::Peer;
use crate::point;
use crate::stream::acquaint;
use crate::stream::agree::{self, answer};
use crate::stream::decline::decline;
use crate::stream::in_doubt::InDoubt;
use crate::stream::offer_budget::{Key, UNANSWERED};
use crate::stream::spin::{self, Spun};
use crate::stream::{brokered, buffers, notify};
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
        course::at_accept(&Handshake(conn));
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
    if matches!(spun, Spun::Found(_)) {
        poll_handshake(conn);
    }
}

/// Looks after the handshake before a call. Returns where the connection stands.
#[inline]
pub fn advance(conn: Conn) -> Phase {
    course::advance(&Handshake(conn))
}

/// The same for one who only asks for readiness and may hold locks: never gives up.
#[inline]
pub fn poll_handshake(conn: Conn) -> Phase {
    course::poll_handshake(&Handshake(conn))
}

/// Keeps parent and child from taking the connection up as long as the value lives, where this process would not know of its place.
pub fn hold_off(conn: Conn) -> Option<Locked> {
    // Twice where it was taken up since the first look; not in the handler of a fault, which may set nothing up.
    for is_last in [false, true] {
        if conn.link().is_some() || advance(conn) != Phase::Candidate {
            break;
        }
        let lock = conn.sock().lock_handshake();
        if lock.nested() || is_last || !is_settled(conn.record()) {
            return Some(lock);
        }
    }
    None
}

/// The last process that holds the connection is about to end it. Only parent or child may have used it.
pub fn begins_to_end(conn: Conn) {
    if course::is_to_join_at_end(&Handshake(conn))
        && let Some(_setting_up) = SettingUp::begin()
    {
        join(conn);
    }
}

/// The connection ends: takes back what was proposed or offered.
pub fn ends(conn: Conn) -> AtEnd {
    course::ends(&Handshake(conn))
}

/// A connection on its way into shared memory.
struct Handshake(Conn);

impl Handshake {
    /// Open proposals of its listener. `None` for what comes from another network of this host, which is offered instead.
    fn proposals(&self) -> Option<&Table> {
        self.0.sock().listener()?.proposals(&self.0.record().id.tuple())
    }
}

impl Course for Handshake {
    type Ticket = Ticket;

    #[inline]
    fn record(&self) -> &Record {
        self.0.sock().record()
    }

    #[inline]
    fn end(&self) -> Option<End<'_>> {
        self.0.sock().end()
    }

    fn is_open(&self) -> bool {
        self.0.kernel().is_some()
    }

    fn now(&self) -> u64 {
        clock::now()
    }

    fn kept<T>(&self, steps: impl FnOnce() -> T) -> Option<T> {
        let mut hold = Hold::none();
        // Whoever closes the last descriptor has the connection for itself.
        if !self.0.is_closing() {
            hold.keep(&self.0);
            hold.sock()?;
        }
        Some(steps())
    }

    fn alone<T>(&self, step: impl FnOnce(bool) -> T) -> Option<T> {
        let _setting_up = SettingUp::begin()?;
        let lock = self.0.sock().lock_handshake();
        point!(promote_locked);
        Some(step(lock.nested()))
    }

    #[inline]
    fn is_put_off(&self) -> bool {
        self.0.sock().is_put_off()
    }

    fn find(&self) -> Option<Ticket> {
        self.proposals()?.find(&self.0.record().id.tuple())
    }

    fn is_connecting(&self) -> bool {
        self.proposals().is_some_and(Table::connecting)
    }

    fn accept(&self, ticket: &Ticket, time: Time) -> Result<(), Reason> {
        accept(self.0, ticket, time)
    }

    fn resumes(&self) -> bool {
        resume(self.0).is_ok()
    }

    fn claim(&self, time: Time) -> Result<bool, Reason> {
        brokered::claim(self.0, time)
    }

    fn takes_place(&self, region: RegionId, slot: usize) -> Result<(), Reason> {
        brokered::take_place(self.0, region, slot)
    }

    fn is_unanswered(&self) {
        UNANSWERED.close(Key::of_destination(&self.0.record().id.tuple().peer));
    }

    fn meets(&self, acceptor: EndpointId) -> bool {
        agree::meet(self.0.sock(), acceptor)
    }

    fn has_agreed(&self) {
        self.0.sock().count_shunted();
    }

    fn withdraw(&self) -> bool {
        agree::withdraw(&self.0)
    }

    fn joins(&self) -> bool {
        join(self.0)
    }

    fn greets(&self) {
        let sock = self.0.sock();
        if let Some(endpoint) = sock.peer_endpoint()
            && let Ok(peer) = acquaint::acquaint(sock, endpoint)
        {
            sock.has_met(peer);
        }
    }

    fn decline(&self, why: Reason) {
        let _setting_up = SettingUp::begin();
        decline(self.0, why);
    }
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
    let tuple = sock.record().id.tuple();
    let table = listener.proposals(&tuple).ok_or(Reason::NoProposal)?;
    let find = |owner| link.peers.find(owner);
    let peer = proposals::take((table, ticket), theirs, &tuple, find, Peer::release)
        .ok_or(Reason::NoProposal)?;
    let _in_doubt = InDoubt::on(sock);
    point!(promote_taken);
    let peer = peer.ok_or(Reason::ProtocolViolation)?;
    answer(sock, link, (slot, generation), peer, time);
    notify::all_if_of_host(sock);
    Ok(())
}

/// Takes a connection up that parent or child had given its place when it was killed, and says so to the client: maybe once more, and as
/// the endpoint that it is to ring from now on.
fn resume(conn: Conn) -> Result<(), Reason> {
    let (sock, record) = (conn.sock(), conn.record());
    let fd = conn.kernel().ok_or(Reason::NoProposal)?;
    let (region, slot) = (record.id.region.load(Ordering::Relaxed), record.slot());
    let link = link::attach(region, slot, abi::borrow(fd))?;
    let client = link.view().section(slot, Side::Client).setup.endpoint.load(Ordering::Relaxed);
    let peer = link.peers.find(client).ok_or(Reason::ProtocolViolation);
    let resumed = peer.map(|peer| {
        let _in_doubt = InDoubt::on(sock);
        let place = (slot, record.id.slot_generation.load(Ordering::Relaxed));
        answer(sock, link, place, peer, Time::AtUse);
        notify::all_if_of_host(sock);
        brokered::has_place(conn);
    });
    link::detach(link);
    resumed
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
        Side::Client if is_offered(id) => (link::fetch(region, slot, abi::borrow(fd)).ok(), true),
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

//! Conditions without a wake-up event; waiters poll for them after a while. They are bytes that no
//! mark explains, room in the ring of a peer that has half-closed and may have been killed since,
//! grants that are not read, and the end of an agent that was about to bring a far peer's end.
//!
//! The end of that agent is an event for those who sleep in the kernel: each link group with another host has a descriptor that hangs
//! up then ([`Link::lifeline`]).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use std::os::fd::RawFd;

use shunt_engine::conn::flags::STAYS;
use shunt_engine::conn::overflow;
use shunt_engine::handshake::Phase;
use shunt_sys::{sockdiag, sockinfo};

use crate::conn::{Conn, ELSEWHERE, KERNEL_HINT, NUMBERED, ORPHANED, RST_ON_DEATH, SHORT, Sock};
use crate::control::link::Link;
use crate::stream::tcp::Socket;
use crate::system::abi;
use crate::system::clock;

/// Time between two looks, in nanoseconds.
pub const LOOK: u64 = 100_000_000;
/// How long a doubt makes all waiters of the process look, in nanoseconds.
const FOR: u64 = 2_000_000_000;

/// Until when, in nanoseconds, somebody has to look.
static UNTIL: AtomicU64 = AtomicU64::new(0);

/// Now, in units of 1024 ns and to some milliseconds; never 0.
pub fn moment() -> u32 {
    moment_of(clock::coarse())
}

const fn moment_of(now: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
    let now = (now >> 10) as u32;
    now | 1
}

/// Has all who wait look again now and then, for a while. The [`moment`] of now.
pub fn arise() -> u32 {
    let now = clock::coarse();
    UNTIL.store(now + FOR, Relaxed);
    moment_of(now)
}

/// When to look again, in nanoseconds from now. `None` where there is no doubt.
#[inline]
pub fn next_look() -> Option<u64> {
    let until = UNTIL.load(Relaxed);
    (until != 0 && clock::now() < until).then_some(LOOK)
}

/// True for a connection that is to be looked at.
pub fn is_about(sock: &Sock) -> bool {
    sock.record().rx.unmarked.load(Relaxed) != 0
        || sock.no_room.load(Relaxed) != 0
        || overflow::is_watched(sock.record())
        || sock.has(NUMBERED | SHORT)
        || (sock.has(STAYS) && sock.phase() == Phase::Proposed)
        || (sock.has(KERNEL_HINT) && sock.end().is_some_and(|end| end.awaits_end()))
}

/// Notes that there are bytes in the kernel socket which no mark explains. Since when, if that was known.
pub fn unmarked(sock: &Sock) -> Option<u32> {
    let since = sock.record().rx.unmarked.compare_exchange(0, moment(), Relaxed, Relaxed).err();
    if since.is_none() {
        sock.put(KERNEL_HINT, true);
        arise();
    }
    since
}

/// Looks for such bytes from the ring.
pub fn look_for_unmarked(conn: Conn) {
    let looks = |fd| conn.end().is_some_and(|end| end.has_unmarked(&Socket(fd)));
    if conn.ask(looks) == Some(true) {
        unmarked(conn.sock());
    }
}

/// There is no room in the ring of a peer that may have ended its direction: true when nobody holds its socket
/// any more. Its FIN is all that the kernel says of its death to those who send nothing, so the kernel is
/// asked for its socket; now and then, for the peer may simply be slow.
pub fn is_orphaned(sock: &Sock) -> bool {
    let Some((_, theirs)) = sock.sections() else { return false };
    // Of those in other networks, and on other machines, the kernel tells by itself.
    if theirs.prod.fin.load(Acquire) == 0 || is_elsewhere(sock) {
        return false;
    }
    if sock.has(ORPHANED) {
        return true;
    }
    arise();
    let now = moment();
    let since = sock.no_room.load(Relaxed);
    if since != 0 && u64::from(now.wrapping_sub(since)) << 10 < LOOK {
        return false;
    }
    sock.no_room.store(now, Relaxed);
    // A peer that was slow only now has not been asked for yet.
    let orphaned = since != 0 && sockdiag::peer_is_held(&sock.record().id.tuple()) == Some(false);
    if orphaned {
        sock.put(ORPHANED, true);
    }
    orphaned
}

/// True when the agent is gone that brings what comes from another host.
pub fn is_cut_off(sock: &Sock) -> bool {
    sock.link().is_some_and(Link::is_cut_off)
}

/// What a sleep in the kernel watches, so that it hears of the end of that agent. `None` where it does not matter: the peer is on this
/// host, or the agent is gone and the connection goes on without it.
pub fn lifeline(sock: &Sock) -> Option<RawFd> {
    let link = sock.link().filter(|link| link.is_of_host())?;
    let matters = !link.is_known_to_be_cut_off() || is_stranded(sock);
    link.lifeline().filter(|_| matters)
}

/// True for one that cannot go on without that agent.
pub fn is_stranded(sock: &Sock) -> bool {
    matches!(
        Phase::from_code(sock.record().id.phase.load(Acquire)),
        Phase::Proposed | Phase::Active
    ) && sock.end().is_some_and(|end| end.is_stranded())
}

fn is_elsewhere(sock: &Sock) -> bool {
    sock.has(ELSEWHERE) || sock.is_far()
}

/// This side has ended its direction. Were its program killed from now on, the kernel would wait for the peer's FIN without
/// a word; over TCP, bytes that are not read, or that come later, have it send RST, but here it sees none. A peer that cannot
/// ask for this socket would wait for room for ever, so the kernel is told to send RST in any case, but for an orderly close.
pub fn end_loudly(conn: Conn) {
    // What has left the ring ends as TCP does, in whatever program.
    if !is_elsewhere(&conn)
        || conn.has(RST_ON_DEATH)
        || conn.is_handed_over()
        || conn.phase() == Phase::Tcp
    {
        return;
    }
    let Some(seconds) = conn.ask(|fd| sockinfo::fin_timeout(abi::borrow(fd))).flatten() else {
        return;
    };
    conn.fin_timeout.store(seconds, Relaxed);
    set_fin_timeout(conn, sockinfo::AT_ONCE);
    conn.put(RST_ON_DEATH, true);
}

fn set_fin_timeout(conn: Conn, seconds: u32) {
    // So that the number is the socket's for as long.
    let _lock = conn.lock_tx();
    if let Some(fd) = conn.kernel() {
        sockinfo::set_fin_timeout(abi::borrow(fd), seconds);
    }
}

/// Takes that back. True when there was something to be taken back.
pub fn end_quietly(conn: Conn) -> bool {
    let was_loud = conn.has(RST_ON_DEATH);
    if was_loud {
        conn.put(RST_ON_DEATH, false);
        // In a process that did not end the direction it is 0, the default.
        set_fin_timeout(conn, conn.fin_timeout.load(Relaxed));
    }
    was_loud
}

/// The program has set what the kernel waits for a FIN: so that counts once the connection ends in good order.
pub fn fin_timeout_is_set(conn: Conn) {
    if conn.has(RST_ON_DEATH) {
        conn.put(RST_ON_DEATH, false);
        end_loudly(conn);
    }
}

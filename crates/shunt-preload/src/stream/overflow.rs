//! A ring that stays full. Kernel TCP takes megabytes while nobody reads; programs whose two ends write
//! before they read rely on it. So a sender that finds no room for a while, though the receiver takes
//! nothing, goes on over TCP, behind what lies in the ring, and comes back when the receiver has caught
//! up.
//!
//! A receiver that takes something, however slowly, is waited for: the way over TCP and back costs more
//! than the wait. Where the program has set the size of its buffers (`SO_SNDBUF`), these are the bound,
//! as they are over TCP.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::doorbell::AWAKE;
use shunt_shm::region::Section;
use shunt_shm::ring::UNLIMITED;

use crate::clock;
use crate::conn::{Conn, Sock};
use crate::stream::{buffers, doubt};

/// Time without progress after which a sender goes on over TCP, in units of 1024 ns: about 30 ms.
const PATIENCE: u32 = 30_000;
/// The same where the peer waits for room, too: about 2 ms. Each may be waiting for the other.
const BOTH_WAIT: u32 = 2_000;

#[allow(clippy::cast_possible_truncation, reason = "the low half, never 0")]
fn moment() -> u32 {
    (clock::now() >> 10) as u32 | 1
}

/// How long a sender that finds no room still waits for the receiver, in units of 1024 ns; 0: no longer.
/// `None`: for as long as it takes.
fn patience_left(sock: &Sock, theirs: &Section) -> Option<u32> {
    let tx = &sock.record().tx;
    // What the program has set may be more than a ring holds.
    let limit = buffers::limit(tx, theirs);
    if limit != UNLIMITED && tx.cursor.in_flight() >= limit {
        return None;
    }
    let (now, taken) = (moment(), theirs.cons.cons.load(Acquire));
    let since = tx.full_since.load(Relaxed);
    if since == 0 || tx.full_at.load(Relaxed) != taken {
        tx.full_at.store(taken, Relaxed);
        tx.full_since.store(now, Relaxed);
        return Some(PATIENCE);
    }
    let patience = if theirs.ctl.tx_arm.load(Relaxed) == AWAKE { PATIENCE } else { BOTH_WAIT };
    Some(patience.saturating_sub(now.wrapping_sub(since)))
}

/// True when a sender that finds no room is to go on over TCP.
#[cold]
pub fn is_due(sock: &Sock, theirs: &Section) -> bool {
    patience_left(sock, theirs) == Some(0)
}

/// The same for who only asks whether there is room: if it is not due yet, those who wait look again.
#[cold]
pub fn is_due_soon(sock: &Sock, theirs: &Section) -> bool {
    match patience_left(sock, theirs) {
        Some(0) => true,
        Some(_) => {
            doubt::arise();
            false
        }
        None => false,
    }
}

/// When a sender that waits for room is to look again, in nanoseconds from now.
pub fn next_look(conn: &Conn) -> Option<u64> {
    let (_, theirs) = conn.sections()?;
    // The peer may come to wait, too, while this side sleeps.
    let longest = if theirs.ctl.tx_arm.load(Relaxed) == AWAKE { PATIENCE / 3 } else { BOTH_WAIT };
    let left = patience_left(conn, theirs)?;
    Some(u64::from(left.min(longest).max(1)) << 10)
}

/// True for a connection whose waiters have to look for themselves.
pub fn is_watched(sock: &Sock) -> bool {
    sock.record().tx.full_since.load(Relaxed) != 0
}

/// There is room again.
#[inline]
pub fn ends(sock: &Sock) {
    let full_since = &sock.record().tx.full_since;
    if full_since.load(Relaxed) != 0 {
        full_since.store(0, Relaxed);
    }
}

//! Resets that the kernel does not tell the next call of.
//!
//! **Peers that are killed.** Over TCP, bytes that nobody has read then are answered with RST, of which every call hears. Of those in
//! a ring the kernel knows nothing: it sends FIN, and that only those hear who ask for it. So it is asked for on behalf of the
//! others, too, and a FIN that the peer has not announced counts as RST where bytes of ours lie unread.
//!
//! **A reset that was told already**, to a step of a call that returns the bytes which it has moved before. The next call hears
//! of it.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::c_int;
use shunt_engine::events;
use shunt_engine::stretch::{Path, path};
use shunt_shm::region::Section;

use crate::conn::{CUT_OFF, Conn, KERNEL_HINT, RESET_DUE, RESET_TOLD, SHUT_RD, SHUT_WR, Sock};
use crate::stream::tcp;

/// Time after which the kernel is asked on behalf of who never sleeps, in units of 1024 ns: about a millisecond.
const VISIT_AFTER: u32 = 1000;

/// The kernel has told its reset to a call that returns something else.
#[cold]
pub fn tell_later(sock: &Sock) {
    sock.put(RESET_DUE | CUT_OFF | KERNEL_HINT, true);
}

/// True when the connection was reset, and no call has failed with that yet.
fn is_untold(sock: &Sock) -> bool {
    !sock.has(RESET_TOLD)
        && (sock.has(RESET_DUE)
            || sock.sections().is_some_and(|(_, theirs)| has_reset(sock, theirs)))
}

/// True when the peer ended without a word while bytes of ours lay unread in its ring. Of an end that it announces it says so
/// before the kernel does: so this is asked once the kernel has told of one.
fn has_reset(sock: &Sock, theirs: &Section) -> bool {
    let has_reset = may_reset(sock, theirs) && has_unread(sock, theirs);
    if has_reset && !sock.has(CUT_OFF) {
        sock.put(CUT_OFF, true);
    }
    has_reset
}

/// True when a FIN that came now would be unannounced, and not be this side's own doing.
fn may_reset(sock: &Sock, theirs: &Section) -> bool {
    theirs.prod.fin.load(Acquire) == 0
        && theirs.ctl.handed_over.load(Relaxed) == 0
        && path(sock.record().tx.marks.load(Relaxed)) == Path::Ring
        && !sock.has(SHUT_RD)
}

fn has_unread(sock: &Sock, theirs: &Section) -> bool {
    sock.record().tx.cursor.pos() > theirs.cons.cons.load(Relaxed)
}

/// What poll(2) would say besides, of a connection of whose end the kernel has told.
#[cold]
pub fn readiness(sock: &Sock) -> u32 {
    // Once the error was told the kernel socket is what it is after a reset.
    if is_untold(sock) { events::ERR | events::HUP } else { 0 }
}

/// True when a call that is to hear of the reset is the first one, which fails with `ECONNRESET`. The next ones find what the
/// kernel gives after a reset. With a direction's lock held, under which `fd` is the kernel socket.
pub fn fails(sock: &Sock, fd: c_int) -> bool {
    let fails = is_untold(sock);
    if fails {
        sock.put(RESET_TOLD | SHUT_WR, true);
        tcp::shut(fd);
    }
    fails
}

/// True when that is what `SO_ERROR` is to say.
pub fn is_pending(conn: Conn) -> bool {
    // Known since poll(2) has said so, or the like.
    if !conn.has(CUT_OFF) {
        return false;
    }
    let _lock = conn.lock_rx();
    conn.kernel().is_some_and(|fd| fails(&conn, fd))
}

/// True when a FIN is to wake who sleeps in poll(2) and has not asked for it. One that was heard is not asked for again, but
/// for bytes that were sent since.
pub fn wakes(sock: &Sock) -> bool {
    sock.sections().is_some_and(|(_, theirs)| {
        may_reset(sock, theirs) && (!sock.has(KERNEL_HINT) || has_unread(sock, theirs))
    })
}

/// True when the kernel was not asked about a connection for long, and is not asked at each look anyhow.
pub fn visit_is_due(sock: &Sock, now: u64) -> bool {
    let Some((_, theirs)) = sock.sections() else { return false };
    #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
    let now = (now >> 10) as u32;
    let visited = &sock.record().rx.visited;
    let is_due = now.wrapping_sub(visited.load(Relaxed)) >= VISIT_AFTER
        && theirs.prod.fin.load(Relaxed) == 0
        && !sock.has(KERNEL_HINT);
    if is_due {
        visited.store(now, Relaxed);
    }
    is_due
}

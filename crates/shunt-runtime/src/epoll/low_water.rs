//! Readiness where the program has set `SO_RCVLOWAT`: as many bytes, wherever they lie, or a sender that can
//! send no more before some are taken (`tcp_epollin_ready` in include/net/tcp.h: the window is closed).

use core::sync::atomic::Ordering::Relaxed;

use shunt_engine::conn::Source;
use shunt_engine::kernel::KernelSocket;
use shunt_engine::stretch::Path;
use shunt_shm::doorbell::AWAKE;
use shunt_shm::region::Section;
use shunt_shm::ring::RxCursor;

use crate::conn::{Conn, SHORT};
use crate::stream::doubt;
use crate::stream::tcp::Socket;

/// What `in_ring` readable bytes count for: at least `low_water` where that is to be told of.
#[cold]
pub fn count(conn: Conn, theirs: &Section, in_ring: u64, source: Source, low_water: u64) -> u64 {
    // Bytes on both sides of a mark count together.
    let is_split = source.path == Path::Tcp || source.has_mark;
    let waiting = |fd| Some(conn.end()?.not_repeated(Socket(fd).waiting()));
    let in_kernel = if is_split { conn.ask(waiting).flatten().unwrap_or(0) } else { 0 };
    let all = in_ring.saturating_add(in_kernel);
    let filled = RxCursor::is_filled(&theirs.prod, conn.ring() as u64, in_ring);
    let is_stuck = match filled {
        Some(true) => true,
        Some(false) => theirs.ctl.tx_arm.load(Relaxed) != AWAKE,
        None => false,
    };
    let is_enough = all >= low_water || (is_stuck && in_ring > 0);
    // The sender does not tell that it waits, nor the kernel of less than the mark in its own socket.
    let is_short = !is_enough && in_ring > 0 && (filled.is_some() || is_split);
    if is_short {
        doubt::arise();
    }
    if is_short != conn.has(SHORT) {
        conn.put(SHORT, is_short);
    }
    if is_enough { all.max(low_water) } else { all }
}

//! Readiness of a shunted connection: of use to epoll, poll and select.

use core::sync::atomic::Ordering::Relaxed;

use shunt_engine::conn::overflow::Full;
use shunt_engine::conn::repeated::{are_awaited, are_pending};
use shunt_engine::conn::{End, Source, sends_over_tcp};
use shunt_engine::events::{self, Ring, readiness};
use shunt_engine::handshake::Phase;
use shunt_engine::kernel::peer_is_gone;
use shunt_engine::stretch::Path;
use shunt_shm::doorbell::{ON_QUEUE, arm};
use shunt_shm::region::RESET;
use shunt_shm::sync::store_load_fence;

use crate::conn::{Conn, FILLS_KERNEL, FROZEN, HAD_ROOM, KERNEL_HINT, SHUT_RD, SHUT_WR};
use crate::epoll::heard::Heard;
use crate::epoll::low_water;
use crate::stream::tcp::Socket;
use crate::stream::{again, demote, doubt, killed, promote, tcp, zerocopy};
use crate::system::clock;

/// What the kernel is asked when it has to be.
const KERNEL: u32 =
    events::IN | events::PRI | events::OUT | events::RDHUP | events::RDNORM | events::WRNORM;

/// Something else whenever bytes or room have come, or a stretch or direction has ended or been passed;
/// never 0.
pub fn stamp(conn: Conn) -> u64 {
    promote::glance(conn);
    let completions = u64::from(zerocopy::stamp(conn.sock()));
    conn.end().map_or(completions << 1 | 1, |end| end.stamp(completions))
}

/// What is said of a broken connection: the next call, whatever it is, has something to tell.
const BROKEN: u32 = events::ERR | events::HUP | events::IN | events::OUT;

/// The connection's readiness now. `wanted`: the events that the asker is interested in. `heard`: what
/// the asker knows, and knows afterwards.
#[inline]
pub fn of(conn: Conn, wanted: u32, heard: &mut Heard) -> u32 {
    of_bytes(conn, wanted, heard) | zerocopy::readiness(conn.sock())
}

/// poll(2)'s answer about the kernel socket. What comes twice is not there to be read.
fn ask_kernel(conn: Conn) -> u32 {
    let ask = || conn.ask(|fd| tcp::readiness(fd, KERNEL)).unwrap_or(0);
    let mut told = ask();
    if told & events::HUP != 0 {
        told |= killed::readiness(conn.sock());
    }
    if told & events::IN == 0 || !are_awaited(conn.record()) {
        return told;
    }
    again::settle(conn);
    if are_awaited(conn.record()) { told & !(events::IN | events::RDNORM) } else { ask() }
}

/// True when a sender that asks for room is to be told that there is some, over TCP: if that is not due yet, those who
/// wait look again.
#[cold]
fn overflows_soon(end: End<'_>) -> bool {
    match end.notes_no_room(clock::now()) {
        Full::Overflows => true,
        Full::WaitsFor(_) => {
            doubt::arise();
            false
        }
        Full::Waits => false,
    }
}

/// The same without what waits on the error queue.
fn of_bytes(conn: Conn, wanted: u32, heard: &mut Heard) -> u32 {
    let sock = conn.sock();
    match promote::glance(conn) {
        Phase::Tcp | Phase::Candidate => return ask_kernel(conn),
        Phase::Broken => return BROKEN,
        Phase::Proposed | Phase::Active => {}
    }
    let Some(end) = sock.end() else { return ask_kernel(conn) };
    let (mine, theirs) = (end.mine, end.theirs);
    if demote::is_due(sock) {
        demote::follow(conn);
    } else if are_pending(sock.record()) {
        demote::go_on(conn);
    }
    if end.is_violated() {
        return BROKEN;
    }
    if end.may_settle() {
        again::settle(conn);
        *heard = Heard::Nothing;
    }
    let source = end.source();
    let readable = end.readable(source);
    let in_ring = end.in_ring();
    let Source { path, has_mark: mark_open } = source;
    let too_little = |(free, of): (u64, u64)| free * 3 < of;
    // The next send that finds no room goes over TCP: nobody will tell of room, or there was none for long.
    let goes_over_tcp = || {
        !end.can_be_rung()
            || (!sock.has(SHUT_RD)
                && conn.ask(|fd| peer_is_gone(&Socket(fd), &theirs.prod.fin)) == Some(true))
            || doubt::is_orphaned(sock)
            || overflows_soon(end)
    };
    let writes_ring = end.sends_to_ring(sock.peer().is_some())
        && !(sock.has(FILLS_KERNEL) && sends_over_tcp(end.record))
        && !(wanted & events::OUT != 0 && too_little(end.room()) && goes_over_tcp());
    let writable = writes_ring.then(|| {
        let mut room = end.room();
        if wanted & events::OUT != 0 && too_little(room) {
            arm(&mine.ctl.tx_arm, ON_QUEUE);
            store_load_fence();
            room = end.room();
        }
        room
    });
    // Who can read, and does not ask for the end by itself, learns of it when it has read: but for the end of both
    // directions (`tcp_poll`: HUP), and a reset, of which all are told beside the bytes.
    let end_is_news = readable.is_none_or(|n| n == 0)
        || wanted & events::RDHUP != 0
        || sock.has(SHUT_WR)
        || theirs.ctl.closed.load(Relaxed) == RESET;
    let reads = wanted & (events::IN | events::PRI | events::RDHUP | events::RDNORM) != 0;
    let writes_tcp = !writes_ring && wanted & (events::OUT | events::WRNORM) != 0;
    let had_room = writes_tcp && sock.take_room();
    let bytes = reads && path == Path::Tcp && *heard != Heard::Silent;
    let end = (reads && sock.has(FROZEN))
        || (reads && mark_open && in_ring == 0)
        || (theirs.prod.fin.load(Relaxed) != 0 && end_is_news)
        || sock.has(KERNEL_HINT | SHUT_RD);
    // Behind a mark there may be urgent bytes, of which the kernel tells at once.
    let urgent = mark_open && wanted & events::PRI != 0 && path == Path::Ring;
    if path == Path::Ring
        && heard.answer().is_some_and(|told| told & (events::IN | events::END) == events::IN)
    {
        doubt::look_for_unmarked(conn);
    }
    let ask_room = writes_tcp && !had_room;
    let room = if had_room { events::OUT | events::WRNORM } else { 0 };
    let kernel = match heard.answer().filter(|_| !ask_room) {
        _ if !bytes && !end && !urgent && !ask_room => room,
        Some(told) => told | room,
        None => {
            let kernel = ask_kernel(conn);
            let is_silent = kernel & !(events::OUT | events::WRNORM) == 0;
            *heard = if is_silent { Heard::Silent } else { Heard::Nothing };
            if writes_tcp && kernel & events::OUT != 0 {
                sock.put(HAD_ROOM, true);
                if sock.has(FILLS_KERNEL) {
                    sock.put(FILLS_KERNEL, false);
                }
            }
            kernel
        }
    };
    // Other bytes behind a mark are counted with those in the ring, or come to be read after them.
    let only_urgent = urgent && !bytes && !end && in_ring > 0 && kernel & events::END == 0;
    let kernel = if only_urgent { kernel & !(events::IN | events::RDNORM) } else { kernel };
    let kernel = if kernel & events::END == 0 { kernel } else { kernel | killed::readiness(sock) };
    let mark = sock.low_water() as u64;
    let readable = match readable {
        Some(n) if mark > 1 => Some(low_water::count(conn, theirs, n, source, mark)),
        other => other,
    };
    readiness(Ring { readable, writable }, kernel, mark)
}

//! Readiness of a shunted connection: of use to epoll, poll and select.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_engine::events::{self, Ring, readiness};
use shunt_engine::handshake::Phase;
use shunt_engine::stretch::{Path, path};
use shunt_shm::doorbell::arm;
use shunt_shm::grants::Grants;
use shunt_shm::region::{RESET, Section};
use shunt_shm::ring::{RxCursor, TxCursor};
use shunt_shm::sync::store_load_fence;

use crate::conn::{
    Conn, FILLS_KERNEL, FROZEN, HAD_ROOM, KERNEL_HINT, SHUT_RD, SHUT_WR, Sock, WANT_TCP,
};
use crate::epoll::low_water;
use crate::stream::{
    again, buffers, demote, doubt, killed, overflow, promote, sends_over_tcp, tcp, zerocopy,
};

/// What the kernel is asked when it has to be.
const KERNEL: u32 =
    events::IN | events::PRI | events::OUT | events::RDHUP | events::RDNORM | events::WRNORM;

/// Something else whenever bytes or room have come, or a stretch or direction has ended or been passed;
/// never 0.
pub fn stamp(conn: Conn) -> u64 {
    promote::glance(conn);
    let sock = conn.sock();
    let completions = u64::from(zerocopy::stamp(sock));
    let Some((_, theirs)) = sock.sections() else { return completions << 1 | 1 };
    let (prod, cons) = (theirs.prod.prod.load(Acquire), theirs.cons.cons.load(Acquire));
    let words = [
        &theirs.ctl.window,
        &sock.record().tx.buffer,
        &sock.record().rx.marks,
        &theirs.prod.marks,
        &theirs.prod.fin,
        &theirs.ctl.closed,
        &theirs.ctl.handed_over,
    ];
    let words =
        words.iter().fold(completions << 32, |all, w| all << 8 ^ u64::from(w.load(Relaxed)));
    // Odd factors, so that no single change is lost.
    (prod.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ cons.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) ^ words)
        | 1
}

/// Where the bytes are that are next to be read, and whether a mark is open behind them. A peer that has
/// sent nothing over TCP is in the ring from byte 0, whether this side has passed that mark or not.
fn source(sock: &Sock, theirs: &Section) -> (Path, bool) {
    let passed = sock.record().rx.marks.load(Relaxed);
    let set = theirs.prod.marks.load(Acquire);
    if (passed, set) == (0, 1) && RxCursor::next_mark(&theirs.prod, 0) == Ok(Some(0)) {
        return (Path::Ring, false);
    }
    (path(passed), set != passed)
}

/// What the kernel says of an end.
const END: u32 = events::RDHUP | events::HUP | events::ERR;

/// What is said of a broken connection: the next call, whatever it is, has something to tell.
const BROKEN: u32 = events::ERR | events::HUP | events::IN | events::OUT;

/// True when a look at the bytes would find that the peer broke the protocol.
fn is_broken(sock: &Sock, theirs: &Section) -> bool {
    let record = sock.record();
    let rx = &record.rx;
    let reader = || (rx.marks.load(Acquire), rx.cursor.pos());
    let (marks, pos) = reader();
    let out_of_order = match RxCursor::next_mark(&theirs.prod, marks) {
        Err(_) => true,
        // A mark is set after all bytes in front of it; bytes behind it, which come once more, may have been read.
        Ok(Some(at)) if path(marks) == Path::Ring && !sock.has(FROZEN) => {
            let first = pos.saturating_sub(sock.ring() as u64);
            !(first..=theirs.prod.prod.load(Acquire)).contains(&at)
        }
        Ok(_) => false,
    };
    // What another thread reads meanwhile puts nothing out of order.
    (out_of_order && reader() == (marks, pos))
        || !Grants::are_possible(&theirs.prod, rx.grants.load(Relaxed))
        || (path(record.tx.marks.load(Relaxed)) == Path::Ring
            && !record.tx.cursor.is_possible(&theirs.cons))
}

/// True when something has come that the kernel would not tell of.
pub fn has_come(sock: &Sock) -> bool {
    let broken = sock.phase() == Phase::Broken;
    broken
        || sock.sections().is_some_and(|(_, theirs)| {
            let (source, mark_open) = source(sock, theirs);
            let in_ring = theirs.prod.prod.load(Acquire) != sock.record().rx.cursor.pos();
            let ctl = &theirs.ctl;
            let end = [&theirs.prod.fin, &ctl.closed, &ctl.handed_over];
            mark_open
                || (source == Path::Ring && in_ring)
                || end.iter().any(|word| word.load(Relaxed) != 0)
                || sock.has(KERNEL_HINT | SHUT_RD | FROZEN)
        })
}

/// True when the next bytes that are sent go into the ring. What is in the kernel socket by then may fill that: the
/// program is told of room when the kernel would tell it ([`FILLS_KERNEL`]), though the ring has some at once.
fn sends_to_ring(sock: &Sock, mine: &Section, theirs: &Section) -> bool {
    let marks = sock.record().tx.marks.load(Relaxed);
    let is_promoted_next = || {
        sock.peer().is_some()
            && promote::may_enter(sock.record().side(), theirs, marks)
            && !sock.has(WANT_TCP)
            && theirs.ctl.handed_over.load(Relaxed) == 0
            && !demote::is_pending(sock)
            && TxCursor::marks_settled(&mine.prod, &theirs.cons)
    };
    (path(marks) == Path::Ring || is_promoted_next())
        && theirs.ctl.closed.load(Relaxed) == 0
        && !sock.has(SHUT_WR)
}

/// What somebody knows of a kernel socket who hears of its news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Nothing: it is to be asked.
    Nothing,
    /// There was nothing to read when it was last asked, and there was no news since.
    Silent,
    /// What it has just told, but for room, for the look of this number.
    Told(u32, u64),
}

impl Heard {
    /// What counts at a look. In a `shared` set news may go to somebody else.
    pub const fn at(self, look: u64, shared: bool) -> Self {
        match self {
            Self::Silent if shared => Self::Nothing,
            Self::Told(_, when) if when != look => Self::Nothing,
            known => known,
        }
    }

    /// What poll(2) would say now of bytes and the end, if that is known.
    const fn answer(self) -> Option<u32> {
        match self {
            Self::Told(bits, _) if bits & events::IN != 0 => Some(bits | events::RDNORM),
            Self::Told(bits, _) => Some(bits),
            Self::Silent | Self::Nothing => None,
        }
    }
}

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
    if told & events::IN == 0 || !again::is_awaited(conn.sock()) {
        return told;
    }
    again::settle(conn);
    if again::is_awaited(conn.sock()) { told & !(events::IN | events::RDNORM) } else { ask() }
}

/// The same without what waits on the error queue.
fn of_bytes(conn: Conn, wanted: u32, heard: &mut Heard) -> u32 {
    let sock = conn.sock();
    match promote::glance(conn) {
        Phase::Tcp | Phase::Candidate => return ask_kernel(conn),
        Phase::Broken => return BROKEN,
        Phase::Proposed | Phase::Active => {}
    }
    let Some((mine, theirs)) = sock.sections() else { return ask_kernel(conn) };
    if demote::is_due(sock) {
        demote::follow(conn);
    } else if demote::is_pending(sock) {
        demote::go_on(conn);
    }
    if is_broken(sock, theirs) {
        return BROKEN;
    }
    if again::is_open(sock, theirs) {
        again::settle(conn);
        *heard = Heard::Nothing;
    }
    let record = sock.record();
    let rx = &record.rx;
    let rx_marks = rx.marks.load(Relaxed);
    let (source, mark_open) = source(sock, theirs);
    let in_ring = theirs.prod.prod.load(Acquire).wrapping_sub(rx.cursor.pos());
    let readable = match source {
        // Up to the mark of a peer that has left by itself.
        _ if sock.has(FROZEN) => match RxCursor::ring_end(&theirs.prod, rx_marks) {
            Ok(Some(at)) => at.checked_sub(rx.cursor.pos()).filter(|left| *left > 0),
            // Who reads before the peer has come to leave reads the ring.
            Ok(None) if source == Path::Ring || mark_open => Some(in_ring),
            _ => None,
        },
        Path::Ring => Some(in_ring),
        // What comes twice may be on its way still, and is in front of all else.
        Path::Tcp if again::is_awaited(sock) => None,
        // The stretch before it is over or about to be.
        Path::Tcp if mark_open => Some(in_ring),
        Path::Tcp => None,
    };
    let too_little = |(free, of): (u64, u64)| free * 3 < of;
    // The next send that finds no room goes over TCP: nobody will tell of room, or there was none for long.
    let goes_over_tcp = || {
        !promote::can_be_rung(record.side(), theirs)
            || (!sock.has(SHUT_RD)
                && conn.ask(|fd| tcp::peer_is_gone(fd, &theirs.prod.fin)) == Some(true))
            || doubt::is_orphaned(sock)
            || overflow::is_due_soon(sock, theirs)
    };
    let writes_ring = sends_to_ring(sock, mine, theirs)
        && !(sock.has(FILLS_KERNEL) && sends_over_tcp(sock))
        && !(wanted & events::OUT != 0
            && too_little(buffers::room(sock, theirs))
            && goes_over_tcp());
    let writable = writes_ring.then(|| {
        let mut room = buffers::room(sock, theirs);
        if wanted & events::OUT != 0 && too_little(room) {
            arm(&mine.ctl.tx_arm, crate::stream::notify::ON_QUEUE);
            store_load_fence();
            room = buffers::room(sock, theirs);
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
    let bytes = reads && source == Path::Tcp && *heard != Heard::Silent;
    let end = (reads && sock.has(FROZEN))
        || (reads && mark_open && in_ring == 0)
        || (theirs.prod.fin.load(Relaxed) != 0 && end_is_news)
        || sock.has(KERNEL_HINT | SHUT_RD);
    // Behind a mark there may be urgent bytes, of which the kernel tells at once.
    let urgent = mark_open && wanted & events::PRI != 0 && source == Path::Ring;
    if source == Path::Ring
        && heard.answer().is_some_and(|told| told & (events::IN | END) == events::IN)
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
    let only_urgent = urgent && !bytes && !end && in_ring > 0 && kernel & END == 0;
    let kernel = if only_urgent { kernel & !(events::IN | events::RDNORM) } else { kernel };
    let kernel = if kernel & END == 0 { kernel } else { kernel | killed::readiness(sock) };
    let mark = sock.low_water() as u64;
    let readable = match readable {
        Some(n) if mark > 1 => Some(low_water::count(conn, theirs, n, (source, mark_open), mark)),
        other => other,
    };
    readiness(Ring { readable, writable }, kernel, mark)
}

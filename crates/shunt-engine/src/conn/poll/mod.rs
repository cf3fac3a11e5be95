//! What poll(2), select(2) and epoll are told of a connection: [`look`].
//!
//! A look *advances* at first what waits for a call of the program: a peer that has left is followed, and what comes twice is
//! dropped. Then it asks the rings ([`End::asked_of_rings`]), and the kernel socket where these do not say it all
//! ([`End::needs`]). What both say is put together by [`readiness`]. The questions are pure; what a look notes has `notes` or
//! `takes` in its name.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Record;
use shunt_shm::doorbell::{ON_QUEUE, arm};
use shunt_shm::region::RESET;
use shunt_shm::ring::RxCursor;
use shunt_shm::sync::store_load_fence;

use crate::conn::flags::{FILLS_KERNEL, FROZEN, HAD_ROOM, HOSTED, KERNEL_HINT, SHUT_RD, SHUT_WR};
use crate::conn::overflow::{Full, is_too_little};
use crate::conn::repeated::{are_awaited, are_pending};
use crate::conn::{End, Source, has, low_water, put, reset, sends_over_tcp};
use crate::events::{self, Ring, readiness};
use crate::handshake::Phase;
use crate::kernel::{self, KernelSocket, Look, is_failure};
use crate::spin::Nanos;
use crate::stretch::{Path, path};

/// What the kernel is asked when it has to be.
pub const KERNEL: u32 =
    events::IN | events::PRI | events::OUT | events::RDHUP | events::RDNORM | events::WRNORM;
/// What it says of bytes.
const BYTES: u32 = events::IN | events::RDNORM;
/// What it says of room.
const ROOM: u32 = events::OUT | events::WRNORM;

/// What is said of a broken connection: the next call, whatever it is, has something to tell.
pub const BROKEN: u32 = events::ERR | events::HUP | events::IN | events::OUT;

/// What somebody knows of a kernel socket who hears of its news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelReadiness {
    /// Nothing: it is to be asked.
    Nothing,
    /// There was nothing to read when it was last asked, and there was no news since.
    Silent,
    /// What it has just told, but for room, for the look of this number.
    Told(u32, u64),
}

impl KernelReadiness {
    /// What counts at a look. In a `shared` set news may go to somebody else.
    #[must_use]
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

/// The connection that is looked at, and whoever looks.
pub trait Polled {
    /// The kernel socket.
    type Socket: KernelSocket;

    /// Asks it; `None`: another thread has closed it.
    fn ask<T>(&self, question: impl FnMut(&Self::Socket) -> T) -> Option<T>;
    /// Monotonic nanoseconds.
    fn now(&self) -> Nanos;
    /// `SO_RCVLOWAT`, at least 1.
    fn low_water(&self) -> u64;
    /// The doorbells of the peer are at hand.
    fn can_tell(&self) -> bool;
    /// The agent that brings what comes from another host is gone.
    fn is_cut_off(&self) -> bool {
        false
    }
    /// Nobody holds the socket of a peer that has ended its direction any more.
    fn is_orphaned(&self) -> bool;
    /// Follows a peer that has left ([`End::follow`]).
    fn follows(&self);
    /// Goes on with what is to be sent once more ([`End::repeat`]).
    fn repeats(&self);
    /// Passes the end of the ring, and drops what comes twice, as far as it is there.
    fn settles(&self);
    /// The peer broke the protocol.
    fn breaks_off(&self);
    /// Something may happen that nobody tells of: all who wait look again for a while.
    fn doubts(&self);
    /// There are bytes in the kernel socket that no mark explains.
    fn finds_unmarked(&self);
}

/// What the rings say to one who waits for certain events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Where the next bytes are.
    pub source: Source,
    /// Bytes in the ring that were not read.
    pub in_ring: u64,
    /// Of these, those that come next.
    pub readable: Option<u64>,
    /// Room in the ring, of how much; `None`: what is sent next goes over TCP.
    pub writable: Option<(u64, u64)>,
}

/// What only the kernel can say to one who waits for certain events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Whether there are bytes.
    pub bytes: bool,
    /// Whether there is an end.
    pub end: bool,
    /// Whether there is urgent data behind a mark.
    pub urgent: bool,
    /// Whether there is room.
    pub room: bool,
}

impl Needs {
    const fn any(self) -> bool {
        self.bytes || self.end || self.urgent || self.room
    }

    /// Of what the kernel has said, what counts. Other bytes behind a mark are counted with those in the ring, or come to be
    /// read after them.
    const fn heed(self, kernel: u32, in_ring: u64) -> u32 {
        let only_urgent = self.urgent && !self.bytes && !self.end;
        if only_urgent && in_ring > 0 && kernel & events::END == 0 {
            kernel & !BYTES
        } else {
            kernel
        }
    }
}

/// The readiness of a connection. `end`: what it has of shared memory. `wanted`: the events that the asker is interested in.
/// `heard`: what the asker knows, and knows afterwards.
#[inline]
pub fn look(
    (record, end): (&Record, Option<End<'_>>),
    phase: Phase,
    (wanted, heard): (u32, &mut KernelReadiness),
    host: &impl Polled,
) -> u32 {
    match (phase, end) {
        (Phase::Broken, _) => BROKEN,
        (Phase::Proposed | Phase::Active, Some(end)) => end.look(wanted, heard, host),
        _ => asks_kernel(record, end, host),
    }
}

/// poll(2)'s answer about the kernel socket. What comes twice is not there to be read.
fn asks_kernel(record: &Record, end: Option<End<'_>>, host: &impl Polled) -> u32 {
    let ask = || host.ask(|socket| socket.readiness(KERNEL)).unwrap_or(0);
    let mut told = ask();
    if told & events::END != 0 && !has(record, KERNEL_HINT) {
        // Whoever is told of an end calls next, and has to find it.
        put(record, KERNEL_HINT, true);
    }
    if told & events::HUP != 0 {
        told |= reset::readiness(record, end);
    }
    // A mark in front of which the ring is empty may have come since the look began, and what comes twice behind it.
    if told & events::IN == 0 || !end.map_or(are_awaited(record), |end| end.may_settle()) {
        return told;
    }
    host.settles();
    if !are_awaited(record) {
        return ask();
    }
    // A read finds the program's own end in front of them.
    let is_own = told & events::RDHUP != 0 && host.ask(kernel::look) == Some(Look::OwnEnd);
    if is_own { told } else { told & !BYTES }
}

/// Pure questions.
impl End<'_> {
    /// What the rings say. `writes_ring`: what is sent next goes there.
    #[must_use]
    pub fn asked_of_rings(&self, writes_ring: bool) -> Rings {
        let source = self.source();
        Rings {
            source,
            readable: self.readable(source),
            in_ring: self.in_ring(),
            writable: writes_ring.then(|| self.room()),
        }
    }

    /// What only the kernel can say. `asks_room`: not even whether there is room is known.
    #[must_use]
    pub fn needs(
        &self,
        wanted: u32,
        rings: &Rings,
        heard: KernelReadiness,
        asks_room: bool,
    ) -> Needs {
        let Rings { source: Source { path, has_mark }, in_ring, readable, .. } = *rings;
        let reads = wanted & (BYTES | events::PRI | events::RDHUP) != 0;
        // Who can read, and does not ask for the end by itself, learns of it when it has read: but for the end of both
        // directions (`tcp_poll`: HUP), and a reset, of which all are told beside the bytes.
        let end_is_news = readable.is_none_or(|n| n == 0)
            || wanted & events::RDHUP != 0
            || self.has(SHUT_WR)
            || self.theirs.ctl.closed.load(Relaxed) == RESET;
        Needs {
            bytes: reads && path == Path::Tcp && heard != KernelReadiness::Silent,
            end: (reads && self.has(FROZEN))
                || (reads && has_mark && in_ring == 0)
                || (self.theirs.prod.fin.load(Relaxed) != 0 && end_is_news)
                || self.has(KERNEL_HINT | SHUT_RD),
            // Behind a mark there may be urgent bytes, of which the kernel tells at once.
            urgent: has_mark && wanted & events::PRI != 0 && path == Path::Ring,
            room: asks_room,
        }
    }

    /// True when there are bytes in the kernel socket that no mark explains. Who reads in the ring, and waits for the next edge
    /// when it is empty, would not come to bytes of which the kernel has told already.
    #[must_use]
    pub fn has_unmarked(&self, socket: &impl KernelSocket) -> bool {
        // Those of a peer that has announced its end come to be read with that: which spares the question to the kernel.
        if self.theirs.prod.fin.load(Acquire) != 0 {
            return false;
        }
        // The bytes before the marks.
        let waiting = socket.waiting();
        let marks = self.record.rx.marks.load(Relaxed);
        waiting > 0
            && path(marks) == Path::Ring
            && RxCursor::next_mark(&self.theirs.prod, marks) == Ok(None)
            && self.theirs.prod.fin.load(Acquire) == 0
            && !self.has(FROZEN)
    }
}

/// What counts of the kernel's answer where it is ahead of a peer on another host: not the end.
#[cold]
fn ahead(kernel: u32, host: &impl Polled) -> u32 {
    let has_bytes = host.ask(KernelSocket::waiting).is_some_and(|waiting| waiting > 0);
    kernel & !events::END & if has_bytes { u32::MAX } else { !events::IN }
}

/// Steps of a look.
impl End<'_> {
    fn look(&self, wanted: u32, heard: &mut KernelReadiness, host: &impl Polled) -> u32 {
        if self.is_to_follow() || self.is_let_go() {
            host.follows();
        } else if are_pending(self.record) {
            host.repeats();
        }
        if self.is_violated() {
            host.breaks_off();
            return BROKEN;
        }
        if self.has(HOSTED) && self.has(KERNEL_HINT) && host.is_cut_off() && self.is_stranded() {
            host.breaks_off();
            return BROKEN;
        }
        if self.may_settle() {
            host.settles();
            *heard = KernelReadiness::Nothing;
        }
        let asks_out = wanted & events::OUT != 0;
        let writes_ring = self.sends_to_ring(host.can_tell())
            && !(self.has(FILLS_KERNEL) && sends_over_tcp(self.record))
            && !(asks_out && is_too_little(self.room()) && self.goes_over_tcp(host));
        let mut rings = self.asked_of_rings(writes_ring);
        if asks_out && rings.writable.is_some_and(is_too_little) {
            arm(&self.mine.ctl.tx_arm, ON_QUEUE);
            // SYNC POINT word-arm.
            store_load_fence();
            rings.writable = Some(self.room());
        }
        let writes_tcp = !writes_ring && wanted & ROOM != 0;
        let had_room = writes_tcp && self.takes_room();
        let needs = self.needs(wanted, &rings, *heard, writes_tcp && !had_room);
        let is_told =
            heard.answer().is_some_and(|told| told & (events::IN | events::END) == events::IN);
        if rings.source.path == Path::Ring && is_told {
            let has_unmarked = host.ask(|socket| self.has_unmarked(socket)) == Some(true);
            if has_unmarked {
                host.finds_unmarked();
            }
        }
        let room = if had_room { ROOM } else { 0 };
        let kernel = match heard.answer().filter(|_| !needs.room) {
            _ if !needs.any() => room,
            Some(told) => told | room,
            None => {
                let kernel = asks_kernel(self.record, Some(*self), host);
                let is_silent = kernel & !ROOM == 0;
                *heard = if is_silent { KernelReadiness::Silent } else { KernelReadiness::Nothing };
                if writes_tcp && kernel & events::OUT != 0 {
                    self.notes_room();
                }
                kernel
            }
        };
        let mut kernel = needs.heed(kernel, rings.in_ring);
        if kernel & events::END != 0 && !is_failure(kernel) && self.awaits_end() {
            if host.is_cut_off() {
                host.breaks_off();
                return BROKEN;
            }
            // The agent is about to bring that end, unless it is killed before: which wakes nobody.
            host.doubts();
            kernel = ahead(kernel, host);
        }
        if kernel & events::END != 0 {
            kernel |= reset::readiness(self.record, Some(*self));
        } else if kernel & BYTES != 0 && self.is_under_agreement() {
            // The agent tells when it has declined, and bytes for the program may be there: but one of before did not.
            host.doubts();
            kernel &= !BYTES;
        }
        let mark = host.low_water();
        let readable = match rings.readable {
            Some(n) if mark > 1 => {
                let waiting = || host.ask(KernelSocket::waiting).unwrap_or(0);
                let bytes = (n, rings.source);
                Some(low_water::count(self, bytes, mark, waiting, || host.doubts()))
            }
            other => other,
        };
        readiness(Ring { readable, writable: rings.writable }, kernel, mark)
    }

    /// True when the next send that finds no room goes over TCP: nobody will tell of room, or there was none for long.
    fn goes_over_tcp(&self, host: &impl Polled) -> bool {
        !self.can_be_rung()
            || host.ask(|socket| self.is_peer_gone_in(socket)) == Some(true)
            || host.is_orphaned()
            || self.overflows_soon(host)
    }

    /// True when a sender that asks for room is to be told that there is some, over TCP: if that is not due yet, those who
    /// wait look again.
    #[cold]
    fn overflows_soon(&self, host: &impl Polled) -> bool {
        match self.notes_no_room(host.now()) {
            Full::Overflows => true,
            Full::WaitsFor(_) => {
                host.doubts();
                false
            }
            Full::Waits => {
                // A kernel that tells of the program's own end all the time is not heard of the peer's.
                if self.has(SHUT_RD) {
                    self.notes_unheard(host.now());
                    host.doubts();
                }
                false
            }
        }
    }

    /// The kernel socket has room, which is good for one answer.
    fn notes_room(&self) {
        self.put(HAD_ROOM, true);
        if self.has(FILLS_KERNEL) {
            self.put(FILLS_KERNEL, false);
        }
    }

    /// True when that was noted.
    fn takes_room(&self) -> bool {
        let had = self.has(HAD_ROOM);
        if had {
            self.put(HAD_ROOM, false);
        }
        had
    }
}

#[cfg(test)]
mod tests;

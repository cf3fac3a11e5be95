//! One end of a shunted connection, as a value over what it works on.
//!
//! An [`End`] knows no descriptor and makes no system call. What it can be asked is of three kinds:
//!
//! * *questions* (`is_…`, `has_…`, [`End::readable`], [`End::room`]): they change nothing, and may be asked by any thread;
//! * *events*, of which it takes a note (`notes_…`);
//! * *rules* of one of its concerns, a module each: [`close`], [`leave`], [`repeated`], [`reset`], [`overflow`].
//!
//! Where an end stands in total, and what moves it: [`state`].
//!
//! What the peer writes ([`End::theirs`]) can be anything at any time: each word of it is read once, and checked before it
//! counts.

mod agree;
pub mod close;
mod counts;
pub mod flags;
mod inherit;
pub mod leave;
mod low_water;
pub mod overflow;
pub mod poll;
mod readiness;
pub mod recv;
pub mod repeated;
pub mod reset;
pub mod send;
pub mod state;
mod wait;

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Record;
use shunt_shm::handover;
use shunt_shm::region::{Section, Side};
use shunt_shm::ring::{RxCursor, UNLIMITED, heard};
use shunt_wire::clc::Proposal;

use crate::buffers;
use crate::handshake::Phase;
use crate::kernel::{KernelSocket, has_failed, peer_is_gone};
use crate::stretch::{Path, path};
use flags::Flags;
pub use readiness::Source;
pub use wait::kernel_events;

/// An end.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// What this end keeps, and shares with its own forks: trusted.
    pub record: &'a Record,
    /// What it writes for the peer.
    pub mine: &'a Section,
    /// What the peer writes for it: never trusted.
    pub theirs: &'a Section,
    /// Length of the buffer of each ring, in bytes.
    pub ring: u64,
}

/// True where one of these was noted.
#[inline]
#[must_use]
pub fn has(record: &Record, flags: Flags) -> bool {
    record.id.flags.load(Relaxed) & flags.bits() != 0
}

/// Notes them, or forgets them.
#[inline]
pub fn put(record: &Record, flags: Flags, on: bool) {
    let word = &record.id.flags;
    if on {
        word.fetch_or(flags.bits(), Relaxed);
    } else {
        word.fetch_and(!flags.bits(), Relaxed);
    }
}

/// True once an end is settled in a link group, or half settled: a call without one has to look for it before it moves bytes over TCP, as
/// another program that holds the end may have gone into the ring. With the lock of a direction held, where nobody goes there without it.
#[must_use]
pub fn is_settled(record: &Record) -> bool {
    phase(record) == Phase::Active || is_half_settled(record)
}

/// True for an acceptor's candidate that has its place already: another program is about to answer, or was killed as it did. Whether
/// the client has that answer the place alone can tell.
#[must_use]
pub fn is_half_settled(record: &Record) -> bool {
    let is_acceptors = || record.side() == Side::Server;
    phase(record) == Phase::Candidate && record.id.region.load(Relaxed) != 0 && is_acceptors()
}

#[inline]
fn phase(record: &Record) -> Phase {
    Phase::from_code(record.id.phase.load(Acquire))
}

/// True while the sending direction is in a TCP stretch: room to write is then the kernel's news.
#[inline]
#[must_use]
pub fn sends_over_tcp(record: &Record) -> bool {
    path(record.tx.marks.load(Relaxed)) == Path::Tcp
}

/// Which way a connection sends at a moment. Whoever is about to wait for room notes it before the last look: where another
/// thread, or a process that holds the same end, has it go another way meanwhile, that look was at the wrong place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendPath {
    marks: u32,
    /// The peer has closed, or ended both directions: the kernel alone can answer what is sent.
    is_closed: bool,
}

impl SendPath {
    /// As it is now.
    #[inline]
    #[must_use]
    pub fn of(record: &Record, end: Option<&End<'_>>) -> Self {
        let is_closed = end.is_some_and(|end| end.theirs.ctl.closed.load(Relaxed) != 0);
        Self { marks: record.tx.marks.load(Relaxed), is_closed }
    }

    /// Over the kernel socket: room there is what a sender waits for.
    #[inline]
    #[must_use]
    pub const fn is_tcp(self) -> bool {
        self.is_closed || matches!(path(self.marks), Path::Tcp)
    }
}

impl End<'_> {
    /// True where one of these was noted.
    #[inline]
    #[must_use]
    pub fn has(&self, flags: Flags) -> bool {
        has(self.record, flags)
    }

    /// Notes them, or forgets them.
    #[inline]
    pub fn put(&self, flags: Flags, on: bool) {
        put(self.record, flags, on);
    }

    /// Where the handshake stands.
    #[inline]
    #[must_use]
    pub fn phase(&self) -> Phase {
        phase(self.record)
    }

    /// The side of the link group on which it is.
    #[inline]
    #[must_use]
    pub fn side(&self) -> Side {
        self.record.side()
    }

    /// True while the peer's direction may be behind what the kernel says of its end: the peer is on another host.
    #[inline]
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.has(flags::HOSTED) && self.theirs.prod.behind.load(Acquire) != 0
    }

    /// The same of an end that this program has not made itself.
    #[inline]
    #[must_use]
    pub fn awaits_end(&self) -> bool {
        self.is_behind() && !self.has(flags::SHUT_RD)
    }

    /// True while this host's agent and a server that speaks the kernel's SMC-R agree on it: what comes over TCP is the agent's.
    #[must_use]
    pub fn is_under_agreement(&self) -> bool {
        self.has(flags::STAYS) && self.phase() == Phase::Proposed && self.declined().is_none()
    }

    /// True while a mark of this side is on its way to another host: no byte behind it may go over TCP.
    #[inline]
    #[must_use]
    pub fn has_unheard_marks(&self) -> bool {
        let marks = self.record.tx.marks.load(Relaxed);
        let said = self.theirs.cons.heard.load(Acquire);
        self.has(flags::HOSTED) && said != 0 && marks != 0 && said != heard(marks)
    }

    /// True where the peer is on another host, and the link to it is up.
    #[inline]
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.has(flags::HOSTED) && self.theirs.cons.heard.load(Relaxed) != 0
    }

    /// True where a connection to another host needs the agent: its bytes come through a ring, or go through one, or a mark of this
    /// side is on its way. Asked once the agent is gone, so that all that it has said counts, and nothing changes the answer.
    #[cold]
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        let (tx, theirs) = (&self.record.tx, self.theirs);
        let marks = self.record.rx.marks.load(Relaxed);
        let has_come = theirs.prod.fin.load(Acquire) != 0 && !self.is_behind();
        let comes = path(marks) == Path::Ring
            && !has_come
            && RxCursor::next_mark(&theirs.prod, marks) == Ok(None);
        let is_through =
            self.has(flags::SHUT_WR) && theirs.cons.cons.load(Acquire) == tx.cursor.pos();
        let goes = path(tx.marks.load(Relaxed)) == Path::Ring
            && !is_through
            && theirs.ctl.closed.load(Acquire) == 0
            && !handover::has_left(&theirs.ctl.handed_over);
        self.has(flags::HOSTED) && (comes || goes || self.has_unheard_marks())
    }

    /// True while a link to another host that has failed is being settled, and bytes of this side lie in the ring.
    #[must_use]
    pub fn is_being_settled(&self) -> bool {
        self.is_linked()
            && handover::is_leaving(&self.theirs.ctl.handed_over)
            && path(self.record.tx.marks.load(Relaxed)) == Path::Ring
    }

    /// [`peer_is_gone`], where the kernel is not ahead of what the peer has said. A reset counts at once: where the agent is gone
    /// nobody will say more.
    #[must_use]
    pub fn is_peer_gone_in(&self, socket: &impl KernelSocket) -> bool {
        if self.is_behind() {
            return has_failed(socket);
        }
        peer_is_gone(socket, &self.theirs.prod.fin)
    }

    /// Most bytes that this end lets lie unread in the peer's RMB.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self.record.tx.buffer.load(Relaxed) {
            // Without a look at what the peer writes.
            0 => UNLIMITED,
            sending => {
                buffers::unread(sending, self.theirs.ctl.window.load(Relaxed)).unwrap_or(UNLIMITED)
            }
        }
    }

    /// How many bytes may be sent into the ring, and of how many ([`shunt_shm::ring::TxCursor::room`]).
    #[inline]
    #[must_use]
    pub fn room(&self) -> (u64, u64) {
        let cons = self.theirs.cons.cons.load(Acquire);
        self.record.tx.cursor.room(cons, self.ring, self.limit())
    }

    /// Whether what this side puts into the ring will be read. An acceptor has answered in a call on its socket;
    /// a client has posted its proposal in connect, and may go on past the library (io_uring).
    #[inline]
    #[must_use]
    pub fn is_read_there(&self) -> bool {
        self.side() == Side::Client || Proposal::is_read(self.theirs.setup.state.load(Acquire))
    }

    /// Whether the peer can ring for who waits for room. An acceptor has the client's doorbells from
    /// the beginning; a client that has only read so far, and that the agent did not answer, has not.
    #[inline]
    #[must_use]
    pub fn can_be_rung(&self) -> bool {
        self.side() == Side::Client
            || self.theirs.setup.state.load(Acquire) == Proposal::Active as u32
    }

    /// Whether this side, which has set so many marks, may enter the ring: for the first time in good faith, and
    /// again when the peer can tell of room there.
    #[inline]
    #[must_use]
    pub fn may_enter(&self, marks: u32) -> bool {
        self.is_read_there() && (marks == 0 || self.can_be_rung())
    }
}

#[cfg(test)]
mod tests {
    use shunt_shm::region::DEAF;
    use shunt_shm::ring::TxCursor;

    use super::*;
    use crate::model::Memory;

    #[test]
    fn to_a_peer_that_has_ended_both_directions_the_kernel_has_the_room() {
        let memory = Memory::default();
        memory.enter_ring();
        let end = memory.end();
        let path = SendPath::of(end.record, Some(&end));
        assert!(!path.is_tcp() && !sends_over_tcp(end.record));
        end.theirs.ctl.closed.store(DEAF, Relaxed);
        let now = SendPath::of(end.record, Some(&end));
        assert!(now.is_tcp() && now != path, "whoever has looked before that looks again");
    }

    #[test]
    fn an_acceptor_enters_the_ring_of_a_client_that_is_there() {
        let memory = Memory::default();
        let end = memory.end();
        end.record.id.side.store(Side::Server as u32, Relaxed);
        for (state, is_read, can_be_rung) in [
            (Proposal::Free, false, false),
            (Proposal::Proposed, false, false),
            (Proposal::Withdrawn, false, false),
            (Proposal::Used, true, false),
            (Proposal::Active, true, true),
        ] {
            end.theirs.setup.state.store(state as u32, Relaxed);
            assert_eq!(end.is_read_there(), is_read, "{state:?}");
            assert_eq!(end.can_be_rung(), can_be_rung, "{state:?}");
            assert_eq!(end.may_enter(0), is_read, "in good faith: {state:?}");
            assert_eq!(end.may_enter(2), can_be_rung, "again: {state:?}");
        }
        end.record.id.side.store(Side::Client as u32, Relaxed);
        end.theirs.setup.state.store(0, Relaxed);
        assert!(
            end.may_enter(0) && end.may_enter(2),
            "an acceptor has answered in a call of its own"
        );
    }

    #[test]
    fn what_needs_no_agent_goes_on_without_it() {
        type Change = fn(&End<'_>);
        let over_tcp: Change = |_| ();
        let sends: Change = |end| end.record.tx.marks.store(1, Relaxed);
        let receives: Change = |end| {
            end.record.rx.marks.store(1, Relaxed);
            end.theirs.prod.marks.store(1, Relaxed);
        };
        // Settled by the agents: a mark leads out of the ring, and the peer has left this side's.
        let is_to_pass: Change = |end| {
            end.record.rx.marks.store(1, Relaxed);
            TxCursor::set_mark(&end.theirs.prod, 0);
            TxCursor::set_mark(&end.theirs.prod, 0);
        };
        let is_to_follow: Change = |end| {
            end.record.tx.marks.store(1, Relaxed);
            handover::leave(&end.theirs.ctl.handed_over, || 1);
        };
        // The end of a direction is behind all its bytes; nothing goes to a program that has closed.
        let has_come: Change = |end| {
            end.record.rx.marks.store(1, Relaxed);
            end.theirs.prod.marks.store(1, Relaxed);
            end.theirs.prod.fin.store(1, Relaxed);
        };
        let is_to_come: Change = |end| {
            end.record.rx.marks.store(1, Relaxed);
            end.theirs.prod.marks.store(1, Relaxed);
            end.theirs.prod.fin.store(1, Relaxed);
            end.theirs.prod.behind.store(1, Relaxed);
        };
        let is_through: Change = |end| {
            end.record.tx.marks.store(1, Relaxed);
            end.put(flags::SHUT_WR, true);
        };
        let has_closed: Change = |end| {
            end.record.tx.marks.store(1, Relaxed);
            end.theirs.ctl.closed.store(1, Relaxed);
        };
        let is_unheard: Change = |end| {
            end.record.tx.marks.store(2, Relaxed);
            end.theirs.cons.heard.store(heard(1), Relaxed);
        };
        for (change, needs) in [
            (over_tcp, false),
            (sends, true),
            (receives, true),
            (is_to_pass, false),
            (is_to_follow, false),
            (has_come, false),
            (is_to_come, true),
            (is_through, false),
            (has_closed, false),
            (is_unheard, true),
        ] {
            let memory = Memory::default();
            let end = memory.end();
            change(&end);
            assert!(!end.is_stranded(), "the peer is on this host");
            end.put(flags::HOSTED, true);
            assert_eq!(end.is_stranded(), needs);
        }
    }

    #[test]
    fn a_sender_that_has_set_no_size_has_no_limit() {
        let memory = Memory::default();
        memory.end().theirs.ctl.window.store(4096, Relaxed);
        assert_eq!(memory.end().limit(), UNLIMITED);
        memory.end().record.tx.buffer.store(8192, Relaxed);
        assert_eq!(memory.end().limit(), 12_288);
    }
}

//! One connection, without its device: the region's words on one side, CDC's cursors on the other.
//!
//! To the region, the kernel plays the far program: what a message says becomes the words of its section ([`Lane::hear`]). What
//! the local program publishes ([`Lane::gather`]) becomes places in the kernel's ring, and a message behind them.
//!
//! The two rings of a direction differ in length, and bytes leave the local one when the device has sent them: a kernel tells
//! what it has read when a good part of its own ring was, which may be longer (`smc_tx.c`: `smc_tx_consumer_update`). Linux frees
//! its own buffer then as well (`smc_cdc.c`: `smc_cdc_tx_handler`).

use shunt_shm::region::{CLOSED, DEAF, RESET, Section, Side};
use shunt_shm::ring::Span;
use shunt_shm::sync::Ordering;
use shunt_smc::Connection;
use shunt_smc::connection::Placement;
use shunt_smc::wire::LINK_MESSAGE;
use shunt_smc::wire::cdc::Cdc;

use super::outcome::Reset;
use crate::lane::Lane;
use crate::message::Words;
use crate::mirror::News;

/// What the program has published: bytes, and where they go.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Gathered {
    pub(super) span: Span,
    pub(super) placement: Option<Placement>,
    /// There is more, and room for it.
    pub(super) has_more: bool,
    /// The kernel's words have changed by it.
    pub(super) is_heard: bool,
}

/// True for a program that would go on over TCP. The first mark leads into the ring.
const fn leaves(marks: u32, handed_over: u32) -> bool {
    marks > 1 || handed_over != 0
}

/// See the module.
#[derive(Debug)]
pub(super) struct KernelLane {
    lane: Lane,
    connection: Connection,
    /// What the kernel says, as its section has it.
    said: Words,
    /// Bytes that the program has taken.
    taken: u64,
    /// The program has shut both directions.
    is_deaf: bool,
    is_aborted: bool,
    has_said_abort: bool,
    /// What the kernel did that ends the connection.
    broke: Option<Reset>,
}

impl KernelLane {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            lane: Lane::default(),
            connection,
            said: Words::default(),
            taken: 0,
            is_deaf: false,
            is_aborted: false,
            has_said_abort: false,
            broke: None,
        }
    }

    /// Both ends have agreed: the kernel's direction enters the ring behind so many bytes of TCP.
    pub(super) fn begin(&mut self, theirs: &Section, over_tcp: u64) {
        self.lane.begin(theirs);
        self.said.marks = 1;
        self.said.mark_at = [0, over_tcp];
    }

    /// What the program has published since, of at most `most` bytes.
    ///
    /// # Errors
    /// Why the connection is to be reset.
    pub(super) fn gather(
        &mut self,
        mine: &Section,
        ring: u64,
        most: u64,
    ) -> Result<Gathered, Reset> {
        // At once, also where bytes before it wait for room.
        let marks = mine.prod.marks.load(Ordering::Acquire);
        if leaves(marks, mine.ctl.handed_over.load(Ordering::Acquire)) {
            return Err(Reset::Leaves);
        }
        // What was not sent before a reset is not sent.
        if mine.ctl.closed.load(Ordering::Acquire) == RESET {
            return Err(Reset::Program);
        }
        let state = self.connection.peer_state();
        let is_peer_gone = state.is_closed || state.is_aborted;
        // Not before the program's own words were looked at.
        if is_peer_gone && mine.prod.prod.load(Ordering::Acquire) != self.lane.told() {
            return Err(Reset::PeerClosed);
        }
        let most = most.min(self.connection.room().into());
        let posting = self.lane.gather(mine, ring, most).map_err(Reset::Broken)?;
        let Some(posting) = posting else { return Ok(Gathered::default()) };
        let (span, words) = (posting.span, posting.words);
        // Meanwhile. The kernel is never said to see such a mark, so no byte behind it goes over TCP.
        if leaves(words.marks, words.handed_over) {
            return Err(Reset::Leaves);
        }
        let length = span.len() as u64;
        // `gather` has looked that the program has taken no more than it was told of.
        let taken = u32::try_from(words.cons - self.taken).unwrap_or(u32::MAX);
        self.connection.consume(taken);
        self.taken = words.cons;
        let placement = self.connection.produce(length);
        let placed = placement.map_or(0, |placement| placement.length().into());
        if placed != length {
            return Err(Reset::PeerClosed);
        }
        self.lane.post(&posting, ring);
        if words.fin != 0 {
            self.connection.finish();
        }
        match words.closed {
            CLOSED => self.connection.close(),
            DEAF => {
                self.connection.finish();
                self.is_deaf = true;
            }
            _ => {}
        }
        // As the far program would, once it has come to the ring.
        let is_heard = words.marks != self.said.heard;
        (self.said.heard, self.said.marks_passed) = (words.marks, words.marks);
        let has_more = posting.has_more && self.connection.room() > 0;
        Ok(Gathered { span, placement, has_more, is_heard })
    }

    /// Bytes that the kernel was told of: those that a message tells of which is posted now.
    pub(super) const fn told(&self) -> u64 {
        self.lane.told()
    }

    /// The message that is due.
    pub(super) fn message(&mut self) -> Option<[u8; LINK_MESSAGE]> {
        let message = self.connection.message();
        self.has_said_abort |= self.is_aborted;
        message
    }

    /// The program has let go of the connection: this end is closed, if it was not, unless bytes are still to be sent.
    pub(super) fn close(&mut self, mine: &Section) {
        if mine.prod.prod.load(Ordering::Acquire) == self.lane.told() {
            self.connection.close();
        }
    }

    /// This end is aborted.
    pub(super) fn abort(&mut self) {
        self.connection.abort();
        self.is_aborted = true;
    }

    /// The device has sent all bytes up to this one, and looks at them no more.
    pub(super) const fn sent(&mut self, bytes: u64) {
        self.said.cons = bytes;
    }

    /// A message has come.
    pub(super) fn receive(&mut self, message: &Cdc) {
        let news = match self.connection.receive(message) {
            Ok(news) => news,
            Err(violation) => {
                self.broke.get_or_insert(Reset::Violation(violation));
                return;
            }
        };
        self.said.prod += u64::from(news.bytes);
        // What comes behind a close is of no consequence.
        if !self.connection.is_closed() && self.connection.urgent().is_some() {
            self.broke.get_or_insert(Reset::Urgent);
        }
        if !self.connection.is_closed() && news.bytes > 0 && self.is_deaf {
            self.broke.get_or_insert(Reset::Deaf);
        }
        let state = self.connection.peer_state();
        if self.connection.has_peer_finished() {
            self.said.fin = 1;
        }
        if state.is_aborted {
            self.said.closed = RESET;
        } else if state.is_closed {
            self.said.closed = CLOSED;
        }
    }

    /// Writes what the kernel has said into its section.
    ///
    /// # Errors
    /// Why the connection is to be reset; what came before that was written.
    pub(super) fn tell(
        &mut self,
        (theirs, side): (&Section, Side),
        ring: u64,
    ) -> Result<News, Reset> {
        let said = self.said;
        let news = match self.lane.hear(&said, (theirs, side), ring) {
            Ok(news) => news,
            Err(impossible) => return Err(Reset::Impossible(impossible)),
        };
        match self.broke {
            Some(why) => Err(why),
            None if self.said.closed == RESET && !self.connection.is_closed() => {
                Err(Reset::Aborted)
            }
            None => Ok(news),
        }
    }

    /// Both ends are closed. A kernel that broke a rule is not waited for, once it was told of the abort.
    pub(super) const fn is_over(&self) -> bool {
        let is_violated = matches!(self.broke, Some(Reset::Violation(_)));
        self.connection.is_over() || (is_violated && self.has_said_abort)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shunt_shm::sync::AtomicU32;
    use shunt_smc::wire::RmbSize;
    use shunt_smc::wire::clc::{End, Host};
    use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, Remote, RemoteKey};

    use super::*;

    const SIZE: RmbSize = RmbSize::SMALLEST;

    fn lane() -> KernelLane {
        let end = End {
            host: Host { id: [1; 8], gid: Gid([2; 16]), mac: [3; 6] },
            pair: PairNumber(4),
            first_packet: PacketNumber::new(5),
            mtu: Mtu::B1024,
            rmb: Remote { address: 0x1_0000, key: RemoteKey(6) },
            index: 1,
            size: SIZE,
            token: 7,
        };
        KernelLane::new(Connection::new(SIZE, &end))
    }

    /// A program leaves the ring just as its agent looks: it never hears that its switch point is seen.
    #[test]
    fn a_switch_point_between_two_looks_is_not_seen() {
        const ROUNDS: u32 = 20_000;
        let shared = Arc::new((Section::default(), AtomicU32::new(0), AtomicU32::new(0)));
        let program = Arc::clone(&shared);
        let program = std::thread::spawn(move || {
            let (mine, round, done) = &*program;
            for next in 1..=ROUNDS {
                while round.load(Ordering::Acquire) != next {
                    std::thread::yield_now();
                }
                (0..next % 100).for_each(|_| core::hint::spin_loop());
                mine.prod.marks.store(2, Ordering::Release);
                done.store(next, Ordering::Release);
            }
        });
        let (mine, round, done) = &*shared;
        for next in 1..=ROUNDS {
            let mut lane = lane();
            mine.prod.marks.store(1, Ordering::Release);
            round.store(next, Ordering::Release);
            let mut looks = 0;
            while done.load(Ordering::Acquire) != next {
                let gathered = lane.gather(mine, SIZE.bytes().into(), 1_000);
                assert!(lane.said.heard <= 1, "{gathered:?}");
                looks += 1;
                if looks > 100 {
                    std::thread::yield_now();
                }
            }
            let left = lane.gather(mine, SIZE.bytes().into(), 1_000);
            assert!(matches!(left, Err(Reset::Leaves)), "{left:?}");
        }
        program.join().unwrap();
    }
}

//! One connection's rings: places of bytes, windows, and ends (RFC 7609 section 4; `smc_tx.c`,
//! `smc_rx.c`, `smc_cdc.c`, `smc_close.c`).
//!
//! Each end has a ring, into which the other one writes. A stream's byte has a place, counted from
//! 0; its offset in the ring is the place modulo the ring's size. Rings begin with the stream's
//! first byte: no end has eye catchers in them ([`crate::wire::llc::ConfirmLink::is_plain`]).
//!
//! **Sending.** [`Connection::produce`] says where the next bytes go; the caller posts WRITEs for
//! them, and behind them, on the same queue pair, [`Connection::message`]. **Receiving.**
//! [`Connection::receive`] with each message about this connection, then [`Connection::readable`]
//! and [`Connection::consume`], and [`Connection::message`] again, which has one when the peer
//! should hear of it. **Ending.** [`Connection::finish`] behind the last byte;
//! [`Connection::close`]; over when both ends have closed.
//!
//! The ring is the peer's to write at any time, until it has closed. So a reader copies bytes out,
//! and the cursor alone says which of them are the stream's.

mod ring;

use core::fmt;
use core::ops::Range;

use shunt_verbs::value::Remote;

use crate::wire::cdc::{Cdc, Producer, State};
use crate::wire::clc::End;
use crate::wire::{LINK_MESSAGE, RmbSize};
use ring::{ahead, cursor};

/// A rule that the peer broke; the connection is to be reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// It has produced backwards, or more than its window.
    Produced,
    /// It has consumed backwards, or bytes that were never produced.
    Consumed,
    /// It has produced behind its own end.
    Finished,
    /// It speaks of a second link.
    Failover,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Produced => "an impossible producer cursor",
            Self::Consumed => "an impossible consumer cursor",
            Self::Finished => "bytes behind the end",
            Self::Failover => "a message of another link",
        })
    }
}

impl core::error::Error for Violation {}

/// News of one message.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct News {
    /// New bytes in the own ring.
    pub bytes: u32,
    /// Bytes of the peer's ring that became free.
    pub room: u32,
    /// The peer finishes, closes or aborts; not before with this message.
    pub is_end: bool,
}

/// Bytes to be written: those of the stream from `place` on, in one or two parts of the peer's
/// ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Of the first byte in the stream.
    pub place: u64,
    /// Where the bytes go, and how many; the second part begins at the ring's beginning, and may
    /// have none.
    pub parts: [(Remote, u32); 2],
}

impl Placement {
    /// Bytes in both parts.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.parts[0].1 + self.parts[1].1
    }
}

/// The urgent byte that this end sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgent {
    /// Behind this place, which is not produced yet.
    Pending(u64),
    /// Produced; the next message says so.
    Present,
}

/// One connection, this end.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Bytes of the own ring.
    size: u32,
    peer_ring: Remote,
    peer_size: u32,
    peer_token: u32,
    /// Of the last message sent, and received.
    number: u16,
    heard: u16,
    /// Bytes written into the peer's ring, and of those read there.
    produced: u64,
    peer_consumed: u64,
    /// Bytes in the own ring, of those read, and of those told.
    peer_produced: u64,
    consumed: u64,
    told: u64,
    is_blocked: bool,
    is_peer_blocked: bool,
    urgent: Option<Urgent>,
    /// Place behind the last urgent byte of this end.
    own_urgent: u64,
    /// Place behind the peer's last urgent byte.
    peer_urgent: Option<u64>,
    state: State,
    peer_state: State,
    must_tell: bool,
}

impl Connection {
    /// With an own ring of this size, and the peer's end.
    #[must_use]
    pub fn new(size: RmbSize, peer: &End) -> Self {
        Self {
            size: size.bytes(),
            peer_ring: peer.ring(),
            peer_size: peer.size.bytes(),
            peer_token: peer.token,
            number: 0,
            heard: 0,
            produced: 0,
            peer_consumed: 0,
            peer_produced: 0,
            consumed: 0,
            told: 0,
            is_blocked: false,
            is_peer_blocked: false,
            urgent: None,
            own_urgent: 0,
            peer_urgent: None,
            state: State::default(),
            peer_state: State::default(),
            must_tell: false,
        }
    }

    /// Free bytes of the peer's ring.
    #[must_use]
    pub fn room(&self) -> u32 {
        // `receive` has looked that this is no more than the ring has.
        let used = u32::try_from(self.produced - self.peer_consumed).unwrap_or(self.peer_size);
        self.peer_size - used
    }

    /// Places the next of `waiting` bytes, all that the program has to send now. `None`: the ring
    /// is full, or nothing waits, or an end produces no more.
    ///
    /// A message has to follow: it tells the peer of these bytes, and whether more wait than fit,
    /// so that the peer tells of room early (`smc_tx.c`: `smc_tx_rdma_writes`).
    pub fn produce(&mut self, waiting: u64) -> Option<Placement> {
        if self.state.is_finished || self.is_peer_gone() {
            return None;
        }
        let room = self.room();
        let is_blocked = waiting >= u64::from(room);
        let waiting = match self.urgent {
            // So that the cursor ends behind the urgent byte once.
            Some(Urgent::Pending(end)) => waiting.min(end - self.produced),
            Some(Urgent::Present) => return None,
            None => waiting,
        };
        let length = u32::try_from(waiting).unwrap_or(u32::MAX).min(room);
        if length == 0 {
            return None;
        }
        self.is_blocked = is_blocked;
        let place = self.produced;
        let offset = cursor(place, self.peer_size).count;
        let first = length.min(self.peer_size - offset);
        let to = |offset: u32| Remote {
            address: self.peer_ring.address.wrapping_add(offset.into()),
            ..self.peer_ring
        };
        let parts = [(to(offset), first), (to(0), length - first)];
        self.produced += u64::from(length);
        if self.urgent == Some(Urgent::Pending(self.produced)) {
            self.urgent = Some(Urgent::Present);
        }
        self.must_tell = true;
        Some(Placement { place, parts })
    }

    /// The last of the next `waiting` bytes, at least one, is urgent. False: so is an earlier one
    /// that the peer has not read, and only one can be on its way (`smc_tx.c`: `urg_tx_pend`).
    pub fn mark_urgent(&mut self, waiting: u64) -> bool {
        if waiting == 0 || self.urgent.is_some() || self.peer_consumed < self.own_urgent {
            return false;
        }
        self.own_urgent = self.produced.saturating_add(waiting);
        self.urgent = Some(Urgent::Pending(self.own_urgent));
        self.must_tell = true;
        true
    }

    /// Takes a message. One that is older than the last is left alone.
    ///
    /// # Errors
    /// The rule that the peer broke. Nothing is believed of the message then.
    pub fn receive(&mut self, message: &Cdc) -> Result<News, Violation> {
        if message.producer.is_failover {
            return Err(Violation::Failover);
        }
        // As `smc_cdc_before`: the distance as a signed number.
        if message.number.wrapping_sub(self.heard).cast_signed() < 0 {
            return Ok(News::default());
        }
        let bytes = ahead(self.peer_produced, message.produced, self.size);
        let unread = self.peer_produced - self.consumed;
        let bytes = bytes.filter(|bytes| unread + u64::from(*bytes) <= self.size.into());
        let bytes = bytes.ok_or(Violation::Produced)?;
        let room = ahead(self.peer_consumed, message.consumed, self.peer_size);
        let room = room.filter(|room| self.peer_consumed + u64::from(*room) <= self.produced);
        let room = room.ok_or(Violation::Consumed)?;
        if bytes > 0 && self.has_peer_finished() {
            return Err(Violation::Finished);
        }
        self.heard = message.number;
        self.peer_produced += u64::from(bytes);
        self.peer_consumed += u64::from(room);
        let Producer { is_blocked, is_urgent, wants_update, .. } = message.producer;
        self.is_peer_blocked = is_blocked;
        self.must_tell |= wants_update;
        if is_urgent && bytes > 0 {
            self.peer_urgent = Some(self.peer_produced);
        }
        let before = self.peer_state;
        self.peer_state = State {
            is_finished: before.is_finished | message.state.is_finished,
            is_closed: before.is_closed | message.state.is_closed,
            is_aborted: before.is_aborted | message.state.is_aborted,
        };
        Ok(News { bytes, room, is_end: before != self.peer_state })
    }

    /// Bytes that can be read.
    #[must_use]
    pub fn readable(&self) -> u32 {
        // `receive` has looked that this is no more than the ring has.
        u32::try_from(self.peer_produced - self.consumed).unwrap_or(self.size)
    }

    /// Where the next bytes to be read lie in the own ring; the second part begins at the ring's
    /// beginning, and may have none.
    #[must_use]
    pub fn unread(&self) -> [Range<u32>; 2] {
        let (from, length) = (cursor(self.consumed, self.size).count, self.readable());
        let first = length.min(self.size - from);
        [from..from + first, 0..length - first]
    }

    /// So many bytes were read. What is more than there is does not count.
    pub fn consume(&mut self, bytes: u32) {
        let bytes = bytes.min(self.readable());
        let before = self.consumed;
        self.consumed += u64::from(bytes);
        // A sender of an urgent byte sends no other one until it is known to be read.
        if self.peer_urgent.is_some_and(|end| before < end && end <= self.consumed) {
            self.must_tell = true;
        }
    }

    /// How many bytes can be read up to the end of the peer's last urgent byte. `None`: none was
    /// sent, or it was read.
    #[must_use]
    pub fn urgent(&self) -> Option<u32> {
        let end = self.peer_urgent.filter(|end| *end > self.consumed)?;
        u32::try_from(end - self.consumed).ok()
    }

    /// True when the peer should hear of bytes that were consumed: its window is closed, or nearly
    /// (`smc_tx.c`: `smc_tx_consumer_update`).
    fn is_update_due(&self) -> bool {
        let untold = self.consumed - self.told;
        let free = u64::from(self.size) - (self.peer_produced - self.told).min(self.size.into());
        let is_little = untold <= u64::from(self.size / 10);
        !is_little && (free <= u64::from(self.size / 2) || self.is_peer_blocked)
    }

    /// The message that is due now, if one is. Posted behind all WRITEs of bytes that were
    /// produced.
    pub fn message(&mut self) -> Option<[u8; LINK_MESSAGE]> {
        if !self.must_tell && !self.is_update_due() {
            return None;
        }
        self.must_tell = false;
        self.number = self.number.wrapping_add(1);
        self.told = self.consumed;
        let message = Cdc {
            number: self.number,
            token: self.peer_token,
            produced: cursor(self.produced, self.peer_size),
            consumed: cursor(self.consumed, self.size),
            producer: Producer {
                is_blocked: self.is_blocked,
                is_urgent_pending: self.urgent.is_some(),
                is_urgent: self.urgent == Some(Urgent::Present),
                ..Producer::default()
            },
            state: self.state,
        };
        if self.urgent == Some(Urgent::Present) {
            self.urgent = None;
        }
        Some(message.bytes())
    }

    /// This end produces no more: all its bytes were placed.
    pub fn finish(&mut self) {
        self.must_tell |= !self.state.is_finished && !self.is_closed();
        self.state.is_finished = true;
    }

    /// This end is closed: it produces no more, and reads no more. With bytes that were not read it
    /// is aborted, as TCP resets a connection then (`smc_close.c`: `smc_close_final`).
    pub fn close(&mut self) {
        let is_aborted = self.readable() > 0 || self.peer_state.is_aborted;
        self.end(is_aborted);
    }

    /// This end is closed, and the peer is told that it was not in good order.
    pub fn abort(&mut self) {
        self.end(true);
    }

    fn end(&mut self, is_aborted: bool) {
        if self.is_closed() {
            return;
        }
        self.state.is_finished = true;
        if is_aborted {
            self.state.is_aborted = true;
        } else {
            self.state.is_closed = true;
        }
        self.must_tell = true;
    }

    /// The peer's last word about its end.
    #[must_use]
    pub const fn peer_state(&self) -> State {
        self.peer_state
    }

    /// The peer produces no more.
    #[must_use]
    pub const fn has_peer_finished(&self) -> bool {
        self.peer_state.is_finished || self.is_peer_gone()
    }

    const fn is_peer_gone(&self) -> bool {
        self.peer_state.is_closed || self.peer_state.is_aborted
    }

    /// This end is closed, or aborted.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.state.is_closed || self.state.is_aborted
    }

    /// Both ends are closed, and both have heard it, once the last message was sent: the peer
    /// writes into the own ring no more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_closed() && self.is_peer_gone() && !self.must_tell
    }
}

//! What two agents say to each other, over one connection after another.
//!
//! A control connection may end while both agents live on: a firewall forgets it, or the network is away for a while. What they have agreed
//! upon, link groups above all, depends on each of its messages. So an association outlives its connections, as a session does in iSCSI (RFC
//! 7143, section 4.2.2):
//!
//! * Each side has a number for it that no other association has, and learns the peer's. On each connection both first say both numbers, and
//!   how many messages they have heard ([`Resume`]). Where the numbers agree it goes on, and what was said and not heard is said once more. Else
//!   it is a new one: whatever was agreed upon is void.
//! * A side keeps what it has said until it learns that it was heard: by each [`Message::Ping`], and when a connection is taken up.
//!
//! So each message is heard exactly once, in order, or never, with all that follow it. What a side says meanwhile waits for the next
//! connection.

use std::collections::VecDeque;

use crate::message::{Message, Resume};
use crate::session::End;

/// Bytes that may wait to be heard by the peer, apart from those of connections that have ended ([`Message::Rest`]), of which each program has
/// no more than its ring's: a peer that does not read is given up.
pub const BACKLOG: usize = 1 << 20;
/// Bytes on a connection of which the peer has not told yet that it has heard them.
const WINDOW: usize = 512 * 1024;
/// A side that has heard so many bytes tells.
const OWED: usize = 64 * 1024;

/// A message that was said.
#[derive(Debug)]
struct Said {
    bytes: Vec<u8>,
    counts: bool,
}

/// One side of an association.
#[derive(Debug)]
pub struct Association {
    own: u64,
    /// The peer's number. 0: not known yet.
    far: u64,
    /// Messages that the peer has heard; those behind them.
    done: u64,
    queue: VecDeque<Said>,
    /// How many of these were given to the present connection, and their bytes.
    given: usize,
    in_flight: usize,
    /// Bytes of the queue that count for [`BACKLOG`].
    weight: usize,
    /// Messages of the peer's; bytes of which it does not know yet that they were heard.
    heard: u64,
    owed: usize,
}

impl Association {
    /// A new one, under a number that this side has given to no other one; not 0.
    #[must_use]
    pub const fn new(own: u64) -> Self {
        Self {
            own: if own == 0 { 1 } else { own },
            far: 0,
            done: 0,
            queue: VecDeque::new(),
            given: 0,
            in_flight: 0,
            weight: 0,
            heard: 0,
            owed: 0,
        }
    }

    /// What to say first on a connection.
    #[must_use]
    pub const fn resume(&self) -> Resume {
        Resume { own: self.own, far: self.far, heard: self.heard }
    }

    /// Says something, as soon as there is a connection.
    ///
    /// # Errors
    /// The peer does not read.
    pub fn say(&mut self, message: &Message) -> Result<(), End> {
        let (bytes, counts) = (message.bytes(), !matches!(message, Message::Rest(..)));
        if counts {
            if self.weight + bytes.len() > BACKLOG {
                return Err(End::Backlog);
            }
            self.weight += bytes.len();
        }
        self.queue.push_back(Said { bytes, counts });
        Ok(())
    }

    /// The peer has said this first on a connection. True: it goes on; false: it is a new one, and nothing was said yet.
    ///
    /// # Errors
    /// It cannot have heard that.
    pub(crate) fn meet(&mut self, far: &Resume) -> Result<bool, End> {
        (self.given, self.in_flight, self.owed) = (0, 0, 0);
        let goes_on = self.far == far.own && self.own == far.far;
        if !goes_on {
            *self = Self { far: far.own, ..Self::new(self.own) };
            return Ok(false);
        }
        self.is_heard(far.heard, self.queue.len())?;
        Ok(true)
    }

    /// The peer has heard so many messages, of those that were given to this connection.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn acknowledged(&mut self, heard: u64) -> Result<(), End> {
        self.is_heard(heard, self.given)
    }

    fn is_heard(&mut self, heard: u64, most: usize) -> Result<(), End> {
        let news = heard.checked_sub(self.done).and_then(|news| usize::try_from(news).ok());
        let news = news.filter(|news| *news <= most).ok_or(End::Unsaid)?;
        for said in self.queue.drain(..news) {
            if said.counts {
                self.weight -= said.bytes.len();
            }
            self.in_flight = self.in_flight.saturating_sub(said.bytes.len());
        }
        self.given = self.given.saturating_sub(news);
        self.done = heard;
        Ok(())
    }

    /// The next message for the connection. `None`: there is none, or the peer has to hear others first.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        let said = self.queue.get(self.given).filter(|_| self.in_flight < WINDOW)?;
        self.given += 1;
        self.in_flight += said.bytes.len();
        Some(&said.bytes)
    }

    /// This side has taken a message of so many bytes.
    pub(crate) const fn hears(&mut self, bytes: usize) {
        self.heard += 1;
        self.owed += bytes;
    }

    /// True when the peer is to be told of what was heard, though nothing else is to be said.
    pub(crate) const fn owes(&self) -> bool {
        self.owed >= OWED
    }

    /// What it is told.
    pub(crate) const fn tell(&mut self) -> Message {
        self.owed = 0;
        Message::Ping(self.heard)
    }
}

//! One connection's agreement over TCP, the client's end (RFC 7609 section 3.5; `af_smc.c`:
//! `smc_connect_rdma`).
//!
//! Calls, in their order: [`Handshake::propose`], once both ends have marked their SYN. Then, as
//! the socket can be written and read, [`Handshake::outgoing`], and [`Handshake::receive`] with as
//! many bytes as [`Handshake::wanted`] says and no more: those behind them may be the program's. At
//! [`Event::Accepted`] the caller makes its end ready and says [`Handshake::confirm`], or
//! [`Handshake::decline`].
//!
//! ```text
//!   proposed --accept--> accepted --confirm--> confirmed --established--> ready     first contact
//!       |                    |    \--confirm------------------------------> ready     a link that both have
//!       +-----decline--------+---------decline------> declined: TCP goes on with the next byte
//!       +-----silence, or no message at all---------> failed: the stream's place is unknown
//! ```
//!
//! On a first contact the caller has, before it confirms: the queue pair ready to receive from
//! [`End::peer_pair`] with all receive requests posted, and its ring registered. After it: the
//! link's CONFIRM LINK ([`crate::link`]), and then [`Handshake::established`]. Otherwise it has a
//! link that [`crate::Link::is_that_of`] the accept, and has announced its ring there.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use shunt_verbs::value::Gid;

use crate::wire::Malformed;
use crate::wire::clc::{
    self, Accept, Confirm, Decline, Diagnosis, End, FirstContact, HEADER, Kind, Proposal,
};

/// How long a server may take to answer. The kernel's clients wait 6 s (`smc_clc.h`: `CLC_WAIT_TIME`), and go on over TCP then, where
/// this one fails. A server agrees with one client after another.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Fewest connections of a link group (`smc_core.h`: `SMC_CONN_PER_LGR_MIN`).
const FEWEST_CONNECTIONS: u8 = 16;

/// An event for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The server has accepted: it is for the caller to confirm or to decline.
    Accepted(Accept),
    /// The rings may be used.
    Ready,
    /// The connection stays on TCP. Its next byte is the program's, once all that is outgoing was
    /// sent.
    Declined {
        /// Why.
        diagnosis: Diagnosis,
        /// The server has said so, and not this end.
        is_peers: bool,
        /// The server gives the link group up, so its link is to be let go.
        is_out_of_step: bool,
    },
}

/// Why nothing can become of the connection, not over TCP either: it is to be reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Bytes that are no message.
    Malformed(Malformed),
    /// A message that does not come here.
    Unexpected(Kind),
    /// The caller has read more than was wanted.
    Unwanted,
    /// The server has not answered in time.
    Silent,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unexpected(kind) => write!(f, "an unexpected {kind:?}"),
            Self::Unwanted => f.write_str("bytes that are the program's"),
            Self::Silent => f.write_str("the server does not answer"),
        }
    }
}

impl core::error::Error for Failure {}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Proposed,
    Accepted(Accept),
    /// On a first contact, until the link is confirmed: the server may still decline.
    Confirmed,
    Over,
}

/// One connection's agreement.
#[derive(Debug)]
pub struct Handshake {
    proposal: Proposal,
    name: [u8; 32],
    phase: Phase,
    received: Vec<u8>,
    outgoing: Vec<u8>,
    events: VecDeque<Event>,
    /// By when the server has to say something.
    deadline: Duration,
}

impl Handshake {
    /// Proposes. `name` is the host's, for the server's tools.
    #[must_use]
    pub fn propose(proposal: Proposal, name: &str, now: Duration) -> Self {
        let mut padded = [b' '; 32];
        padded.iter_mut().zip(name.bytes().filter(u8::is_ascii_graphic)).for_each(|(to, byte)| {
            *to = byte;
        });
        Self {
            outgoing: proposal.bytes(),
            proposal,
            name: padded,
            phase: Phase::Proposed,
            received: Vec::new(),
            events: VecDeque::new(),
            deadline: now + PATIENCE,
        }
    }

    /// Bytes to be sent over TCP.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// So many bytes of it were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.drain(..bytes.min(self.outgoing.len()));
    }

    /// How many bytes to read next, and no more. 0: none.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.phase {
            Phase::Proposed | Phase::Confirmed => {}
            Phase::Accepted(_) | Phase::Over => return 0,
        }
        match self.received.first_chunk() {
            None => HEADER - self.received.len(),
            Some(header) => {
                clc::header(header).map_or(0, |(_, length)| length - self.received.len())
            }
        }
    }

    /// Bytes have come, no more than were wanted.
    ///
    /// # Errors
    /// Why the connection is to be reset.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), Failure> {
        if bytes.len() > self.wanted() {
            self.phase = Phase::Over;
            return Err(Failure::Unwanted);
        }
        self.received.extend(bytes);
        let taken = self.take(now);
        if taken.is_err() {
            self.phase = Phase::Over;
        }
        taken
    }

    fn take(&mut self, now: Duration) -> Result<(), Failure> {
        let Some(header) = self.received.first_chunk() else { return Ok(()) };
        let (kind, length) = clc::header(header)?;
        if !matches!((self.phase, kind), (_, Kind::Decline) | (Phase::Proposed, Kind::Accept)) {
            return Err(Failure::Unexpected(kind));
        }
        if self.received.len() < length {
            return Ok(());
        }
        let message = core::mem::take(&mut self.received);
        if kind == Kind::Decline {
            let Decline { diagnosis, is_out_of_step, .. } = Decline::parse(&message)?;
            self.phase = Phase::Over;
            self.events.push_back(Event::Declined { diagnosis, is_peers: true, is_out_of_step });
            return Ok(());
        }
        let accept = Accept::parse(&message)?;
        self.phase = Phase::Accepted(accept);
        self.deadline = now + PATIENCE;
        match self.objection(&accept) {
            Some(diagnosis) => self.decline(diagnosis),
            None => self.events.push_back(Event::Accepted(accept)),
        }
        Ok(())
    }

    /// Why an accept is no answer to the proposal (`smc_clc.c`:
    /// `smc_clc_clnt_v2x_features_validate`, which leaves out that a server takes what was
    /// proposed).
    fn objection(&self, accept: &Accept) -> Option<Diagnosis> {
        let Proposal { eids, release, max_connections, max_links, .. } = &self.proposal;
        if !eids.contains(&accept.eid) {
            return Some(Diagnosis::CONFIGURATION);
        }
        let contact = accept.first_contact?;
        if contact.release > *release {
            return Some(Diagnosis::RELEASE);
        }
        if contact.release == 0 {
            return None;
        }
        if !(FEWEST_CONNECTIONS..=*max_connections).contains(&contact.max_connections) {
            return Some(Diagnosis::MAX_CONNECTIONS);
        }
        if !(1..=*max_links).contains(&contact.max_links) {
            return Some(Diagnosis::MAX_LINKS);
        }
        None
    }

    /// This end is ready to receive, and its ring may be written into: `end` describes it. `gids`
    /// are the addresses of its ports. Without effect where nothing was accepted.
    pub fn confirm(&mut self, end: End, gids: &[Gid], now: Duration) {
        let Phase::Accepted(accept) = self.phase else { return };
        let first_contact = accept.first_contact.map(|theirs| {
            // A server compares what it has said (`smc_clc_v2x_features_confirm_check`).
            (FirstContact { name: self.name, ..theirs }, gids.to_vec())
        });
        let is_first = first_contact.is_some();
        let end = End { mtu: end.mtu.min(accept.end.mtu), ..end };
        self.outgoing.extend(Confirm { end, eid: accept.eid, first_contact }.bytes());
        self.deadline = now + PATIENCE;
        if is_first {
            self.phase = Phase::Confirmed;
        } else {
            self.phase = Phase::Over;
            self.events.push_back(Event::Ready);
        }
    }

    /// The link of a first contact is confirmed. Without effect otherwise.
    pub fn established(&mut self) {
        if self.phase == Phase::Confirmed {
            self.phase = Phase::Over;
            self.events.push_back(Event::Ready);
        }
    }

    /// This end stays on TCP. Without effect where the server waits for nothing: before its accept,
    /// and when it is over.
    pub fn decline(&mut self, diagnosis: Diagnosis) {
        if !matches!(self.phase, Phase::Accepted(_) | Phase::Confirmed) {
            return;
        }
        let is_out_of_step = diagnosis == Diagnosis::OUT_OF_STEP;
        let decline = Decline { id: self.proposal.host.id, diagnosis, is_out_of_step };
        self.outgoing.extend(decline.bytes());
        self.phase = Phase::Over;
        let is_out_of_step = false;
        self.events.push_back(Event::Declined { diagnosis, is_peers: false, is_out_of_step });
    }

    /// By when to call [`Self::tick`]. `None`: nothing is awaited of the server.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        matches!(self.phase, Phase::Proposed | Phase::Confirmed).then_some(self.deadline)
    }

    /// Looks at the clock. A decline of this end would cross one of the server's then, so it says
    /// nothing any more.
    ///
    /// # Errors
    /// [`Failure::Silent`]
    pub fn tick(&mut self, now: Duration) -> Result<(), Failure> {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.phase = Phase::Over;
            return Err(Failure::Silent);
        }
        Ok(())
    }

    /// The oldest event that was not taken yet.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

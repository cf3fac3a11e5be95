//! One connection between two agents, from the first byte on.
//!
//! | Step | Dialer | Answerer |
//! |---|---|---|
//! | 1 | [`Preamble`] | [`Preamble`] |
//! | 2 | Noise `IK`, first message | |
//! | 3 | | Looks whether the dialer's key is a peer's; second message |
//! | 4 | [`Message::Hello`] | [`Message::Hello`] |
//! | 5 | [`Message::Resume`] | [`Message::Resume`] |
//! | 6 | Any other message | Any other message |
//!
//! Both preambles are part of what is proved, so no third one has them agree on an older version. Each packet behind them has its length
//! in front, two bytes. A side counts as open when its Hello has arrived, not before: a third one can repeat the first message of
//! another connection, but nothing that follows it. Then the caller says which [association](crate::association) it has with that peer, or would
//! begin ([`Session::begin`]); when the other side has said so, too, [`Event::Begun`] tells whether it goes on.
//!
//! An answerer takes other connections as well, which prove nothing: one that two agents have agreed upon to measure TCP by. It begins with
//! [`measures`], and ends as a session at once, by [`End::Measures`]; what follows is not of this protocol.
//!
//! Calls: [`Session::dial`] or [`Session::answer`]; [`Session::receive`] for what arrives and [`Session::tick`] at
//! [`Session::deadline`], after both [`Session::event`] until there is none, and [`Session::outgoing`]. What ends the connection is an
//! [`End`]; no call does anything after that.

mod end;
mod preamble;
mod version;

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use snow::{Builder, HandshakeState, TransportState};

use crate::association::Association;
use crate::key::{LEN as KEY, PublicKey, SecretKey};
use crate::message::{Bye, Hello, LONGEST, Message, Resume};
pub use end::{End, Stage};
pub use preamble::{LEN as PREAMBLE, Preamble, measures};
pub use version::{NEWEST, OLDEST};

/// What both sides prove, and how (Noise, revision 34, section 7.5).
const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// Bytes that proof adds to a message.
const TAG: usize = 16;
/// Packets of the handshake: a fresh key, the own key, nothing; a fresh key, nothing.
const FIRST: usize = KEY + KEY + TAG + TAG;
const SECOND: usize = KEY + TAG;
/// Bytes of the longest packet.
const PACKET: usize = LONGEST + TAG;
/// Bytes in front of a packet.
const PREFIX: usize = 2;
/// Bytes that wait to be sent, from which on messages stay in the association.
const LOAD: usize = 128 * 1024;

/// Time to become open, and to take up an association.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// A side that has sent nothing for so long says that it is there.
pub const KEEP: Duration = Duration::from_secs(1);
/// A side that has heard nothing for so long ends the connection. What is agreed upon outlasts that, and a new connection gets through sooner than
/// one that TCP asks for anew after ever longer times.
pub const SILENCE: Duration = Duration::from_secs(10);

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The other side has proved who it is, and said the rest.
    Open(PublicKey, Hello),
    /// Both have said where they are. True: the association goes on; false: it is a new one.
    Begun(bool),
    /// The other side says this.
    Said(Message),
}

#[derive(Debug)]
enum State {
    /// Waits for the preamble.
    Preamble,
    /// Waits for the other side's part of the proof.
    Proof(Box<HandshakeState>),
    /// Both have proved; waits for the Hello, or has it.
    Proved(Box<TransportState>),
    Over,
}

/// Whom this side takes.
#[derive(Debug)]
enum Wanted {
    /// It dials, for this one.
    One(PublicKey),
    /// It answers.
    Any(BTreeSet<PublicKey>),
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    secret: SecretKey,
    wanted: Wanted,
    hello: Hello,
    state: State,
    /// The other side, as far as it has proved that.
    far: Option<PublicKey>,
    is_open: bool,
    association: Option<Association>,
    /// Where the other side is, which has said so first.
    resume: Option<Resume>,
    is_begun: bool,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// With the bytes of each message.
    events: VecDeque<(Event, usize)>,
    began: Duration,
    /// When something was last heard, and sent.
    heard: Duration,
    spoke: Duration,
}

impl Session {
    /// This side has connected to reach a peer.
    #[must_use]
    pub fn dial(secret: SecretKey, to: PublicKey, hello: Hello, now: Duration) -> Self {
        Self::new(secret, Wanted::One(to), hello, now)
    }

    /// This side has accepted a connection of anybody's, and takes these peers.
    #[must_use]
    pub fn answer(
        secret: SecretKey,
        peers: BTreeSet<PublicKey>,
        hello: Hello,
        now: Duration,
    ) -> Self {
        Self::new(secret, Wanted::Any(peers), hello, now)
    }

    fn new(secret: SecretKey, wanted: Wanted, hello: Hello, now: Duration) -> Self {
        Self {
            secret,
            wanted,
            hello,
            state: State::Preamble,
            far: None,
            is_open: false,
            association: None,
            resume: None,
            is_begun: false,
            incoming: Vec::new(),
            outgoing: Preamble::OWN.bytes().to_vec(),
            events: VecDeque::new(),
            began: now,
            heard: now,
            spoke: now,
        }
    }

    /// The other side, once it is known for sure.
    #[must_use]
    pub fn peer(&self) -> Option<PublicKey> {
        self.far.filter(|_| self.is_open)
    }

    /// When something was last heard, by the caller's clock.
    #[must_use]
    pub const fn heard_at(&self) -> Duration {
        self.heard
    }

    /// Bytes to be sent.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// So many of them were sent.
    pub fn sent(&mut self, len: usize) {
        self.outgoing.drain(..len.min(self.outgoing.len()));
    }

    /// What has happened since. `None`: nothing more. A message that was taken counts as heard.
    pub fn event(&mut self) -> Option<Event> {
        let (event, bytes) = self.events.pop_front()?;
        if let (Event::Said(_), Some(association)) = (&event, &mut self.association) {
            association.hears(bytes);
        }
        Some(event)
    }

    /// The other side is known: what this side has with it, or would begin.
    ///
    /// # Errors
    /// The other side cannot be where it said that it is.
    pub fn begin(&mut self, association: Association, now: Duration) -> Result<(), End> {
        let resume = Message::Resume(association.resume());
        self.association = Some(association);
        self.put(&resume.bytes(), now)?;
        match self.resume.take() {
            Some(far) => self.meet(&far, now),
            None => Ok(()),
        }
    }

    /// The connection is over: what this side has with the other one, if it was told.
    #[must_use]
    pub fn into_association(self) -> Option<Association> {
        self.association
    }

    /// Both have said where they are.
    fn meet(&mut self, far: &Resume, now: Duration) -> Result<(), End> {
        let Some(association) = &mut self.association else { return Ok(()) };
        let goes_on = association.meet(far)?;
        self.is_begun = true;
        self.events.push_back((Event::Begun(goes_on), 0));
        self.fill(now)
    }

    /// Takes from the association what there is room for.
    ///
    /// # Errors
    /// No numbers for further packets.
    pub fn fill(&mut self, now: Duration) -> Result<(), End> {
        while self.is_begun
            && self.outgoing.len() < LOAD
            && let Some(association) = &mut self.association
            && let Some(bytes) = association.next().map(<[u8]>::to_vec)
        {
            self.put(&bytes, now)?;
        }
        Ok(())
    }

    /// Bytes have come.
    ///
    /// # Errors
    /// Why the connection ends. What came before that is still among the events.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), End> {
        self.incoming.extend_from_slice(bytes);
        self.take(now).inspect_err(|_| self.state = State::Over)
    }

    /// The other side has closed the connection: why it ends, then.
    #[must_use]
    pub fn closed(&self) -> End {
        let stage = match &self.state {
            State::Preamble => Stage::Preamble,
            State::Proof(_) => Stage::Proof,
            State::Proved(_) if !self.is_open => Stage::Hello,
            State::Proved(_) | State::Over => Stage::Open,
        };
        End::Closed(stage)
    }

    /// When [`Self::tick`] has something to do. `None`: never more.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        match &self.state {
            State::Over => None,
            _ if !self.is_begun => Some(self.began + HANDSHAKE),
            _ => Some((self.heard + SILENCE).min(self.spoke + KEEP)),
        }
    }

    /// Time goes on.
    ///
    /// # Errors
    /// The other side has taken too long.
    pub fn tick(&mut self, now: Duration) -> Result<(), End> {
        if matches!(self.state, State::Over) {
            return Ok(());
        }
        let late = match self.is_begun {
            false => (now >= self.began + HANDSHAKE).then_some(End::Late),
            true => (now >= self.heard + SILENCE).then_some(End::Silent),
        };
        if let Some(end) = late {
            self.state = State::Over;
            return Err(end);
        }
        let Some(association) = self.association.as_mut().filter(|_| self.is_begun) else {
            return Ok(());
        };
        if association.owes() || now >= self.spoke + KEEP {
            let told = association.tell().bytes();
            return self.put(&told, now).inspect_err(|_| self.state = State::Over);
        }
        Ok(())
    }

    /// Says something to the other side, by the association; before there is one, nothing.
    ///
    /// # Errors
    /// The other side does not read.
    pub fn send(&mut self, message: &Message, now: Duration) -> Result<(), End> {
        let Some(association) = &mut self.association else { return Ok(()) };
        let sent = association.say(message).and_then(|()| self.fill(now));
        sent.inspect_err(|_| self.state = State::Over)
    }

    /// Says why this side ends the connection, once it is open; before, nothing.
    ///
    /// # Errors
    /// No numbers for further packets.
    pub fn part(&mut self, why: Bye, now: Duration) -> Result<(), End> {
        if !self.is_open {
            return Ok(());
        }
        self.put(&Message::Bye(why).bytes(), now)
    }

    fn put(&mut self, bytes: &[u8], now: Duration) -> Result<(), End> {
        let State::Proved(transport) = &mut self.state else { return Ok(()) };
        let mut packet = vec![0; bytes.len() + TAG];
        let len = transport.write_message(bytes, &mut packet).map_err(|_| End::Exhausted)?;
        self.frame(&packet[..len]);
        self.spoke = now;
        Ok(())
    }

    /// A packet with its length in front.
    fn frame(&mut self, packet: &[u8]) {
        let len = u16::try_from(packet.len()).unwrap_or(u16::MAX);
        self.outgoing.extend_from_slice(&len.to_be_bytes());
        self.outgoing.extend_from_slice(packet);
    }

    /// Takes all that has come whole.
    fn take(&mut self, now: Duration) -> Result<(), End> {
        loop {
            let took = match &self.state {
                State::Over => return Ok(()),
                State::Preamble => self.take_preamble()?,
                State::Proof(_) => self.take_proof(now)?,
                State::Proved(_) => self.take_message(now)?,
            };
            if !took {
                return Ok(());
            }
        }
    }

    fn take_preamble(&mut self) -> Result<bool, End> {
        if matches!(self.wanted, Wanted::Any(_)) {
            match preamble::read_token(&self.incoming) {
                (Some(token), _) => return Err(End::Measures(token)),
                (None, true) => return Ok(false),
                (None, false) => {}
            }
        }
        let Some(far) = Preamble::read(&self.incoming)? else { return Ok(false) };
        self.incoming.drain(..preamble::LEN);
        far.agree()?;
        let (own, far) = (Preamble::OWN.bytes(), far.bytes());
        // The dialer's first.
        let prologue = match self.wanted {
            Wanted::One(_) => [own, far].concat(),
            Wanted::Any(_) => [far, own].concat(),
        };
        let state = self.prove(&prologue).map_err(|_| End::Exhausted)?;
        self.state = State::Proof(Box::new(state));
        Ok(true)
    }

    /// Begins the proof; the dialer says its part.
    fn prove(&mut self, prologue: &[u8]) -> Result<HandshakeState, snow::Error> {
        let builder = Builder::new(PATTERN.parse()?);
        let builder = builder.local_private_key(self.secret.bytes())?.prologue(prologue)?;
        match &self.wanted {
            Wanted::Any(_) => builder.build_responder(),
            Wanted::One(to) => {
                let mut state = builder.remote_public_key(to.bytes())?.build_initiator()?;
                let mut packet = [0; FIRST];
                let len = state.write_message(&[], &mut packet)?;
                self.frame(&packet[..len]);
                Ok(state)
            }
        }
    }

    /// The next packet, of one of these lengths. `None`: it has not come whole.
    fn packet(
        &mut self,
        lengths: core::ops::RangeInclusive<usize>,
    ) -> Result<Option<Vec<u8>>, End> {
        let Some((prefix, rest)) = self.incoming.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes(*prefix));
        if !lengths.contains(&len) {
            return Err(End::Length(len));
        }
        let Some(packet) = rest.get(..len) else { return Ok(None) };
        let packet = packet.to_vec();
        self.incoming.drain(..PREFIX + len);
        Ok(Some(packet))
    }

    fn take_proof(&mut self, now: Duration) -> Result<bool, End> {
        let len = if matches!(self.wanted, Wanted::One(_)) { SECOND } else { FIRST };
        let Some(packet) = self.packet(len..=len)? else { return Ok(false) };
        let State::Proof(mut state) = core::mem::replace(&mut self.state, State::Over) else {
            return Ok(false);
        };
        let mut nothing = [0; TAG];
        let said = state.read_message(&packet, &mut nothing);
        if let Wanted::Any(peers) = &self.wanted {
            said.map_err(|_| End::OtherKey)?;
            let key = state.get_remote_static().and_then(|key| <[u8; KEY]>::try_from(key).ok());
            let far = key.and_then(|key| PublicKey::of(key).ok()).ok_or(End::Unproved)?;
            if !peers.contains(&far) {
                return Err(End::Stranger(far));
            }
            self.far = Some(far);
            let mut packet = [0; SECOND];
            let len = state.write_message(&[], &mut packet).map_err(|_| End::Exhausted)?;
            self.frame(&packet[..len]);
        } else {
            said.map_err(|_| End::Unproved)?;
            let Wanted::One(to) = self.wanted else { return Ok(false) };
            self.far = Some(to);
        }
        let transport = state.into_transport_mode().map_err(|_| End::Exhausted)?;
        self.state = State::Proved(Box::new(transport));
        let hello = Message::Hello(core::mem::take(&mut self.hello));
        self.put(&hello.bytes(), now)?;
        Ok(true)
    }

    fn take_message(&mut self, now: Duration) -> Result<bool, End> {
        let Some(packet) = self.packet(TAG + 1..=PACKET)? else { return Ok(false) };
        let State::Proved(transport) = &mut self.state else { return Ok(false) };
        let mut bytes = vec![0; packet.len()];
        let len = transport.read_message(&packet, &mut bytes).map_err(|_| End::Forged)?;
        let message = Message::parse(&bytes[..len]).map_err(End::Malformed)?;
        self.heard = now;
        let event = match (message, self.far) {
            (Message::Hello(hello), Some(far)) if !self.is_open => {
                self.is_open = true;
                Event::Open(far, hello)
            }
            (Message::Hello(_), _) => return Err(End::Twice),
            (Message::Bye(why), _) => return Err(End::Bye(why)),
            (_, _) if !self.is_open => return Err(End::BeforeHello),
            (Message::Resume(_), _) if self.is_begun || self.resume.is_some() => {
                return Err(End::Twice);
            }
            (Message::Resume(far), _) if self.association.is_some() => {
                self.meet(&far, now)?;
                return Ok(true);
            }
            (Message::Resume(far), _) => {
                self.resume = Some(far);
                return Ok(true);
            }
            (_, _) if !self.is_begun => return Err(End::BeforeHello),
            (Message::Ping(heard), _) => {
                if let Some(association) = &mut self.association {
                    association.acknowledged(heard)?;
                }
                self.fill(now)?;
                return Ok(true);
            }
            (message, _) => Event::Said(message),
        };
        self.events.push_back((event, len));
        Ok(true)
    }
}

#[cfg(test)]
mod tests;

//! A queue pair that connections share, the client's end (RFC 7609 section 3.5; `smc_llc.c`).
//!
//! Calls, in their order: [`Link::new`] when a server has accepted with a first contact;
//! [`Link::receive`] with each message that is not about a connection; at [`Event::Confirm`] the
//! caller brings the queue pair to where it sends, and says [`Link::activate`]. From then on
//! [`Link::announce`] for each ring of a later connection, before it is confirmed, and
//! [`Link::withdraw`] when it is not written into any more. Behind each call [`Link::outgoing`] and
//! [`Link::event`]; [`Link::tick`] at [`Link::deadline`].
//!
//! A ring's key is announced and withdrawn one after another, as the kernel does (`smc_llc.h`:
//! flows), so a peer has one question at a time to answer. All requests of the peer are answered at
//! once.

mod cause;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shunt_verbs::value::{PairNumber, PeerPair, Remote, RemoteKey};

use crate::wire::Malformed;
use crate::wire::clc::{Accept, Host};
use crate::wire::llc::{
    ConfirmLink, ConfirmRkey, DeleteLink, DeleteRkey, Llc, Reason, RequestAddLink, TestLink,
};
pub use cause::{Cause, Event};

/// Most rings of a peer (`smc_core.h`: `SMC_RMBS_PER_LGR_MAX`).
const MOST_RINGS: usize = 255;
/// Most messages that wait to be sent: a peer that asks for more than are answered does not take
/// its answers.
const MOST_OUTGOING: usize = 64;

/// How patient a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long an answer may take.
    pub answer: Duration,
    /// How long nothing may be heard until the peer is asked whether it lives.
    pub quiet: Duration,
}

impl Default for Settings {
    /// As the kernel (`smc_llc.h`: `SMC_LLC_WAIT_TIME`, `SMC_LLC_TESTLINK_DEFAULT_TIME`).
    fn default() -> Self {
        Self { answer: Duration::from_secs(2), quiet: Duration::from_secs(30) }
    }
}

/// This end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// Host and port.
    pub host: Host,
    /// Queue pair.
    pub pair: PairNumber,
    /// A name of the link, for tools.
    pub id: [u8; 4],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The server has to ask whether messages arrive.
    Awaiting,
    /// It has asked.
    Asked(ConfirmLink),
    Active,
    /// The server was asked to end it.
    Leaving,
    Down,
}

/// A question to the peer about a ring of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Announce(Remote),
    Withdraw(RemoteKey),
}

/// A link.
#[derive(Debug)]
pub struct Link {
    own: Own,
    settings: Settings,
    peer: PeerPair,
    peer_host: [u8; 8],
    max_connections: u8,
    max_links: u8,
    number: u8,
    phase: Phase,
    /// The first one was asked.
    questions: VecDeque<Question>,
    /// By when something has to be heard: an answer, or anything.
    question_until: Duration,
    test_until: Option<Duration>,
    heard_at: Duration,
    phase_until: Duration,
    /// Rings of the peer.
    rings: BTreeMap<u32, u64>,
    outgoing: VecDeque<Llc>,
    events: VecDeque<Event>,
}

impl Link {
    /// A new one, to the server that has accepted with a first contact.
    #[must_use]
    pub fn new(own: Own, accept: &Accept, settings: Settings, now: Duration) -> Self {
        let contact = accept.first_contact;
        // Release 0 says nothing of it (`smc_core.h`: `SMC_CONN_PER_LGR_MAX`,
        // `SMC_LINKS_ADD_LNK_MAX`).
        let agreed = contact.filter(|contact| contact.release > 0);
        let rmb = accept.end.rmb;
        Self {
            own,
            settings,
            peer: accept.end.peer_pair(),
            peer_host: accept.end.host.id,
            max_connections: agreed.map_or(255, |contact| contact.max_connections),
            max_links: agreed.map_or(2, |contact| contact.max_links),
            number: 0,
            phase: Phase::Awaiting,
            questions: VecDeque::new(),
            question_until: now,
            test_until: None,
            heard_at: now,
            phase_until: now + crate::handshake::PATIENCE,
            // The accept confirms the first one (`af_smc.c`: `smcr_clnt_conf_first_link`).
            rings: BTreeMap::from([(rmb.key.0, rmb.address)]),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// True when the server means this link: one that is no first contact (`af_smc.c`:
    /// `smc_connect_rdma`).
    #[must_use]
    pub fn is_that_of(&self, accept: &Accept) -> bool {
        let end = &accept.end;
        self.phase == Phase::Active
            && accept.first_contact.is_none()
            && (end.host.gid, end.pair, end.host.id)
                == (self.peer.gid, self.peer.number, self.peer_host)
    }

    /// True from [`Self::activate`] on until it ends.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Most connections that the ends have agreed upon.
    #[must_use]
    pub const fn max_connections(&self) -> u8 {
        self.max_connections
    }

    /// A message about the link has arrived.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) {
        if self.phase == Phase::Down {
            return;
        }
        self.heard(now);
        match Llc::parse(bytes) {
            Ok(message) => self.take(message, now),
            // As the kernel, which has no handler for it (`smc_wr.c`: `smc_wr_rx_demultiplex`).
            Err(Malformed::Kind(_)) => {}
            Err(malformed) => self.give_up(Cause::Malformed(malformed)),
        }
    }

    /// Anything has arrived on the queue pair: it lives.
    pub fn heard(&mut self, now: Duration) {
        self.heard_at = now;
        self.test_until = None;
    }

    fn take(&mut self, message: Llc, now: Duration) {
        match message {
            Llc::ConfirmLink(ask) if !ask.is_answer => self.is_asked(ask),
            Llc::TestLink(test) if !test.is_answer => {
                self.send(Llc::TestLink(TestLink { is_answer: true, ..test }));
            }
            // One link per group.
            Llc::AddLink(offer) if !offer.is_answer => self.send(Llc::AddLink(offer.rejection())),
            Llc::ConfirmRkey(ring) if !ring.is_answer => self.note(ring),
            Llc::ConfirmRkey(answer) => self.is_announced(&answer, now),
            Llc::DeleteRkey(keys) if !keys.is_answer => self.forget(&keys),
            Llc::DeleteRkey(answer) => self.is_withdrawn(&answer, now),
            Llc::DeleteLink(delete) if !delete.is_answer => self.is_deleted(delete),
            // An answer that nothing waits for, or a client's request.
            Llc::ConfirmLink(_)
            | Llc::TestLink(_)
            | Llc::AddLink(_)
            | Llc::DeleteLink(_)
            | Llc::RequestAddLink(RequestAddLink { .. }) => {}
        }
    }

    fn is_asked(&mut self, ask: ConfirmLink) {
        if self.phase != Phase::Awaiting {
            return;
        }
        if !ask.is_plain {
            return self.give_up(Cause::EyeCatchers);
        }
        if (ask.gid, ask.pair) != (self.peer.gid, self.peer.number) {
            return self.give_up(Cause::OtherLink);
        }
        self.phase = Phase::Asked(ask);
        self.events.push_back(Event::Confirm);
    }

    /// The queue pair sends from now on. Without effect before [`Event::Confirm`].
    pub fn activate(&mut self) {
        let Phase::Asked(ask) = self.phase else { return };
        self.number = ask.link;
        self.phase = Phase::Active;
        self.send(Llc::ConfirmLink(ConfirmLink {
            is_answer: true,
            is_plain: true,
            mac: self.own.host.mac,
            gid: self.own.host.gid,
            pair: self.own.pair,
            link: ask.link,
            id: self.own.id,
            max_links: self.max_links,
            max_connections: self.max_connections,
        }));
    }

    /// A ring of this end that a later connection will have. [`Event::Announced`] follows.
    pub fn announce(&mut self, ring: Remote, now: Duration) {
        self.ask(Question::Announce(ring), now);
    }

    /// A ring of this end that the peer is to write into no more. [`Event::Withdrawn`] follows.
    pub fn withdraw(&mut self, key: RemoteKey, now: Duration) {
        self.ask(Question::Withdraw(key), now);
    }

    fn ask(&mut self, question: Question, now: Duration) {
        self.questions.push_back(question);
        if self.questions.len() == 1 {
            self.ask_first(now);
        }
    }

    fn ask_first(&mut self, now: Duration) {
        let Some(question) = self.questions.front().copied() else { return };
        self.question_until = now + self.settings.answer;
        self.send(match question {
            Question::Announce(ring) => Llc::ConfirmRkey(ConfirmRkey::of_ring(ring)),
            Question::Withdraw(key) => {
                Llc::DeleteRkey(DeleteRkey { is_answer: false, unknown: 0, keys: vec![key] })
            }
        });
    }

    fn is_announced(&mut self, answer: &ConfirmRkey, now: Duration) {
        match self.questions.front() {
            Some(Question::Announce(ring)) if ring.key == answer.rmb.key => {
                let (key, is_taken) = (ring.key, !answer.is_refused);
                self.answered(Event::Announced { key, is_taken }, now);
            }
            _ => {}
        }
    }

    fn is_withdrawn(&mut self, _: &DeleteRkey, now: Duration) {
        // The answer names no key. One that the peer has not is not written into, either.
        if let Some(Question::Withdraw(key)) = self.questions.front().copied() {
            self.answered(Event::Withdrawn(key), now);
        }
    }

    fn answered(&mut self, event: Event, now: Duration) {
        self.questions.pop_front();
        self.events.push_back(event);
        self.ask_first(now);
    }

    /// The peer has a new ring (`smc_llc.c`: `smc_llc_rmt_conf_rkey`).
    fn note(&mut self, mut ring: ConfirmRkey) {
        let Remote { address, key } = ring.rmb;
        let is_room = self.rings.len() < MOST_RINGS || self.rings.contains_key(&key.0);
        if is_room {
            self.rings.insert(key.0, address);
        }
        ring.is_answer = true;
        ring.is_refused = !is_room;
        ring.may_retry = !is_room;
        self.send(Llc::ConfirmRkey(ring));
    }

    /// The peer has rings no more (`smc_llc.c`: `smc_llc_rmt_delete_rkey`).
    fn forget(&mut self, keys: &DeleteRkey) {
        let mut unknown = 0_u8;
        for key in &keys.keys {
            if self.rings.remove(&key.0).is_some() {
                self.events.push_back(Event::Forgotten(*key));
            } else {
                // No message has more keys than that.
                unknown = unknown.saturating_add(1);
            }
        }
        self.send(Llc::DeleteRkey(DeleteRkey { is_answer: true, unknown, keys: Vec::new() }));
    }

    /// True where the peer has said that this ring is one of its, and not that it is none any more.
    /// The accept of each connection has to name such a one: a server announces a new ring before
    /// it accepts.
    #[must_use]
    pub fn has_ring(&self, ring: Remote) -> bool {
        self.rings.get(&ring.key.0) == Some(&ring.address)
    }

    fn is_deleted(&mut self, delete: DeleteLink) {
        let is_this = delete.is_all || delete.link == self.number;
        // Linux waits for no answer where all ends.
        if !delete.is_all {
            let reason = if is_this { Reason(0) } else { Reason::NO_LINK };
            self.send(Llc::DeleteLink(DeleteLink { is_answer: true, reason, ..delete }));
        }
        if is_this {
            let is_asked_for = self.phase == Phase::Leaving;
            self.end(if is_asked_for { Cause::Left } else { Cause::Deleted(delete.reason) });
        }
    }

    /// Asks the server to end it, for this reason. [`Event::Down`] follows, at the latest when the
    /// server has not answered in time.
    pub fn leave(&mut self, reason: Reason, now: Duration) {
        if self.phase != Phase::Active {
            return self.end(Cause::Left);
        }
        self.phase = Phase::Leaving;
        self.phase_until = now + self.settings.answer;
        self.send(Llc::DeleteLink(DeleteLink {
            is_answer: false,
            is_all: true,
            is_orderly: true,
            link: 0,
            reason,
        }));
    }

    /// The queue pair has failed.
    pub fn fail(&mut self) {
        self.outgoing.clear();
        self.end(Cause::Failed);
    }

    /// The peer has broken a rule: it is told, and nothing more is believed of it.
    fn give_up(&mut self, cause: Cause) {
        if self.phase == Phase::Active {
            self.send(Llc::DeleteLink(DeleteLink {
                is_answer: false,
                is_all: true,
                is_orderly: false,
                link: 0,
                reason: Reason::VIOLATION,
            }));
        }
        self.end(cause);
    }

    fn end(&mut self, cause: Cause) {
        if self.phase != Phase::Down {
            self.phase = Phase::Down;
            self.events.push_back(Event::Down(cause));
        }
    }

    fn send(&mut self, message: Llc) {
        if self.outgoing.len() == MOST_OUTGOING {
            self.outgoing.clear();
            return self.end(Cause::Flooded);
        }
        self.outgoing.push_back(message);
    }

    /// By when to call [`Self::tick`]. `None`: nothing is awaited.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let quiet = self.test_until.unwrap_or(self.heard_at + self.settings.quiet);
        match self.phase {
            Phase::Awaiting | Phase::Leaving => Some(self.phase_until),
            Phase::Active if self.questions.is_empty() => Some(quiet),
            Phase::Active => Some(quiet.min(self.question_until)),
            Phase::Asked(_) | Phase::Down => None,
        }
    }

    /// Looks at the clock: asks a peer that was not heard for long, and gives one up that does not
    /// answer.
    pub fn tick(&mut self, now: Duration) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::Leaving => self.end(Cause::Left),
            Phase::Active if self.test_until.is_none() && self.is_answering(now) => {
                self.test_until = Some(now + self.settings.answer);
                self.send(Llc::TestLink(TestLink { is_answer: false, data: [0; 16] }));
            }
            _ => self.end(Cause::Silent),
        }
    }

    fn is_answering(&self, now: Duration) -> bool {
        self.questions.is_empty() || now < self.question_until
    }

    /// The next message to be sent on the link.
    pub fn outgoing(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front().map(|message| message.bytes())
    }

    /// The oldest event that was not taken yet.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

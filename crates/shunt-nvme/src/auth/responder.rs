//! The controller's part.

use super::{
    Group, Hash, Secret,
    dh::Exchange,
    hash::{Transcript, augment},
    message::{Failure, Message},
};
use crate::wire::Nqn;

#[derive(Debug)]
enum State {
    /// A negotiation has to come.
    Negotiate,
    /// A challenge is to be sent.
    Challenge,
    /// A reply has to come.
    Reply {
        sequence: u32,
        challenge: Vec<u8>,
        exchange: Option<Exchange>,
    },
    /// Success is to be told, with a proof if one was asked for.
    Success {
        response: Option<Vec<u8>>,
    },
    /// The host has to confirm the proof.
    Confirm,
    Done,
    /// Failure is to be told.
    Failure(Failure),
    Failed,
}

/// One authentication at the controller.
#[derive(Debug)]
pub struct Responder {
    host: Nqn,
    subsystem: Nqn,
    host_key: Secret,
    controller_key: Option<Secret>,
    transaction: u16,
    hash: Hash,
    group: Group,
    state: State,
}

impl Responder {
    /// An authentication of a host with a key, by a subsystem that may have one.
    #[must_use]
    pub const fn new(
        host: Nqn,
        subsystem: Nqn,
        host_key: Secret,
        controller_key: Option<Secret>,
    ) -> Self {
        Self {
            host,
            subsystem,
            host_key,
            controller_key,
            transaction: 0,
            hash: Hash::Sha256,
            group: Group::Null,
            state: State::Negotiate,
        }
    }

    /// True when the host has proved who it is, and is content with our proof.
    #[must_use]
    pub const fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// True when the authentication has failed, and the host knows it.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// A message of the host.
    pub fn receive(&mut self, bytes: &[u8]) {
        if matches!(self.state, State::Done | State::Failed) {
            // What comes after the end begins nothing new: a connection is authenticated once.
            return;
        }
        self.state = match self.advance(bytes) {
            Ok(state) => state,
            Err(failure) => State::Failure(failure),
        };
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<State, Failure> {
        let (message, transaction) = Message::decode(bytes)?;
        let state = core::mem::replace(&mut self.state, State::Negotiate);
        if !matches!(state, State::Negotiate) && transaction != self.transaction {
            return Err(Failure::IncorrectPayload);
        }
        match (state, message) {
            (State::Negotiate, Message::Negotiate { concatenation, hashes, groups }) => {
                self.transaction = transaction;
                self.negotiate(concatenation, &hashes, &groups)
            }
            (
                State::Reply { sequence, challenge, exchange },
                Message::Reply { response, challenge: asked, public },
            ) => {
                let session_key = match &exchange {
                    // The null group has no value.
                    None if public.is_empty() => None,
                    None => return Err(Failure::IncorrectPayload),
                    Some(exchange) => Some(
                        exchange
                            .session_key(self.hash, &public)
                            .ok_or(Failure::IncorrectPayload)?,
                    ),
                };
                let session_key = session_key.as_deref();
                let transcript = Transcript {
                    challenge: augment(self.hash, session_key, &challenge),
                    sequence,
                    transaction,
                    role: b"HostHost",
                    prover: self.host.as_str(),
                    verifier: self.subsystem.as_str(),
                };
                let key = self.host_key.transformed(&self.host);
                if !transcript.verify(self.hash, &key, &response) {
                    return Err(Failure::Failed);
                }
                let Some((asked, sequence)) = asked else {
                    return Ok(State::Success { response: None });
                };
                // The host would learn nothing of a proof of its own challenge (Base 8.13.5.4).
                if asked == challenge {
                    return Err(Failure::Failed);
                }
                let key = self.controller_key.as_ref().ok_or(Failure::Failed)?;
                let transcript = Transcript {
                    challenge: augment(self.hash, session_key, &asked),
                    sequence,
                    transaction,
                    role: b"Controller",
                    prover: self.subsystem.as_str(),
                    verifier: self.host.as_str(),
                };
                let key = key.transformed(&self.subsystem);
                Ok(State::Success { response: Some(transcript.respond(self.hash, &key)) })
            }
            (State::Confirm, Message::Success2) => Ok(State::Done),
            (_, Message::Failure2(_)) => Ok(State::Failed),
            _ => Err(Failure::IncorrectMessage),
        }
    }

    /// The first function and group of the host's that this crate knows; no group only if the
    /// host offers no other.
    fn negotiate(
        &mut self,
        concatenation: u8,
        hashes: &[u8],
        groups: &[u8],
    ) -> Result<State, Failure> {
        if concatenation != 0 {
            return Err(Failure::ConcatenationMismatch);
        }
        let mut hashes = hashes.iter().filter_map(|code| Hash::from_code(*code));
        self.hash = hashes.next().ok_or(Failure::HashNotUsable)?;
        let known = groups.iter().filter_map(|code| Group::from_code(*code));
        let mut strong = known.clone().filter(|group| *group != Group::Null);
        self.group =
            strong.next().or_else(|| known.clone().next()).ok_or(Failure::GroupNotUsable)?;
        Ok(State::Challenge)
    }

    /// The message for the host.
    pub fn send(&mut self, random: &mut dyn FnMut(&mut [u8])) -> Vec<u8> {
        let state = core::mem::replace(&mut self.state, State::Failed);
        let (message, next) = match state {
            State::Challenge => {
                let mut challenge = vec![0; self.hash.len()];
                let mut sequence = [0; 4];
                random(&mut challenge);
                random(&mut sequence);
                // Zero stands for no challenge.
                let sequence = u32::from_le_bytes(sequence).max(1);
                let exchange = Exchange::new(self.group, random);
                let public = exchange.as_ref().map_or_else(Vec::new, Exchange::public);
                let message = Message::Challenge {
                    hash: self.hash,
                    group: self.group,
                    sequence,
                    challenge: challenge.clone(),
                    public,
                };
                (message, State::Reply { sequence, challenge, exchange })
            }
            State::Success { response } => {
                let next = if response.is_some() { State::Confirm } else { State::Done };
                let hash_len = u8::try_from(self.hash.len()).unwrap_or(0);
                (Message::Success1 { response, hash_len }, next)
            }
            State::Failure(failure) => (Message::Failure1(failure as u8), State::Failed),
            State::Done => (Message::Failure1(Failure::IncorrectMessage as u8), State::Done),
            State::Negotiate | State::Reply { .. } | State::Confirm | State::Failed => {
                (Message::Failure1(Failure::IncorrectMessage as u8), State::Failed)
            }
        };
        self.state = next;
        message.encode(self.transaction)
    }
}

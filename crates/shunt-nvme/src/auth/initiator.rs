//! The host's part.

use super::{
    Group, Hash, Secret,
    dh::Exchange,
    hash::{Transcript, augment},
    message::{Failure, Message},
};
use crate::wire::Nqn;
use core::fmt;

/// What the host has to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send this message with Authentication Send; then ask for the step again.
    Send(Vec<u8>),
    /// Send an Authentication Receive, and pass its data to [`Initiator::receive`].
    Receive,
    /// Both ends are content.
    Done,
}

/// Why an authentication has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthenticationError {
    /// The controller did not accept the host's proof or its parameters: its explanation.
    Refused(u8),
    /// The controller did not prove who it is.
    Controller,
    /// A message of the controller makes no sense.
    Protocol(Failure),
}

impl fmt::Display for AuthenticationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(1) => f.write_str("authentication: the controller refused the key"),
            Self::Refused(code) => write!(f, "authentication: the controller refused it ({code})"),
            Self::Controller => f.write_str("authentication: the controller gave no valid proof"),
            Self::Protocol(failure) => write!(f, "authentication: protocol error ({failure:?})"),
        }
    }
}

impl core::error::Error for AuthenticationError {}

#[derive(Debug)]
enum State {
    Negotiate,
    AwaitChallenge,
    Reply {
        message: Message,
        expected: Option<Expected>,
    },
    AwaitSuccess {
        expected: Option<Expected>,
    },
    Confirm,
    /// The controller is to be told why, if it doesn't know.
    Failed {
        tell: Option<Failure>,
        error: AuthenticationError,
    },
    Done,
}

/// The proof that the controller owes.
#[derive(Debug)]
struct Expected {
    hash: Hash,
    challenge: Vec<u8>,
    sequence: u32,
}

/// One authentication at the host.
#[derive(Debug)]
pub struct Initiator {
    host: Nqn,
    subsystem: Nqn,
    host_key: Secret,
    controller_key: Option<Secret>,
    groups: Vec<Group>,
    transaction: u16,
    state: State,
}

impl Initiator {
    /// An authentication in the transaction with this number. With the controller's key, the
    /// controller has to prove who it is, too. `groups` are offered in this order.
    #[must_use]
    pub const fn new(
        host: Nqn,
        subsystem: Nqn,
        host_key: Secret,
        controller_key: Option<Secret>,
        groups: Vec<Group>,
        transaction: u16,
    ) -> Self {
        Self {
            host,
            subsystem,
            host_key,
            controller_key,
            groups,
            transaction,
            state: State::Negotiate,
        }
    }

    /// What to do next. After a failure the controller may have to be told: then this is a message
    /// to send, and the error comes with the next step.
    ///
    /// # Errors
    ///
    /// The authentication has failed.
    pub fn step(&mut self) -> Result<Step, AuthenticationError> {
        let (message, next) = match core::mem::replace(&mut self.state, State::Done) {
            State::Negotiate => {
                let hashes = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
                let message = Message::Negotiate {
                    concatenation: 0,
                    hashes: hashes.map(|hash| hash as u8).to_vec(),
                    groups: self.groups.iter().map(|group| *group as u8).collect(),
                };
                (message, State::AwaitChallenge)
            }
            State::Reply { message, expected } => (message, State::AwaitSuccess { expected }),
            State::Confirm => (Message::Success2, State::Done),
            State::Failed { tell: Some(failure), error } => {
                (Message::Failure2(failure as u8), State::Failed { tell: None, error })
            }
            State::Failed { tell: None, error } => {
                self.state = State::Failed { tell: None, error };
                return Err(error);
            }
            State::Done => return Ok(Step::Done),
            state @ (State::AwaitChallenge | State::AwaitSuccess { .. }) => {
                self.state = state;
                return Ok(Step::Receive);
            }
        };
        self.state = next;
        Ok(Step::Send(message.encode(self.transaction)))
    }

    /// The data of an Authentication Receive.
    pub fn receive(&mut self, bytes: &[u8], random: &mut dyn FnMut(&mut [u8])) {
        let state = core::mem::replace(&mut self.state, State::Done);
        self.state = self.advance(state, bytes, random).unwrap_or_else(|error| {
            let tell = match error {
                AuthenticationError::Refused(_) => None,
                AuthenticationError::Controller => Some(Failure::Failed),
                AuthenticationError::Protocol(failure) => Some(failure),
            };
            State::Failed { tell, error }
        });
    }

    fn advance(
        &self,
        state: State,
        bytes: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<State, AuthenticationError> {
        let (message, transaction) =
            Message::decode(bytes).map_err(AuthenticationError::Protocol)?;
        if let Message::Failure1(explanation) = message {
            return Err(AuthenticationError::Refused(explanation));
        }
        if transaction != self.transaction {
            return Err(AuthenticationError::Protocol(Failure::IncorrectPayload));
        }
        match (state, message) {
            (State::AwaitChallenge, message @ Message::Challenge { .. }) => {
                self.reply(message, random)
            }
            (State::AwaitSuccess { expected: None }, Message::Success1 { .. }) => Ok(State::Done),
            (
                State::AwaitSuccess { expected: Some(expected) },
                Message::Success1 { response: Some(response), .. },
            ) => {
                let key = self.controller_key.as_ref().ok_or(AuthenticationError::Controller)?;
                let transcript = Transcript {
                    challenge: expected.challenge,
                    sequence: expected.sequence,
                    transaction,
                    role: b"Controller",
                    prover: self.subsystem.as_str(),
                    verifier: self.host.as_str(),
                };
                let key = key.transformed(&self.subsystem);
                if transcript.verify(expected.hash, &key, &response) {
                    Ok(State::Confirm)
                } else {
                    Err(AuthenticationError::Controller)
                }
            }
            (State::AwaitSuccess { .. }, Message::Success1 { .. }) => {
                Err(AuthenticationError::Controller)
            }
            _ => Err(AuthenticationError::Protocol(Failure::IncorrectMessage)),
        }
    }

    fn reply(
        &self,
        message: Message,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<State, AuthenticationError> {
        let unexpected = AuthenticationError::Protocol(Failure::IncorrectMessage);
        let Message::Challenge { hash, group, sequence, challenge, public } = message else {
            return Err(unexpected);
        };
        if !self.groups.contains(&group) {
            return Err(AuthenticationError::Protocol(Failure::GroupNotUsable));
        }
        let exchange = Exchange::new(group, random);
        let session_key = match &exchange {
            None => None,
            Some(exchange) => Some(
                exchange
                    .session_key(hash, &public)
                    .ok_or(AuthenticationError::Protocol(Failure::IncorrectPayload))?,
            ),
        };
        let session_key = session_key.as_deref();
        let transcript = Transcript {
            challenge: augment(hash, session_key, &challenge),
            sequence,
            transaction: self.transaction,
            role: b"HostHost",
            prover: self.host.as_str(),
            verifier: self.subsystem.as_str(),
        };
        let response = transcript.respond(hash, &self.host_key.transformed(&self.host));
        let own = self.controller_key.is_some().then(|| {
            let mut challenge = vec![0; hash.len()];
            let mut sequence = [0; 4];
            random(&mut challenge);
            random(&mut sequence);
            (challenge, u32::from_le_bytes(sequence).max(1))
        });
        let expected = own.as_ref().map(|(challenge, sequence)| Expected {
            hash,
            challenge: augment(hash, session_key, challenge),
            sequence: *sequence,
        });
        let public = exchange.as_ref().map_or_else(Vec::new, Exchange::public);
        Ok(State::Reply { message: Message::Reply { response, challenge: own, public }, expected })
    }
}

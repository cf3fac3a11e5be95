//! Messages (Base 8.13.5.2 to 8.13.5.7). What is received is checked before any of it is used.

use super::{Group, Hash};

/// AUTH_TYPE of messages that all protocols have.
const COMMON: u8 = 0;
/// AUTH_TYPE of DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 1;

const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// The protocol's number in a negotiation.
const AUTH_ID: u8 = 1;

/// Why an authentication has failed: the explanation of a failure message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Failure {
    /// The other end did not prove who it is.
    Failed = 1,
    /// No protocol in common.
    ProtocolNotUsable = 2,
    /// A secure channel was asked for.
    ConcatenationMismatch = 3,
    /// No hash function in common.
    HashNotUsable = 4,
    /// No group in common.
    GroupNotUsable = 5,
    /// A message's fields make no sense.
    IncorrectPayload = 6,
    /// A message came out of turn.
    IncorrectMessage = 7,
}

/// A message, as its fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Negotiate {
        concatenation: u8,
        /// Identifiers of hash functions and groups, in the order of preference.
        hashes: Vec<u8>,
        groups: Vec<u8>,
    },
    Challenge {
        hash: Hash,
        group: Group,
        sequence: u32,
        challenge: Vec<u8>,
        public: Vec<u8>,
    },
    Reply {
        response: Vec<u8>,
        /// The challenge for the controller and its sequence number.
        challenge: Option<(Vec<u8>, u32)>,
        public: Vec<u8>,
    },
    Success1 {
        response: Option<Vec<u8>>,
        hash_len: u8,
    },
    Success2,
    Failure1(u8),
    Failure2(u8),
}

impl Message {
    pub(super) fn encode(&self, transaction: u16) -> Vec<u8> {
        let (kind, id) = match self {
            Self::Negotiate { .. } => (COMMON, NEGOTIATE),
            Self::Challenge { .. } => (DH_HMAC_CHAP, CHALLENGE),
            Self::Reply { .. } => (DH_HMAC_CHAP, REPLY),
            Self::Success1 { .. } => (DH_HMAC_CHAP, SUCCESS1),
            Self::Success2 => (DH_HMAC_CHAP, SUCCESS2),
            Self::Failure1(_) => (COMMON, FAILURE1),
            Self::Failure2(_) => (COMMON, FAILURE2),
        };
        let [t0, t1] = transaction.to_le_bytes();
        let mut bytes = vec![kind, id, 0, 0, t0, t1];
        // Values of hashes and groups are at most 1,024 bytes long.
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes();
        let short = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap_or(0);
        match self {
            Self::Negotiate { concatenation, hashes, groups } => {
                bytes.extend([*concatenation, 1, AUTH_ID, 0, short(hashes), short(groups)]);
                bytes.extend(hashes);
                bytes.resize(12 + 30, 0);
                bytes.extend(groups);
                bytes.resize(12 + 60, 0);
            }
            Self::Challenge { hash, group, sequence, challenge, public } => {
                let [d0, d1] = length(public);
                bytes.extend([short(challenge), 0, *hash as u8, *group as u8, d0, d1]);
                bytes.extend(sequence.to_le_bytes());
                bytes.extend(challenge);
                bytes.extend(public);
            }
            Self::Reply { response, challenge, public } => {
                let [d0, d1] = length(public);
                bytes.extend([short(response), 0, u8::from(challenge.is_some()), 0, d0, d1]);
                let none = (vec![0; response.len()], 0);
                let (challenge, sequence) = challenge.as_ref().unwrap_or(&none);
                bytes.extend(sequence.to_le_bytes());
                bytes.extend(response);
                bytes.extend(challenge);
                bytes.extend(public);
            }
            Self::Success1 { response, hash_len } => {
                bytes.extend([*hash_len, 0, u8::from(response.is_some())]);
                bytes.resize(16, 0);
                bytes.extend(response.iter().flatten());
            }
            Self::Success2 => bytes.resize(16, 0),
            // Reason: authentication has failed.
            Self::Failure1(explanation) | Self::Failure2(explanation) => {
                bytes.extend([1, *explanation]);
            }
        }
        bytes
    }

    /// The message and its transaction.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, u16), Failure> {
        Self::parse(bytes).ok_or(Failure::IncorrectPayload)?
    }

    fn parse(bytes: &[u8]) -> Option<Result<(Self, u16), Failure>> {
        let ([kind, id, _, _, t0, t1], rest) = bytes.split_first_chunk::<6>()?;
        let transaction = u16::from_le_bytes([*t0, *t1]);
        let message = match (*kind, *id) {
            (COMMON, NEGOTIATE) => {
                let ([concatenation, protocols], rest) = rest.split_first_chunk::<2>()?;
                if *protocols == 0 {
                    return None;
                }
                // DH-HMAC-CHAP may be any of the protocols that the host offers.
                let descriptors = rest.get(..usize::from(*protocols) * 64)?;
                let (descriptors, _) = descriptors.as_chunks::<64>();
                let Some(descriptor) =
                    descriptors.iter().find(|descriptor| descriptor[0] == AUTH_ID)
                else {
                    return Some(Err(Failure::ProtocolNotUsable));
                };
                let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
                if hashes > 30 || groups > 30 {
                    return None;
                }
                Self::Negotiate {
                    concatenation: *concatenation,
                    hashes: descriptor[4..4 + hashes].to_vec(),
                    groups: descriptor[34..34 + groups].to_vec(),
                }
            }
            (DH_HMAC_CHAP, CHALLENGE) => {
                let ([len, _, hash, group, d0, d1], rest) = rest.split_first_chunk::<6>()?;
                let (sequence, rest) = rest.split_first_chunk::<4>()?;
                let (challenge, rest) = rest.split_at_checked(usize::from(*len))?;
                let public = rest.get(..usize::from(u16::from_le_bytes([*d0, *d1])))?;
                let Some(hash) = Hash::from_code(*hash) else {
                    return Some(Err(Failure::HashNotUsable));
                };
                let Some(group) = Group::from_code(*group) else {
                    return Some(Err(Failure::GroupNotUsable));
                };
                if challenge.len() != hash.len() {
                    return None;
                }
                Self::Challenge {
                    hash,
                    group,
                    sequence: u32::from_le_bytes(*sequence),
                    challenge: challenge.to_vec(),
                    public: public.to_vec(),
                }
            }
            (DH_HMAC_CHAP, REPLY) => {
                let ([len, _, valid, _, d0, d1], rest) = rest.split_first_chunk::<6>()?;
                let (sequence, rest) = rest.split_first_chunk::<4>()?;
                let (response, rest) = rest.split_at_checked(usize::from(*len))?;
                let (challenge, rest) = rest.split_at_checked(usize::from(*len))?;
                let public = rest.get(..usize::from(u16::from_le_bytes([*d0, *d1])))?;
                Self::Reply {
                    response: response.to_vec(),
                    challenge: (*valid & 1 != 0)
                        .then(|| (challenge.to_vec(), u32::from_le_bytes(*sequence))),
                    public: public.to_vec(),
                }
            }
            (DH_HMAC_CHAP, SUCCESS1) => {
                let ([hash_len, _, valid, ..], rest) = rest.split_first_chunk::<10>()?;
                let response = if *valid & 1 != 0 {
                    Some(rest.get(..usize::from(*hash_len))?.to_vec())
                } else {
                    None
                };
                Self::Success1 { response, hash_len: *hash_len }
            }
            (DH_HMAC_CHAP, SUCCESS2) => Self::Success2,
            (COMMON, FAILURE1) => Self::Failure1(*rest.get(1)?),
            (COMMON, FAILURE2) => Self::Failure2(*rest.get(1)?),
            _ => return Some(Err(Failure::IncorrectMessage)),
        };
        Some(Ok((message, transaction)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Message> {
        vec![
            Message::Negotiate { concatenation: 0, hashes: vec![1, 2, 3], groups: vec![0, 1] },
            Message::Challenge {
                hash: Hash::Sha256,
                group: Group::Ffdhe2048,
                sequence: 9,
                challenge: vec![5; 32],
                public: vec![6; 256],
            },
            Message::Reply {
                response: vec![1; 32],
                challenge: Some((vec![2; 32], 4)),
                public: vec![3; 256],
            },
            Message::Reply { response: vec![1; 32], challenge: None, public: vec![] },
            Message::Success1 { response: Some(vec![7; 32]), hash_len: 32 },
            Message::Success1 { response: None, hash_len: 32 },
            Message::Success2,
            Message::Failure1(1),
            Message::Failure2(6),
        ]
    }

    #[test]
    fn there_and_back() {
        for message in examples() {
            let bytes = message.encode(0x1234);
            assert_eq!(Message::decode(&bytes), Ok((message, 0x1234)));
        }
    }

    /// Base 8.13.5.2, 8.13.5.3, 8.13.5.5: where the fields are.
    #[test]
    fn golden() {
        let bytes = examples()[0].encode(0x1234);
        assert_eq!(bytes.len(), 8 + 64);
        assert_eq!(bytes[..12], [0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 3, 2]);
        assert_eq!((&bytes[12..15], &bytes[42..44]), (&[1, 2, 3][..], &[0, 1][..]));
        let bytes = examples()[1].encode(2);
        assert_eq!(bytes.len(), 16 + 32 + 256);
        assert_eq!(bytes[..16], [1, 1, 0, 0, 2, 0, 32, 0, 1, 1, 0, 1, 9, 0, 0, 0]);
        let bytes = examples()[3].encode(2);
        assert_eq!(bytes.len(), 16 + 64);
        assert_eq!(bytes[..16], [1, 2, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(examples()[7].encode(2), [0, 0xf1, 0, 0, 2, 0, 1, 1]);
    }

    #[test]
    fn cut_and_changed() {
        for message in examples() {
            let bytes = message.encode(1);
            for end in 0..bytes.len() {
                // Padding may be missing; nothing may panic.
                let _ = Message::decode(&bytes[..end]);
            }
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0xff;
                let _ = Message::decode(&changed);
            }
        }
        assert_eq!(Message::decode(&[]), Err(Failure::IncorrectPayload));
        assert_eq!(Message::decode(&[9; 64]), Err(Failure::IncorrectMessage));
    }
}

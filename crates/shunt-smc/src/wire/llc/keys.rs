//! CONFIRM RKEY and DELETE RKEY (RFC 7609 A.3; `smc_llc.c`).

use shunt_verbs::value::{Remote, RemoteKey};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Malformed, U32, U64};
use super::flags::{ANSWER, flag};

const REFUSED: u8 = 0x20;
const RETRY: u8 = 0x10;

/// Most keys that one message deletes (`smc_llc.c`: `SMC_LLC_RKEYS_PER_MSG_V2`).
pub const MOST_DELETED: usize = 255;
/// Tokens of other links in one message.
const MOST_OTHERS: usize = 2;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TokenBytes {
    /// Of the first one: how many others there are; of others: their link.
    number: u8,
    key: U32,
    address: U64,
}

/// A ring as it is reached by one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// Number of the link.
    pub link: u8,
    /// Where the ring is.
    pub rmb: Remote,
}

/// The sender has registered a ring, and the receiver takes note of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfirmRkey {
    /// It has.
    pub is_answer: bool,
    /// Of an answer: it has not.
    pub is_refused: bool,
    /// Of a refusal: another time it may.
    pub may_retry: bool,
    /// The ring by the link on which this is said.
    pub rmb: Remote,
    /// The same by other links, two at most.
    pub others: Vec<Token>,
}

impl ConfirmRkey {
    /// A ring that is reached by one link.
    #[must_use]
    pub const fn of_ring(rmb: Remote) -> Self {
        Self { is_answer: false, is_refused: false, may_retry: false, rmb, others: Vec::new() }
    }

    pub(super) fn flags(&self) -> u8 {
        flag(self.is_answer, ANSWER) | flag(self.is_refused, REFUSED) | flag(self.may_retry, RETRY)
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let token = |number: u8, rmb: Remote| TokenBytes {
            number,
            key: rmb.key.0.into(),
            address: rmb.address.into(),
        };
        let others = &self.others[..self.others.len().min(MOST_OTHERS)];
        // It fits.
        let count = u8::try_from(others.len()).unwrap_or(0);
        let mut bytes = token(count, self.rmb).as_bytes().to_vec();
        for other in others {
            bytes.extend(token(other.link, other.rmb).as_bytes());
        }
        bytes
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let remote = |bytes: &TokenBytes| Remote {
            address: bytes.address.get(),
            key: RemoteKey(bytes.key.get()),
        };
        let (tokens, _) = <[TokenBytes; 1 + MOST_OTHERS]>::read_from_prefix(body)
            .map_err(|_| Malformed::Length)?;
        let [first, others @ ..] = &tokens;
        let count = usize::from(first.number);
        let others = others.get(..count).ok_or(Malformed::Field("number of tokens"))?;
        let others = others.iter().map(|bytes| Token { link: bytes.number, rmb: remote(bytes) });
        Ok(Self {
            is_answer: flags & ANSWER != 0,
            is_refused: flags & REFUSED != 0,
            may_retry: flags & RETRY != 0,
            rmb: remote(first),
            others: others.collect(),
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeleteBytes {
    count: u8,
    unknown: u8,
    reserved: [u8; 2],
}

/// The sender writes off rings: into which the receiver writes no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteRkey {
    /// The receiver does not any more.
    pub is_answer: bool,
    /// Of an answer: how many of the keys it had not.
    pub unknown: u8,
    /// The keys, [`MOST_DELETED`] at most. Linux sends none in an answer.
    pub keys: Vec<RemoteKey>,
}

impl DeleteRkey {
    pub(super) fn flags(&self) -> u8 {
        flag(self.is_answer, ANSWER) | flag(self.unknown > 0, REFUSED)
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let keys = &self.keys[..self.keys.len().min(MOST_DELETED)];
        let count = u8::try_from(keys.len()).unwrap_or(u8::MAX);
        let head = DeleteBytes { count, unknown: self.unknown, reserved: [0; 2] };
        let mut bytes = head.as_bytes().to_vec();
        keys.iter().for_each(|key| bytes.extend(key.0.to_be_bytes()));
        bytes
    }

    pub(super) fn of(flags: u8, body: &[u8]) -> Result<Self, Malformed> {
        let (head, rest) = DeleteBytes::read_from_prefix(body).map_err(|_| Malformed::Length)?;
        let is_answer = flags & ANSWER != 0;
        let keys = rest.get(..usize::from(head.count) * 4);
        // Linux keeps the number in an answer, and clears the keys: more may have been named than
        // an answer has room for.
        let keys = match (keys, is_answer) {
            (_, true) => &[],
            (Some(keys), false) => keys,
            (None, false) => return Err(Malformed::Length),
        };
        let keys = keys.as_chunks().0.iter().map(|key| RemoteKey(u32::from_be_bytes(*key)));
        Ok(Self {
            is_answer,
            unknown: if flags & REFUSED != 0 { head.unknown.max(1) } else { 0 },
            keys: keys.collect(),
        })
    }
}

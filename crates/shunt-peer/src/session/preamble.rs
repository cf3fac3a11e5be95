//! The first bytes of each side, which are not encrypted: which versions it speaks.

use super::end::End;
use super::version::{NEWEST, OLDEST};
use crate::message::Token;

/// Bytes.
pub const LEN: usize = 16;
/// What they begin with.
const NAME: [u8; 8] = *b"shuntrdm";

/// `shuntrdm`, the oldest and the newest version (2 bytes each, network byte order), and four bytes that are zero and not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    /// The oldest version.
    pub oldest: u16,
    /// The newest version.
    pub newest: u16,
    rest: [u8; 4],
}

impl Preamble {
    /// This agent's.
    pub const OWN: Self = Self { oldest: OLDEST, newest: NEWEST, rest: [0; 4] };

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&NAME);
        bytes[8..10].copy_from_slice(&self.oldest.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.newest.to_be_bytes());
        bytes[12..].copy_from_slice(&self.rest);
        bytes
    }

    /// True for bytes that are these, sent by an agent that answers.
    #[must_use]
    pub fn is_own(bytes: &[u8; LEN]) -> bool {
        *bytes == Self::OWN.bytes()
    }

    /// `None`: more has to come.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, End> {
        let begins = bytes.len().min(NAME.len());
        if bytes[..begins] != NAME[..begins] {
            return Err(End::NoAgent);
        }
        let Some(bytes) = bytes.first_chunk::<LEN>() else { return Ok(None) };
        let [_, _, _, _, _, _, _, _, o1, o2, n1, n2, rest @ ..] = *bytes;
        let (oldest, newest) = (u16::from_be_bytes([o1, o2]), u16::from_be_bytes([n1, n2]));
        Ok(Some(Self { oldest, newest, rest }))
    }

    /// The newest version that both speak.
    pub(super) fn agree(&self) -> Result<u16, End> {
        let newest = self.newest.min(NEWEST);
        if newest >= self.oldest.max(OLDEST) {
            Ok(newest)
        } else {
            Err(End::Version(self.oldest, self.newest))
        }
    }
}

/// What a connection begins with that is to be measured: it proves nothing, and names what was agreed upon on another one.
const MEASURES: [u8; 8] = *b"shuntmea";

/// The first bytes of a connection that is to be measured.
#[must_use]
pub fn measures(token: Token) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&MEASURES);
    bytes[8..].copy_from_slice(&token.0);
    bytes
}

/// What such a connection names; `None`: it is another one, or more has to come. True: more has to come.
pub(super) fn read_token(bytes: &[u8]) -> (Option<Token>, bool) {
    let begins = bytes.len().min(MEASURES.len());
    let is_it = begins > 0 && bytes[..begins] == MEASURES[..begins];
    let token = bytes.get(8..24).filter(|_| is_it).and_then(|token| token.try_into().ok());
    (token.map(Token), is_it && token.is_none())
}

//! The first bytes of each side, which are not encrypted: which versions it speaks.

use super::end::End;
use super::version::{NEWEST, OLDEST};

/// Bytes.
pub(super) const LEN: usize = 16;
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

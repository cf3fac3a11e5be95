//! Hash functions, and what is computed with them.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// A hash function, by its HashID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

/// Calls `$body` with `$hash` as the type of the function.
macro_rules! with {
    ($self:expr, $hash:ident, $body:expr) => {
        match $self {
            Hash::Sha256 => {
                type $hash = Sha256;
                $body
            }
            Hash::Sha384 => {
                type $hash = Sha384;
                $body
            }
            Hash::Sha512 => {
                type $hash = Sha512;
                $body
            }
        }
    };
}

impl Hash {
    /// The function for a HashID.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Sha256,
            2 => Self::Sha384,
            3 => Self::Sha512,
            _ => return None,
        })
    }

    /// Bytes of a digest.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// False: no digest is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        false
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        with!(self, H, H::digest(bytes).to_vec())
    }

    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        with!(self, H, {
            // A key of any length is good.
            let Ok(mut mac) = Hmac::<H>::new_from_slice(key) else { return Vec::new() };
            parts.iter().for_each(|part| mac.update(part));
            mac.finalize().into_bytes().to_vec()
        })
    }

    /// Compares an HMAC with a received one, in constant time.
    pub(super) fn verify(self, key: &[u8], parts: &[&[u8]], received: &[u8]) -> bool {
        with!(self, H, {
            let Ok(mut mac) = Hmac::<H>::new_from_slice(key) else { return false };
            parts.iter().for_each(|part| mac.update(part));
            mac.verify_slice(received).is_ok()
        })
    }
}

/// What a response proves: all that both ends know of the transaction (Base 8.13.5.4).
pub(super) struct Transcript<'a> {
    /// The challenge, augmented by the session key if there is one.
    pub(super) challenge: Vec<u8>,
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    /// "HostHost" or "Controller".
    pub(super) role: &'static [u8],
    /// Who proves itself, and to whom.
    pub(super) prover: &'a str,
    pub(super) verifier: &'a str,
}

impl Transcript<'_> {
    fn with<T>(&self, call: impl FnOnce(&[&[u8]]) -> T) -> T {
        call(&[
            &self.challenge,
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            // SC_C: no secure channel is concatenated.
            &[0],
            self.role,
            self.prover.as_bytes(),
            &[0],
            self.verifier.as_bytes(),
        ])
    }

    pub(super) fn respond(&self, hash: Hash, key: &[u8]) -> Vec<u8> {
        self.with(|parts| hash.hmac(key, parts))
    }

    pub(super) fn verify(&self, hash: Hash, key: &[u8], response: &[u8]) -> bool {
        self.with(|parts| hash.verify(key, parts, response))
    }
}

/// The challenge as it is answered: with a session key, its HMAC under that key's hash.
pub(super) fn augment(hash: Hash, session_key: Option<&[u8]>, challenge: &[u8]) -> Vec<u8> {
    session_key.map_or_else(|| challenge.to_vec(), |key| hash.hmac(key, &[challenge]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn hmac_of_the_rfc() {
        let mac = Hash::Sha256.hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        assert_eq!(mac[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        let mac = Hash::Sha384.hmac(b"Jefe", &[b"what do ya want for nothing?"]);
        assert_eq!(mac[..4], [0xaf, 0x45, 0xd2, 0xe3]);
        let mac = Hash::Sha512.hmac(b"Jefe", &[b"what do ya want for nothing?"]);
        assert_eq!(mac[..4], [0x16, 0x4b, 0x7a, 0x7b]);
    }
}

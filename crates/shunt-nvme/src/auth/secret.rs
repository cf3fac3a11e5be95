//! Secrets as they are written down: `DHHC-1:hh:base64:` (Base 8.13.5.8).

use super::Hash;
use crate::wire::Nqn;
use base64::{Engine, engine::general_purpose::STANDARD};
use core::fmt;

/// A key. Its bytes are not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    transform: Option<Hash>,
}

/// Why a text is no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecretError {
    /// It isn't of the form `DHHC-1:hh:base64:`.
    Format,
    /// `hh` is none of 00, 01, 02 and 03.
    Transform,
    /// The key isn't of 32, 48 or 64 bytes.
    Length,
    /// The CRC-32 doesn't match: a typing error.
    Checksum,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => "secret: not of the form DHHC-1:hh:base64:",
            Self::Transform => "secret: the transformation is none of 00, 01, 02, 03",
            Self::Length => "secret: the key is not 32, 48 or 64 bytes long",
            Self::Checksum => "secret: the checksum does not match",
        })
    }
}

impl core::error::Error for SecretError {}

impl Secret {
    /// Reads a secret.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn new(text: &str) -> Result<Self, SecretError> {
        let rest = text.strip_prefix("DHHC-1:").ok_or(SecretError::Format)?;
        let (transform, rest) = rest.split_once(':').ok_or(SecretError::Format)?;
        let encoded = rest.strip_suffix(':').ok_or(SecretError::Format)?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Transform),
        };
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError::Format)?;
        let (key, checksum) = bytes.split_last_chunk::<4>().ok_or(SecretError::Length)?;
        if !matches!(key.len(), 32 | 48 | 64) {
            return Err(SecretError::Length);
        }
        if u32::from_le_bytes(*checksum) != crc32fast::hash(key) {
            return Err(SecretError::Checksum);
        }
        Ok(Self { key: key.to_vec(), transform })
    }

    /// The key as the end with this name uses it.
    pub(super) fn transformed(&self, nqn: &Nqn) -> Vec<u8> {
        self.transform.map_or_else(
            || self.key.clone(),
            |hash| hash.hmac(&self.key, &[nqn.as_str().as_bytes(), b"NVMe-over-Fabrics"]),
        )
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn written(transform: &str, key: &[u8]) -> String {
        let mut bytes = key.to_vec();
        bytes.extend(crc32fast::hash(key).to_le_bytes());
        format!("DHHC-1:{transform}:{}:", STANDARD.encode(bytes))
    }

    #[test]
    fn written_down() {
        let text = written("01", &[7; 32]);
        let secret = Secret::new(&text).unwrap();
        assert_eq!((secret.key.len(), secret.transform), (32, Some(Hash::Sha256)));
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(Secret::new(&written("00", &[7; 20])), Err(SecretError::Length));
        assert_eq!(Secret::new(&written("04", &[7; 32])), Err(SecretError::Transform));
        assert_eq!(Secret::new(&text[1..]), Err(SecretError::Format));
        assert_eq!(Secret::new(text.trim_end_matches(':')), Err(SecretError::Format));
        // One wrong character.
        let wrong = text.replacen("Bw", "Cw", 1);
        assert_ne!(wrong, text);
        assert_eq!(Secret::new(&wrong), Err(SecretError::Checksum));
    }
}

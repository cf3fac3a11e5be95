//! Key pairs of agents, and their text forms.
//!
//! A public key is 44 characters of base64 (RFC 4648, section 4), as WireGuard's are. A secret key has `secret:` in front, so
//! that a file or a configuration with the wrong one of both is noticed and not used.

use core::fmt;
use core::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::Zeroizing;

/// Bytes of either key.
pub const LEN: usize = 32;
/// What a secret key's text begins with.
const SECRET: &str = "secret:";

/// By which an agent is known to others (X25519, RFC 7748).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; LEN]);

/// By which an agent proves that it has its public key. Gone from memory when dropped.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<[u8; LEN]>);

/// Why a text is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyError {
    /// A secret key where a public one belongs.
    Secret,
    /// A public key, or something else, where a secret one belongs.
    NotSecret,
    /// Not 32 bytes in base64.
    Form,
    /// A number that everybody can prove to have.
    Weak,
    /// The system gives no random numbers.
    NoRandom,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => {
                "that is a secret key, which never leaves its host: give the public one, which `shunt agent-key` prints \
                 there, and make a new pair if others have seen this one"
            }
            Self::NotSecret => "there is no secret key: it begins with `secret:`",
            Self::Form => "a key is 44 characters of base64, as `shunt agent-key` prints it",
            Self::Weak => "that key proves nothing: make one by `shunt agent-key`",
            Self::NoRandom => "the system has no random numbers yet",
        })
    }
}

impl core::error::Error for KeyError {}

/// The product of a secret and a public key.
fn product(secret: &[u8; LEN], public: &[u8; LEN]) -> Option<[u8; LEN]> {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519)?;
    dh.set(secret);
    let mut product = [0; LEN];
    dh.dh(public, &mut product).ok()?;
    Some(product)
}

fn decode(text: &str) -> Result<Zeroizing<[u8; LEN]>, KeyError> {
    let mut bytes = Zeroizing::new([0; LEN]);
    match BASE64.decode_slice(text, &mut bytes[..]) {
        Ok(LEN) => Ok(bytes),
        _ => Err(KeyError::Form),
    }
}

impl PublicKey {
    /// Of these bytes.
    ///
    /// # Errors
    /// [`KeyError::Weak`].
    pub fn of(bytes: [u8; LEN]) -> Result<Self, KeyError> {
        // A point of small order: its product with any secret key is zero (RFC 7748, section 6.1).
        match product(&[1; LEN], &bytes) {
            Some(product) if product != [0; LEN] => Ok(Self(bytes)),
            _ => Err(KeyError::Weak),
        }
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.starts_with(SECRET) {
            return Err(KeyError::Secret);
        }
        Self::of(*decode(text)?)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl SecretKey {
    /// A new one.
    ///
    /// # Errors
    /// [`KeyError::NoRandom`].
    pub fn generate() -> Result<Self, KeyError> {
        let mut random = DefaultResolver.resolve_rng().ok_or(KeyError::NoRandom)?;
        let mut bytes = Zeroizing::new([0; LEN]);
        random.try_fill_bytes(&mut bytes[..]).map_err(|_| KeyError::NoRandom)?;
        Ok(Self(bytes))
    }

    /// Its public key.
    ///
    /// # Errors
    /// [`KeyError::Weak`], which no generated key is.
    pub fn public(&self) -> Result<PublicKey, KeyError> {
        let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).ok_or(KeyError::Form)?;
        dh.set(&self.0[..]);
        let bytes = dh.pubkey().try_into().map_err(|_| KeyError::Form)?;
        PublicKey::of(bytes)
    }

    /// For a file that only its owner reads.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let coded = Zeroizing::new(BASE64.encode(&self.0[..]));
        let mut text = Zeroizing::new(String::with_capacity(SECRET.len() + coded.len()));
        text.push_str(SECRET);
        text.push_str(&coded);
        text
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0[..]
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let coded = text.strip_prefix(SECRET).ok_or(KeyError::NotSecret)?;
        decode(coded).map(Self)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748, section 6.1: Alice's.
    const SECRET_TEXT: &str = "secret:dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
    const PUBLIC_TEXT: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

    #[test]
    fn a_pair_of_the_rfc() {
        let secret: SecretKey = SECRET_TEXT.parse().unwrap();
        assert_eq!(secret.public().unwrap().to_string(), PUBLIC_TEXT);
        assert_eq!(*secret.text(), SECRET_TEXT);
        let public: PublicKey = PUBLIC_TEXT.parse().unwrap();
        assert_eq!(public, secret.public().unwrap());
    }

    #[test]
    fn generated_ones_differ_and_come_back_from_their_text() {
        let (one, two) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        assert_ne!(one.public(), two.public());
        let again: SecretKey = one.text().parse().unwrap();
        assert_eq!(again.public(), one.public());
    }

    #[test]
    fn the_wrong_one_of_both_is_noticed() {
        assert_eq!(SECRET_TEXT.parse::<PublicKey>(), Err(KeyError::Secret));
        assert_eq!(PUBLIC_TEXT.parse::<SecretKey>().unwrap_err(), KeyError::NotSecret);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "x", &PUBLIC_TEXT[1..], "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTm=="] {
            assert_eq!(text.parse::<PublicKey>(), Err(KeyError::Form), "{text}");
            let text = format!("secret:{text}");
            assert_eq!(text.parse::<SecretKey>().unwrap_err(), KeyError::Form, "{text}");
        }
        let long = BASE64.encode([7; 33]);
        assert_eq!(long.parse::<PublicKey>(), Err(KeyError::Form));
    }

    #[test]
    fn points_of_small_order_are_no_keys() {
        let mut one = [0; LEN];
        one[0] = 1;
        // Of order 8, see the list at https://cr.yp.to/ecdh.html.
        let eight = [
            0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f,
            0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16,
            0x5f, 0x49, 0xb8, 0x00,
        ];
        for bytes in [[0; LEN], one, eight] {
            assert_eq!(BASE64.encode(bytes).parse::<PublicKey>(), Err(KeyError::Weak));
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret: SecretKey = SECRET_TEXT.parse().unwrap();
        assert_eq!(format!("{secret:?}"), "SecretKey");
    }
}

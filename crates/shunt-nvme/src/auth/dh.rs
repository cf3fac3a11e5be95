//! Diffie-Hellman over the groups of RFC 7919.

use super::{Hash, groups};
use crypto_bigint::{
    BoxedUint, Odd,
    modular::{BoxedMontyForm, BoxedMontyParams},
};

/// A group, by its DHgroupID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Group {
    /// No exchange.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
    /// ffdhe6144.
    Ffdhe6144 = 4,
    /// ffdhe8192.
    Ffdhe8192 = 5,
}

/// Bytes of a private exponent: more than RFC 7919 section 5.2 asks for with any of the groups.
const EXPONENT_LEN: usize = 64;

impl Group {
    /// The group for a DHgroupID.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Null,
            1 => Self::Ffdhe2048,
            2 => Self::Ffdhe3072,
            3 => Self::Ffdhe4096,
            4 => Self::Ffdhe6144,
            5 => Self::Ffdhe8192,
            _ => return None,
        })
    }

    /// The prime.
    fn prime(self) -> Option<Odd<BoxedUint>> {
        let hex = match self {
            Self::Null => return None,
            Self::Ffdhe2048 => groups::FFDHE2048,
            Self::Ffdhe3072 => groups::FFDHE3072,
            Self::Ffdhe4096 => groups::FFDHE4096,
            Self::Ffdhe6144 => groups::FFDHE6144,
            Self::Ffdhe8192 => groups::FFDHE8192,
        };
        let (pairs, _) = hex.as_bytes().as_chunks::<2>();
        let bytes: Vec<u8> =
            pairs.iter().map(|[high, low]| nibble(*high) << 4 | nibble(*low)).collect();
        Odd::new(number(&bytes)?).into_option()
    }
}

const fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

fn number(bytes: &[u8]) -> Option<BoxedUint> {
    BoxedUint::from_be_slice(bytes, u32::try_from(bytes.len() * 8).ok()?).ok()
}

/// One end's part of an exchange.
pub(super) struct Exchange {
    prime: Odd<BoxedUint>,
    exponent: BoxedUint,
}

impl core::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Exchange")
    }
}

impl Exchange {
    /// `None` for the null group.
    pub(super) fn new(group: Group, random: &mut dyn FnMut(&mut [u8])) -> Option<Self> {
        let mut exponent = [0; EXPONENT_LEN];
        random(&mut exponent);
        Some(Self { prime: group.prime()?, exponent: number(&exponent)? })
    }

    /// Bytes of public values.
    fn len(&self) -> usize {
        self.prime.to_be_bytes().len()
    }

    fn power(&self, base: BoxedUint) -> Vec<u8> {
        let params = BoxedMontyParams::new(self.prime.clone());
        BoxedMontyForm::new(base, &params).pow(&self.exponent).retrieve().to_be_bytes().to_vec()
    }

    /// What the other end gets: 2 to the power of the exponent.
    pub(super) fn public(&self) -> Vec<u8> {
        let mut two = vec![0; self.len()];
        if let Some(last) = two.last_mut() {
            *last = 2;
        }
        number(&two).map_or_else(Vec::new, |two| self.power(two))
    }

    /// The session key: the hash of the shared secret. `None` for a public value that no honest
    /// end has: of another length, or none of 2 to p - 2 (RFC 7919 section 5.1).
    pub(super) fn session_key(&self, hash: Hash, peer: &[u8]) -> Option<Vec<u8>> {
        let prime = self.prime.to_be_bytes();
        if peer.len() != prime.len() {
            return None;
        }
        // Numbers of the same length compare as their bytes do. The prime is odd.
        let mut last = prime.to_vec();
        *last.last_mut()? -= 1;
        let (low, rest) = peer.split_last()?;
        let at_most_one = *low <= 1 && rest.iter().all(|byte| *byte == 0);
        if at_most_one || peer >= last.as_slice() {
            return None;
        }
        Some(hash.digest(&self.power(number(peer)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_agree() {
        let mut seed = 0_u8;
        let mut random = |bytes: &mut [u8]| {
            seed += 1;
            bytes.fill(seed);
        };
        for code in 1..=3 {
            let group = Group::from_code(code).unwrap();
            let a = Exchange::new(group, &mut random).unwrap();
            let b = Exchange::new(group, &mut random).unwrap();
            let key = a.session_key(Hash::Sha256, &b.public()).unwrap();
            assert_eq!(b.session_key(Hash::Sha256, &a.public()), Some(key));
            assert_eq!(a.public().len(), [256, 384, 512][usize::from(code) - 1]);
        }
        assert!(Exchange::new(Group::Null, &mut random).is_none());
    }

    #[test]
    fn public_values_of_no_honest_end() {
        let exchange = Exchange::new(Group::Ffdhe2048, &mut |bytes| bytes.fill(3)).unwrap();
        let mut small = vec![0; 256];
        let prime = exchange.prime.to_be_bytes().to_vec();
        let mut last = prime.clone();
        last[255] -= 1;
        for low in 0..3 {
            small[255] = low;
            let key = exchange.session_key(Hash::Sha256, &small);
            assert_eq!(key.is_some(), low == 2);
        }
        for bad in [&prime, &last, &vec![0xff; 256], &vec![3; 255], &vec![3; 257]] {
            assert_eq!(exchange.session_key(Hash::Sha256, bad), None);
        }
    }

    /// The first and last digits of RFC 7919 appendix A.1 and A.3.
    #[test]
    fn primes_of_the_rfc() {
        for prime in [groups::FFDHE2048, groups::FFDHE4096, groups::FFDHE8192] {
            assert!(prime.starts_with("ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1"));
            assert!(prime.ends_with("ffffffffffffffff"));
        }
        assert!(groups::FFDHE2048.ends_with("886b423861285c97ffffffffffffffff"));
        assert!(groups::FFDHE4096.ends_with("c68a007e5e655f6affffffffffffffff"));
    }
}

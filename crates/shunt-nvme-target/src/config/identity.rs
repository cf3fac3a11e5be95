//! Names of namespaces and serial numbers.

/// How hosts tell namespaces apart, and find the same one on several paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// A UUID (RFC 9562).
    pub uuid: [u8; 16],
    /// An NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
}

/// FNV-1a of 128 bits: stable for ever, as disks are found by it. No secret is in it.
fn hash(parts: &[&[u8]]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// The names of a namespace to which the file gives none: the same at each start. A UUID of version 8.
#[must_use]
pub fn default_identity(nqn: &str, nsid: u32) -> Identity {
    let mut uuid = hash(&[nqn.as_bytes(), &nsid.to_be_bytes()]).to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Identity { uuid, nguid: None }
}

/// The serial number of a subsystem to which the file gives none: the same at each start.
#[must_use]
pub fn default_serial(nqn: &str) -> String {
    let hash = hash(&[nqn.as_bytes()]);
    format!("{:016X}", (hash >> 64) ^ (hash & u128::from(u64::MAX)))
}

/// 32 digits, with hyphens where UUIDs have them, or anywhere.
pub(super) fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let well_formed = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let value = u128::from_str_radix(&digits, 16).ok()?;
    (well_formed && value != 0).then(|| value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts have disks under these names: they must never change.
    #[test]
    fn defaults_are_what_they_were() {
        let uuid = default_identity("nqn.2024-01.org.example:disk", 1).uuid;
        assert_ne!(uuid, default_identity("nqn.2024-01.org.example:disk", 2).uuid);
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
        assert_eq!(uuid, parse("7b48dd4690248f7c9340ec48254f44e0").unwrap());
        assert_eq!(default_serial("nqn.2024-01.org.example:disk"), "CBE9EFD59056683D");
    }

    #[test]
    fn names() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(parse(text).unwrap()[..3], [0x00, 0x11, 0x22]);
        assert_eq!(parse(&text.replace('-', "")), parse(text));
        for bad in ["", "00112233", "+0112233-4455-6677-8899-aabbccddeeff", &"0".repeat(32)] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}

//! Header and data digests: CRC32C, four bytes, little-endian (TCP 3.3.1.1).

/// Bytes of a digest.
pub const LEN: usize = 4;

/// The digest of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The digest of two runs of bytes in a row, from the digest of each, and the length of the second.
#[must_use]
pub fn combine(first: u32, second: u32, second_len: usize) -> u32 {
    if second_len == 0 { first } else { crc32c::crc32c_combine(first, second, second_len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720 appendix B.4, as this CRC is iSCSI's. The RFC prints bytes in the
    /// order in which they are sent.
    #[test]
    fn examples_of_the_rfc() {
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending).to_le_bytes(), [0x4e, 0x79, 0xdd, 0x46]);
    }

    #[test]
    fn combined_in_every_split() {
        let bytes: Vec<u8> = (0..100_u8).map(|i| i.wrapping_mul(7)).collect();
        for split in 0..=bytes.len() {
            let (a, b) = bytes.split_at(split);
            assert_eq!(combine(crc32c(a), crc32c(b), b.len()), crc32c(&bytes), "{split}");
        }
    }
}

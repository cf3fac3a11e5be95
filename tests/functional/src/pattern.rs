//! The bytes that `shunt-gen` sends, and where they belong.
//!
//! A stream is a sequence of 8-byte words. Word 0 is the stream's label; every other word is a
//! one-to-one function of the label and its own index. So each byte is known from its position
//! alone, and a word that arrives in the wrong place tells where it should have been.

/// Odd, so that multiplying by it is one-to-one on 64-bit words.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The inverse of [`STEP`] modulo 2^64.
const BACK: u64 = inverse(STEP);

/// The inverse of an odd number modulo 2^64 (Newton's iteration doubles the right bits each time).
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut i = 0;
    while i < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        i += 1;
    }
    x
}

/// Word `index` of the stream with this label.
#[inline]
const fn word(label: u64, index: u64) -> u64 {
    if index == 0 {
        return label;
    }
    let x = (index ^ label).wrapping_mul(STEP);
    x ^ (x >> 32)
}

/// The index at which `word` stands in the stream with this label.
const fn index_of(label: u64, word: u64) -> u64 {
    if word == label {
        return 0;
    }
    (word ^ (word >> 32)).wrapping_mul(BACK) ^ label
}

/// Fills `out` with the bytes of stream `label` from byte `position` on.
pub fn fill(label: u64, position: u64, out: &mut [u8]) {
    let mut index = position / 8;
    let skip = usize::try_from(position % 8).unwrap_or(0);
    let mut rest = out;
    if skip > 0 {
        let bytes = word(label, index).to_le_bytes();
        let n = rest.len().min(8 - skip);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&bytes[skip..skip + n]);
        rest = tail;
        index += 1;
    }
    let mut words = rest.chunks_exact_mut(8);
    for chunk in &mut words {
        chunk.copy_from_slice(&word(label, index).to_le_bytes());
        index += 1;
    }
    let last = words.into_remainder();
    let n = last.len();
    last.copy_from_slice(&word(label, index).to_le_bytes()[..n]);
}

/// Compares `bytes` with stream `label` from byte `position` on.
///
/// # Errors
/// A sentence that names the first wrong byte and, if it can be told, where the bytes found
/// there belong.
pub fn verify(
    label: u64,
    position: u64,
    bytes: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<(), String> {
    scratch.resize(bytes.len(), 0);
    fill(label, position, scratch);
    if scratch == bytes {
        return Ok(());
    }
    let wrong = scratch.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
    let at = position + wrong as u64;
    let origin = origin_of(label, &bytes[wrong..]).map_or_else(
        || "they belong nowhere near in this stream".to_owned(),
        |origin| {
            let shift = i128::from(origin) - i128::from(at);
            format!("they belong at {origin} (a shift of {shift} bytes)")
        },
    );
    let shown = &bytes[wrong..bytes.len().min(wrong + 24)];
    Err(format!(
        "stream {label:#x}: wrong bytes at {at} (byte {wrong} of {} received at {position}): \
         {shown:02x?}; {origin}",
        bytes.len()
    ))
}

/// The position in stream `label` at which `bytes` begin, if two words in a row agree on one.
#[must_use]
pub fn origin_of(label: u64, bytes: &[u8]) -> Option<u64> {
    (0..8).find_map(|skip| {
        let words = bytes.get(skip..skip + 16)?;
        let first = index_of(label, u64::from_le_bytes(words[..8].try_into().ok()?));
        let second = index_of(label, u64::from_le_bytes(words[8..].try_into().ok()?));
        (second == first.wrapping_add(1)).then(|| first.checked_mul(8)?.checked_sub(skip as u64))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_in_pieces_is_filling_at_once() {
        let mut whole = vec![0; 1000];
        fill(77, 0, &mut whole);
        for position in [0usize, 1, 7, 8, 9, 500, 991] {
            for len in [0usize, 1, 3, 8, 9] {
                let mut part = vec![0; len];
                fill(77, position as u64, &mut part);
                assert_eq!(part, whole[position..position + len]);
            }
        }
    }

    #[test]
    fn the_label_comes_first() {
        let mut bytes = [0; 8];
        fill(0x1234_5678_9abc_def0, 0, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 0x1234_5678_9abc_def0);
    }

    #[test]
    fn a_shift_is_named() {
        let mut bytes = vec![0; 256];
        fill(5, 1003, &mut bytes);
        let mut scratch = Vec::new();
        assert_eq!(verify(5, 1003, &bytes, &mut scratch), Ok(()));
        let error = verify(5, 1000, &bytes, &mut scratch).unwrap_err();
        assert!(error.contains("belong at 1003 (a shift of 3 bytes)"), "{error}");
    }

    #[test]
    fn one_flipped_bit_is_found() {
        let mut bytes = vec![0; 100];
        fill(5, 10, &mut bytes);
        bytes[61] ^= 1;
        let error = verify(5, 10, &bytes, &mut Vec::new()).unwrap_err();
        assert!(error.contains("wrong bytes at 71"), "{error}");
    }
}

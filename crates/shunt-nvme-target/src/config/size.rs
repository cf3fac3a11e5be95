//! Numbers of bytes, as people write them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Why a text is no number of bytes.
const EXPECTED: &str = "it must be a number of bytes, with a unit of KiB, MiB, GiB or TiB if need be, such as \"10GiB\"";

/// Reads `4096`, `64K`, `64KiB`, `10GiB`.
///
/// # Errors
/// What it must look like.
pub fn parse(text: &str) -> Result<u64, &'static str> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let shift = match unit.trim_start() {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(EXPECTED),
    };
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).ok_or(EXPECTED)
}

/// A number of bytes in a file: an integer, or a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size(pub u64);

struct Reader;

impl Visitor<'_> for Reader {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes")
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Size, E> {
        u64::try_from(n).map(Size).map_err(|_| E::custom(EXPECTED))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        parse(text).map(Size).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("1 GiB", 1 << 30),
            ("3TiB", 3 << 40),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GiB", "1GB", "-1", "1.5G", "16777216T", "99999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}

//! Names of groups of hosts.

use core::fmt;

/// A user-defined enterprise ID (UEID): hosts that have one in common try SMC-R with each other
/// (`smc_clc.c`: `smc_clc_match_eid`).
///
/// 32 bytes, filled up with blanks: capital letters, digits, `.` and `-`, the first one a letter or
/// digit (`smc_clc.c`: `smc_clc_ueid_valid`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Eid([u8; Self::LEN]);

impl Eid {
    /// Bytes of an EID.
    pub const LEN: usize = 32;

    /// Of its text, without blanks at the end. `None`: it is none.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [b' '; Self::LEN];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Self::of_bytes(bytes)
    }

    /// As it stands in messages. `None`: it is none.
    #[must_use]
    pub fn of_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let text = bytes.trim_ascii_end();
        let is_plain = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let first = text.first()?;
        let is_name = text.iter().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'-'));
        (is_plain(first) && is_name).then_some(Self(bytes))
    }

    /// As it stands in messages.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.trim_ascii_end().iter().try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_the_kernel_takes_them() {
        for good in ["SHUNT", "A", "0-1.B", "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"] {
            assert_eq!(Eid::new(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            " A",
            "-A",
            ".A",
            "a",
            "Ab",
            "A B",
            "A\0",
            "A_",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456",
        ] {
            assert_eq!(Eid::new(bad), None, "{bad:?}");
        }
    }
}

//! NVMe Qualified Names (Base 4.5.1).

use core::fmt;

/// The discovery subsystem that every discovery service has (Base 3.1.2.3).
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The longest name.
pub const MAX_LEN: usize = 223;

/// A checked name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

/// Why a name is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NqnError {
    /// No zero ends the field.
    NotTerminated,
    /// The name is no UTF-8, or has control characters.
    NotText,
    /// More than 223 bytes.
    TooLong,
    /// It doesn't begin with `nqn.` and a date `yyyy-mm`, a dot, and a domain.
    Format,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTerminated => "NQN: no zero ends the name",
            Self::NotText => "NQN: no UTF-8 text",
            Self::TooLong => "NQN: longer than 223 bytes",
            Self::Format => "NQN: not of the form nqn.yyyy-mm.reversed.domain[:name]",
        })
    }
}

impl core::error::Error for NqnError {}

impl Nqn {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.len() > MAX_LEN {
            return Err(NqnError::TooLong);
        }
        if name.chars().any(char::is_control) {
            return Err(NqnError::NotText);
        }
        let rest = name.strip_prefix("nqn.").ok_or(NqnError::Format)?;
        let date = rest.as_bytes().get(..8).ok_or(NqnError::Format)?;
        let shape = date.iter().enumerate().all(|(i, byte)| match i {
            4 => *byte == b'-',
            7 => *byte == b'.',
            _ => byte.is_ascii_digit(),
        });
        let month = &date[5..7];
        let is_month = (b"01".as_slice()..=b"12".as_slice()).contains(&month);
        if !shape || !is_month || rest.len() == 8 || rest.as_bytes()[8] == b':' {
            return Err(NqnError::Format);
        }
        Ok(Self(name.to_owned()))
    }

    /// The name of the discovery subsystem: [`DISCOVERY`].
    #[must_use]
    pub fn discovery() -> Self {
        Self(DISCOVERY.to_owned())
    }

    /// The name in a field of 256 bytes that a zero ends.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn from_field(field: &[u8; 256]) -> Result<Self, NqnError> {
        let end = field.iter().position(|byte| *byte == 0).ok_or(NqnError::NotTerminated)?;
        Self::new(core::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotText)?)
    }

    /// The name as a field of 256 bytes.
    #[must_use]
    pub fn field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in [
            DISCOVERY,
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2026-11.io.shunt:disk0",
        ] {
            assert_eq!(Nqn::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "nqn.",
            "iqn.2014-08.org.x",
            "nqn.2014-08.",
            "nqn.2014-13.org",
            "nqn.2014-00.org",
            "nqn.2014-08.:x",
            "nqn.201a-08.org",
        ] {
            assert_eq!(Nqn::new(bad), Err(NqnError::Format), "{bad}");
        }
        assert_eq!(Nqn::new("nqn.2014-08.org\n"), Err(NqnError::NotText));
        assert_eq!(
            Nqn::new(&format!("nqn.2014-08.org{}", "x".repeat(209))),
            Err(NqnError::TooLong)
        );
        assert!(Nqn::new(&format!("nqn.2014-08.org{}", "x".repeat(208))).is_ok());
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::NotTerminated));
        assert_eq!(Nqn::new(DISCOVERY).as_ref(), Ok(&Nqn::discovery()));
        let mut field = Nqn::discovery().field();
        assert_eq!(Nqn::from_field(&field).unwrap().as_str(), DISCOVERY);
        field[5] = 0xff;
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotText));
    }
}

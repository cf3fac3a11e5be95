//! Why bytes are no message.

use core::fmt;

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// They are not as many as such a message has, or as it says of itself.
    Length,
    /// The eye catcher is missing in front or at the end.
    EyeCatcher,
    /// Another version than 2; the version.
    Version(u8),
    /// No message has this type.
    Kind(u8),
    /// A field has a value that cannot be; its name.
    Field(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("a message of a wrong length"),
            Self::EyeCatcher => f.write_str("a message without eye catcher"),
            Self::Version(version) => write!(f, "a message of version {version}"),
            Self::Kind(kind) => write!(f, "a message of unknown type {kind:#04x}"),
            Self::Field(name) => write!(f, "a message with an impossible {name}"),
        }
    }
}

impl core::error::Error for Malformed {}

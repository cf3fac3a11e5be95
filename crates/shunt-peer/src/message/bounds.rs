//! How long messages may be, and why bytes are none.

use core::fmt;

/// Most bytes of a name.
pub const NAME: usize = 64;
/// Most addresses of a host.
pub const ADDRESSES: usize = 256;
/// Most listeners of a host.
pub const LISTENERS: usize = 2048;
/// Most places of a link group.
pub const SLOTS: usize = 256;
/// Bytes of the longest message.
pub const LONGEST: usize = 3 + LISTENERS * 18;

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It ends before its last field.
    Short,
    /// Bytes follow its last field.
    Long,
    /// An unknown kind.
    Kind,
    /// A list with more than it may have.
    Many,
    /// A field whose value cannot be.
    Value,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "a message that is too short",
            Self::Long => "a message that is too long",
            Self::Kind => "a message of an unknown kind",
            Self::Many => "a list that is too long",
            Self::Value => "a message with an impossible field",
        })
    }
}

impl core::error::Error for Malformed {}

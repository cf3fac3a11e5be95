//! How requests end.

use std::fmt;

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// It goes beyond the last block (also of a store that has just shrunk).
    OutOfRange,
    /// The bytes of a comparison differ.
    Differs,
    /// The piece is not as long as the blocks.
    Length,
    /// Nothing can be written here.
    ReadOnly,
    /// There is no room left on what the store is on.
    NoSpace,
    /// A read failed.
    Unreadable,
    /// A write, or a flush, failed.
    Unwritable,
    /// The store has no resources just now.
    Busy,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "beyond the last block",
            Self::Differs => "the bytes differ",
            Self::Length => "as many bytes as blocks are needed",
            Self::ReadOnly => "the store is read-only",
            Self::NoSpace => "no space is left",
            Self::Unreadable => "the store cannot be read",
            Self::Unwritable => "the store cannot be written",
            Self::Busy => "the store has no resources",
        })
    }
}

impl std::error::Error for Error {}

/// How a request ended.
pub type Outcome = Result<(), Error>;

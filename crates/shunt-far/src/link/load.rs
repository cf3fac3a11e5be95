//! What a link is measured by.

use core::time::Duration;

/// Bytes of the memory that a side registers to be measured with, and of each write of [`Load::Bulk`].
pub const SCRATCH: usize = 64 * 1024;
/// Writes of [`Load::Bulk`], with a message behind each.
pub(super) const MESSAGES: u32 = 4;
/// Bytes of [`Load::Bulk`].
pub const BULK: usize = SCRATCH * MESSAGES as usize;
/// Bytes of each write of [`Load::Ping`].
pub(super) const SMALL: usize = 64;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// A small message, and its answer.
    Ping,
    /// [`BULK`] bytes, and the answer to the last of them.
    Bulk,
}

/// Why a link cannot be measured now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotMeasured {
    /// Connections have something to say, or it is being measured.
    Busy,
    /// It is not connected, has failed, has no memory for that, or has room for few messages only.
    Link,
}

/// A measurement that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measuring {
    pub(super) began: Duration,
    /// It is over when so many messages were acknowledged.
    pub(super) until: u32,
}

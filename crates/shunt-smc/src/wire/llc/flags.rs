//! Flags of messages.

/// The answer to a request.
pub(super) const ANSWER: u8 = 0x80;

/// A flag, or none.
pub(super) const fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

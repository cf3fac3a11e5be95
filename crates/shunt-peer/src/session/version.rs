//! Versions of the agents' protocol.

/// The oldest version that this agent speaks.
pub const OLDEST: u16 = 6;
/// The newest one.
pub const NEWEST: u16 = 6;

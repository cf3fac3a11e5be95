//! How the process at an end runs, as `/proc` shows it.

/// Under Shunt.
pub const SHUNT: &str = "shunt";
/// The same; the agent that was asked does not know of the connection.
pub const UNKNOWN_TO_AGENT: &str = "shunt-unknown";
/// The same, and there is no agent where it looks.
pub const NO_AGENT: &str = "shunt-without-agent";
/// The same, with an agent that was not asked.
pub const ANOTHER_AGENT: &str = "shunt-with-another-agent";
/// Without Shunt.
pub const WITHOUT: &str = "without";
/// It listens, and has not accepted the connection.
pub const UNACCEPTED: &str = "unaccepted";
/// That cannot be seen.
pub const UNKNOWN: &str = "unknown";

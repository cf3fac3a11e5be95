//! Which versions work together. What each version has changed is in docs/upgrade.md.

use core::ops::RangeInclusive;

/// Version of everything that two Shunt components share: the agent's messages and the layout of the shared memory.
/// It changes with either.
pub const PROTOCOL_VERSION: u32 = 10;

/// The oldest version with which components of this one work together. Between the two, changes have only been added: requests
/// that are not made to the older one, and words of memory that it does not use, where nothing else has moved. A change that is
/// no such addition sets this to [`PROTOCOL_VERSION`]; then older components and this one leave connections on kernel TCP, with
/// [`crate::reason::Reason::VersionMismatch`].
pub const OLDEST_VERSION: u32 = 7;

/// The first version whose libraries let tools capture what they send.
pub const CAPTURE_SINCE: u32 = 8;

/// The first version whose libraries note decisions, for `shunt explain`.
pub const EXPLAIN_SINCE: u32 = 8;

/// The first version whose agents know that a forked process may serve what its parent has closed.
pub const BEQUEATH_SINCE: u32 = 9;

/// The first version whose libraries know that the link to another host may be behind the kernel's connection, and tell of proposals.
pub const HOSTS_SINCE: u32 = 9;

/// The first version whose libraries have sockets marked, and wait for the answer to a proposal.
pub const MARKS_SINCE: u32 = 10;

/// The versions that a component of this one speaks.
pub const SPOKEN: RangeInclusive<u32> = OLDEST_VERSION..=PROTOCOL_VERSION;

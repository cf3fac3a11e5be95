//! What rows of the initiator and of the emulated disk have in common.

/// Commands at once.
pub const DEPTH: u32 = 64;

/// Admin Queues work over the bench's sockmap; commands on I/O queues were not answered, with Linux 6.18, until their
/// controllers were given up.
pub const NO_SOCKMAP: &str = "its I/O queues stand still over a sockmap";

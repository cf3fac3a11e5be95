//! The rest of a connection that a program before exec has left.

use shunt_shm::leftover::Leftover;

use crate::fds::own_fds::OwnFd;

/// What was left of a connection, as this process has it.
#[derive(Debug)]
pub struct Left {
    /// The bytes, and what was taken of them.
    pub memory: Leftover,
    /// The memory's descriptor.
    pub fd: OwnFd,
}

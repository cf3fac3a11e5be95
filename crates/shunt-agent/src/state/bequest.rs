//! A listening socket that its holder has closed, and that another process may serve still.

use std::time::Instant;

use shunt_wire::agent::{EndpointId, ListenerId};

/// What one process has left.
#[derive(Clone, Copy, Debug)]
pub struct Bequest {
    /// Who has closed it.
    pub by: EndpointId,
    /// What it belongs to.
    pub listener: ListenerId,
    /// Of the socket.
    pub cookie: u64,
    /// When that was.
    pub since: Instant,
}

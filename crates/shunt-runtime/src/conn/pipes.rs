//! Pipes in which private memory is pinned.

use shunt_wire::agent::{EndpointId, ExportId, LANES};

use crate::fds::own_fds::OwnFd;

/// The pipes of a connection.
#[derive(Debug)]
pub struct Pipes {
    /// What the agent knows them by.
    pub name: ExportId,
    /// As what this process has told it of them.
    pub told_by: EndpointId,
    /// One for each lane.
    pub ends: [Ends; LANES],
}

/// A pipe.
#[derive(Debug)]
pub struct Ends {
    /// Where pages are put.
    pub to: OwnFd,
    /// To read what is to be taken back; and so that somebody could read what is written, for which the kernel would send
    /// `SIGPIPE` else.
    pub from: OwnFd,
}

//! Reasons for which an agent does not start.

use std::{fmt, io};

use rustix::io::Errno;
use shunt_rdma::StartError;

use crate::config::Place;
use crate::metrics::MetricsError;
use crate::socket::ClaimError;
use crate::state::HostError;

/// Why the agent did not run, or ended.
#[derive(Debug)]
pub enum ServeError {
    /// It could not become the agent.
    Claim(ClaimError),
    /// It could not serve metrics.
    Metrics(MetricsError),
    /// It could not be the agent of the host.
    Host(HostError),
    /// It could not share memory with other machines.
    Sharing(Place, io::Error),
    /// It could not hear agents of other hosts.
    Rdma(StartError),
    /// A system call of its own failed.
    System(io::Error),
}

impl ServeError {
    fn is_out_of_descriptors(&self) -> bool {
        let errno = match self {
            Self::Claim(ClaimError::System(_, errno)) => Some(*errno),
            Self::System(error) => Errno::from_io_error(error),
            _ => None,
        };
        errno == Some(Errno::MFILE)
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_out_of_descriptors() {
            return f.write_str(
                "the agent may have too few descriptors open at once: raise the limit (`ulimit -Hn`, or LimitNOFILE= of its unit)",
            );
        }
        match self {
            Self::Claim(e) => e.fmt(f),
            Self::Metrics(e) => e.fmt(f),
            Self::Host(e) => e.fmt(f),
            Self::Sharing(place, e) => {
                write!(f, "no memory can be shared with other machines by {place}: {e}")
            }
            Self::Rdma(e) => e.fmt(f),
            Self::System(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<ClaimError> for ServeError {
    fn from(e: ClaimError) -> Self {
        Self::Claim(e)
    }
}

impl From<StartError> for ServeError {
    fn from(e: StartError) -> Self {
        Self::Rdma(e)
    }
}

impl From<HostError> for ServeError {
    fn from(e: HostError) -> Self {
        Self::Host(e)
    }
}

impl From<io::Error> for ServeError {
    fn from(e: io::Error) -> Self {
        Self::System(e)
    }
}

//! Arguments that several load programs have.

use clap::Args;

use super::reader::Reading;
use crate::rig::endpoint::Endpoint;

/// What all clients that send requests have in common.
#[derive(Args, Clone, Debug)]
pub struct Requests {
    /// The server.
    #[arg(long)]
    pub(super) to: Endpoint,
    /// Bytes of a request, and of the answer to it.
    #[arg(long, default_value_t = 100)]
    pub(super) size: usize,
    /// End after so long.
    #[arg(long)]
    pub(super) seconds: f64,
}

/// A server.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// Where to listen.
    #[arg(long)]
    pub at: Endpoint,
    /// Bytes of a request, and of the answer to it.
    #[arg(long, default_value_t = 100)]
    pub size: usize,
}

/// A sink.
#[derive(Args, Clone, Debug)]
pub struct Sink {
    /// Where to listen.
    #[arg(long)]
    pub at: Endpoint,
    /// How it reads.
    #[command(flatten)]
    pub reading: Reading,
}

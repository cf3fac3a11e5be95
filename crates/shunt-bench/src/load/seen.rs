//! What a load program reports.

use serde::{Deserialize, Serialize};

use crate::stats::Quantile;

/// What a client has seen; the one line that it prints.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Requests, messages or connections.
    pub operations: u64,
    /// Bytes of payload, of both directions.
    pub bytes: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// How long a request took, from the first byte of the request to the last of the answer.
    pub latency: Vec<Quantile>,
}

impl Seen {
    /// Operations in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

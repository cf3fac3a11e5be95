//! How long a run takes.

use std::time::Duration;

use crate::stats::whole;

/// How long, and how much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Budget {
    /// Seconds of load.
    pub seconds: f64,
}

impl Budget {
    /// For programs that know whole seconds only.
    #[must_use]
    pub fn whole_seconds(self) -> u64 {
        whole(self.seconds).max(1)
    }

    /// When a program that runs so long is stuck.
    #[must_use]
    pub fn patience(self) -> Duration {
        Duration::from_secs_f64(self.seconds * 3.0 + 20.0)
    }
}

//! Starting together, and being measured at the right moment.

use std::io;

use rustix::process::{Signal, getpid, kill_process};

/// Where a client stops (`SIGSTOP`) until the bench sends it on: when it is ready, and when it is
/// done. What it costs in between is its load and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// False: there is nobody to send it on.
    pub stops: bool,
}

impl Gate {
    /// Stops here.
    pub fn pass(self) -> io::Result<()> {
        if self.stops {
            kill_process(getpid(), Signal::STOP)?;
        }
        Ok(())
    }
}

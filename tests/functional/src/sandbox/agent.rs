//! The sandbox's agent.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::run::Process;

/// A running agent; it ends with this value.
pub struct Agent {
    process: Process,
}

impl Agent {
    /// Waits for the socket of an agent that has just been started.
    ///
    /// # Panics
    /// When it ends, or does not listen in time.
    #[must_use]
    pub fn wait_for(mut process: Process, run_dir: &Path) -> Self {
        let socket = run_dir.join("agent.sock");
        let started = Instant::now();
        while !answers(process.pid(), &socket) {
            process.assert_running();
            assert!(started.elapsed() < Duration::from_secs(10), "{}", process.describe());
            thread::sleep(Duration::from_millis(5));
        }
        Self { process }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.terminate(libc::SIGTERM);
    }
}

/// True when a socket that somebody listens on is at `path`: the kernel's table names it, that of the agent's
/// network. (A dead agent leaves the file behind.)
fn answers(pid: i32, path: &Path) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/net/unix")).is_ok_and(|table| {
        table.lines().any(|line| path.to_str().is_some_and(|p| line.ends_with(p)))
    })
}

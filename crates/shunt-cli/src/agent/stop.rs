//! `shunt agent --stop`: ends the agent to which the environment leads, and waits until it is gone.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::directory::{Directory, Unreachable};
use crate::output::complain;

/// How long an agent may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why it goes on.
enum Failure {
    Unreachable(Unreachable),
    /// The first process, systemd, has made its socket, and would start it anew.
    Managed,
    Signal(i32, Errno),
    Late(i32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => why.fmt(f),
            Self::Managed => f.write_str(
                "this agent is a service manager's, which would start it anew; stop its units (`systemctl stop \
                 shunt-host.socket shunt-host.service`), or the container that it runs in",
            ),
            Self::Signal(pid, Errno::PERM) => write!(
                f,
                "the agent (process {pid}) is another user's, and is not yours to end; its owner runs `shunt agent --stop`"
            ),
            Self::Signal(pid, e) => {
                write!(f, "the agent (process {pid}) could not be told to end: {e}; try `kill {pid}`")
            }
            Self::Late(pid) => write!(
                f,
                "the agent (process {pid}) was told to end, and is still there after {} seconds; `kill -9 {pid}` ends it, \
                 and connections live on",
                PATIENCE.as_secs()
            ),
        }
    }
}

/// Runs the subcommand.
pub fn run() -> u8 {
    match stop() {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}

fn stop() -> Result<(), Failure> {
    let agent = Directory::open().map_err(Failure::Unreachable)?;
    let (pid, process) = agent.process().map_err(Failure::Unreachable)?.ok_or(Failure::Managed)?;
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) => {}
        // It has just ended by itself.
        Err(Errno::SRCH) => return Ok(()),
        Err(e) => return Err(Failure::Signal(pid, e)),
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)) {
            Ok(0) => return Err(Failure::Late(pid)),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Failure::Signal(pid, e)),
        }
    }
}

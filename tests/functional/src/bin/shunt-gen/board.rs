//! A few numbers that a parent and its forked workers share.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use std::os::fd::AsRawFd;

use shunt_functional::sys;

/// Workers write a byte per event; the parent counts them.
#[derive(Clone)]
pub struct Board {
    events: Arc<(File, File)>,
}

/// A worker listens.
const ARRIVED: u8 = b'a';
/// A connection is done.
const FINISHED: u8 = b'f';

impl Board {
    /// Make it before the fork.
    pub fn new() -> io::Result<Self> {
        let (read, write) = sys::pipe()?;
        sys::set_nonblocking(read.as_raw_fd(), true)?;
        Ok(Self { events: Arc::new((read.into(), write.into())) })
    }

    fn tell(&self, event: u8) {
        // The parent reads as long as any worker lives.
        if (&self.events.1).write_all(&[event]).is_err() {
            sys::exit_now(1);
        }
    }

    /// Says that this worker listens.
    pub fn arrive(&self) {
        self.tell(ARRIVED);
    }

    /// Says that a connection is done.
    pub fn finish(&self) {
        self.tell(FINISHED);
    }

    /// Events of one kind that have come in. The two kinds never mix: all arrive before any
    /// connection is made.
    fn drain(&self) -> io::Result<usize> {
        let mut buffer = [0; 512];
        match (&self.events.0).read(&mut buffer) {
            Ok(n) => Ok(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Waits until that many workers listen.
    pub fn wait_arrived(&self, workers: usize) -> io::Result<()> {
        self.wait(workers, &[])
    }

    /// Waits until that many connections are done, or a worker has ended.
    pub fn wait_finished(&self, connections: usize, children: &[libc::pid_t]) -> io::Result<()> {
        self.wait(connections, children)
    }

    fn wait(&self, wanted: usize, children: &[libc::pid_t]) -> io::Result<()> {
        let mut seen = 0;
        let mut since = Instant::now();
        while seen < wanted {
            let n = self.drain()?;
            seen += n;
            if n > 0 {
                since = Instant::now();
                continue;
            }
            if let Some(pid) = children.iter().find(|pid| has_ended(**pid)) {
                return Err(io::Error::other(format!("worker {pid} has ended")));
            }
            if since.elapsed() > Duration::from_secs(60) {
                return Err(io::Error::other(format!("{seen} of {wanted} after a minute")));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// True for a child that waits to be reaped.
fn has_ended(pid: libc::pid_t) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

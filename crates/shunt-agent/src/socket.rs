//! Becoming the one agent of a directory.
//!
//! The lock on `agent.lock` decides who is the agent; the socket's file does not, because a crash
//! leaves it behind. Whoever holds the lock may remove a stale socket file. The lock file itself is
//! never removed: two processes could then hold locks on two files of one name.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, chmod, flock, open, unlink};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketType, bind, listen, sockopt};
use shunt_sys::activation;
use shunt_sys::run_dir::{LOCK, RunDir, SOCKET, Unusable};
use shunt_sys::seqpacket;

/// Connections that wait to be accepted: `shunt run` of many programs at once.
const BACKLOG: i32 = 512;

/// Why this process cannot be the agent.
#[derive(Debug)]
pub enum ClaimError {
    /// The directory cannot be used.
    RunDir(String, Unusable),
    /// Another agent serves this directory.
    AlreadyRunning,
    /// What systemd passed is not a listening `SOCK_SEQPACKET` UNIX socket.
    BadActivation,
    /// A system call failed.
    System(&'static str, Errno),
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunDir(path, why) => write!(
                f,
                "the directory {path} cannot be used: {why}; correct it, or set SHUNT_RUN_DIR to \
                 a directory of your own"
            ),
            Self::AlreadyRunning => f.write_str(
                "an agent is running already for this directory; nothing needs to be done",
            ),
            Self::BadActivation => f.write_str(
                "the socket passed by the service manager is not a listening sequential-packet \
                 socket; use ListenSequentialPacket= in the socket unit",
            ),
            Self::System(what, errno) => write!(f, "{what} failed: {errno}"),
        }
    }
}

impl std::error::Error for ClaimError {}

/// For whom an agent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Its user alone.
    User,
    /// Every user of the host.
    All,
}

/// The right to be the agent of a directory. Its socket file is removed on drop.
#[derive(Debug)]
pub struct Claim {
    socket: OwnedFd,
    path: PathBuf,
    /// Let go of when the socket's file is gone.
    lock: OwnedFd,
    activated: bool,
}

impl Claim {
    /// Becomes the agent of `run_dir`, waiting up to `lock_wait` for one that is just ending.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn take(run_dir: RunDir, access: Access, lock_wait: Duration) -> Result<Self, ClaimError> {
        let refused = |why| ClaimError::RunDir(run_dir.path().to_string(), why);
        match access {
            Access::User => run_dir.create().map_err(refused)?,
            Access::All => run_dir.create_for_host().map_err(refused)?,
        }
        let lock = lock(&run_dir, lock_wait)?;
        let address = run_dir.socket().map_err(refused)?;
        let path = run_dir.file(SOCKET).map_err(refused)?;
        let path = PathBuf::from(OsStr::from_bytes(path.as_bytes()));
        if let Some(socket) = activated()? {
            return Ok(Self { socket, path, lock, activated: true });
        }
        match unlink(&path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(ClaimError::System("removing the stale socket", e)),
        }
        let socket = seqpacket::socket().map_err(|e| ClaimError::System("socket", e))?;
        bind(&socket, &address).map_err(|e| ClaimError::System("bind", e))?;
        let mode = match access {
            // The directory keeps others out already; the socket's own mode says so too.
            Access::User => 0o600,
            Access::All => 0o666,
        };
        let mode = Mode::from_raw_mode(mode);
        chmod(&path, mode).map_err(|e| ClaimError::System("chmod", e))?;
        listen(&socket, BACKLOG).map_err(|e| ClaimError::System("listen", e))?;
        Ok(Self { socket, path, lock, activated: false })
    }

    /// The listening socket.
    #[must_use]
    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Where it is.
    #[must_use]
    pub const fn path(&self) -> &PathBuf {
        &self.path
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A socket that the service manager made stays, so that it can start the next agent.
        if !self.activated {
            let _ = unlink(&self.path);
        }
        // Also where a process that was just being made has a copy of it.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn lock(run_dir: &RunDir, wait: Duration) -> Result<OwnedFd, ClaimError> {
    let path =
        run_dir.file(LOCK).map_err(|why| ClaimError::RunDir(run_dir.path().to_string(), why))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path.as_bytes(), flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| ClaimError::System("opening the lock file", e))?;
    let deadline = Instant::now() + wait;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::AGAIN) => return Err(ClaimError::AlreadyRunning),
            Err(e) => return Err(ClaimError::System("locking the lock file", e)),
        }
    }
}

/// The socket that systemd listens on for us, if it started us.
fn activated() -> Result<Option<OwnedFd>, ClaimError> {
    let mut passed = activation::take();
    let Some((_, socket)) = passed.pop() else { return Ok(None) };
    let seqpacket = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
    if !passed.is_empty() || !seqpacket || sockopt::socket_acceptconn(&socket) != Ok(true) {
        return Err(ClaimError::BadActivation);
    }
    ioctl_fionbio(&socket, true)
        .map_err(|e| ClaimError::System("preparing the passed socket", e))?;
    Ok(Some(socket))
}

//! Becoming the one agent of a directory.
//!
//! The lock on `agent.lock` decides which process is the agent. The socket's file does not, because
//! a crash leaves it behind. Only the holder of the lock may remove a stale socket file, and change
//! the mode of the directory. No process ever removes the lock file: two processes could then hold
//! locks on two files of one name. The file says which process holds the lock, and whom that agent
//! serves.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
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
    AlreadyRunning(Running),
    /// It is the directory of an agent for the host, and this is to be a user's own.
    OfHost(String, Option<Running>),
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
            Self::AlreadyRunning(running) => running.fmt(f),
            Self::OfHost(path, Some(running)) => write!(
                f,
                "{path} is the directory of the agent for the host{}, which serves all programs for which \
                 SHUNT_RUN_DIR is {path}; nothing needs to be done for these. Unset SHUNT_RUN_DIR to \
                 have an agent of your own",
                running.named(),
            ),
            Self::OfHost(path, None) => write!(
                f,
                "{path} lets other users in, as the directory of an agent for the host does, and no such \
                 agent is running; start it as root (`systemctl start shunt-host`, or `shunt agent --host`), or \
                 set SHUNT_RUN_DIR to a directory with mode 0700"
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

/// An agent that holds a directory which another one wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// The directory.
    pub dir: String,
    /// The agent's process, if it is known.
    pub pid: Option<u32>,
    /// For whom it is, if that is known.
    pub access: Option<Access>,
    /// For whom the other one is to be.
    pub wanted: Access,
}

impl Running {
    /// True where it serves those whom the other one is to serve.
    #[must_use]
    pub fn is_as_wanted(&self) -> bool {
        self.access.is_none_or(|access| access == self.wanted)
    }

    fn named(&self) -> String {
        self.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, pid) = (&self.dir, self.named());
        match (self.wanted, self.access) {
            (Access::All, Some(Access::User)) => {
                write!(
                    f,
                    "root's own agent{pid} is running for {dir}, and one directory has one agent; end it"
                )?;
                if let Some(pid) = self.pid {
                    write!(f, " (`kill {pid}`)")?;
                }
                f.write_str(", or set SHUNT_RUN_DIR to another directory for one of the two")
            }
            (Access::User, Some(Access::All)) => write!(
                f,
                "the agent for the host{pid} is running already for {dir}, and serves programs for which \
                 SHUNT_RUN_DIR is {dir}; unset SHUNT_RUN_DIR to have an agent of your own"
            ),
            _ => write!(f, "an agent{pid} is running already for {dir}; nothing needs to be done"),
        }
    }
}

/// For whom an agent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Its user alone.
    User,
    /// Every user of the host.
    All,
}

impl Access {
    /// As the lock file has it.
    const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::All => "host",
        }
    }
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
        let refused = |why| match why {
            Unusable::OfHost => {
                ClaimError::OfHost(run_dir.path().to_string(), running(&run_dir, access))
            }
            why => ClaimError::RunDir(run_dir.path().to_string(), why),
        };
        match access {
            Access::User => run_dir.create().map_err(refused)?,
            Access::All => run_dir.create_for_host().map_err(refused)?,
        }
        let lock = lock(&run_dir, access, lock_wait)?;
        if access == Access::All {
            run_dir.open_to_all().map_err(refused)?;
        }
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

fn lock(run_dir: &RunDir, access: Access, wait: Duration) -> Result<OwnedFd, ClaimError> {
    let path =
        run_dir.file(LOCK).map_err(|why| ClaimError::RunDir(run_dir.path().to_string(), why))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path.as_bytes(), flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| ClaimError::System("opening the lock file", e))?;
    let deadline = Instant::now() + wait;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // What it says is for people, and an agent that cannot say it serves all the same.
                let mut file = File::from(file);
                let _ = file
                    .set_len(0)
                    .and_then(|()| writeln!(file, "{} {}", std::process::id(), access.name()));
                return Ok(file.into());
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::AGAIN) => {
                let (pid, holder) = holder(File::from(file));
                let dir = run_dir.path().to_string();
                let running = Running { dir, pid, access: holder, wanted: access };
                return Err(ClaimError::AlreadyRunning(running));
            }
            Err(e) => return Err(ClaimError::System("locking the lock file", e)),
        }
    }
}

/// Who holds the lock, as the file says.
fn holder(mut file: File) -> (Option<u32>, Option<Access>) {
    let mut text = String::new();
    // As much as an agent writes.
    if (&mut file).take(64).read_to_string(&mut text).is_err() {
        return (None, None);
    }
    let (pid, name) = text.trim_end().split_once(' ').unwrap_or_default();
    let access = [Access::User, Access::All].into_iter().find(|access| access.name() == name);
    (pid.parse().ok(), access)
}

/// The agent for the host that serves a directory, for a user's own agent that may not have it.
fn running(run_dir: &RunDir, wanted: Access) -> Option<Running> {
    let dir = run_dir.path().to_string();
    // The lock file is root's to read; its socket is for everybody.
    let address = run_dir.socket().ok()?;
    let agent = seqpacket::connect_within(&address, Duration::from_secs(1)).ok()?;
    let pid = seqpacket::peer_cred(&agent).ok().and_then(|cred| u32::try_from(cred.pid).ok());
    let pid = pid.filter(|pid| *pid != 0);
    Some(Running { dir, pid, access: Some(Access::All), wanted })
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

//! The socket at which a disk is served, one virtual machine at a time, and what ends that.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::port::{Disk, Lane};

/// How long requests may take to end when the process does.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How a disk is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where front ends connect.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
    /// Queues of the guest's, each with a lane.
    pub queues: usize,
}

/// Why a disk is not served.
#[derive(Debug)]
pub enum ServeError {
    /// The socket.
    Socket(PathBuf, io::Error),
    /// Another process serves there.
    InUse(PathBuf),
    /// Something else has the socket's name.
    NoSocket(PathBuf),
    /// A lane to the disk.
    Lane(io::Error),
    /// The device for a front end.
    Device(String),
    /// Requests were under way when it had to end.
    Cut,
    /// A system call of its own.
    System(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path, e) => write!(f, "{}: listening failed: {e}", path.display()),
            Self::InUse(path) => write!(
                f,
                "{}: another process serves a disk here; name another path",
                path.display()
            ),
            Self::NoSocket(path) => {
                write!(f, "{}: this is no socket; name another path", path.display())
            }
            Self::Lane(e) => write!(f, "the disk cannot be used: {e}"),
            Self::Device(e) => write!(f, "the device cannot be made: {e}"),
            Self::Cut => write!(f, "requests were still under way at the end"),
            Self::System(e) => write!(f, "serving the disk failed: {e}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<io::Error> for ServeError {
    fn from(e: io::Error) -> Self {
        Self::System(e)
    }
}

/// The socket, which goes with the value.
#[derive(Debug)]
pub struct Door {
    /// Where front ends wait.
    pub listener: UnixListener,
    path: PathBuf,
}

impl Door {
    /// Makes the socket.
    ///
    /// # Errors
    /// Something else is there, or those of bind(2).
    pub fn open(options: &Options) -> Result<Self, ServeError> {
        let path = &options.socket;
        let failed = |e| ServeError::Socket(path.clone(), e);
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(ServeError::NoSocket(path.clone()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(ServeError::InUse(path.clone()));
            }
            // Left by one that was killed.
            Ok(_) => std::fs::remove_file(path).map_err(failed)?,
            Err(_) => {}
        }
        // Its permissions are right before anybody finds it under its name.
        let hidden = path.with_extension(format!("{}.new", std::process::id()));
        let listener = UnixListener::bind(&hidden).map_err(failed)?;
        let ready = std::fs::set_permissions(&hidden, PermissionsExt::from_mode(options.mode))
            .and_then(|()| std::fs::rename(&hidden, path));
        if let Err(e) = ready {
            let _gone = std::fs::remove_file(&hidden);
            return Err(failed(e));
        }
        Ok(Self { listener, path: path.clone() })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// Lanes to a disk.
///
/// # Errors
/// There are none now.
pub fn lanes(disk: &dyn Disk, queues: usize) -> Result<Vec<Box<dyn Lane>>, ServeError> {
    (0..queues).map(|_| disk.lane()).collect::<io::Result<_>>().map_err(ServeError::Lane)
}

/// Waits until one of them can be read.
///
/// # Errors
/// Those of poll(2).
pub fn readable<const N: usize>(fds: &[BorrowedFd<'_>; N]) -> io::Result<[bool; N]> {
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    loop {
        match poll(&mut polled, None) {
            Ok(_) => return Ok(polled.each_ref().map(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

//! The two sockets of a server: one for clients, and beside it one for tools and the next server.
//!
//! A socket's file that a crash left behind is replaced; one at which somebody listens is not. Whether
//! somebody does is found out by a connect of another kind, which the kernel refuses in two ways, so that
//! no client is announced by it. The directory is locked meanwhile, so that of two servers that start at
//! once one finds the other.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, chmod, fchmod, flock, lstat, open, unlink,
};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt,
};

/// Connections that wait to be accepted: virtual machines of a host that starts.
const BACKLOG: i32 = 512;
/// How long another server may take to make its sockets. Who locks the directory for longer is none.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// The control socket's file is not for others, whatever the clients' is.
const CONTROL_MODE: u32 = 0o600;

/// Why a server has no sockets.
#[derive(Debug)]
pub enum EndpointError {
    /// Somebody listens there.
    InUse(PathBuf),
    /// The file is no socket.
    NotASocket(PathBuf),
    /// The path does not fit a socket's address.
    Path(PathBuf),
    /// There is no directory for the file.
    NoDirectory(PathBuf),
    /// What the service manager passed is not what is needed.
    Activation,
    /// A system call failed.
    System(&'static str, PathBuf, Errno),
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(
                f,
                "{} is in use by another server; end that one, take its clients over with \
                 --take-over, or give another --socket",
                path.display()
            ),
            Self::NotASocket(path) => write!(
                f,
                "{} is a file that is no socket and is left alone; remove it, or give another \
                 --socket",
                path.display()
            ),
            Self::Path(path) => write!(
                f,
                "{} is too long for a socket's address; give a shorter --socket",
                path.display()
            ),
            Self::NoDirectory(path) => write!(
                f,
                "there is no directory for the socket {}; make it, or give another --socket",
                path.display()
            ),
            Self::Activation => f.write_str(
                "the service manager passed other sockets than a listening stream socket and, for \
                 control, a listening sequential-packet socket; correct ListenStream= and \
                 ListenSequentialPacket= in the socket unit",
            ),
            Self::System(what, path, e) => write!(f, "{what} {} failed: {e}", path.display()),
        }
    }
}

impl std::error::Error for EndpointError {}

/// Where the control socket of the server at `path` is.
#[must_use]
pub fn control_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".control");
    name.into()
}

/// A listening socket. Its file, if it is the server's own, is removed on drop.
#[derive(Debug)]
pub struct Place {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file that is to be removed: there may be another one by then.
    file: Option<(u64, u64)>,
}

impl Place {
    /// The socket.
    #[must_use]
    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// True when its file goes with it.
    #[must_use]
    pub const fn owns_file(&self) -> bool {
        self.file.is_some()
    }

    /// Takes a socket that somebody else has made, who also cares for its file.
    fn adopt(socket: OwnedFd, kind: SocketType, path: PathBuf) -> Result<Self, EndpointError> {
        let is_right = sockopt::socket_type(&socket) == Ok(kind)
            && sockopt::socket_acceptconn(&socket) == Ok(true)
            && ioctl_fionbio(&socket, true).is_ok();
        if is_right {
            Ok(Self { socket, path, file: None })
        } else {
            Err(EndpointError::Activation)
        }
    }

    fn bind(path: &Path, kind: SocketType, mode: u32) -> Result<Self, EndpointError> {
        let address =
            SocketAddrUnix::new(path).map_err(|_| EndpointError::Path(path.to_owned()))?;
        let made = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
            // The file gets the socket's own mode less the umask, and is never open to more.
            fchmod(&socket, Mode::from_raw_mode(mode))?;
            bind(&socket, &address)?;
            let place = Self { socket, path: path.to_owned(), file: file_at(path) };
            chmod(path, Mode::from_raw_mode(mode))?;
            listen(&place.socket, BACKLOG)?;
            Ok(place)
        };
        made().map_err(|e| match e {
            Errno::NOENT => EndpointError::NoDirectory(path.to_owned()),
            e => EndpointError::System("making the socket", path.to_owned(), e),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == file_at(&self.path) {
            let _ = unlink(&self.path);
        }
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Both sockets.
#[derive(Debug)]
pub struct Endpoint {
    /// For clients.
    pub listener: Place,
    /// For tools and the next server.
    pub control: Place,
}

impl Endpoint {
    /// Takes what the service manager has `passed`, and makes at `path` what is missing.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn claim(path: &Path, mode: u32, passed: Vec<OwnedFd>) -> Result<Self, EndpointError> {
        let (mut listener, mut control) = (None, None);
        for socket in passed {
            let (place, kind, at) = match sockopt::socket_type(&socket) {
                Ok(SocketType::STREAM) => (&mut listener, SocketType::STREAM, path.to_owned()),
                _ => (&mut control, SocketType::SEQPACKET, control_path(path)),
            };
            if place.replace(Place::adopt(socket, kind, at)?).is_some() {
                return Err(EndpointError::Activation);
            }
        }
        let beside = control_path(path);
        let _lock = lock_directory(path);
        // Both are looked at before one is made.
        for (place, at) in [(&listener, path), (&control, &beside)] {
            if place.is_none() {
                vacate(at)?;
            }
        }
        let make = |place: Option<Place>, kind, at, mode| match place {
            Some(place) => Ok(place),
            None => Place::bind(at, kind, mode),
        };
        Ok(Self {
            listener: make(listener, SocketType::STREAM, path, mode)?,
            control: make(control, SocketType::SEQPACKET, &beside, CONTROL_MODE)?,
        })
    }

    /// Takes those of the server before this one, which still has the care for their files.
    ///
    /// # Errors
    /// [`EndpointError::Activation`] when they are something else.
    pub fn adopt(path: &Path, listener: OwnedFd, control: OwnedFd) -> Result<Self, EndpointError> {
        Ok(Self {
            listener: Place::adopt(listener, SocketType::STREAM, path.to_owned())?,
            control: Place::adopt(control, SocketType::SEQPACKET, control_path(path))?,
        })
    }

    /// From now on their files are this server's to remove.
    pub fn take_files(&mut self, listener: bool, control: bool) {
        for (place, own) in [(&mut self.listener, listener), (&mut self.control, control)] {
            place.file = own.then(|| file_at(&place.path)).flatten();
        }
    }
}

/// Removes a socket's file at which nobody listens.
fn vacate(path: &Path) -> Result<(), EndpointError> {
    let failed = |what| move |e| EndpointError::System(what, path.to_owned(), e);
    match lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(failed("looking at")(e)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(EndpointError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let address = SocketAddrUnix::new(path).map_err(|_| EndpointError::Path(path.to_owned()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // A stream or packet socket that somebody has refuses this with EPROTOTYPE.
    let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    match connect(&probe.map_err(failed("looking at"))?, &address) {
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => match unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed("removing the stale socket")(e)),
        },
        _ => Err(EndpointError::InUse(path.to_owned())),
    }
}

fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = open(dir, flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + LOCK_WAIT;
    while flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return None;
        }
        sleep(Duration::from_millis(10));
    }
    Some(dir)
}

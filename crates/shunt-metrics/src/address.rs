//! Where metrics are served, and the socket that listens there.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, chmod, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Connections that wait to be accepted: more than are served at once.
const BACKLOG: i32 = 64;

/// Where metrics are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// At the socket `metrics.sock` in the agent's directory.
    RunDir,
    /// At this UNIX socket.
    Unix(PathBuf),
    /// At this port.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunDir => f.write_str("unix"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(addr) => addr.fmt(f),
        }
    }
}

/// It is no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAddress;

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it must be unix, unix:/PATH, 127.0.0.1:PORT or [::1]:PORT")
    }
}

impl std::error::Error for BadAddress {}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if text == "unix" {
            return Ok(Self::RunDir);
        }
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(BadAddress),
            None => text.parse().map(Self::Tcp).map_err(|_| BadAddress),
        }
    }
}

/// Why metrics can't be served.
#[derive(Debug)]
pub enum MetricsError {
    /// Others than this host's programs could read them.
    Public(SocketAddr),
    /// Somebody else has the address.
    InUse(Address),
    /// There is a file of this name that is no socket.
    NoSocket(PathBuf),
    /// A path that no UNIX socket can have.
    BadPath(PathBuf),
    /// A system call failed.
    System(Address, io::Error),
}

impl fmt::Display for MetricsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metrics are not served: ")?;
        match self {
            Self::Public(addr) => write!(
                f,
                "{addr} can be reached from other hosts, and there is neither password nor \
                 encryption; name 127.0.0.1, [::1] or a UNIX socket, or say --metrics-public"
            ),
            Self::InUse(address) => {
                write!(f, "another process listens at {address}; name another address")
            }
            Self::NoSocket(path) => write!(
                f,
                "{} exists and is no socket of this user; remove it, or name another path",
                path.display()
            ),
            Self::BadPath(path) => {
                write!(f, "the path {} is too long for a socket; name another", path.display())
            }
            Self::System(address, e) => {
                write!(f, "listening at {address} failed: {e}; name another address")
            }
        }
    }
}

impl std::error::Error for MetricsError {}

/// The socket at which scrapers come in. Its file, if it has one, is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// Where it really is: with the port that the kernel chose for 0.
    address: Address,
}

impl Listener {
    /// Listens at an address; `usual` is the path of the UNIX socket where none is named. Others than this host's
    /// programs can reach it only if it is `public`.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn open(
        wanted: &Address,
        public: bool,
        usual: impl FnOnce() -> io::Result<PathBuf>,
    ) -> Result<Self, MetricsError> {
        match wanted {
            Address::RunDir => {
                let path = usual().map_err(|e| MetricsError::System(wanted.clone(), e))?;
                unix(&path)
            }
            Address::Unix(path) => unix(path),
            Address::Tcp(addr) if !public && !addr.ip().to_canonical().is_loopback() => {
                Err(MetricsError::Public(*addr))
            }
            Address::Tcp(addr) => tcp(*addr),
        }
    }

    /// The listening socket.
    #[must_use]
    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Where it is to be reached.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = unlink(path);
        }
    }
}

fn tcp(addr: SocketAddr) -> Result<Listener, MetricsError> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::AddrInUse => MetricsError::InUse(Address::Tcp(addr)),
        _ => MetricsError::System(Address::Tcp(addr), e),
    };
    let socket = TcpListener::bind(addr).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let address = Address::Tcp(socket.local_addr().map_err(failed)?);
    Ok(Listener { socket: socket.into(), address })
}

fn unix(path: &Path) -> Result<Listener, MetricsError> {
    let address = Address::Unix(path.to_path_buf());
    let at = SocketAddrUnix::new(path).map_err(|_| MetricsError::BadPath(path.to_path_buf()))?;
    let failed = |e: Errno| match e {
        Errno::ADDRINUSE => MetricsError::InUse(address.clone()),
        e => MetricsError::System(address.clone(), e.into()),
    };
    let socket = stream().map_err(failed)?;
    match bind(&socket, &at) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &at)?;
            bind(&socket, &at).map_err(failed)?;
        }
        done => done.map_err(failed)?,
    }
    let listener = Listener { socket, address: address.clone() };
    // Nobody is let in before listen.
    chmod(path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    listen(&listener.socket, BACKLOG).map_err(failed)?;
    Ok(listener)
}

fn stream() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes what an agent that was killed has left behind, and nothing else.
fn remove_stale(path: &Path, at: &SocketAddrUnix) -> Result<(), MetricsError> {
    let address = || Address::Unix(path.to_path_buf());
    let failed = |e| MetricsError::System(address(), e);
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    if !found.file_type().is_socket() {
        return Err(MetricsError::NoSocket(path.to_path_buf()));
    }
    let probe = stream().map_err(|e| failed(e.into()))?;
    match connect(&probe, at) {
        Err(Errno::CONNREFUSED) => unlink(path).map_err(|e| failed(e.into())),
        Err(Errno::ACCESS) => Err(MetricsError::NoSocket(path.to_path_buf())),
        _ => Err(MetricsError::InUse(address())),
    }
}

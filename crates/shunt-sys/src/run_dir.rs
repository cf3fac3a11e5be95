//! Where the agent's socket is.
//!
//! `$SHUNT_RUN_DIR`, else `/run/shunt` for root, else `$XDG_RUNTIME_DIR/shunt`, else
//! `/tmp/shunt-UID`. The last of these is in a directory where anybody can make anything, so the
//! directory is used only if it belongs to the user and is closed to everybody else.

use core::fmt;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, fstat, mkdir, open};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::fds::close;

/// Longest path, with the socket's name, that fits the address of a UNIX socket.
const MAX_PATH: usize = 107;

/// Name of the agent's socket in the directory.
pub const SOCKET: &[u8] = b"agent.sock";
/// Name of the file whose lock the one running agent holds.
pub const LOCK: &[u8] = b"agent.lock";
/// Name of the file that keeps totals while no agent runs.
pub const TOTALS: &[u8] = b"totals.json";
/// Name of the socket at which metrics are served, if they are and nothing else is said.
pub const METRICS: &[u8] = b"metrics.sock";

/// The two environment variables that matter, as bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Env<'a> {
    /// `SHUNT_RUN_DIR`.
    pub run_dir: Option<&'a [u8]>,
    /// `XDG_RUNTIME_DIR`.
    pub xdg_runtime_dir: Option<&'a [u8]>,
}

/// Why the directory cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// The path is too long for a UNIX socket, not absolute, or holds a NUL.
    BadPath,
    /// It belongs to this other user.
    ForeignOwner(u32),
    /// Its mode lets group or others in.
    OpenToOthers(u32),
    /// It is not a directory, or a symbolic link.
    NotADirectory,
    /// A system call failed.
    System(Errno),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadPath => write!(f, "its path is not absolute or longer than {MAX_PATH} bytes"),
            Self::ForeignOwner(uid) => write!(f, "it belongs to another user (uid {uid})"),
            Self::OpenToOthers(mode) => {
                write!(f, "its mode {mode:04o} lets others in; it must be 0700")
            }
            Self::NotADirectory => f.write_str("it is not a directory"),
            Self::System(errno) => write!(f, "{errno}"),
        }
    }
}

impl core::error::Error for Unusable {}

impl From<Errno> for Unusable {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A path of bounded length, kept in place.
#[derive(Clone, Copy)]
pub struct ShortPath {
    bytes: [u8; MAX_PATH],
    len: usize,
}

impl ShortPath {
    const EMPTY: Self = Self { bytes: [0; MAX_PATH], len: 0 };

    fn push(&mut self, part: &[u8]) -> Result<(), Unusable> {
        let end = self.len + part.len();
        let room = self.bytes.get_mut(self.len..end).ok_or(Unusable::BadPath)?;
        room.copy_from_slice(part);
        self.len = end;
        Ok(())
    }

    fn push_number(&mut self, mut n: u32) -> Result<(), Unusable> {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(n % 10).unwrap_or(0);
            n /= 10;
            if n == 0 {
                return self.push(&digits[at..]);
            }
        }
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for ShortPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ShortPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

/// The directory of the agent's socket.
#[derive(Clone, Copy, Debug)]
pub struct RunDir {
    path: ShortPath,
    uid: u32,
}

impl RunDir {
    /// Where it is for the user `uid` with this environment. Looks at no file.
    ///
    /// # Errors
    /// [`Unusable::BadPath`].
    pub fn locate(env: Env<'_>, uid: u32) -> Result<Self, Unusable> {
        let mut path = ShortPath::EMPTY;
        match (env.run_dir.filter(|v| !v.is_empty()), env.xdg_runtime_dir) {
            (Some(dir), _) => path.push(dir)?,
            (None, _) if uid == 0 => path.push(b"/run/shunt")?,
            (None, Some(xdg)) if xdg.starts_with(b"/") => {
                path.push(xdg)?;
                path.push(b"/shunt")?;
            }
            (None, _) => {
                path.push(b"/tmp/shunt-")?;
                path.push_number(uid)?;
            }
        }
        let found = Self { path, uid };
        if !path.as_bytes().starts_with(b"/") || path.as_bytes().contains(&0) {
            return Err(Unusable::BadPath);
        }
        // Every name in it must fit too.
        for name in [SOCKET, LOCK, TOTALS, METRICS] {
            found.file(name)?;
        }
        Ok(found)
    }

    /// The path of the directory.
    #[must_use]
    pub const fn path(&self) -> &ShortPath {
        &self.path
    }

    /// The path of the file `name` in it.
    ///
    /// # Errors
    /// [`Unusable::BadPath`] when it is too long.
    pub fn file(&self, name: &[u8]) -> Result<ShortPath, Unusable> {
        let mut path = self.path;
        path.push(b"/")?;
        path.push(name)?;
        Ok(path)
    }

    /// The address of the agent's socket.
    ///
    /// # Errors
    /// [`Unusable::BadPath`].
    pub fn socket(&self) -> Result<SocketAddrUnix, Unusable> {
        SocketAddrUnix::new(self.file(SOCKET)?.as_bytes()).map_err(|_| Unusable::BadPath)
    }

    /// Checks that the directory is there, is the user's own, and is closed to others.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check(&self) -> Result<(), Unusable> {
        let dir = self.open()?;
        let verdict = self.judge(&dir);
        close(dir);
        verdict
    }

    /// Makes the directory unless it is there, then does what [`Self::check`] does.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn create(&self) -> Result<(), Unusable> {
        match mkdir(self.path.as_bytes(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.check(),
            Err(e) => Err(e.into()),
        }
    }

    fn open(&self) -> Result<OwnedFd, Unusable> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(self.path.as_bytes(), flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Unusable::NotADirectory),
            other => Ok(other?),
        }
    }

    fn judge(&self, dir: &OwnedFd) -> Result<(), Unusable> {
        let stat = fstat(dir)?;
        let mode = stat.st_mode & 0o7777;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            Err(Unusable::NotADirectory)
        } else if stat.st_uid != self.uid {
            Err(Unusable::ForeignOwner(stat.st_uid))
        } else if mode & 0o077 != 0 {
            Err(Unusable::OpenToOthers(mode))
        } else {
            Ok(())
        }
    }
}

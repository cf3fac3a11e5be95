//! Where the agent's socket is.
//!
//! `$SHUNT_RUN_DIR`, else `/run/shunt-root` for root, else `$XDG_RUNTIME_DIR/shunt`, else
//! `/tmp/shunt-UID`. The last of these is in a directory where anybody can make anything, so the
//! directory is used only if it belongs to the user and is closed to everybody else; or if it is that of an agent
//! for the whole host: root's, open to others, and writable for none of them. An agent for the host
//! has `/run/shunt` unless `$SHUNT_RUN_DIR` names another directory.

use core::fmt;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags, chmod, fstat, fstatvfs, mkdir, open};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::fds::close;

/// Longest path, with the socket's name, that fits the address of a UNIX socket.
const MAX_PATH: usize = 107;

/// The directory of an agent for the host, unless it is told another one.
pub const OF_HOST: &str = "/run/shunt";
/// The directory of root's own agent.
const OF_ROOT: &str = "/run/shunt-root";

/// Mode of the directory of an agent for the host.
const HOST_MODE: Mode = Mode::from_raw_mode(0o755);

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
    /// It is the directory of an agent for the host, and so no place for a user's own agent.
    OfHost,
    /// It is root's, and its mode lets group or others write to it.
    WritableByOthers(u32),
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
            Self::OfHost => f.write_str("it is the directory of an agent for the host"),
            Self::WritableByOthers(mode) => {
                write!(f, "its mode {mode:04o} lets others write to it; it must be 0755")
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
            (None, _) if uid == 0 => path.push(OF_ROOT.as_bytes())?,
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

    /// Where it is for an agent for the host with this environment. Looks at no file.
    ///
    /// # Errors
    /// [`Unusable::BadPath`].
    pub fn locate_for_host(env: Env<'_>, uid: u32) -> Result<Self, Unusable> {
        let given = env.run_dir.filter(|v| !v.is_empty());
        Self::locate(Env { run_dir: Some(given.unwrap_or(OF_HOST.as_bytes())), ..env }, uid)
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

    /// Checks that the directory is there, and is the user's own and closed to others, or that of an agent for the
    /// host. Says whose agents may be in it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check(&self) -> Result<Owner, Unusable> {
        let dir = self.open()?;
        let verdict = self.judge(&dir);
        close(dir);
        verdict
    }

    /// Makes the directory of a user's agent unless it is there, and checks that it is the user's own.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn create(&self) -> Result<(), Unusable> {
        match mkdir(self.path.as_bytes(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => match self.check()? {
                Owner::User => Ok(()),
                Owner::Root | Owner::Unmapped => Err(match self.mode()? {
                    // Closing it would cut all other users off from an agent that is only being restarted.
                    mode if mode & 0o005 == 0o005 => Unusable::OfHost,
                    mode => Unusable::OpenToOthers(mode),
                }),
            },
            Err(e) => Err(e.into()),
        }
    }

    /// Makes the directory of an agent for the host unless it is there. Root's work. What is there is
    /// left as it is until [`Self::open_to_all`]: another agent may be serving it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn create_for_host(&self) -> Result<(), Unusable> {
        match mkdir(self.path.as_bytes(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let dir = self.open()?;
        let stat = fstat(&dir);
        close(dir);
        match stat? {
            stat if stat.st_uid != 0 => Err(Unusable::ForeignOwner(stat.st_uid)),
            _ => Ok(()),
        }
    }

    /// Lets others pass through the directory of an agent for the host, of which the caller holds the
    /// [`LOCK`]. One that was a user's alone is opened on purpose.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open_to_all(&self) -> Result<(), Unusable> {
        Ok(chmod(self.path.as_bytes(), HOST_MODE)?)
    }

    fn mode(&self) -> Result<u32, Unusable> {
        let dir = self.open()?;
        let stat = fstat(&dir);
        close(dir);
        Ok(stat?.st_mode & 0o7777)
    }

    fn open(&self) -> Result<OwnedFd, Unusable> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(self.path.as_bytes(), flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Unusable::NotADirectory),
            other => Ok(other?),
        }
    }

    fn judge(&self, dir: &OwnedFd) -> Result<Owner, Unusable> {
        let stat = fstat(dir)?;
        let mode = stat.st_mode & 0o7777;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Unusable::NotADirectory);
        }
        let owner = match stat.st_uid {
            uid if uid == self.uid && mode & 0o077 == 0 => return Ok(Owner::User),
            // Root's own, or the host's.
            0 => Owner::Root,
            uid if uid == self.uid => return Err(Unusable::OpenToOthers(mode)),
            UNMAPPED if is_given(dir) => Owner::Unmapped,
            uid => return Err(Unusable::ForeignOwner(uid)),
        };
        match mode {
            _ if mode & 0o022 != 0 && self.uid == 0 => Err(Unusable::OpenToOthers(mode)),
            _ if mode & 0o022 != 0 => Err(Unusable::WritableByOthers(mode)),
            _ => Ok(owner),
        }
    }
}

/// Whose directory it is, and so whose agent may be in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The user's own.
    User,
    /// Root's: the agent of the host.
    Root,
    /// Somebody's whom this user namespace does not know, who has mounted it here to be read: the agent of the host.
    Unmapped,
}

impl Owner {
    /// True when an agent of the user `agent` may serve the directory, for the user `me`.
    #[must_use]
    pub const fn trusts(self, agent: u32, me: u32) -> bool {
        match self {
            Self::User => agent == me || agent == 0,
            Self::Root => agent == 0,
            Self::Unmapped => agent == UNMAPPED,
        }
    }
}

/// As the kernel shows users that a user namespace does not map (`/proc/sys/kernel/overflowuid`).
const UNMAPPED: u32 = 65534;

/// True in a user namespace, for a directory on a mount that nobody here may write to: whoever made the container
/// has put it there. A user of the container who has the number [`UNMAPPED`] could make no such mount.
fn is_given(dir: &OwnedFd) -> bool {
    let read_only = fstatvfs(dir).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    read_only && !knows_all_users()
}

/// True where every user has a number of its own: in the first user namespace.
fn knows_all_users() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(map) = open(c"/proc/self/uid_map", flags, Mode::empty()) else { return true };
    let mut text = [0; 128];
    let len = rustix::io::read(&map, &mut text[..]);
    close(map);
    let Some(text) = len.ok().and_then(|len| text.get(..len)) else { return true };
    let mut fields = text.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    fields.nth(2) == Some(b"4294967295")
}

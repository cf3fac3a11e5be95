//! The socket at which front ends connect, one at a time, and the end.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tracing::{info, warn};
use vhost::vhost_user::{Error as VhostError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::GuestMemoryAtomic;

use crate::front::Front;
use crate::metrics::{Counter, Totals};
use crate::port::{Disk, Geometry, Lane, Memory};
use crate::relay;

/// How long requests may take to end when the process does.
const DRAIN: Duration = Duration::from_secs(10);

/// How a disk is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where front ends connect.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
    /// Rings, each with a thread and a lane.
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
                "{}: another process serves a disk here; name another --socket",
                path.display()
            ),
            Self::NoSocket(path) => {
                write!(f, "{}: this is no socket; name another --socket", path.display())
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
struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    fn open(options: &Options) -> Result<Self, ServeError> {
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

/// One front end, until it goes.
struct Session {
    front: Arc<Front>,
    socket: UnixStream,
    /// Ends when nothing of the front end is under way any more.
    thread: JoinHandle<()>,
}

/// Serves a disk until `stop` can be read, and counts in `totals`, which are for as many rings. Calls `ready` once front ends can connect.
///
/// # Errors
/// Why it cannot.
pub fn serve_until(
    disk: &dyn Disk,
    options: &Options,
    totals: &Totals,
    stop: BorrowedFd<'_>,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    let door = Door::open(options)?;
    let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
    let mut lanes = open(disk, options.queues)?;
    ready();
    loop {
        if readable(&[stop, door.listener.as_fd()])?[0] {
            return Ok(());
        }
        let geometry = disk.geometry();
        let session = begin(&door, &geometry, lanes, totals, &ended)?;
        totals.serving().one(Counter::FrontEnds);
        info!("a front end has connected");
        if attend(disk, geometry.blocks, &session.front, stop, ended.as_fd())? {
            return finish(session);
        }
        let _count = rustix::io::read(&*ended, &mut [0; 8]);
        let _ended = session.thread.join();
        totals.serving().one(Counter::FrontEndsGone);
        info!("the front end is gone");
        lanes = match Arc::into_inner(session.front).map(Front::into_lanes) {
            Some(lanes) => lanes,
            // A thread that has panicked has kept them.
            None => open(disk, options.queues)?,
        };
    }
}

/// Tells a front end of changes of the disk, which has so many blocks, until the front end is gone; true where `stop` can be
/// read.
fn attend(
    disk: &dyn Disk,
    mut blocks: u64,
    front: &Front,
    stop: BorrowedFd<'_>,
    ended: BorrowedFd<'_>,
) -> io::Result<bool> {
    loop {
        let [stops, has_ended, has_changed] = readable(&[stop, ended, disk.changes()])?;
        if stops || has_ended {
            return Ok(stops);
        }
        if has_changed {
            let _count = rustix::io::read(disk.changes(), &mut [0; 8]);
            let before = std::mem::replace(&mut blocks, disk.geometry().blocks);
            if blocks != before {
                info!("the disk has {blocks} blocks now, and had {before}");
                front.resize(blocks);
            }
        }
    }
}

fn open(disk: &dyn Disk, queues: usize) -> Result<Vec<Box<dyn Lane>>, ServeError> {
    (0..queues).map(|_| disk.lane()).collect::<io::Result<_>>().map_err(ServeError::Lane)
}

/// Waits until one of them can be read.
fn readable<const N: usize>(fds: &[BorrowedFd<'_>; N]) -> io::Result<[bool; N]> {
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    loop {
        match poll(&mut polled, None) {
            Ok(_) => return Ok(polled.each_ref().map(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Takes the front end that waits at the door. Each has threads and a device of its own, so that nothing that one does is left.
fn begin(
    door: &Door,
    geometry: &Geometry,
    lanes: Vec<Box<dyn Lane>>,
    totals: &Totals,
    ended: &Arc<OwnedFd>,
) -> Result<Session, ServeError> {
    let device = |e: DaemonError| ServeError::Device(e.to_string());
    let memory = GuestMemoryAtomic::new(Memory::new());
    let front = Front::new(geometry, lanes, &memory, totals)?;
    let mut daemon =
        VhostUserDaemon::new("front".to_owned(), Arc::clone(&front), memory).map_err(device)?;
    front.attach(&daemon.get_epoll_handlers())?;
    let (near, listener) = relay::pair()?;
    daemon.start(&mut Listener::from(listener)).map_err(device)?;
    let (socket, _) = door.listener.accept()?;
    let passing = socket.try_clone()?;
    let (inner, ended) = (Arc::clone(&front), Arc::clone(ended));
    let thread = std::thread::Builder::new().name("front-end".to_owned()).spawn(move || {
        if let Err(e) = relay::pass_on(&passing, &near, |heard| inner.hear(heard)) {
            warn!("a front end was cut off: {e}");
        }
        for socket in [passing, near] {
            let _gone = socket.shutdown(Shutdown::Both);
        }
        match daemon.wait() {
            Ok(())
            | Err(DaemonError::HandleRequest(
                VhostError::Disconnected | VhostError::PartialMessage,
            )) => {}
            Err(e) => warn!("a front end was cut off: {e}"),
        }
        // What the next front end writes must not be overtaken by what this one wrote.
        let _all = inner.drain(None);
        drop(daemon);
        drop(inner);
        let _told = rustix::io::write(&*ended, &1u64.to_ne_bytes());
    })?;
    Ok(Session { front, socket, thread })
}

/// Ends with a front end connected: what was taken is answered first.
fn finish(session: Session) -> Result<(), ServeError> {
    if !session.front.drain(Some(Instant::now() + DRAIN)) {
        return Err(ServeError::Cut);
    }
    let _gone = session.socket.shutdown(Shutdown::Both);
    let _ended = session.thread.join();
    Ok(())
}

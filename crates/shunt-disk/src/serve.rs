//! A vhost-user-blk device at a door: front ends, one at a time, and the end.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use tracing::{info, warn};
use vhost::vhost_user::{Error as VhostError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::GuestMemoryAtomic;

use crate::door::{DRAIN, Door, Options, ServeError, lanes, readable};
use crate::front::Front;
use crate::metrics::{Counter, Totals};
use crate::port::{Disk, Geometry, Lane, Memory};
use crate::relay;

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
    let mut open = lanes(disk, options.queues)?;
    ready();
    loop {
        if readable(&[stop, door.listener.as_fd()])?[0] {
            return Ok(());
        }
        let geometry = disk.geometry();
        let session = begin(&door, &geometry, open, totals, &ended)?;
        totals.serving().one(Counter::FrontEnds);
        info!("a front end has connected");
        if attend(disk, geometry.blocks, &session.front, stop, ended.as_fd())? {
            return finish(session);
        }
        let _count = rustix::io::read(&*ended, &mut [0; 8]);
        let _ended = session.thread.join();
        totals.serving().one(Counter::FrontEndsGone);
        info!("the front end is gone");
        open = match Arc::into_inner(session.front).map(Front::into_lanes) {
            Some(lanes) => lanes,
            // A thread that has panicked has kept them.
            None => lanes(disk, options.queues)?,
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

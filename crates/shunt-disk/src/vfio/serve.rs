//! An NVMe controller at a door: monitors, one at a time, and the end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use shunt_nvme::wire::Nqn;
use tracing::{info, warn};

use super::controller::Controller;
use super::device::Device;
use super::runner::Runner;
use super::waiter::Waiter;
use super::wire::FRAMING;
use crate::door::{DRAIN, Door, Options, ServeError, lanes, readable};
use crate::message::Message;
use crate::metrics::{Counter, Totals};
use crate::port::{Disk, Geometry, Wait};
use crate::spin::Spin;

/// How long a monitor may take for half of a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// The subsystem's name in the guest: another for each socket, as a guest may have several disks of one target.
fn name(disk: &Geometry, options: &Options) -> Result<Nqn, ServeError> {
    let mut hasher = DefaultHasher::new();
    options.socket.hash(&mut hasher);
    disk.serial.hash(&mut hasher);
    let text = format!("nqn.2024-01.org.shunt:disk.{:016x}", hasher.finish());
    Nqn::new(&text).map_err(|e| ServeError::Device(e.to_string()))
}

/// How a session ends.
enum End {
    /// The monitor has gone.
    Gone,
    /// `stop` can be read.
    Stopped,
}

/// Serves a disk until `stop` can be read, and counts in `totals`, which are for as many queues. Calls `ready` once monitors can
/// connect.
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
    let mut open = lanes(disk, options.queues)?;
    ready();
    loop {
        if readable(&[stop, door.listener.as_fd()])?[0] {
            return Ok(());
        }
        let (socket, _) = door.listener.accept()?;
        totals.serving().one(Counter::FrontEnds);
        info!("a monitor has connected");
        let geometry = disk.geometry();
        let queues = u16::try_from(options.queues).unwrap_or(u16::MAX);
        let controller = Controller::new(name(&geometry, options)?, queues);
        let runner = Runner::new(controller, open, geometry, |n| totals.ring(n));
        let mut device = Device::new(runner, stop);
        let end = attend(&mut device, &socket, disk, stop);
        if let Err(e) = &end {
            warn!("a monitor was cut off: {e}");
        }
        // What the next one writes must not be overtaken by what this one wrote. The end of the process waits less long.
        let stops = matches!(end, Ok(End::Stopped));
        let is_over =
            !stops && device.drain(None)? || device.drain(Some(Instant::now() + DRAIN))?;
        if !is_over {
            return Err(ServeError::Cut);
        }
        if stops {
            return Ok(());
        }
        totals.serving().one(Counter::FrontEndsGone);
        info!("the monitor is gone");
        open = device.into_lanes();
    }
}

/// Serves one monitor.
fn attend(
    device: &mut Device<'_>,
    mut socket: &UnixStream,
    disk: &dyn Disk,
    stop: BorrowedFd<'_>,
) -> io::Result<End> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut waiter = Waiter::<3>::new(&[stop, socket.as_fd(), disk.changes()])?;
    let mut blocks = disk.geometry().blocks;
    let (mut spin, mut wait) = (Spin::default(), Wait::default());
    let mut ready = waiter.look()?;
    loop {
        let [stops, is_told, has_changed] = ready.fds;
        if stops {
            return Ok(End::Stopped);
        }
        if is_told {
            let Some(message) = Message::receive(socket, &FRAMING)? else { return Ok(End::Gone) };
            if let Some(answer) = device.handle(message) {
                match socket.write_all(&answer) {
                    Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(End::Gone),
                    written => written?,
                }
            }
        }
        if has_changed {
            let _count = rustix::io::read(disk.changes(), &mut [0; 8]);
            let before = std::mem::replace(&mut blocks, disk.geometry().blocks);
            if blocks != before {
                info!("the disk has {blocks} blocks now, and had {before}");
                device.runner().resize(blocks);
            }
        }
        let found = device.turn(ready.lane);
        if found || is_told || has_changed {
            spin.found();
            ready = waiter.look()?;
        } else if spin.goes_on(Instant::now()) {
            std::hint::spin_loop();
            ready = waiter.look()?;
        } else if device.arm() {
            device.disarm();
            ready = waiter.look()?;
        } else {
            wait.interests.clear();
            wait.until = None;
            device.runner().wait(&mut wait);
            ready = waiter.wait(&wait, None)?;
            device.disarm();
            spin.woken(Instant::now());
        }
    }
}

//! Other processes, as far as this one has to do with them.
//!
//! Two processes may share several link groups, one per listener and more; the descriptors of the
//! other one are held once.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shunt_sys::fds::close;
use shunt_wire::agent::EndpointId;
use shunt_wire::reason::Reason;

use crate::control::doorbells::Doorbells;
use crate::fds::own_fds::{OwnFd, adopt};
use crate::threads::mutex::Mutex;

/// Another endpoint.
#[derive(Debug)]
pub struct Process {
    /// Its name.
    pub endpoint: EndpointId,
    /// The doorbells of its completion vectors.
    pub bells: Doorbells,
    /// The process itself, where it had to be known.
    pidfd: Option<OwnFd>,
}

/// Those that some link group has as a party.
static KNOWN: Mutex<Vec<Weak<Process>>> = Mutex::new(Vec::new());

/// The lock, to be held across fork.
pub fn lock_for_fork() -> impl Sized {
    KNOWN.lock()
}

/// A process that is a party of another link group already.
fn known(endpoint: EndpointId) -> Option<Arc<Process>> {
    let known = KNOWN.lock();
    known.iter().filter_map(Weak::upgrade).find(|process| process.endpoint == endpoint)
}

/// What the agent sent of a process: descriptors that are held already are closed.
///
/// # Errors
/// [`Reason::NoResources`] when there are too many descriptors.
pub fn remember(
    endpoint: EndpointId,
    bells: Doorbells,
    pidfd: Option<OwnedFd>,
) -> Result<Arc<Process>, Reason> {
    if let Some(known) = known(endpoint).filter(|p| p.pidfd.is_some() || pidfd.is_none()) {
        pidfd.into_iter().for_each(close);
        return Ok(known);
    }
    let pidfd = pidfd.map(adopt).transpose().map_err(|_| Reason::NoResources)?;
    let process = Arc::new(Process { pidfd, ..Process::of(endpoint, bells) });
    let mut known = KNOWN.lock();
    known.retain(|process| process.strong_count() > 0);
    known.push(Arc::downgrade(&process));
    Ok(process)
}

impl Process {
    /// With its doorbells alone.
    pub const fn of(endpoint: EndpointId, bells: Doorbells) -> Self {
        Self { endpoint, bells, pidfd: None }
    }

    /// False when it has died. True also where that can't be known.
    pub fn lives(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return true };
        let mut fds = [PollFd::from_borrowed_fd(pidfd.borrow(), PollFlags::IN)];
        !matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(n) if n > 0)
    }
}

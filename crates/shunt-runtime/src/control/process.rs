//! Other processes, as far as this one has to do with them.
//!
//! Two processes may share several link groups, one per listener and more; the descriptors of the
//! other one are held once.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shunt_sys::fds::close;
use shunt_wire::agent::EndpointId;
use shunt_wire::reason::Reason;

use crate::control::bells;
use crate::control::doorbells::Doorbells;
use crate::fds::own_fds::{OwnFd, adopt};
use crate::system::clock;
use crate::threads::mutex::{Guard, Mutex};

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
#[derive(Debug)]
pub struct ForkLock {
    _known: Guard<'static, Vec<Weak<Process>>>,
}

/// Takes it.
pub fn lock_for_fork() -> ForkLock {
    ForkLock { _known: KNOWN.lock() }
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
    doorbells: Doorbells,
    pidfd: Option<OwnedFd>,
) -> Result<Arc<Process>, Reason> {
    // It can be gone without: the agent tells of owners that are gone, too.
    let pidfd = match pidfd {
        Some(pidfd) if bells::are_enough() => {
            close(pidfd);
            None
        }
        other => other,
    };
    if let Some(known) = known(endpoint).filter(|p| p.pidfd.is_some() || pidfd.is_none()) {
        pidfd.into_iter().for_each(close);
        return Ok(known);
    }
    let pidfd = pidfd.map(adopt).transpose().map_err(|_| Reason::NoResources)?;
    bells::hold(usize::from(pidfd.is_some()));
    let mut process = Process::of(endpoint, doorbells);
    process.pidfd = pidfd;
    let process = Arc::new(process);
    let mut known = KNOWN.lock();
    known.retain(|process| process.strong_count() > 0);
    known.push(Arc::downgrade(&process));
    Ok(process)
}

/// Room for a doorbell that is to be rung. False: all descriptors are in use for what is rung just now, or may be.
pub fn make_room() -> bool {
    /// Not more often: where more peers are rung than there is room for, the agent rings for some of them.
    const EVERY: u64 = 1_000_000;
    static LAST: AtomicU64 = AtomicU64::new(0);
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if !bells::are_enough() {
        return true;
    }
    let now = clock::coarse();
    if now.saturating_sub(LAST.load(Ordering::Relaxed)) < EVERY {
        return false;
    }
    LAST.store(now, Ordering::Relaxed);
    let known = KNOWN.lock();
    let start = NEXT.load(Ordering::Relaxed);
    let given_back = (0..known.len()).find(|n| {
        let process = known.get((start + n) % known.len()).and_then(Weak::upgrade);
        process.is_some_and(|process| process.bells.give_back_idle())
    });
    NEXT.store(start + given_back.map_or(0, |n| n + 1), Ordering::Relaxed);
    given_back.is_some()
}

/// In a forked child: what other threads of the parent were about to do will not be done.
pub fn forget_in_child() {
    // After a raw fork nobody may be there to unlock it.
    let Some(known) = KNOWN.try_lock() else { return };
    known.iter().filter_map(Weak::upgrade).for_each(|process| process.bells.forget_ringing());
}

impl Drop for Process {
    fn drop(&mut self) {
        bells::let_go(usize::from(self.pidfd.is_some()));
    }
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

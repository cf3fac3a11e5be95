//! The memory in which programs of this host find those of other hosts.
//!
//! It is laid out as memory that machines share (`shunt_shm::ivshmem`): this host's agent is a member of it, and so is each peer,
//! whose part this crate plays. Programs have it from their agent, as they have a device's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use shunt_shm::ivshmem::EXTENT;
use shunt_shm::memfd;
use shunt_wire::agent::{EndpointId, RegionId};

/// Extents: homes and regions. Only what is touched takes memory.
const EXTENTS: usize = 1024;
/// Interrupt vectors of this host's member, which lead to programs' doorbells.
const LINES: usize = 200;

/// By which number the agent is known there; peers have the following ones.
pub(crate) const AGENT: u16 = 0;

/// What the agent tells of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// There are proposals in a region.
    Proposed(RegionId),
    /// All processes that had a region from this endpoint are gone.
    Gone(RegionId, EndpointId),
}

/// See the module.
#[derive(Debug)]
pub struct SharedMemory {
    fd: Arc<OwnedFd>,
    /// Readable when the agent has something to hear.
    ear: OwnedFd,
    /// Where the thread that serves peers is woken.
    thread: Arc<OwnedFd>,
    lines: Mutex<Vec<Option<Arc<OwnedFd>>>>,
    workers: Mutex<Vec<Arc<OwnedFd>>>,
    news: Mutex<Vec<News>>,
    /// By which number servers with the kernel's SMC-R are known there; 0: they are not.
    kernels: AtomicU16,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All that is done with the lock held is to put values there, or to take them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn interrupt(eventfd: impl AsFd) {
    shunt_shm::doorbell::interrupt(eventfd);
}

impl SharedMemory {
    pub(crate) fn new(thread: Arc<OwnedFd>) -> io::Result<Self> {
        let fd = memfd::create_sealed("shunt-hosts", EXTENTS * EXTENT)?;
        Ok(Self {
            fd: Arc::new(fd),
            ear: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            thread,
            lines: Mutex::new(vec![None; LINES]),
            workers: Mutex::default(),
            news: Mutex::default(),
            kernels: AtomicU16::new(0),
        })
    }

    /// The memory itself.
    #[must_use]
    pub const fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        EXTENTS * EXTENT
    }

    /// By which number the agent is known there.
    #[must_use]
    pub const fn agent(&self) -> u16 {
        AGENT
    }

    /// True for the number by which servers with the kernel's SMC-R are known there.
    #[must_use]
    pub fn is_kernels(&self, peer: u16) -> bool {
        peer != 0 && peer == self.kernels.load(Ordering::Acquire)
    }

    pub(crate) fn set_kernels(&self, peer: u16) {
        self.kernels.store(peer, Ordering::Release);
    }

    /// Interrupt vectors of the agent's member.
    #[must_use]
    pub const fn lines(&self) -> usize {
        LINES
    }

    /// Readable when the agent has something to hear: [`Self::hear`].
    pub fn ear(&self) -> BorrowedFd<'_> {
        self.ear.as_fd()
    }

    /// Takes what there is to hear.
    pub fn hear(&self) {
        let mut told = [0; 8];
        let _ = rustix::io::read(&self.ear, &mut told[..]);
    }

    pub(crate) fn tell_agent(&self) {
        interrupt(&self.ear);
    }

    /// Has the peers' parts looked after.
    pub fn ring(&self) {
        interrupt(&self.thread);
    }

    /// How programs interrupt a peer's member: an eventfd for each of its vectors.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn means(&self) -> io::Result<Vec<OwnedFd>> {
        let workers = lock(&self.workers);
        let all = std::iter::once(&self.thread).chain(workers.iter());
        all.map(|fd| fd.try_clone()).collect()
    }

    /// Leads an interrupt vector of the agent's member to a program's doorbell, or to none.
    pub fn lead(&self, line: usize, to: Option<BorrowedFd<'_>>) -> bool {
        let to = to.map(|to| to.try_clone_to_owned().map(Arc::new)).transpose();
        match (to, lock(&self.lines).get_mut(line)) {
            (Ok(to), Some(place)) => {
                *place = to;
                true
            }
            _ => false,
        }
    }

    /// A program has posted proposals in this region.
    pub fn proposed(&self, region: RegionId) {
        self.tell(News::Proposed(region));
    }

    /// All processes that had this region from this endpoint are gone.
    pub fn gone(&self, region: RegionId, endpoint: EndpointId) {
        self.tell(News::Gone(region, endpoint));
    }

    fn tell(&self, news: News) {
        lock(&self.news).push(news);
        self.ring();
    }

    pub(crate) fn take_news(&self) -> Vec<News> {
        std::mem::take(&mut lock(&self.news))
    }

    pub(crate) fn set_workers(&self, workers: Vec<Arc<OwnedFd>>) {
        *lock(&self.workers) = workers;
    }

    pub(crate) fn line(&self, line: u8) -> Option<Arc<OwnedFd>> {
        lock(&self.lines).get(usize::from(line)).cloned().flatten()
    }
}

//! This process as its peers and the agent know it.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;

use rustix::fs::{Mode, OFlags, open};
use shunt_shm::arena::{Arena, Record};
use shunt_shm::counters::{Counters, RunPage};
use shunt_shm::doorbell;
use shunt_shm::registry::Registry;
use shunt_wire::agent::{EndpointId, MAX_VECTORS};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::knobs;
use crate::own_fds::{OwnFd, adopt};

/// An endpoint: made at Hello, one per process and agent. It is never freed, because connections
/// that were made with it outlive the conversation with the agent.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name.
    pub id: EndpointId,
    /// Process that said Hello.
    pub pid: u32,
    /// Doorbells of the completion vectors.
    pub bells: Vec<OwnFd>,
    /// Listeners on this host.
    pub registry: Registry,
    arena: Arena,
    hint: AtomicUsize,
    /// Epoll instances per completion vector.
    load: [AtomicU32; MAX_VECTORS],
}

/// Counters until (and unless) there is an endpoint, so that nothing is lost.
static HOMELESS: Counters = Counters::new();
static CURRENT: AtomicPtr<Endpoint> = AtomicPtr::new(core::ptr::null_mut());

impl Endpoint {
    /// One doorbell per completion vector.
    ///
    /// # Errors
    /// Those of eventfd(2), and `EMFILE`.
    pub fn make_bells() -> io::Result<Vec<OwnFd>> {
        (0..vectors()).map(|_| Ok(adopt(doorbell::create()?)?)).collect()
    }

    /// Takes over what the agent sent.
    ///
    /// # Errors
    /// Those of mapping the memory.
    pub fn new(
        id: EndpointId,
        bells: Vec<OwnFd>,
        registry: OwnedFd,
        arena: OwnedFd,
    ) -> io::Result<&'static Self> {
        let endpoint = Self {
            id,
            pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
            bells,
            registry: Registry::map(&registry)?,
            arena: Arena::map(&arena)?,
            hint: AtomicUsize::new(0),
            load: [const { AtomicU32::new(0) }; MAX_VECTORS],
        };
        shunt_sys::fds::close(registry);
        shunt_sys::fds::close(arena);
        let endpoint: &'static Self = Box::leak(Box::new(endpoint));
        CURRENT.store(core::ptr::from_ref(endpoint).cast_mut(), Ordering::Release);
        Ok(endpoint)
    }

    /// The endpoint of this process, if it has introduced itself to an agent.
    #[must_use]
    pub fn current() -> Option<&'static Self> {
        // SAFETY: only ever set to leaked endpoints.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    /// In a forked child: the parent's endpoint is not ours.
    pub fn forget_in_child() {
        CURRENT.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// A fresh record. Lives in memory that is never unmapped.
    #[must_use]
    pub fn allocate(&'static self) -> Option<&'static Record> {
        let mut hint = self.hint.load(Ordering::Relaxed);
        let record = self.arena.allocate(&mut hint);
        self.hint.store(hint, Ordering::Relaxed);
        if let Some(record) = record {
            record.id.pid.store(self.pid, Ordering::Relaxed);
        }
        record
    }

    /// The least used completion vector, used once more from now on.
    pub fn take_vector(&self) -> usize {
        let count = self.bells.len().max(1);
        let least = (0..count).min_by_key(|v| self.load[*v].load(Ordering::Relaxed)).unwrap_or(0);
        self.load[least].fetch_add(1, Ordering::Relaxed);
        least
    }

    /// Gives it back.
    pub fn give_vector(&self, vector: usize) {
        self.load[vector % MAX_VECTORS].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Completion vectors of a process: `SHUNT_VECTORS`, else one per core up to the most there can be.
fn vectors() -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    knobs::get().vectors.map_or_else(cores, usize::from).min(MAX_VECTORS)
}

/// The page of `shunt run --summary`, if there is one.
fn run_page() -> Option<&'static RunPage> {
    static PAGE: OnceLock<Option<RunPage>> = OnceLock::new();
    let open_page = || {
        let path = knobs::get().run_page.as_deref()?;
        let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let page = RunPage::map(&fd).ok();
        shunt_sys::fds::close(fd);
        page
    };
    PAGE.get_or_init(open_page).as_ref()
}

/// Opens the run's page now: later it may not be permitted.
pub fn open_run_page() {
    let _ = run_page();
}

fn everywhere(f: impl Fn(&Counters)) {
    f(Endpoint::current().map_or(&HOMELESS, |e| e.arena.counters()));
    if let Some(page) = run_page() {
        f(page.get());
    }
}

/// Adds to a total of this process and of its run.
pub fn count(which: Counter, n: u64) {
    if n > 0 {
        everywhere(|c| c.add(which, n));
    }
}

/// Counts a connection end that stays on, or goes back to, TCP.
pub fn decline(why: Reason) {
    everywhere(|c| c.decline(why));
}

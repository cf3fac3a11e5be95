//! Places for proposals, in link groups of this process's own.

use core::sync::atomic::Ordering;
use std::io;
use std::sync::{Arc, Weak};

use shunt_engine::handshake::proposals;
use shunt_shm::region::{self, Side};
use shunt_shm::sync::AtomicU32;
use shunt_shm::table::{Table, Ticket};
use shunt_sys::fds::close;
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::ListenerId;
use shunt_wire::reason::Reason;

use crate::control::agent_client::{self, Linked, Memory, Proposals};
use crate::control::endpoint::Endpoint;
use crate::control::link::removal::retire_unused;
use crate::control::link::{CHANGES, Link, Target, all, install};
use crate::threads::mutex::Mutex;

/// Those that some link group leads to.
static TARGETS: Mutex<Vec<Weak<Target>>> = Mutex::new(Vec::new());

/// A place for a proposal: made before connect(2), posted after it.
pub struct Draft {
    /// The link group.
    pub link: &'static Link,
    /// The slot.
    pub slot: usize,
    /// The listener.
    pub target: Arc<Target>,
}

fn map_table(table: &Proposals, memory: &Memory) -> io::Result<Table> {
    match (table, memory) {
        (Proposals::Host(table), _) => Table::map(table),
        (Proposals::Device(at), Memory::Device { memory, .. }) => {
            let at = usize::try_from(*at).map_err(|_| io::ErrorKind::InvalidInput)?;
            Table::map_device(memory, at)
        }
        (Proposals::Device(_), Memory::Host(_)) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn target(listener: ListenerId, table: &Proposals, memory: &Memory) -> Result<Arc<Target>, Reason> {
    let mut targets = TARGETS.lock();
    let mut known = targets.iter().filter_map(Weak::upgrade);
    if let Some(known) = known.find(|t| t.listener == listener) {
        return Ok(known);
    }
    let table = map_table(table, memory).map_err(|_| Reason::NoResources)?;
    let (answers, spins) = (AtomicU32::new(0), AtomicU32::new(0));
    let target = Arc::new(Target { listener, table, answers, spins });
    targets.retain(|target| target.strong_count() > 0);
    targets.push(Arc::downgrade(&target));
    Ok(target)
}

/// A place in a link group to `listener`; a further link group is opened when all are full.
pub fn draft(listener: ListenerId, endpoint: &'static Endpoint) -> Result<Draft, Reason> {
    let _changes = CHANGES.lock();
    for link in all() {
        let Some(target) = &link.listener else { continue };
        if target.listener == listener
            && core::ptr::eq(link.endpoint, endpoint)
            && let Some(slot) = link.take_slot()
        {
            return Ok(Draft { link, slot, target: Arc::clone(target) });
        }
    }
    retire_unused();
    let Linked { region, table, memory, to_kernel } = agent_client::connect(listener)?;
    let target = target(listener, &table, &memory)?;
    let to = Some(Arc::clone(&target));
    let link = Link::new(region, Side::Client, memory, endpoint, None, to)?;
    let link = Link { to_kernel, ..link };
    if let Proposals::Host(table) = table {
        close(table);
    }
    let link = install(link)?;
    let slot = link.take_slot().ok_or(Reason::NoResources)?;
    Ok(Draft { link, slot, target })
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.link.drafts.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Draft {
    /// Posts the proposal for the connection `tuple` (as this end sees it).
    pub fn post(&self, tuple: &FourTuple) -> Result<Ticket, Reason> {
        let Self { link, slot, target } = self;
        let mine = link.view().section(*slot, Side::Client);
        let named = (link.endpoint.id, tuple);
        proposals::post(&target.table, (link.region, *slot), mine, named).ok_or(Reason::TableFull)
    }

    /// Gives the place back.
    pub fn drop_unposted(&self) {
        self.link.free_slot(self.slot);
    }
}

/// A link group of this process's own, of which nobody else knows: for connections that another program has left.
pub fn on_its_own(endpoint: &'static Endpoint) -> Result<&'static Link, Reason> {
    let _changes = CHANGES.lock();
    // Any name that no agent gives.
    let name = crate::system::clock::now() | 1 << 63;
    let memory = region::create(name).map_err(|_| Reason::NoResources)?;
    let link = Link::new(name, Side::Client, Memory::Host(memory), endpoint, None, None)?;
    // Nobody is there to put anything into a queue.
    link.lane.store(0, Ordering::Relaxed);
    install(link)
}

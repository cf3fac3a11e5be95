//! Link groups and listeners as this process holds them.
//!
//! A [`Link`] is a region that this process has mapped: its own (it connects) or one that it has
//! attached (it accepts). Links live in a fixed table of slots that are never unmapped, so that the
//! data path can follow a pointer to one without counting.
//!
//! `looks` says which completion queues are looked at. Own ones come to be in `draft`, attached ones in `attach`; `slots` gives out an own one's slots; `removal` takes
//! both out of the table; `fork` is what a child has of its parent's.

mod attach;
mod draft;
mod fork;
pub mod looks;
mod removal;
mod slots;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::net::{SendFlags, send};
use shunt_engine::conn::End;
use shunt_engine::handshake::slots::Slots;
use shunt_shm::arena::Record;
use shunt_shm::cq::ArmLine;
use shunt_shm::doorbell;
use shunt_shm::region::{Region, RegionView, SLOTS, Side};
use shunt_shm::sync::AtomicU32;
use shunt_shm::table::Table;
use shunt_sys::fds::close;
use shunt_wire::agent::{EndpointId, ListenerId, MAX_VECTORS, RegionId};
use shunt_wire::reason::Reason;

use crate::control::agent_client::{self, Memory};
use crate::control::bells::COMMON;
use crate::control::doorbells::Doorbells;
use crate::control::endpoint::Endpoint;
use crate::control::peer::{self, Peer, Peers};
use crate::control::process::{self, Process};
use crate::fds::own_fds::{OwnFd, adopt};
use crate::stream::spin;
use crate::system::errno::KeepErrno;
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::mutex::Mutex;
use crate::threads::signals::Uncancelled;

pub use attach::{attach, claim, detach, fetch};
pub use draft::{Draft, draft, on_its_own};
pub use fork::{ForkLocks, forget_in_child, keep_what_is_held, let_go, lock_for_fork};
pub use slots::{Left, trim};

/// Link groups that a process can have at once.
pub const LINKS: usize = 4096;

static TABLE: [AtomicPtr<Link>; LINKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; LINKS];
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// Serializes changes to the table; readers take no lock.
static CHANGES: &Mutex<()> = &ACROSS_FORKS.links;

/// A link group.
#[derive(Debug)]
pub struct Link {
    /// The region's name, its token.
    pub region: RegionId,
    /// Which side this process is.
    pub side: Side,
    memory: Region,
    /// Tells the agent, of a region that machines share, that it is in use here, or in a fork.
    lease: Option<OwnFd>,
    /// The lease is a socket: the agent brings what comes from another host.
    is_of_host: bool,
    /// The other end is a kernel's SMC-R, and the agent the acceptor.
    to_kernel: bool,
    /// Its agent is gone, as the lease has told.
    is_cut_off: AtomicBool,
    /// Whose doorbells the peer rings for this side.
    pub endpoint: &'static Endpoint,
    /// Lane of this process in the region + 1; 0: none, each connection is watched by itself.
    lane: AtomicU32,
    /// Descriptors of this process whose connections are in it.
    pub users: AtomicU32,
    /// Places between [`draft()`] and their connection's start.
    drafts: AtomicU32,
    /// Endpoints at the other end.
    pub peers: Peers,
    /// The owner (acceptor's side only), until the link is removed.
    owner: Mutex<Option<Arc<Process>>>,
    /// The listener (client's side only).
    listener: Option<Arc<Target>>,
    /// Which of its slots are given out (client's side only).
    slots: Slots,
    /// Slots (a bit each) whose rings connections that have ended may have left with much memory (client's side only).
    touched: [AtomicU64; SLOTS.div_ceil(64)],
    /// Vectors of the lane (a bit each) that are armed for good: see [`Self::arm_for_others`].
    armed: AtomicU64,
    /// In a forked child, of a link group of its parent's: the slots (a bit each) whose connections it holds.
    held: [AtomicU64; SLOTS.div_ceil(64)],
    /// Per slot: the epoll watch ([`crate::epoll::instance`]'s packing) that its completions go to.
    /// Not in place, nor are the slots: a link is made on the stack, of which a thread may have little.
    pub watch: Box<[AtomicU64]>,
    /// Its place in the table.
    place: AtomicU32,
    /// Vectors (a bit each) that tell of connections in it ([`looks`]).
    told: AtomicU64,
    /// Per vector: sleeps before something was last found in its queue ([`looks`]).
    found: Box<[AtomicU32]>,
}

/// All that a call needs to send into a ring, found by one look.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The link group.
    pub link: &'static Link,
    /// This end of the connection.
    pub end: End<'static>,
    /// The connection's slot.
    pub slot: usize,
    /// The side that reads from the ring.
    pub receiver: Side,
}

impl Way {
    /// Where the ring's buffer begins.
    #[inline]
    #[must_use]
    pub fn ring(&self) -> NonNull<u8> {
        self.link.view().buffer(self.slot, self.receiver)
    }
}

/// A listener to which this process connects.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub listener: ListenerId,
    /// Its proposals.
    pub table: Table,
    /// Whether it pays to wait for its answers: what [`spin`] has learnt.
    pub answers: AtomicU32,
    /// The same for bytes on a connection to it.
    pub spins: AtomicU32,
}

/// The links of this process.
pub fn all() -> impl Iterator<Item = &'static Link> {
    let high = HIGH.load(Ordering::Acquire);
    // SAFETY: entries are leaked links, or links that are removed only when no connection uses them
    // (and then kept allocated; see `removal`).
    TABLE[..high].iter().filter_map(|p| unsafe { p.load(Ordering::Acquire).as_ref() })
}

impl Link {
    fn new(
        region: RegionId,
        side: Side,
        memory: Memory,
        endpoint: &'static Endpoint,
        owner: Option<Arc<Process>>,
        listener: Option<Arc<Target>>,
    ) -> Result<Self, Reason> {
        let (memory, lease) = map(memory)?;
        let lane = memory.view().claim_lane(side, endpoint.id);
        Ok(Self {
            region,
            side,
            memory,
            is_of_host: lease.as_ref().is_some_and(is_socket),
            to_kernel: false,
            is_cut_off: AtomicBool::new(false),
            lease,
            endpoint,
            lane: AtomicU32::new(lane.map_or(0, |l| u32::try_from(l + 1).unwrap_or(0))),
            users: AtomicU32::new(0),
            drafts: AtomicU32::new(0),
            peers: Peers::default(),
            owner: Mutex::new(owner),
            listener,
            slots: Slots::new(SLOTS),
            touched: [const { AtomicU64::new(0) }; SLOTS.div_ceil(64)],
            armed: AtomicU64::new(0),
            held: [const { AtomicU64::new(0) }; SLOTS.div_ceil(64)],
            watch: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            place: AtomicU32::new(0),
            told: AtomicU64::new(0),
            found: (0..MAX_VECTORS).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// The region.
    #[inline]
    #[must_use]
    pub const fn view(&self) -> RegionView {
        self.memory.view()
    }

    /// The end of a connection in it, of this record.
    #[inline]
    #[must_use]
    pub fn end<'a>(&'a self, record: &'a Record) -> End<'a> {
        let side = record.side();
        self.end_at(record, record.slot(), side, side.other())
    }

    #[inline]
    fn end_at<'a>(&'a self, record: &'a Record, slot: usize, mine: Side, theirs: Side) -> End<'a> {
        let view = self.view();
        End {
            record,
            mine: view.section(slot, mine),
            theirs: view.section(slot, theirs),
            ring: view.geometry().ring() as u64,
        }
    }

    /// The way into the ring of a connection in it, of this record.
    #[inline]
    #[must_use]
    pub fn way(&'static self, record: &'static Record) -> Way {
        let (slot, side) = (record.slot(), record.side());
        let receiver = side.other();
        Way { link: self, end: self.end_at(record, slot, side, receiver), slot, receiver }
    }

    /// True when the other side is on another machine.
    #[inline]
    #[must_use]
    pub const fn is_far(&self) -> bool {
        self.lease.is_some()
    }

    /// True when the other end is on another host, and this host's agent writes what the peer would.
    #[inline]
    #[must_use]
    pub const fn is_of_host(&self) -> bool {
        self.is_of_host
    }

    /// True when the other end is a kernel's SMC-R: sockets are marked before they connect, and no byte goes over TCP before the
    /// proposal is answered.
    #[must_use]
    pub const fn is_to_kernel(&self) -> bool {
        self.to_kernel
    }

    /// The descriptor that hangs up with the agent which brings what comes from another host; poll(2) and epoll tell of that unasked.
    #[must_use]
    pub fn lifeline(&self) -> Option<RawFd> {
        self.lease.as_ref().filter(|_| self.is_of_host).map(OwnFd::raw)
    }

    /// True when nobody brings what comes from another host any more.
    #[cold]
    pub fn is_cut_off(&self) -> bool {
        let Some(lease) = self.lease.as_ref().filter(|_| self.is_of_host) else { return false };
        if self.is_known_to_be_cut_off() {
            return true;
        }
        let _keep = KeepErrno::new();
        let gone = PollFlags::ERR | PollFlags::HUP;
        let mut asked = [PollFd::from_borrowed_fd(lease.borrow(), gone)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_cut_off = poll(&mut asked, Some(&now)).is_ok_and(|n| n > 0)
            && asked[0].revents().intersects(gone);
        self.is_cut_off.fetch_or(is_cut_off, Ordering::AcqRel);
        is_cut_off
    }

    /// The same without a question to the kernel: true once it has told so.
    #[must_use]
    pub fn is_known_to_be_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Acquire)
    }

    /// Tells the agent that there is a proposal in it, or that one was taken back, where an acceptor on another host cannot see that. A byte for which there is no
    /// room would say nothing new.
    pub fn tell_of_proposal(&self) {
        if let Some(lease) = self.lease.as_ref().filter(|_| self.is_of_host) {
            let _keep = KeepErrno::new();
            let _ = send(lease.borrow(), &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// This process's lane of completion queues.
    #[inline]
    #[must_use]
    pub fn lane(&self) -> Option<usize> {
        self.lane.load(Ordering::Relaxed).checked_sub(1).map(|l| l as usize)
    }

    /// Has the doorbell rung for every completion of these vectors (a bit each), for those who learn of
    /// them from the kernel alone. Look at the queues after it.
    pub fn arm_for_others(&self, vectors: u64) {
        if self.lane().is_some() {
            let new = vectors & !self.armed.fetch_or(vectors, Ordering::AcqRel);
            self.each_vector(new, ArmLine::arm);
        }
    }

    /// Takes it back for all but these vectors.
    pub fn disarm_for_others(&self, needed: u64) {
        let old = self.armed.fetch_and(needed, Ordering::AcqRel) & !needed;
        self.each_vector(old, ArmLine::disarm);
    }

    /// Each of these vectors of this process's lane.
    pub fn each_vector(&self, vectors: u64, mut each: impl FnMut(&ArmLine)) {
        let Some(lane) = self.lane() else { return };
        let lane = self.view().lane(lane);
        doorbell::vectors(vectors).for_each(|vector| each(&lane.vector(vector).arm));
    }

    /// The endpoint at the other end, with its doorbells, for a connection that uses it from now on;
    /// they are fetched from the agent the first time, also where they are held for another link group:
    /// the agent alone knows whether the endpoint is a party of this one. `place`: the connection's slot and socket, by which the agent
    /// knows a forked child as one that holds it.
    pub fn acquaint<'s>(
        &self,
        endpoint: EndpointId,
        place: impl FnOnce() -> Option<(usize, BorrowedFd<'s>)>,
    ) -> Result<&'static Peer, Reason> {
        let _uncancelled = Uncancelled::begin();
        if let Some(peer) = self.peers.find(endpoint) {
            return Ok(peer);
        }
        if peer::crowded() {
            // Acceptors know one peer per link group, which goes with it.
            all().filter(|link| link.side == Side::Client).for_each(|link| link.peers.drop_idle());
        }
        let bells = if self.is_inherited() {
            let (slot, socket) = place().ok_or(Reason::PeerGone)?;
            let at = (endpoint, COMMON);
            let bell = agent_client::bell((self.region, slot), at, Some(socket))?;
            Doorbells::with_first(Some(bell))
        } else {
            agent_client::bells(self.region, endpoint)?
        };
        let process = process::remember(endpoint, bells, None)?;
        Ok(self.peers.add(&process))
    }

    /// False when the region's owner has died. True also where that can't be known.
    #[must_use]
    pub fn owner_lives(&self) -> bool {
        let owner = self.owner.lock();
        owner.as_ref().is_none_or(|owner| owner.lives())
    }

    /// Has the rings of a slot mapped, for a connection of this process. Under the lock.
    fn open(&self, slot: usize) -> Result<(), Reason> {
        self.memory.open(slot).map_err(|_| Reason::NoResources)
    }

    /// The same for one that alone knows the link group.
    pub fn open_slot(&self, slot: usize) -> Result<(), Reason> {
        let _changes = CHANGES.lock();
        self.open(slot)
    }
}

fn is_socket(lease: &OwnFd) -> bool {
    fstat(lease.borrow()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_socket())
}

/// Maps the memory of a link group; with it comes what is to be kept as long as it is mapped.
fn map(memory: Memory) -> Result<(Region, Option<OwnFd>), Reason> {
    let no_resources = |_| Reason::NoResources;
    match memory {
        Memory::Host(memory) => {
            let region = Region::map(&memory).map_err(no_resources)?;
            close(memory);
            Ok((region, None))
        }
        Memory::Device { memory, at, lease } => {
            let at = usize::try_from(at).map_err(|_| Reason::NoResources)?;
            let region = Region::map_device(&memory, at).map_err(no_resources)?;
            close(memory);
            spin::reaches_far();
            Ok((region, Some(adopt(lease).map_err(|_| Reason::NoResources)?)))
        }
    }
}

/// Puts a new one into the table.
fn install(link: Link) -> Result<&'static Link, Reason> {
    let link: &'static Link = Box::leak(Box::new(link));
    let new = core::ptr::from_ref(link).cast_mut();
    for (i, place) in TABLE.iter().enumerate() {
        let null = core::ptr::null_mut();
        link.place.store(u32::try_from(i).unwrap_or(0), Ordering::Relaxed);
        if place.compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            HIGH.fetch_max(i + 1, Ordering::AcqRel);
            return Ok(link);
        }
    }
    Err(Reason::NoResources)
}

impl Target {
    /// Of the link group at `link`.
    #[must_use]
    pub fn of(link: &Link) -> Option<&Self> {
        link.listener.as_deref()
    }
}

const _: () = assert!(MAX_VECTORS == 64 && SLOTS < 256);

//! Link groups and listeners as this process holds them.
//!
//! A [`Link`] is a region that this process has mapped: its own (it connects) or one that it has
//! attached (it accepts). Links live in a fixed table of slots that are never unmapped, so that the
//! data path can follow a pointer to one without counting.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use shunt_engine::conn::End;
use shunt_engine::handshake::proposals;
use shunt_engine::handshake::slots::{LinkGroup, Slots};
use shunt_shm::arena::Record;
use shunt_shm::cq::ArmLine;
use shunt_shm::doorbell;
use shunt_shm::region::{self, Region, RegionView, SLOTS, Section, Side};
use shunt_shm::sync::AtomicU32;
use shunt_shm::table::{Table, Ticket};
use shunt_sys::fds::close;
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{EndpointId, ListenerId, MAX_VECTORS, RegionId};
use shunt_wire::reason::Reason;

use crate::control::agent_client::{self, Claimed, Memory, Proposals};
use crate::control::bells::Kept;
use crate::control::doorbells::Doorbells;
use crate::control::endpoint::Endpoint;
use crate::control::peer::{self, Peer, Peers};
use crate::control::process::{self, Process};
use crate::fds::own_fds::{OwnFd, adopt};
use crate::knobs;
use crate::stream::alarm;
use crate::stream::spin;
use crate::threads::mutex::Mutex;
use crate::threads::signals::Uncancelled;

/// Link groups that a process can have at once.
pub const LINKS: usize = 4096;

static TABLE: [AtomicPtr<Link>; LINKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; LINKS];
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// Serializes changes to the table; readers take no lock.
static CHANGES: Mutex<()> = Mutex::new(());

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
    /// Whose doorbells the peer rings for this side.
    pub endpoint: &'static Endpoint,
    /// Lane of this process in the region + 1; 0: none, each connection is watched by itself.
    lane: AtomicU32,
    /// Descriptors of this process whose connections are in it.
    pub users: AtomicU32,
    /// Places between [`draft`] and their connection's start.
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

/// Those that some link group leads to.
static TARGETS: Mutex<Vec<Weak<Target>>> = Mutex::new(Vec::new());

/// Link groups that are kept, though no connection uses them, for the next connection.
const KEPT_UNUSED: usize = 16;

/// The links of this process.
pub fn all() -> impl Iterator<Item = &'static Link> {
    let high = HIGH.load(Ordering::Acquire);
    // SAFETY: entries are leaked links, or links that are removed only when no connection uses them
    // (and then kept allocated; see `collect`).
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
    /// the agent alone knows whether the endpoint is a party of this one.
    pub fn acquaint(&self, endpoint: EndpointId) -> Result<&'static Peer, Reason> {
        let _uncancelled = Uncancelled::begin();
        if let Some(peer) = self.peers.find(endpoint) {
            return Ok(peer);
        }
        if peer::crowded() {
            // Acceptors know one peer per link group, which goes with it.
            all().filter(|link| link.side == Side::Client).for_each(|link| link.peers.drop_idle());
        }
        let bells = agent_client::bells(self.region, endpoint)?;
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

    /// True in a forked child for what was its parent's: it has the connections there that it has inherited, and no
    /// others.
    fn is_inherited(&self) -> bool {
        self.endpoint.is_inherited()
    }

    /// True when a connection in the slot can be used.
    #[must_use]
    pub fn holds(&self, slot: usize) -> bool {
        let held = || self.held[slot / 64].load(Ordering::Acquire) & 1 << (slot % 64) != 0;
        !self.is_inherited() || held()
    }

    /// A slot for a proposal of this process; its sections are cleared.
    fn take_slot(&self) -> Option<usize> {
        let limit = knobs::get()
            .conns_per_lg
            .map_or(SLOTS, usize::from)
            .min(self.view().geometry().slots());
        self.slots.take(limit, self)
    }

    /// The connection in the slot has ended on this side.
    pub fn has_ended(&self, slot: usize) {
        self.slots.has_ended(slot);
    }

    /// A connection of this process in the slot is over, one of many bytes or not.
    pub fn is_left(&self, slot: usize, had_many: bool) {
        // Slots of other link groups are not this process's to give out.
        if self.listener.is_none() || self.is_far() || self.is_inherited() {
            return;
        }
        let (word, bit) = (&self.touched[slot / 64], 1 << (slot % 64));
        let was_touched = word.load(Ordering::Relaxed) & bit != 0;
        if had_many && !was_touched {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        if had_many || was_touched {
            let _ = alarm::arm();
        }
    }

    /// Gives the memory of rings back that ended connections have left in slots which nobody uses, as far as there is
    /// time; under the lock. A slot that is used again is told of when that is over.
    fn trim(&self, until: u64) -> Left {
        let mut left = Left::Nothing;
        for slot in 0..SLOTS {
            let (word, bit) = (&self.touched[slot / 64], 1 << (slot % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                continue;
            }
            if self.slots.is_given(slot, self) {
                let mine = self.view().section(slot, self.side);
                if mine.setup.done.load(Ordering::Acquire) != 0 {
                    left = Left::Awaited;
                }
                continue;
            }
            if crate::system::clock::now() >= until {
                return Left::More;
            }
            word.fetch_and(!bit, Ordering::Relaxed);
            for side in [Side::Client, Side::Server] {
                // SAFETY: both ends are done with the slot, and it is not given out but under the lock.
                unsafe { self.view().discard(slot, side) };
            }
        }
        left
    }

    /// True while a place is being prepared in it.
    fn drafted(&self) -> bool {
        self.drafts.load(Ordering::Acquire) > 0
    }

    /// True when a slot is in use by nobody on this side and not given back by the other.
    fn has_lost_slots(&self) -> bool {
        self.slots.are_lost(self.view().geometry().slots(), self)
    }

    /// Gives back a slot whose proposal was never taken up.
    pub fn free_slot(&self, slot: usize) {
        self.slots.free(slot, self);
    }
}

impl LinkGroup for Link {
    fn section(&self, slot: usize, side: Side) -> &Section {
        self.view().section(slot, side)
    }

    fn is_open(&self, slot: usize) -> bool {
        self.memory.has(slot)
    }

    fn open(&self, slot: usize) -> bool {
        self.memory.open(slot).is_ok()
    }

    fn begins(&self, slot: usize) {
        self.drafts.fetch_add(1, Ordering::AcqRel);
        // Nobody watches the new connection yet, whoever watched the one before.
        self.watch[slot].store(0, Ordering::Release);
    }
}

/// A place for a proposal: made before connect(2), posted after it.
pub struct Draft {
    /// The link group.
    pub link: &'static Link,
    /// The slot.
    pub slot: usize,
    /// The listener.
    pub target: Arc<Target>,
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

fn install(link: Link) -> Result<&'static Link, Reason> {
    let link: &'static Link = Box::leak(Box::new(link));
    let new = core::ptr::from_ref(link).cast_mut();
    for (i, place) in TABLE.iter().enumerate() {
        let null = core::ptr::null_mut();
        if place.compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            HIGH.fetch_max(i + 1, Ordering::AcqRel);
            return Ok(link);
        }
    }
    Err(Reason::NoResources)
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
    let (region, table, memory) = agent_client::connect(listener)?;
    let target = target(listener, &table, &memory)?;
    let to = Some(Arc::clone(&target));
    let link = Link::new(region, Side::Client, memory, endpoint, None, to)?;
    if let Proposals::Host(table) = table {
        close(table);
    }
    let link = install(link)?;
    let slot = link.take_slot().ok_or(Reason::NoResources)?;
    Ok(Draft { link, slot, target })
}

/// What ended connections have left in rings, after [`trim()`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Left {
    /// Nothing that is to be given back.
    Nothing,
    /// Some acceptors have yet to say that they are done with theirs.
    Awaited,
    /// More than there was time for.
    More,
}

/// Gives the memory of rings back that ended connections have left, until this time.
pub fn trim(until: u64) -> Left {
    let Some(_changes) = CHANGES.try_lock() else { return Left::Awaited };
    let own = all().filter(|link| link.listener.is_some() && !link.is_inherited());
    own.map(|link| link.trim(until)).max().unwrap_or(Left::Nothing)
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

impl Target {
    /// Of the link group at `link`.
    #[must_use]
    pub fn of(link: &Link) -> Option<&Self> {
        link.listener.as_deref()
    }
}

/// The link group of `region` on the acceptor's side; fetched from the agent the first time, with
/// the accepted socket as the proof that we are a party. It counts as one use until [`detach`].
pub fn attach(
    region: RegionId,
    slot: usize,
    socket: std::os::fd::BorrowedFd<'_>,
) -> Result<&'static Link, Reason> {
    let _uncancelled = Uncancelled::begin();
    let find = || {
        let pid = Endpoint::current().map(|e| e.pid);
        all().find(|l| l.region == region && l.side == Side::Server && Some(l.endpoint.pid) == pid)
    };
    let _changes = CHANGES.lock();
    if let Some(link) = find() {
        link.open(slot)?;
        link.users.fetch_add(1, Ordering::AcqRel);
        return Ok(link);
    }
    collect();
    let found = agent_client::attach(region, slot, socket)?;
    let attached = process::remember(found.owner, found.bells, found.pidfd)
        .and_then(|owner| acceptors(region, slot, found.memory, &owner, found.endpoint));
    attached.inspect_err(|_| give_up(region))
}

/// It could not be attached: the agent gives it once more at the next connection, and keeps it for nobody until then.
fn give_up(region: RegionId) {
    agent_client::detach(region);
}

/// A link group that this process has just attached, with one use.
fn acceptors(
    region: RegionId,
    slot: usize,
    memory: Memory,
    owner: &Arc<Process>,
    endpoint: &'static Endpoint,
) -> Result<&'static Link, Reason> {
    let party = Some(Arc::clone(owner));
    let link = Link::new(region, Side::Server, memory, endpoint, party, None)?;
    link.open(slot)?;
    // It is there for the link group's sake, whether a connection uses it or not.
    link.peers.add(owner).release();
    link.users.fetch_add(1, Ordering::AcqRel);
    install(link)
}

/// Where the connection of an accepted socket has its place, if its client has offered it: as [`attach`], but
/// that the agent finds the place.
pub fn claim(socket: std::os::fd::BorrowedFd<'_>) -> Result<(&'static Link, Claimed), Reason> {
    let _uncancelled = Uncancelled::begin();
    let _changes = CHANGES.lock();
    let mut found = agent_client::claim(socket)?;
    if found.slot >= SLOTS {
        return Err(Reason::Internal);
    }
    let id = found.endpoint.id;
    let is_it =
        |l: &&Link| l.region == found.region && l.side == Side::Server && l.endpoint.id == id;
    if let Some(link) = all().find(is_it) {
        link.open(found.slot)?;
        link.users.fetch_add(1, Ordering::AcqRel);
        return Ok((link, found));
    }
    let attached = found.memory.take().ok_or(Reason::NoResources).and_then(|memory| {
        collect();
        let bells = core::mem::replace(&mut found.bells, Doorbells::Here(Kept::default()));
        let owner = process::remember(found.owner, bells, None)?;
        acceptors(found.region, found.slot, Memory::Host(memory), &owner, found.endpoint)
    });
    match attached {
        Ok(link) => Ok((link, found)),
        Err(why) => {
            give_up(found.region);
            Err(why)
        }
    }
}

/// The link group in which an offered connection of this process, or of one that it was forked from, was
/// claimed. It counts as one use until [`detach`].
pub fn fetch(
    region: RegionId,
    slot: usize,
    socket: std::os::fd::BorrowedFd<'_>,
) -> Result<&'static Link, Reason> {
    let _uncancelled = Uncancelled::begin();
    let _changes = CHANGES.lock();
    let is_it = |l: &&Link| l.region == region && l.side == Side::Client && !l.is_inherited();
    if let Some(link) = all().find(is_it) {
        link.open(slot)?;
        link.users.fetch_add(1, Ordering::AcqRel);
        return Ok(link);
    }
    retire_unused();
    let (memory, endpoint) = agent_client::fetch(region, slot, socket)?;
    let link = Link::new(region, Side::Client, Memory::Host(memory), endpoint, None, None)?;
    link.open(slot)?;
    link.users.fetch_add(1, Ordering::AcqRel);
    install(link)
}

/// Takes back the use that [`attach`], [`claim`] or [`fetch`] counted.
pub fn detach(link: &Link) {
    link.users.fetch_sub(1, Ordering::AcqRel);
}

/// Frees attached link groups whose owner is gone and that no connection uses. Runs only when another
/// one is about to be attached, under the lock.
fn collect() {
    GRAVEYARD.clear();
    for place in &TABLE[..HIGH.load(Ordering::Acquire)] {
        let at = place.load(Ordering::Acquire);
        // SAFETY: entries are live links; removal happens here alone, under the lock.
        let Some(link) = (unsafe { at.as_ref() }) else { continue };
        if link.side == Side::Server
            && !link.is_inherited()
            && link.users.load(Ordering::Acquire) == 0
            && (!link.owner_lives() || link.view().lane(0).owner.load(Ordering::Acquire) == 0)
        {
            remove(place);
        }
    }
}

/// Gives back own link groups in which no connection of this process is left: some are kept for the
/// next connection, but not where slots would be lost whose acceptor ended without a word. Runs only
/// when another one is about to be made, under the lock. Those that a forked child has inherited are
/// its parent's to give back.
fn retire_unused() {
    let pid = Endpoint::current().map(|endpoint| endpoint.pid);
    let mut kept = 0;
    for place in &TABLE[..HIGH.load(Ordering::Acquire)] {
        // SAFETY: entries are live links; removal happens under the lock alone.
        let Some(link) = (unsafe { place.load(Ordering::Acquire).as_ref() }) else { continue };
        let own = link.side == Side::Client && Some(link.endpoint.pid) == pid;
        let unused = own && link.users.load(Ordering::Acquire) == 0 && !link.drafted();
        if unused && (kept >= KEPT_UNUSED || link.has_lost_slots()) {
            remove(place);
        } else if unused {
            kept += 1;
        }
    }
}

/// Takes a link out of the table. A thread that is just walking it may still look at the link, so
/// its memory is released only after a grace period.
fn remove(place: &AtomicPtr<Link>) {
    let at = place.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if at.is_null() {
        return;
    }
    // SAFETY: made by Box::leak in install, and out of the table from now on.
    let link = unsafe { Box::from_raw(at) };
    if link.side == Side::Client {
        // The acceptors see that they can let go of it, too.
        link.view().lane(0).owner.store(0, Ordering::Release);
    }
    agent_client::detach(link.region);
    // Descriptors are few, and those who are at the link go without them.
    drop(link.owner.lock().take());
    link.peers.drop_idle();
    GRAVEYARD.bury(link);
}

/// Links that were removed, kept for a while because a thread may be looking at them.
struct Graveyard(Mutex<VecDeque<(u64, Box<Link>)>>);

static GRAVEYARD: Graveyard = Graveyard(Mutex::new(VecDeque::new()));

/// Longer than any walk of the table takes.
const GRACE: u64 = 2_000_000_000;

impl Graveyard {
    fn bury(&self, link: Box<Link>) {
        self.clear();
        let mut graves = self.0.lock();
        graves.push_back((crate::system::clock::now(), link));
    }

    /// Frees those that have been here for long enough.
    fn clear(&self) {
        let now = crate::system::clock::now();
        let mut graves = self.0.lock();
        let over = |(since, _): &mut (u64, _)| now.saturating_sub(*since) >= GRACE;
        while let Some((_, oldest)) = graves.pop_front_if(over) {
            if oldest.users.load(Ordering::Acquire) > 0 {
                graves.push_back((now, oldest));
            }
        }
    }
}

/// The locks of this module, to be held across fork.
pub fn lock_for_fork() -> impl Sized {
    (CHANGES.lock(), process::lock_for_fork())
}

/// In a forked child: completion queues belong to the parent, who pops them.
pub fn forget_in_child() {
    process::forget_in_child();
    for link in all() {
        link.lane.store(0, Ordering::Relaxed);
        // Those were of the parent's other threads.
        link.drafts.store(0, Ordering::Relaxed);
    }
}

/// In a forked child, once it is known what it holds: of its parent's link groups it sees the rings of these connections,
/// and nothing else. It may give up the parent's rights, and the parent goes on.
pub fn keep_what_is_held(held: &[(RegionId, Side, usize)]) {
    for link in all().filter(|link| link.is_inherited()) {
        let here =
            held.iter().filter(|(region, side, _)| (*region, *side) == (link.region, link.side));
        let mut slots = [0; SLOTS.div_ceil(64)];
        here.for_each(|(_, _, slot)| slots[slot / 64] |= 1 << (slot % 64));
        for (word, slots) in link.held.iter().zip(slots) {
            word.store(slots, Ordering::Release);
        }
        // SAFETY: nobody uses connections that this process does not hold, and it comes by no others in this link group.
        unsafe { link.memory.keep_only(|slot| link.holds(slot)) };
        link.shed();
    }
}

/// This process has let go of a connection, which may be one that it has inherited.
pub fn let_go(region: RegionId, side: Side, slot: usize) {
    let is_it = |l: &&Link| l.region == region && l.side == side && l.is_inherited();
    let Some(link) = all().find(is_it) else { return };
    let bit = 1 << (slot % 64);
    if link.held[slot / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
        // SAFETY: nobody uses a connection that this process does not hold, and none comes to be there.
        unsafe { link.memory.hide(slot) };
        link.shed();
    }
}

impl Link {
    /// In a forked child: where it holds nothing any more nothing is left in its memory.
    fn shed(&'static self) {
        if self.held.iter().any(|word| word.load(Ordering::Acquire) != 0) {
            return;
        }
        let me = core::ptr::from_ref(self).cast_mut();
        for place in &TABLE[..HIGH.load(Ordering::Acquire)] {
            let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
            if place.compare_exchange(me, core::ptr::null_mut(), ok, no).is_ok() {
                // SAFETY: nobody uses connections that this process does not hold, and it holds none here. A thread that walks the table may still look at the rest, and finds it empty; so
                // the link is never freed.
                unsafe { self.memory.blank() };
                self.peers.drop_idle();
            }
        }
    }
}

const _: () = assert!(MAX_VECTORS == 64 && SLOTS < 256);

//! TCP connections that this process holds.
//!
//! A [`Sock`] is the process's own handle of a connection; what parent and child must agree on lies
//! in the arena's [`Record`]. Socks come from a pool that is never unmapped: a thread that is still
//! in a call while another closes the descriptor looks at valid memory and notices at its next look
//! into the descriptor table.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use shunt_core::handshake::{Phase, next_look};
pub use shunt_shm::arena::NUMBERED;
use shunt_shm::arena::{Mode, Record};
use shunt_shm::region::{RING, Section, Side};
use shunt_wire::agent::EndpointId;
use shunt_wire::counter::Counter;
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::endpoint::{self, Endpoint};
use crate::fd_table::{self, Entry, Kind};
use crate::knobs::Dmb;
use crate::link::{Link, Target};
use crate::ops::listener::Listener;
use crate::peer::Peer;
use crate::relatives;
use crate::stream::borrow::Lent;
use crate::stream::pins::{self, Pipes};
use crate::stream::{doubt, grants};

/// `O_NONBLOCK` is set on the open file description.
pub const NONBLOCK: u32 = 1;
/// `shutdown(SHUT_WR)` was called.
pub const SHUT_WR: u32 = 2;
/// `shutdown(SHUT_RD)` was called.
pub const SHUT_RD: u32 = 4;
/// The kernel socket has something to say (end of file, error): ask it when the ring is empty.
pub const KERNEL_HINT: u32 = 8;
/// This side wants its sending direction on TCP.
pub const WANT_TCP: u32 = 16;
/// This side takes nothing from the ring any more: the peer sends what is left over TCP.
pub const FROZEN: u32 = 64;
/// The program has set the size of a buffer before the connection was taken up.
pub const SIZED: u32 = 128;
/// The kernel socket had room when it was last asked, and nothing was sent over it since: good for one
/// answer, as somebody may send behind the library's back.
pub const HAD_ROOM: u32 = 256;
/// The RST that the peer has announced was waited for: one that does not come is not waited for again.
pub const RESET_AWAITED: u32 = 512;
/// Nobody holds the peer's socket any more.
pub const ORPHANED: u32 = 1024;
/// `SO_ZEROCOPY` is set, as far as is known.
pub const ZEROCOPY: u32 = 4096;
/// The agent was asked for the other end: the connection was offered, or claimed.
pub const ASKED: u32 = 8192;
/// It was accepted, its other end was offered, and the agent is to be asked for it.
pub const TO_BE_CLAIMED: u32 = 32768;
/// The peer may be in another network namespace, where the kernel says nothing of its socket.
pub const ELSEWHERE: u32 = 16384;
/// What was granted was not read in time: the next send asks the kernel whether the peer is there.
pub const UNREAD: u32 = 65536;
/// The kernel is to send RST if the program is killed: [`crate::stream::doubt::end_loudly`].
pub const LOUD: u32 = 131_072;
/// The kernel's error queue may have something of its own to say.
pub const TELLS_ERRORS: u32 = 262_144;
/// An IPv6 socket, whatever its addresses: noted with the first call that is [`NUMBERED`].
pub const IS_V6: u32 = 524_288;
/// The peer was killed while bytes of ours lay unread in its ring, which TCP would have answered with RST.
pub const CUT_OFF: u32 = 1_048_576;
/// A call has failed with that.
pub const RESET_TOLD: u32 = 2_097_152;
/// The connection was promoted at least once.
pub const WAS_SHUNTED: u32 = 32;

/// A process's handle of a connection.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Sock {
    record: AtomicPtr<Record>,
    link: AtomicPtr<Link>,
    peer: AtomicPtr<Peer>,
    listener: AtomicPtr<Listener>,
    /// In whose arena the record is.
    endpoint: AtomicPtr<Endpoint>,
    /// Descriptors of this process that name it.
    fds: AtomicU32,
    /// How far the count for a forked child has come: [`crate::relatives`]' business.
    pub counted: AtomicU32,
    /// When its peer, which has half-closed and leaves no room, was last asked for: [`crate::stream::doubt`]'s.
    pub no_room: AtomicU32,
    /// `TCP_LINGER2` as the program has it: the same.
    pub fin_timeout: AtomicU32,
    /// Memory of the peer's that is mapped for it, a bit each: [`crate::imports`]'.
    pub imports: AtomicU64,
    /// Pipes in which private memory is pinned: [`crate::stream::pins`]'.
    pub pins: AtomicPtr<Pipes>,
    /// What this process has borrowed of its bytes.
    pub lent: Lent,
    /// Calls that had sent something when bytes were last waited for: [`crate::stream::sleep`]'s.
    pub said: AtomicU64,
    /// The next in [`RETURNED`].
    next: AtomicPtr<Self>,
}

/// Handles to be used again.
static POOL: Mutex<Vec<&'static Sock>> = Mutex::new(Vec::new());
/// Those that were given back since it was last looked into. A list without a lock, because close(2)
/// may be called in a signal handler, and in the child of a process that forked without a word.
static RETURNED: AtomicPtr<Sock> = AtomicPtr::new(core::ptr::null_mut());

/// A handle from the pool, or a new one.
fn blank() -> &'static Sock {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.is_empty() {
        let mut at = RETURNED.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: socks are never freed, and these are nobody's.
        while let Some(sock) = unsafe { at.as_ref() } {
            at = sock.next.load(Ordering::Relaxed);
            pool.push(sock);
        }
    }
    pool.pop().unwrap_or_else(|| Box::leak(Box::default()))
}

impl Sock {
    /// A handle of a new connection, with one descriptor.
    pub fn new(record: &'static Record, endpoint: &'static Endpoint) -> &'static Self {
        let sock = blank();
        sock.endpoint.store(core::ptr::from_ref(endpoint).cast_mut(), Ordering::Relaxed);
        sock.counted.store(0, Ordering::Relaxed);
        sock.no_room.store(0, Ordering::Relaxed);
        sock.fin_timeout.store(0, Ordering::Relaxed);
        sock.lent.clear();
        // Of a thread that was in a call when the last connection ended.
        sock.imports.store(0, Ordering::Relaxed);
        sock.pins.store(core::ptr::null_mut(), Ordering::Relaxed);
        sock.link.store(core::ptr::null_mut(), Ordering::Relaxed);
        sock.peer.store(core::ptr::null_mut(), Ordering::Relaxed);
        sock.listener.store(core::ptr::null_mut(), Ordering::Relaxed);
        sock.fds.store(1, Ordering::Relaxed);
        sock.record.store(core::ptr::from_ref(record).cast_mut(), Ordering::Release);
        sock
    }

    /// The sock of a descriptor table entry.
    #[inline]
    pub fn of(entry: Entry) -> Option<&'static Self> {
        match entry.kind() {
            // SAFETY: such entries are made of socks, which are never freed.
            Kind::Stream | Kind::Tracked => unsafe { entry.ptr::<Self>().as_ref() },
            _ => None,
        }
    }

    /// Its entry for the descriptor table.
    pub fn entry(&self, kind: Kind) -> Entry {
        Entry::new(kind, core::ptr::from_ref(self))
    }

    /// What is shared with forks.
    #[inline]
    pub fn record(&self) -> &'static Record {
        // SAFETY: set at creation to a record of an arena, which is never unmapped.
        unsafe { &*self.record.load(Ordering::Relaxed) }
    }

    /// In whose arena the record is.
    pub fn endpoint(&self) -> &'static Endpoint {
        // SAFETY: set at creation to an endpoint, which is never freed.
        unsafe { &*self.endpoint.load(Ordering::Relaxed) }
    }

    /// The link group, once this process has it.
    #[inline]
    pub fn link(&self) -> Option<&'static Link> {
        // SAFETY: set from links that stay allocated while a connection uses them.
        unsafe { self.link.load(Ordering::Acquire).as_ref() }
    }

    /// The peer with its doorbells, once known.
    #[inline]
    pub fn peer(&self) -> Option<&'static Peer> {
        // SAFETY: peers' places live as long as their link.
        unsafe { self.peer.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the link group; counts this process's descriptors as its users.
    pub fn set_link(&self, link: &'static Link) {
        let fds = self.fds.load(Ordering::Relaxed);
        link.users.fetch_add(fds, Ordering::AcqRel);
        let old = self.link.swap(core::ptr::from_ref(link).cast_mut(), Ordering::AcqRel);
        if old.is_null() {
            self.endpoint().carries(true);
        }
    }

    /// Sets the peer, which counts this connection as one that uses it.
    pub fn set_peer(&self, peer: &'static Peer) {
        self.swap_peer(core::ptr::from_ref(peer).cast_mut());
    }

    fn swap_peer(&self, new: *mut Peer) {
        // SAFETY: as in `peer`.
        if let Some(old) = unsafe { self.peer.swap(new, Ordering::AcqRel).as_ref() } {
            old.release();
        }
    }

    /// The listener that accepted it, while a proposal is looked for.
    pub fn listener(&self) -> Option<&'static Listener> {
        // SAFETY: listeners are never freed.
        unsafe { self.listener.load(Ordering::Relaxed).as_ref() }
    }

    /// Sets it.
    pub fn set_listener(&self, listener: &'static Listener) {
        self.listener.store(core::ptr::from_ref(listener).cast_mut(), Ordering::Relaxed);
    }

    /// What the connections to the same listener have learnt about waiting for bytes.
    fn learnt(&self) -> Option<&AtomicU32> {
        let at_server = self.listener().map(|listener| &listener.spins);
        at_server.or_else(|| Some(&Target::of(self.link()?)?.spins))
    }

    /// The connection begins with what others have learnt.
    pub fn begin_learnt(&self) {
        if let Some(learnt) = self.learnt() {
            self.record().rx.budget.store(learnt.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The connection ends and leaves what it has learnt to others.
    pub fn leave_learnt(&self) {
        if let Some(learnt) = self.learnt() {
            learnt.store(self.record().rx.budget.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// A candidate whose proposal may still come: when whoever waits for it looks again, in nanoseconds
    /// from now.
    pub fn next_look(&self) -> Option<u64> {
        if self.link().is_some() || self.phase() == Phase::Tcp {
            return None;
        }
        let since = self.record().id.since.load(Ordering::Relaxed);
        next_look(crate::clock::now().saturating_sub(since))
    }

    /// Where the handshake stands.
    #[inline]
    pub fn phase(&self) -> Phase {
        Phase::from_code(self.record().id.phase.load(Ordering::Acquire))
    }

    /// Moves the handshake on.
    pub fn set_phase(&self, phase: Phase) {
        self.record().id.phase.store(phase as u32, Ordering::Release);
    }

    /// The peer broke the protocol. False when that was known.
    pub fn break_off(&self) -> bool {
        let id = &self.record().id;
        id.reason.store(Reason::ProtocolViolation as u32, Ordering::Relaxed);
        id.phase.swap(Phase::Broken as u32, Ordering::AcqRel) != Phase::Broken as u32
    }

    /// The sections that this side writes and reads.
    #[inline]
    pub fn sections(&self) -> Option<(&'static Section, &'static Section)> {
        let link = self.link()?;
        let record = self.record();
        let (slot, side) = (record.slot(), record.side());
        Some((link.view().section(slot, side), link.view().section(slot, side.other())))
    }

    /// True when the other end is on another machine: nothing but the shared memory and the kernel socket leads there.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.link().is_some_and(Link::is_far)
    }

    /// Length of the buffers of its link group, in bytes.
    #[inline]
    pub fn ring(&self) -> usize {
        self.link().map_or(RING, |link| link.view().geometry().ring())
    }

    /// `SO_RCVLOWAT`, at least 1.
    #[inline]
    pub fn low_water(&self) -> usize {
        self.record().rx.low_water.load(Ordering::Relaxed).max(1) as usize
    }

    /// A descriptor of this process that names the connection.
    pub fn descriptor(&self) -> Option<i32> {
        self.descriptor_but(-1)
    }

    /// Another one.
    pub fn other_descriptor(&self, than: i32) -> Option<i32> {
        if self.fds.load(Ordering::Acquire) < 2 {
            return None;
        }
        self.descriptor_but(than)
    }

    fn descriptor_but(&self, than: i32) -> Option<i32> {
        let same = |entry: Entry| Self::of(entry).is_some_and(|s| core::ptr::eq(s, self));
        let mut all = fd_table::iter(0..=fd_table::high_water());
        all.find(|(fd, entry)| *fd != than && same(*entry)).map(|(fd, _)| fd)
    }

    /// A flag of the record.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.record().id.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Sets or clears a flag.
    pub fn put(&self, flag: u32, on: bool) {
        let flags = &self.record().id.flags;
        if on {
            flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    /// Takes the flag [`HAD_ROOM`] away; true when it was there.
    pub fn take_room(&self) -> bool {
        let had = self.has(HAD_ROOM);
        if had {
            self.put(HAD_ROOM, false);
        }
        had
    }

    /// Another descriptor of this process names it.
    pub fn retain(&self) {
        self.fds.fetch_add(1, Ordering::AcqRel);
        if let Some(link) = self.link() {
            link.users.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Descriptors of this process that name it.
    pub fn descriptors(&self) -> u32 {
        self.fds.load(Ordering::Acquire)
    }

    /// In a forked child: so many descriptors name it, as the child's own table says.
    pub fn set_descriptors(&self, count: u32) {
        self.fds.store(count, Ordering::Release);
    }

    /// A descriptor less. Calls `last` for the last one in all processes, and gives the handle back
    /// with the last one in this process; nothing of it may be used after that.
    pub fn release(&'static self, last: impl FnOnce(&'static Record)) {
        let record = self.record();
        let link = self.link();
        let mine = self.fds.fetch_sub(1, Ordering::AcqRel) == 1;
        if mine {
            grants::leave(self);
        }
        if mine && relatives::let_go(self.endpoint(), record) {
            last(record);
            record.id.live.store(0, Ordering::Release);
        }
        // Last: they are still of use to what is done at the end.
        if mine {
            self.swap_peer(core::ptr::null_mut());
            crate::imports::release(self);
            pins::release(self);
        }
        if let Some(link) = link {
            link.users.fetch_sub(1, Ordering::AcqRel);
            if mine {
                self.endpoint().carries(false);
            }
        }
        if mine {
            self.give_back();
        }
    }

    fn give_back(&'static self) {
        let me = core::ptr::from_ref(self).cast_mut();
        let mut head = RETURNED.load(Ordering::Relaxed);
        loop {
            self.next.store(head, Ordering::Relaxed);
            match RETURNED.compare_exchange(head, me, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// The connection stays on TCP for good, for this reason.
    pub fn decline(&'static self, fd: i32, why: Reason) {
        let record = self.record();
        record.id.reason.store(why as u32, Ordering::Relaxed);
        record.id.offer.store(Offer::None.to_word(), Ordering::Release);
        self.set_phase(Phase::Tcp);
        // From now on it ends as TCP does, in whatever program.
        doubt::end_quietly(self, fd);
        endpoint::decline(why);
        // The kernel would begin its numbers anew.
        if !self.has(NUMBERED)
            && fd_table::replace_if(fd, self.entry(Kind::Stream), self.entry(Kind::Tracked))
        {
            crate::ops::epoll::on_declined(fd);
        }
    }

    /// Both sides have agreed.
    pub fn activate(&self, link: &'static Link, side: Side, slot: usize, generation: u32) {
        let id = &self.record().id;
        id.region.store(link.region, Ordering::Relaxed);
        id.slot.store(u32::try_from(slot).unwrap_or(0), Ordering::Relaxed);
        id.side.store(side as u32, Ordering::Relaxed);
        id.slot_generation.store(generation, Ordering::Relaxed);
    }

    /// Counts the connection end as shunted, once.
    pub fn count_shunted(&self) {
        let id = &self.record().id;
        if id.flags.fetch_or(WAS_SHUNTED, Ordering::AcqRel) & WAS_SHUNTED != 0 {
            return;
        }
        let mode = match crate::knobs::get().dmb {
            Dmb::Attach => Mode::Attach,
            Dmb::Copy => Mode::Copy,
        };
        id.mode.store(mode as u32, Ordering::Relaxed);
        id.reason.store(0, Ordering::Relaxed);
        endpoint::count(Counter::Shunted, 1);
        let which = if mode == Mode::Copy { Counter::ShuntedCopy } else { Counter::ShuntedAttach };
        endpoint::count(which, 1);
    }

    /// The endpoint of the peer as its section names it.
    pub fn peer_endpoint(&self) -> Option<EndpointId> {
        let (_, theirs) = self.sections()?;
        Some(theirs.setup.endpoint.load(Ordering::Acquire))
    }
}

/// Held across fork.
pub fn lock_for_fork() -> impl Sized {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

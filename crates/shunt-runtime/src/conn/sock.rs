//! A process's own part of a connection.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use shunt_engine::conn::flags::{FROZEN, Flags, HOSTED, STAYS, WAS_SHUNTED};
use shunt_engine::conn::{self, End, SendPath};
use shunt_engine::handshake::{Phase, next_look};
use shunt_engine::spin::Learnt;
use shunt_engine::zerocopy::lent::Lent;
use shunt_heap::slab::{Slab, Zeroed};
use shunt_shm::arena::{Mode, Record};
use shunt_shm::holders::Member;
use shunt_shm::region::{RING, Section, Side};
use shunt_wire::agent::EndpointId;
use shunt_wire::counter::Counter;
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;
use shunt_wire::waits::Part;

use crate::callback::Callback;
use crate::conn::{Left, Pipes};
use crate::control::endpoint::{self, Endpoint};
use crate::control::link::{Link, Target, Way};
use crate::control::listener::Listener;
use crate::control::peer::Peer;
use crate::control::thread_doorbell::{self, ThreadDoorbell};
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::own_fds::OwnFd;
use crate::knobs::Dmb;

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
    /// Its entry in the descriptor table, but for the kind: place and use. 0: not in use.
    name: AtomicU64,
    /// Descriptors of this process that name it, in the low half, and calls that hold it.
    refs: AtomicU64,
    /// The library's own descriptor of the kernel socket, for calls that hold it though the program
    /// has closed the one that they were made on: its place plus one; 0: none.
    lingering: AtomicU32,
    /// This process among those that share the record, as an owner of its locks.
    member: AtomicU32,
    /// How far the count for a forked child has come: [`crate::processes::fork_sharing`]' business.
    pub counted: AtomicU32,
    /// When its peer, which has half-closed and leaves no room, was last asked for: [`crate::stream::liveness`]'s.
    pub no_room: AtomicU32,
    /// `TCP_LINGER2` as the program has it: the same.
    pub fin_timeout: AtomicU32,
    /// Memory of the peer's that is mapped for it, a bit each: [`crate::memory::imports`]'.
    pub imports: AtomicU64,
    /// Pipes in which private memory is pinned: [`crate::stream::pipe_tx`]'.
    pub pipe_tx: AtomicPtr<Pipes>,
    /// What this process has borrowed of its bytes.
    pub lent: Lent,
    /// Calls that had sent something when bytes were last waited for: [`crate::stream::sleep`]'s.
    pub said: AtomicU64,
    /// Whether waits for it last long: [`crate::conn::patience`]'s.
    pub patience: AtomicU32,
    /// Whether this process has touched much of the ring that it sends to: [`crate::stream::trim`]'s.
    pub touched: AtomicU32,
    /// What a program before exec has left of its bytes: [`crate::stream::leftover`]'s.
    pub leftover: AtomicPtr<Left>,
    /// The actions of a spawn (posix_spawn(3)) that duplicate it: their address. The same's.
    pub spawned: AtomicUsize,
}

/// What ends a process's part of a connection, of which neither a descriptor nor a call is left.
pub static END: Callback<fn(&'static Sock)> = Callback::none();

/// Connections that a process can have.
const MOST: usize = 1 << 17;

impl Sock {
    /// Connections that a process can have.
    pub const MOST: usize = MOST;
}

/// All socks. One is never freed: a thread that is still in a call while another closes the
/// descriptor looks at valid memory.
static SOCKS: Slab<Sock, MOST> = Slab::new();

// SAFETY: a sock consists of atomics, for which zero is a valid value, and null a valid pointer.
unsafe impl Zeroed for Sock {}

/// In [`Sock::refs`]: a call that holds it.
const CALL: u64 = 1 << 32;
/// In [`Sock::refs`]: the descriptors.
const DESCRIPTORS: u64 = CALL - 1;

impl Sock {
    /// That of a new connection, with one descriptor. `None` when there are too many.
    pub fn new(record: &'static Record, endpoint: &'static Endpoint) -> Option<&'static Self> {
        let (name, sock) = SOCKS.take()?;
        sock.begin(record, endpoint);
        sock.name.store(Entry::named(Kind::Stream, name).object(), Ordering::Release);
        Some(sock)
    }

    /// Sets all but the name, whatever the connection before has left.
    fn begin(&self, record: &'static Record, endpoint: &'static Endpoint) {
        let Self {
            record: its_record,
            link,
            peer,
            listener,
            endpoint: its_endpoint,
            name: _,
            refs,
            lingering,
            member,
            counted,
            no_room,
            fin_timeout,
            imports,
            pipe_tx,
            lent,
            said,
            patience,
            touched,
            leftover,
            spawned,
        } = self;
        its_record.store(core::ptr::from_ref(record).cast_mut(), Ordering::Relaxed);
        its_endpoint.store(core::ptr::from_ref(endpoint).cast_mut(), Ordering::Relaxed);
        member.store(endpoint.member().code(), Ordering::Relaxed);
        refs.store(1, Ordering::Relaxed);
        link.store(core::ptr::null_mut(), Ordering::Relaxed);
        peer.store(core::ptr::null_mut(), Ordering::Relaxed);
        listener.store(core::ptr::null_mut(), Ordering::Relaxed);
        // Of a thread that was in a call when the last connection ended.
        imports.store(0, Ordering::Relaxed);
        pipe_tx.store(core::ptr::null_mut(), Ordering::Relaxed);
        leftover.store(core::ptr::null_mut(), Ordering::Relaxed);
        for word in [lingering, counted, no_room, fin_timeout, patience, touched] {
            word.store(0, Ordering::Relaxed);
        }
        said.store(0, Ordering::Relaxed);
        spawned.store(0, Ordering::Relaxed);
        lent.clear();
    }

    /// Those in use, of which a process that is being forked or ends has some without a descriptor.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        let in_use = |sock: &&Self| sock.name.load(Ordering::Acquire) != 0;
        SOCKS.all().map(|(_, sock)| sock).filter(in_use)
    }

    /// That at a place, if it is in use.
    pub fn at(place: usize) -> Option<&'static Self> {
        let sock = SOCKS.get(u32::try_from(place).ok()?)?;
        (sock.name.load(Ordering::Acquire) != 0).then_some(sock)
    }

    /// Its place among all, below [`Self::MOST`].
    pub fn place(&self) -> usize {
        self.entry(Kind::Stream).name().index as usize % MOST
    }

    /// The sock of a descriptor table entry.
    #[inline]
    pub fn of(entry: Entry) -> Option<&'static Self> {
        if entry.is_connection() { SOCKS.get(entry.name().index) } else { None }
    }

    /// Its entry for the descriptor table.
    #[inline]
    pub fn entry(&self, kind: Kind) -> Entry {
        Entry::of_object(kind, self.name.load(Ordering::Relaxed))
    }

    /// True while it is in the use that the entry means.
    #[inline]
    pub fn is_in_use(&self, entry: Entry) -> bool {
        self.name.load(Ordering::Acquire) == entry.object()
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
        let users = self.descriptors().max(1);
        link.users.fetch_add(users, Ordering::AcqRel);
        if link.is_of_host() {
            self.put(HOSTED, true);
            self.put(STAYS, link.is_to_kernel());
        }
        let new = core::ptr::from_ref(link).cast_mut();
        // SAFETY: null, or a link that stays allocated while this connection counts among its users.
        match unsafe { self.link.swap(new, Ordering::AcqRel).as_ref() } {
            None => self.endpoint().carries(true),
            // Another thread has found it as well.
            Some(old) => {
                old.users.fetch_sub(users, Ordering::AcqRel);
            }
        }
    }

    /// Sets the peer, which counts this connection as one that uses it.
    pub fn set_peer(&self, peer: &'static Peer) {
        self.swap_peer(core::ptr::from_ref(peer).cast_mut());
    }

    /// The client has the acceptor's doorbells, and says so.
    pub fn has_met(&self, peer: &'static Peer) {
        self.set_peer(peer);
        if self.record().side() == Side::Client
            && let Some(end) = self.end()
        {
            end.has_met();
        }
    }

    /// It uses none any more.
    pub fn forget_peer(&self) {
        self.swap_peer(core::ptr::null_mut());
    }

    fn swap_peer(&self, new: *mut Peer) {
        // SAFETY: null, or what `set_peer` was given: a reference that is good for ever.
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

    /// What the connections to the same listener have learnt about waiting for bytes, also those of forked children that are no more.
    fn learnt(&self) -> Option<&shunt_shm::sync::AtomicU32> {
        let port = || self.record().id.tuple().local.port;
        let at_server = self.listener().map(|_| self.endpoint().arena.families().spins(port()));
        at_server.or_else(|| Some(&Target::of(self.link()?)?.spins))
    }

    /// The connection begins with what others have learnt.
    pub fn begin_learnt(&self) {
        if let Some(learnt) = self.learnt() {
            let begins = Learnt(learnt.load(Ordering::Relaxed)).inherited();
            self.record().rx.budget.store(begins.0, Ordering::Relaxed);
        }
    }

    /// The connection ends, or has spun in vain, and leaves what it has learnt to those that begin.
    pub fn leave_learnt(&self) {
        if let Some(learnt) = self.learnt() {
            learnt.store(self.record().rx.budget.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts a wait for this connection alone.
    pub fn count_wait(&self, part: Part, nanos: u64) {
        self.endpoint().arena.count_wait(self.record(), part, nanos);
    }

    /// A candidate whose proposal may still come: when whoever waits for it looks again, in nanoseconds
    /// from now.
    pub fn next_look(&self) -> Option<u64> {
        if self.link().is_some() || self.phase() == Phase::Tcp {
            return None;
        }
        next_look(self.age())
    }

    /// Since it was proposed, or accepted, in nanoseconds.
    pub fn age(&self) -> u64 {
        let since = self.record().id.since.load(Ordering::Relaxed);
        crate::system::clock::now().saturating_sub(since)
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

    /// The connection is broken for this reason. False when that was known.
    pub fn break_off(&self, why: Reason) -> bool {
        let id = &self.record().id;
        id.reason.store(why as u32, Ordering::Relaxed);
        let is_new = id.phase.swap(Phase::Broken as u32, Ordering::AcqRel) != Phase::Broken as u32;
        if is_new {
            self.note(Decision::Broken, Some(why));
        }
        is_new
    }

    /// Notes a decision about the connection, for `shunt explain`.
    pub fn note(&self, decision: Decision, why: Option<Reason>) {
        let id = &self.record().id;
        self.endpoint().note(decision, why, id.fd.load(Ordering::Relaxed), id.tuple());
    }

    /// The sections that this side writes and reads.
    #[inline]
    pub fn sections(&self) -> Option<(&'static Section, &'static Section)> {
        let end = self.end()?;
        Some((end.mine, end.theirs))
    }

    /// The connection's end in shared memory, once it has one.
    #[inline]
    pub fn end(&self) -> Option<End<'static>> {
        Some(self.link()?.end(self.record()))
    }

    /// Which way it sends.
    #[inline]
    pub fn sends(&self) -> SendPath {
        SendPath::of(self.record(), self.end().as_ref())
    }

    /// The way into its ring, once it has one.
    #[inline]
    pub fn way(&self) -> Option<Way> {
        Some(self.link()?.way(self.record()))
    }

    /// The calling thread's ear for this side of the connection.
    pub fn ear(&self) -> Option<ThreadDoorbell> {
        thread_doorbell::hear(self.link()?.endpoint)
    }

    /// True when the other end is on another machine: nothing but the shared memory and the kernel socket leads there.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.link().is_some_and(Link::is_far)
    }

    /// True when something has come that the kernel would not tell of.
    pub fn has_news(&self) -> bool {
        self.phase() == Phase::Broken || self.end().is_some_and(|end| end.has_news())
    }

    /// True when this side's end has gone to another program, too, as far as is known.
    pub fn is_handed_over(&self) -> bool {
        self.has(FROZEN) || self.end().is_some_and(|end| end.is_handed_over())
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

    /// A descriptor of the kernel socket, whichever leads there.
    pub fn descriptor(&self) -> Option<i32> {
        self.find_descriptor(-1).or_else(|| self.lingering())
    }

    /// A descriptor of the program's but this one, which is one, or is just being closed.
    pub fn other_descriptor(&self, than: i32) -> Option<i32> {
        // The table is long.
        if self.descriptors() > 1 { self.find_descriptor(than) } else { None }
    }

    /// A descriptor of the program's but that one, whatever it is.
    pub fn find_descriptor(&self, than: i32) -> Option<i32> {
        let me = self.entry(Kind::Stream);
        let mut all = fd_table::of_program();
        all.find(|(fd, entry)| *fd != than && entry.is_same_object(me)).map(|(fd, _)| fd)
    }

    /// A flag of the record.
    #[inline]
    pub fn has(&self, flags: Flags) -> bool {
        conn::has(self.record(), flags)
    }

    /// Sets or clears a flag.
    pub fn put(&self, flags: Flags, on: bool) {
        conn::put(self.record(), flags, on);
    }

    /// Another descriptor of this process names it.
    pub fn retain(&self) {
        self.refs.fetch_add(1, Ordering::AcqRel);
        if let Some(link) = self.link() {
            link.users.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// This process among those that share the record.
    #[inline]
    pub fn member(&self) -> Member {
        Member::from_code(self.member.load(Ordering::Relaxed))
    }

    /// In a forked child, which has a name of its own.
    pub fn set_member(&self, member: Member) {
        self.member.store(member.code(), Ordering::Relaxed);
    }

    /// Descriptors of this process that name it.
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    pub fn descriptors(&self) -> u32 {
        (self.refs.load(Ordering::Acquire) & DESCRIPTORS) as u32
    }

    /// In a forked child: so many descriptors name it, as the child's own table says, and no call of
    /// the parent's other threads holds it.
    pub fn set_descriptors(&self, count: u32) {
        self.refs.store(count.into(), Ordering::Release);
    }

    /// A call holds it from now on. False when this use of it is over.
    pub fn hold(&'static self, entry: Entry) -> bool {
        let one_more = |refs: u64| (refs > 0).then(|| refs + CALL);
        if self.refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_err() {
            return false;
        }
        // SYNC POINT hold: the hold before the look at the use; who ends it does it in the other order.
        let is_it = self.is_in_use(entry);
        if !is_it {
            self.let_go();
        }
        is_it
    }

    /// The same of a call that is known to hold it, in a forked child.
    pub fn hold_again(&'static self) {
        self.refs.fetch_add(CALL, Ordering::AcqRel);
    }

    /// True when neither a descriptor nor a call names it.
    pub fn is_unused(&self) -> bool {
        self.refs.load(Ordering::Acquire) == 0
    }

    /// True when some call of this process holds it.
    pub fn is_held(&self) -> bool {
        self.refs.load(Ordering::Acquire) >= CALL
    }

    /// The library's own descriptor of the kernel socket, where calls need one.
    pub fn lingering(&self) -> Option<i32> {
        let place = self.lingering.load(Ordering::Acquire).checked_sub(1)?;
        Some(OwnFd::raw_at(u16::try_from(place).ok()?))
    }

    /// Calls go on by this descriptor from now on, unless they have one.
    pub fn linger(&self, fd: OwnFd) {
        let place = u32::from(fd.into_place()) + 1;
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        if self.lingering.compare_exchange(0, place, ok, no).is_err() {
            drop(OwnFd::from_place(place));
        }
    }

    /// Closes it where a descriptor of the program's is left.
    pub fn end_lingering_if_named(&self) {
        if self.descriptors() > 0 {
            self.end_lingering();
        }
    }

    /// Closes it.
    pub fn end_lingering(&self) {
        drop(OwnFd::from_place(self.lingering.swap(0, Ordering::AcqRel)));
    }

    /// A descriptor less. True when neither a descriptor nor a call is left: then [`END`]'s function is to be called.
    #[must_use]
    pub fn release(&self) -> bool {
        let before = self.refs.fetch_sub(1, Ordering::AcqRel);
        // What the last descriptor counted for goes over to the calls.
        if before & DESCRIPTORS > 1
            && let Some(link) = self.link()
        {
            link.users.fetch_sub(1, Ordering::AcqRel);
        }
        before == 1
    }

    /// A call less. With the last one, where no descriptor is left either, the process's part of the connection ends.
    pub fn let_go(&'static self) {
        if self.refs.fetch_sub(CALL, Ordering::AcqRel) == CALL
            && let Some(end) = END.get()
        {
            end(self);
        }
    }

    /// The process ends: its calls do not count any more. True when a descriptor is not left either.
    pub fn abandon_calls(&self) -> bool {
        let refs = self.refs.load(Ordering::Acquire);
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        refs >= CALL
            && refs & DESCRIPTORS == 0
            && self.refs.compare_exchange(refs, 0, ok, no).is_ok()
    }

    /// In a forked child, which has no part in it.
    pub fn give_back(&self) {
        self.end_lingering();
        let name = Entry::of_object(Kind::Stream, self.name.swap(0, Ordering::AcqRel)).name();
        SOCKS.give_back(name);
    }

    /// Both sides have agreed.
    pub fn activate(&self, link: &'static Link, side: Side, slot: usize, generation: u32) {
        let id = &self.record().id;
        id.slot.store(u32::try_from(slot).unwrap_or(0), Ordering::Relaxed);
        id.side.store(side as u32, Ordering::Relaxed);
        id.slot_generation.store(generation, Ordering::Relaxed);
        // Last: where this process is killed now, a relative goes on with what stands here.
        id.region.store(link.region, Ordering::Release);
    }

    /// Counts the connection end as shunted, once.
    pub fn count_shunted(&self) {
        let id = &self.record().id;
        let bit = WAS_SHUNTED.bits();
        if id.flags.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return;
        }
        let mode = match crate::knobs::get().dmb {
            Dmb::Attach => Mode::Attach,
            Dmb::Copy => Mode::Copy,
        };
        id.mode.store(mode as u32, Ordering::Relaxed);
        id.reason.store(0, Ordering::Relaxed);
        self.note(Decision::Promoted, None);
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

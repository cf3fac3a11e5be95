//! One epoll instance: its watches, and its news.

mod conversion;
mod watches;

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::EPOLL_CTL_ADD;
use shunt_engine::wait::sharers::Sharers;
use shunt_heap::slab::Name;
use shunt_shm::doorbell::{self, RUNG};
use shunt_shm::sync::AtomicU32;
use shunt_wire::agent::MAX_VECTORS;

use crate::conn::Conn;
use crate::control::bells::COMMON;
use crate::control::endpoint::Endpoint;
use crate::control::link::{Link, looks};
use crate::control::vectors;
use crate::epoll::reentrancy::{self, Held};
use crate::epoll::state::State;
use crate::epoll::{Ours, tag};
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::own_fds::OwnFd;
use crate::system::abi::{c_int, epoll_event};
use crate::system::clock;
use crate::system::next;

pub use conversion::{flags_are_valid, kernel_event, kernel_event_of_inner};
pub use watches::SEVERAL;

/// Link groups of which a vector tells before an instance takes another one.
const PER_VECTOR: usize = 64;
/// Most further vectors of an instance.
const MOST_MORE: u32 = 15;

/// In [`Instance::refs`]: a call.
const CALL: u64 = 1 << 32;

/// An epoll instance.
#[derive(Debug)]
#[repr(align(8))]
pub struct Instance {
    index: usize,
    fd: AtomicI32,
    /// Which use of the place this is: a call that waits in an earlier one is told by it.
    uses: AtomicU64,
    /// Descriptors that name it, in the low half, and calls that wait in it.
    refs: AtomicU64,
    /// The descriptor that calls go on with though the program has closed it: its place among the library's
    /// own plus one; 0: none.
    lingering: AtomicU32,
    /// The endpoint that the vector is of, and the vector.
    endpoint: AtomicUsize,
    vector: AtomicU32,
    /// Further ones (a bit each), and the one that it has come by last.
    more: AtomicU64,
    newest: AtomicU32,
    /// Shunted connections that are watched.
    pub active: AtomicU32,
    /// Others wait for it, too: see [`super::nested`].
    pub nested: AtomicBool,
    /// Vectors (a bit each) whose doorbells were heard, and at which nobody has looked yet.
    rung: AtomicU64,
    /// A process that was forked, or its parent, may hear of rings in its place.
    pub(super) shared: AtomicBool,
    /// Changes that those who wait for it may have to be told of.
    pub edges: AtomicU32,
    /// Other instances that are watched (which `active` counts, too).
    pub sets: AtomicU32,
    /// Threads that sleep in it, or for it, and the vectors that completions come through.
    pub sharers: Sharers,
    /// When connections were last looked at about which there was some doubt.
    doubted: AtomicU64,
    /// When the kernel was last asked, and what spinning has taught.
    pub visited: AtomicU64,
    /// Looks at the kernel, in a row, at which it had no event of the program's.
    pub silent: AtomicU32,
    /// See [`shunt_engine::spin::Learnt`].
    pub budget: AtomicU32,
    state: reentrancy::Lock,
}

impl Instance {
    pub(super) fn new(index: usize, fd: c_int) -> Self {
        let new = Self {
            index,
            fd: AtomicI32::new(fd),
            uses: AtomicU64::new(0),
            refs: AtomicU64::new(1),
            lingering: AtomicU32::new(0),
            endpoint: AtomicUsize::new(0),
            vector: AtomicU32::new(0),
            more: AtomicU64::new(0),
            newest: AtomicU32::new(0),
            active: AtomicU32::new(0),
            nested: AtomicBool::new(false),
            rung: AtomicU64::new(0),
            shared: AtomicBool::new(false),
            edges: AtomicU32::new(0),
            sets: AtomicU32::new(0),
            sharers: Sharers::default(),
            doubted: AtomicU64::new(0),
            visited: AtomicU64::new(0),
            silent: AtomicU32::new(0),
            budget: AtomicU32::new(0),
            state: reentrancy::Lock::default(),
        };
        new.renew(fd);
        new
    }

    pub(super) fn renew(&self, fd: c_int) {
        *self.lock() = State::default();
        self.fd.store(fd, Ordering::Relaxed);
        self.endpoint.store(0, Ordering::Relaxed);
        self.more.store(0, Ordering::Relaxed);
        self.active.store(0, Ordering::Relaxed);
        self.nested.store(false, Ordering::Relaxed);
        self.rung.store(0, Ordering::Relaxed);
        self.shared.store(false, Ordering::Relaxed);
        self.sets.store(0, Ordering::Relaxed);
        looks::wakes_up(self.sharers.clear());
        self.budget.store(0, Ordering::Relaxed);
        self.silent.store(0, Ordering::Relaxed);
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.refs.store(1, Ordering::Release);
    }

    /// Its place ([`crate::epoll::get`]).
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Its entry for the descriptor table.
    pub fn entry(&self) -> Entry {
        let index = u32::try_from(self.index).unwrap_or(0);
        Entry::named(Kind::Epoll, Name { index, uses: self.uses.load(Ordering::Relaxed) })
    }

    /// True once in so many nanoseconds: for a look at all connections about which there is some doubt.
    pub(super) fn takes_turn_at_doubts(&self, every: u64) -> bool {
        let (now, last) = (clock::coarse(), self.doubted.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(last) >= every;
        if is_due {
            self.doubted.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// True while a descriptor or a call names it.
    pub fn is_live(&self) -> bool {
        self.refs.load(Ordering::Acquire) > 0
    }

    /// One more descriptor.
    pub fn retain(&self) {
        self.refs.fetch_add(1, Ordering::AcqRel);
    }

    /// A call waits in the instance that the entry means, which stays what it is until then, whatever
    /// becomes of its descriptors. False when that is closed.
    pub fn hold(&'static self, entry: Entry) -> bool {
        let one_more = |refs: u64| (refs > 0).then(|| refs + CALL);
        if self.refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_err() {
            return false;
        }
        let is_it = self.entry() == entry;
        if !is_it {
            self.let_go();
        }
        is_it
    }

    /// It waits no longer.
    pub fn let_go(&'static self) {
        if self.refs.fetch_sub(CALL, Ordering::AcqRel) == CALL {
            self.finish();
        }
    }

    /// True when calls wait in it, and this is its last descriptor.
    pub fn outlives_its_descriptor(&self) -> bool {
        let refs = self.refs.load(Ordering::Acquire);
        refs > CALL && refs & (CALL - 1) == 1
    }

    /// The calls go on by a descriptor that is the library's own from now on.
    pub fn linger(&self, fd: OwnFd) {
        self.lingering.store(u32::from(fd.into_place()) + 1, Ordering::Release);
    }

    /// The descriptor `fd` less.
    pub fn release(&'static self, fd: c_int) {
        let before = self.refs.fetch_sub(1, Ordering::AcqRel);
        if before & (CALL - 1) > 1 && self.raw() == fd {
            let same = |(other, entry): &(c_int, Entry)| *other != fd && *entry == self.entry();
            let other = fd_table::of_program().find(same);
            self.fd.store(other.map_or(fd, |(other, _)| other), Ordering::Relaxed);
        }
        if before == 1 {
            self.finish();
        }
    }

    fn finish(&'static self) {
        if !reentrancy::is_told_later() {
            self.clear();
        }
    }

    /// Nobody has it any more.
    fn clear(&'static self) {
        self.disarm_for_others();
        let state = core::mem::take(&mut *self.lock());
        drop(OwnFd::from_place(self.lingering.swap(0, Ordering::AcqRel)));
        for (index, watch) in state.watches.into_iter().enumerate() {
            watch.into_iter().for_each(|watch| self.unregister(index, &watch));
        }
        if let Some(endpoint) = Endpoint::current()
            && ptr::from_ref(endpoint).addr() == self.endpoint.swap(0, Ordering::Relaxed)
        {
            let more = self.more.swap(0, Ordering::Relaxed);
            endpoint.give_vector(self.vector.load(Ordering::Relaxed) as usize);
            doorbell::vectors(more).for_each(|vector| endpoint.give_vector(vector));
        }
    }

    /// The doorbell of a vector was heard.
    pub fn was_rung(&self, vector: usize) {
        let vectors = if vector == COMMON { u64::MAX } else { 1 << (vector % MAX_VECTORS) };
        self.rung.fetch_or(vectors, Ordering::AcqRel);
    }

    /// True when one was, and nobody has looked yet.
    pub fn has_heard(&self) -> bool {
        self.rung.load(Ordering::Acquire) != 0
    }

    /// Which, for who looks now.
    pub fn hears(&self) -> u64 {
        if self.has_heard() { self.rung.swap(0, Ordering::AcqRel) } else { 0 }
    }

    /// True where its doorbells may be heard elsewhere: those who wait for it as well, or another process.
    pub fn is_heard_elsewhere(&self) -> bool {
        self.nested.load(Ordering::Relaxed) || self.shared.load(Ordering::Relaxed)
    }

    /// Its state.
    pub fn lock(&self) -> Held {
        // SAFETY: instances are never freed.
        Held::lock(unsafe { &*ptr::from_ref(&self.state) })
    }

    /// The same before a fork. `None` in a handler on top of a call of this thread that has the lock.
    pub(super) fn lock_for_fork(&'static self) -> Option<Held> {
        Held::for_fork(&self.state)
    }

    /// A descriptor that names it.
    pub fn raw(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Before a connection is watched here: a completion vector of its own, if it has none yet, or one more where there are many
    /// link groups. The agent is told of it, for which no lock may be held.
    pub fn prepare(&self, conn: &Conn) {
        let Some(endpoint) = conn.link().map(|link| link.endpoint).or_else(Endpoint::current)
        else {
            return;
        };
        self.prepare_at(endpoint);
    }

    fn prepare_at(&self, endpoint: &'static Endpoint) {
        if self.is_at(endpoint) {
            return self.extend(endpoint);
        }
        // What a parent has left is looked at by itself.
        if endpoint.is_inherited() || self.lock().hears(endpoint) {
            return;
        }
        let vector = vectors::take(endpoint);
        let _state = self.lock();
        if self.is_at(endpoint) {
            endpoint.give_vector(vector);
        } else {
            self.settle_at(endpoint, vector);
        }
    }

    /// One more vector, where those that it has tell of many link groups: who hears a doorbell looks at the queues of that vector
    /// which are at rest, and these are to be few.
    fn extend(&self, endpoint: &'static Endpoint) {
        let newest = self.newest_vector();
        let more = self.more.load(Ordering::Relaxed);
        if looks::count(newest) < PER_VECTOR || more.count_ones() >= MOST_MORE {
            return;
        }
        if let Some(vector) = vectors::take_own(endpoint) {
            let _state = self.lock();
            self.more.fetch_or(1 << vector, Ordering::AcqRel);
            self.newest.store(u32::try_from(vector).unwrap_or(0), Ordering::Release);
        }
    }

    fn newest_vector(&self) -> usize {
        self.newest.load(Ordering::Acquire) as usize
    }

    /// The vector for a link group: one that tells of it already, else the newest, or one of all when there will be no other.
    fn vector_for(&self, state: &State, link: &'static Link) -> usize {
        let first = self.vector_at(state, link.endpoint);
        let more = self.more.load(Ordering::Acquire);
        if more == 0 || !self.is_at(link.endpoint) {
            return first;
        }
        let all = || core::iter::once(first).chain(doorbell::vectors(more));
        let known = all().find(|vector| link.is_told_of_by(*vector));
        known.unwrap_or_else(|| match more.count_ones() >= MOST_MORE {
            false => self.newest_vector(),
            true => all().min_by_key(|vector| looks::count(*vector)).unwrap_or(first),
        })
    }

    /// True when its vector is one of this endpoint.
    fn is_at(&self, endpoint: &'static Endpoint) -> bool {
        self.endpoint.load(Ordering::Acquire) == ptr::from_ref(endpoint).addr()
    }

    fn settle_at(&self, endpoint: &'static Endpoint, vector: usize) {
        self.vector.store(u32::try_from(vector).unwrap_or(0), Ordering::Relaxed);
        self.newest.store(u32::try_from(vector).unwrap_or(0), Ordering::Relaxed);
        self.endpoint.store(ptr::from_ref(endpoint).addr(), Ordering::Release);
    }

    /// Its completion vector at `endpoint`.
    fn vector_at(&self, state: &State, endpoint: &'static Endpoint) -> usize {
        match state.heard(endpoint) {
            // Another agent was there before, or is there now.
            Some(vector) if !self.is_at(endpoint) => return vector,
            None if !self.is_at(endpoint) => self.settle_at(endpoint, endpoint.share_vector()),
            _ => {}
        }
        self.vector.load(Ordering::Relaxed) as usize
    }

    /// Puts a watch into the ready list, from a completion queue. A thread that is looking at this very instance (`by`) goes on to look
    /// at the list, and wakes another one if something stays there.
    pub fn push_ready(&self, watch: usize, by: Option<&Self>) {
        let mut state = self.lock();
        if self.is_only_parked(&mut state, watch) {
            return;
        }
        state.list(watch);
        self.edges.fetch_add(1, Ordering::AcqRel);
        let is_looked_at = by.is_some_and(|by| ptr::eq(by, self));
        if !is_looked_at || self.nested.load(Ordering::Relaxed) {
            self.ring_if_awaited(&state);
        }
    }

    /// Looks at a watch again that was looked at before.
    fn tell_again(&self, fd: c_int) {
        let mut state = self.lock();
        if let Some(index) = state.find(fd) {
            state.list(index);
            self.ring_if_awaited(&state);
        }
    }

    /// After a change that its waiters have to see.
    pub fn ring_if_awaited(&self, state: &State) {
        if self.sharers.are_asleep() {
            self.ring_own(state);
        }
    }

    /// Wakes threads of this process that sleep in the instance.
    pub fn ring_own(&self, state: &State) {
        for (endpoint, vector) in &state.bells {
            // SAFETY: endpoints are never freed.
            if unsafe { &**endpoint }.bells.ring(*vector) {
                return;
            }
        }
    }

    /// Puts a doorbell into the kernel's set.
    fn hear(&self, state: &mut State, endpoint: &'static Endpoint, vector: usize) {
        let name = (ptr::from_ref(endpoint), vector);
        let Some(bell) = endpoint.bells.raw(vector).filter(|_| !state.bells.contains(&name)) else {
            return;
        };
        let mut event = epoll_event { events: RUNG.bits(), u64: tag(Ours::Bell(vector)) };
        let set = state.ear.as_ref().map_or(self.raw(), OwnFd::raw);
        // SAFETY: the event is valid; the descriptors are ours and the program's own.
        let added = unsafe { next::epoll_ctl(set, EPOLL_CTL_ADD, bell, &raw mut event) };
        if added == 0 {
            state.bells.push(name);
        }
    }
}

//! One epoll instance: what it watches, and how it is told.

mod conversion;
mod watches;

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::EPOLL_CTL_ADD;
use shunt_heap::slab::Name;
use shunt_shm::doorbell::RUNG;
use shunt_shm::sync::AtomicU32;

use crate::conn::Conn;
use crate::control::endpoint::Endpoint;
use crate::control::vectors;
use crate::epoll::reentrancy::{self, Held};
use crate::epoll::state::State;
use crate::epoll::tag;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::own_fds::OwnFd;
use crate::system::abi::{c_int, epoll_event};
use crate::system::clock;
use crate::system::next;

pub use conversion::{flags_are_valid, kernel_event};
pub use watches::SEVERAL;

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
    /// Shunted connections that are watched.
    pub active: AtomicU32,
    /// Vectors that completions come through (a bit each).
    pub vectors: AtomicU64,
    /// Others wait for it, too: see [`super::nested`].
    pub nested: AtomicBool,
    /// Changes that those who wait for it may have to be told of.
    pub edges: AtomicU32,
    /// Other instances that are watched (which `active` counts, too).
    pub sets: AtomicU32,
    /// Threads that sleep in it, or for it.
    pub sleepers: AtomicU32,
    /// When connections were last looked at about which there was some doubt.
    doubted: AtomicU64,
    /// When the kernel was last asked, and what spinning has taught.
    pub visited: AtomicU64,
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
            active: AtomicU32::new(0),
            vectors: AtomicU64::new(0),
            nested: AtomicBool::new(false),
            edges: AtomicU32::new(0),
            sets: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            doubted: AtomicU64::new(0),
            visited: AtomicU64::new(0),
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
        self.active.store(0, Ordering::Relaxed);
        self.vectors.store(0, Ordering::Relaxed);
        self.nested.store(false, Ordering::Relaxed);
        self.sets.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.budget.store(0, Ordering::Relaxed);
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
            let other = fd_table::iter(0..=fd_table::high_water()).find(same);
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
            endpoint.give_vector(self.vector.load(Ordering::Relaxed) as usize);
        }
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

    /// Before a connection is watched here: a completion vector of its own, if it has none yet. The agent is told of it, for
    /// which no lock may be held.
    pub fn prepare(&self, conn: &Conn) {
        let Some(endpoint) = conn.link().map(|link| link.endpoint).or_else(Endpoint::current)
        else {
            return;
        };
        // What a parent has left is looked at by itself.
        if self.is_at(endpoint) || endpoint.is_inherited() || self.lock().hears(endpoint) {
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

    /// True when its vector is one of this endpoint.
    fn is_at(&self, endpoint: &'static Endpoint) -> bool {
        self.endpoint.load(Ordering::Acquire) == ptr::from_ref(endpoint).addr()
    }

    fn settle_at(&self, endpoint: &'static Endpoint, vector: usize) {
        self.vector.store(u32::try_from(vector).unwrap_or(0), Ordering::Relaxed);
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

    /// Puts a watch into the ready list, from a completion queue.
    pub fn push_ready(&self, watch: usize) {
        let mut state = self.lock();
        if self.is_only_parked(&mut state, watch) {
            return;
        }
        state.list(watch);
        self.edges.fetch_add(1, Ordering::AcqRel);
        self.ring_if_awaited(&state);
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
        if self.sleepers.load(Ordering::Relaxed) > 0 {
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
        let mut event = epoll_event { events: RUNG.bits(), u64: tag(None) };
        let set = state.ear.as_ref().map_or(self.raw(), OwnFd::raw);
        // SAFETY: the event is valid; the descriptors are ours and the program's own.
        let added = unsafe { next::epoll_ctl(set, EPOLL_CTL_ADD, bell, &raw mut event) };
        if added == 0 {
            state.bells.push(name);
        }
    }
}

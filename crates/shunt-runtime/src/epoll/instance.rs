//! One epoll instance: what it watches, and how it is told.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use shunt_engine::conn::poll::KernelReadiness;
use shunt_engine::events;
use shunt_heap::slab::Name;
use shunt_shm::doorbell::RUNG;
use shunt_shm::region::queue_code;
use shunt_shm::sync::AtomicU32;

use crate::conn::{Conn, Sock};
use crate::control::bells::COMMON;
use crate::control::endpoint::Endpoint;
use crate::control::link::Link;
use crate::control::vectors;
use crate::epoll::reentrancy::{self, Held};
use crate::epoll::state::{Parked, State, Watch, Watched};
use crate::epoll::tag;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::own_fds::OwnFd;
use crate::system::abi::{c_int, epoll_event};
use crate::system::clock;
use crate::system::next;

/// Completions, and events of the kernel, that a parked watch may get. Each may have woken the instance's sleeper for nothing.
const PARKED_COMPLETIONS: u8 = 8;

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

    /// True for a parked watch, of which there is news: when more comes it is taken out for good.
    pub fn is_only_parked(&self, state: &mut State, watch: usize) -> bool {
        let Some(parked) = state.get(watch).and_then(|w| w.parked.as_mut()) else { return false };
        parked.completions += 1;
        if parked.completions > PARKED_COMPLETIONS {
            self.unpark_for_good(state, watch);
        }
        true
    }

    /// After a change that its waiters have to see.
    pub fn ring_if_awaited(&self, state: &State) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.ring_own(state);
        }
    }

    /// The program takes a shunted connection out. Programs do that often, to add it again for another
    /// event; so the kernel's registration, which only tells of the connection's end, stays where it
    /// is, and neither costs a system call. False when there is no such registration, or when others
    /// look at the kernel's set.
    pub fn park(&self, state: &mut State, index: usize) -> bool {
        if self.nested.load(Ordering::Relaxed) || state.shared {
            return false;
        }
        let Some(watch) = state.get(index).filter(|w| w.conn.is_some() && w.parked.is_none())
        else {
            return false;
        };
        watch.parked = Some(Parked { completions: 0 });
        true
    }

    /// The process is about to fork: the kernel's set will be the child's, too, and what one of them
    /// has parked the other one could not know of.
    pub(super) fn share(&self, state: &mut State) {
        state.shared = true;
        for index in state.parked() {
            self.unpark_for_good(state, index);
        }
    }

    /// Takes a parked watch out of the kernel's set, too.
    pub(super) fn unpark_for_good(&self, state: &mut State, index: usize) {
        let Some(fd) = state.get(index).map(|w| w.fd) else { return };
        // SAFETY: a deletion reads no event.
        unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_DEL, fd, ptr::null_mut()) };
        self.forget_watch(state, index);
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

    /// Packs this instance and a watch for [`Link::watch`].
    fn packed(&self, watch: usize) -> u64 {
        (self.index as u64 + 1) << 32 | watch as u64
    }

    /// Starts to watch a shunted connection from here.
    pub fn register(&self, state: &mut State, index: usize, conn: Conn) {
        let sock = conn.sock();
        let queued = sock.link().is_some_and(|link| self.register_queue(state, index, sock, link));
        let Some(Some(watch)) = state.watches.get_mut(index) else { return };
        watch.conn = Some(Watched { conn, queued, candidate: sock.link().is_none() });
        watch.kernel = KernelReadiness::Nothing;
        if !queued {
            state.direct.push(index);
            if let Some(link) = sock.link() {
                let vector = match link.endpoint.is_inherited() {
                    true if state.hears(link.endpoint) => COMMON,
                    true => link.endpoint.share_vector(),
                    false => self.vector_at(state, link.endpoint),
                };
                self.hear(state, link.endpoint, vector);
                self.hear(state, link.endpoint, COMMON);
            }
        }
        self.active.fetch_add(1, Ordering::AcqRel);
        if state.shared {
            // The kernel may tell another process.
            state.list(index);
        } else {
            state.list_unless_told(index);
        }
        if self.nested.load(Ordering::Relaxed) {
            self.arm_queues();
            if !queued {
                state.arm(index);
            }
            self.ring_own(state);
        }
    }

    fn register_queue(
        &self,
        state: &mut State,
        index: usize,
        sock: &'static Sock,
        link: &'static Link,
    ) -> bool {
        let Some(lane) = link.lane() else { return false };
        let Some((mine, _)) = sock.sections() else { return false };
        let slot = sock.record().slot();
        let id = &sock.record().id;
        let vector = match id.vector.load(Ordering::Relaxed).checked_sub(1) {
            // Another instance watches it, too: its completions come through that one's vector.
            Some(vector) => vector as usize,
            None => self.vector_at(state, link.endpoint),
        };
        id.vector.store(u32::try_from(vector + 1).unwrap_or(1), Ordering::Relaxed);
        let word = &link.watch[slot];
        if word
            .compare_exchange(0, self.packed(index), Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            word.fetch_or(SEVERAL, Ordering::AcqRel);
        }
        self.vectors.fetch_or(1 << vector, Ordering::AcqRel);
        self.hear(state, link.endpoint, vector);
        self.hear(state, link.endpoint, COMMON);
        mine.ctl.queue.store(queue_code(lane, vector), Ordering::Relaxed);
        // SYNC POINT word-arm: the registration before the look at the cursors that follows.
        shunt_shm::sync::store_load_fence();
        true
    }

    /// Connections that are looked at by themselves because they were candidates when they were
    /// registered, and have been promoted since, go over to the completion queue.
    pub fn promote_direct(&self, state: &mut State) {
        let mut i = 0;
        while let Some(&index) = state.direct.get(i) {
            i += 1;
            let Some(conn) = state.get(index).and_then(|w| w.conn) else { continue };
            if !conn.is_unregistered() {
                continue;
            }
            i -= 1;
            state.direct.remove(i);
            self.active.fetch_sub(1, Ordering::AcqRel);
            self.register(state, index, conn.conn);
            // The kernel's registration is what it was, so it tells nothing anew.
            state.list(index);
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

    /// Stops watching.
    fn unregister(&self, index: usize, watch: &Watch) {
        if watch.inner.is_some() {
            self.active.fetch_sub(1, Ordering::AcqRel);
            self.sets.fetch_sub(1, Ordering::AcqRel);
        }
        let Some(Watched { conn, queued, .. }) = watch.conn else { return };
        self.active.fetch_sub(1, Ordering::AcqRel);
        // Where a handler has closed it above a call at this lock, it is another connection's by now.
        if !queued || !conn.is_current() {
            return;
        }
        let sock = conn.sock();
        let Some(link) = sock.link() else { return };
        let word = &link.watch[sock.record().slot()];
        // It may be another connection's by now, whose watch is not to be touched.
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        if word.compare_exchange(self.packed(index), 0, ok, no).is_ok() {
            if let Some((mine, _)) = sock.sections() {
                mine.ctl.queue.store(0, Ordering::Relaxed);
            }
            sock.record().id.vector.store(0, Ordering::Relaxed);
        }
    }

    /// A descriptor of the connection is closed. Its registration stays as long as the connection
    /// has another one in this process, `other`: the kernel's does, too.
    pub fn descriptor_closed(&self, fd: c_int, other: Option<c_int>, sock: &Sock) {
        let mut state = self.lock();
        let parked = state.find(fd).filter(|index| state.is_parked(*index));
        // The kernel drops its registration with the last descriptor, wherever that is: maybe in a
        // program that got one.
        let held = other.is_some() || sock.record().id.holders.count() > 1 || sock.is_handed_over();
        if let Some(index) = parked.filter(|_| held) {
            self.unpark_for_good(&mut state, index);
        }
        let Some(other) = other else {
            self.forget(&mut state, fd);
            self.forget_orphans(&mut state, sock);
            return;
        };
        let Some(index) = state.by_fd.remove(fd) else { return };
        state.orphans += 1;
        if let Some(watch) = state.get(index) {
            watch.fd = other;
            if let (Some(watched), Some(conn)) = (&mut watch.conn, Conn::named(other)) {
                watched.conn = conn;
            }
        }
    }

    /// Forgets what is left of closed descriptors of a connection, whose handle is about to be given
    /// back.
    pub fn forget_orphans(&self, state: &mut State, sock: &Sock) {
        if state.orphans > 0 {
            let of_sock: Vec<usize> = state.of_sock(sock).collect();
            of_sock.into_iter().for_each(|index| self.forget_watch(state, index));
        }
    }

    /// Forgets a descriptor.
    pub fn forget(&self, state: &mut State, fd: c_int) {
        if let Some(index) = state.find(fd) {
            self.forget_watch(state, index);
        }
    }

    pub(super) fn forget_watch(&self, state: &mut State, index: usize) {
        let Some(watch) = state.watches.get_mut(index).and_then(Option::take) else { return };
        if state.find(watch.fd) == Some(index) {
            state.by_fd.remove(watch.fd);
        } else {
            state.orphans = state.orphans.saturating_sub(1);
        }
        if watch.listed {
            state.ready.retain(|w| *w != index);
        }
        if watch.conn.is_some_and(|c| !c.queued) {
            state.direct.retain(|w| *w != index);
        }
        if watch.inner.is_some() {
            state.sets.retain(|w| *w != index);
        }
        state.free.push(index);
        self.unregister(index, &watch);
    }

    /// Has the kernel tell of room in the socket of a shunted connection in a TCP stretch.
    pub fn ask_for_room(&self, fd: c_int) {
        let mut state = self.lock();
        let Some(index) = state.find(fd) else { return };
        if state.get(index).is_some_and(|w| w.conn.is_some() && w.interest & events::OUT != 0) {
            let mut event = kernel_event(index, true);
            // SAFETY: the event is valid.
            unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_MOD, fd, &raw mut event) };
        }
    }

    /// Looks what the descriptors have become, of which it was not told.
    pub(super) fn catch_up(&'static self) {
        if !self.is_live() {
            return self.clear();
        }
        let watches: Vec<Watch> = self.lock().watches.iter().flatten().copied().collect();
        for Watch { fd, conn, .. } in watches {
            let now = Conn::named(fd);
            match conn {
                None => {
                    if let Some(now) = now {
                        self.convert(fd, Some(now));
                    }
                }
                Some(Watched { conn, .. }) if conn.is_named() => match now {
                    Some(_) => {
                        self.ask_for_room(fd);
                        self.tell_again(fd);
                    }
                    None => self.convert(fd, None),
                },
                Some(Watched { conn, .. }) => {
                    let other = conn.is_current().then(|| conn.find_descriptor(fd)).flatten();
                    self.descriptor_closed(fd, other, conn.sock());
                }
            }
        }
    }

    /// The connections that it watches.
    pub fn connections(&self) -> Vec<Conn> {
        let state = self.lock();
        let watched = state.watches.iter().flatten().filter_map(|watch| watch.conn);
        watched.map(|watched| watched.conn).collect()
    }

    /// Leaves the kernel's set as if the library had never been there; not one that another process
    /// needs as it is.
    pub fn dissolve(&self) {
        let mut ours: Vec<c_int> = Vec::new();
        {
            let mut state = self.lock();
            if state.inherited {
                return;
            }
            let ear = state.ear.take();
            let bells = core::mem::take(&mut state.bells);
            let bells = bells.iter().filter_map(|(endpoint, vector)| {
                // SAFETY: endpoints are never freed.
                unsafe { &**endpoint }.bells.raw(*vector)
            });
            for own in ear.iter().map(OwnFd::raw).chain(bells) {
                // What is in the ear is not here, which does no harm.
                // SAFETY: a deletion reads no event.
                unsafe {
                    next::epoll_ctl(self.raw(), EPOLL_CTL_DEL, own, ptr::null_mut());
                }
            }
            for watch in state.watches.iter().flatten() {
                if watch.conn.is_some() {
                    ours.push(watch.fd);
                } else if watch.inner.is_some() {
                    let mut event = epoll_event { events: watch.interest, u64: watch.data };
                    // SAFETY: the event is valid.
                    unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_MOD, watch.fd, &raw mut event) };
                }
            }
        }
        ours.into_iter().for_each(|fd| self.convert(fd, None));
    }

    /// The watch of a descriptor goes over to Shunt, or back to the kernel.
    pub fn convert(&self, fd: c_int, conn: Option<Conn>) {
        if let Some(conn) = &conn {
            self.prepare(conn);
        }
        let mut state = self.lock();
        let Some(index) = state.find(fd) else { return };
        let Some(watch) = state.watches.get(index).copied().flatten() else { return };
        // What goes back to the kernel in a child is still asked by the library, as it is in the parent.
        if watch.conn.is_some() == conn.is_some() || (conn.is_none() && state.inherited) {
            return;
        }
        if watch.parked.is_some() {
            self.unpark_for_good(&mut state, index);
            return;
        }
        let mut event = match conn {
            Some(_) => kernel_event(index, false),
            None => epoll_event { events: watch.interest, u64: watch.data },
        };
        // SAFETY: the event is valid.
        let result = unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_MOD, fd, &raw mut event) };
        match conn {
            _ if result != 0 => self.forget(&mut state, fd),
            Some(conn) => self.register(&mut state, index, conn),
            None => {
                self.unregister(index, &watch);
                state.direct.retain(|w| *w != index);
                state.ready.retain(|w| *w != index);
                if let Some(Some(watch)) = state.watches.get_mut(index) {
                    watch.conn = None;
                    watch.listed = false;
                }
            }
        }
        self.ring_if_awaited(&state);
    }
}

/// Flag in [`Link::watch`]: more than one instance (or descriptor) watches the connection.
pub const SEVERAL: u64 = 1 << 63;

/// What the kernel is asked about a shunted connection: whatever comes there is news, once. Room to
/// write is asked for only while a sender waits for it in a TCP stretch.
pub fn kernel_event(watch: usize, room: bool) -> epoll_event {
    let events = events::IN | events::PRI | events::RDHUP | events::ET;
    let events = if room { events | events::OUT } else { events };
    epoll_event { events, u64: tag(Some(watch)) }
}

/// Whether the kernel takes these flags for this operation (`fs/eventpoll.c`): it is not asked about
/// a shunted connection with the program's own.
pub const fn flags_are_valid(op: c_int, asked: u32, before: Option<u32>) -> bool {
    const EXCLUSIVE_OK: u32 = events::EXCLUSIVE
        | events::ET
        | events::IN
        | events::OUT
        | events::ERR
        | events::HUP
        | libc::EPOLLWAKEUP.cast_unsigned();
    let exclusive = asked & events::EXCLUSIVE != 0;
    if op == EPOLL_CTL_MOD {
        let was = match before {
            Some(interest) => interest & events::EXCLUSIVE != 0,
            None => false,
        };
        return !exclusive && !was;
    }
    !exclusive || asked & !EXCLUSIVE_OK == 0
}

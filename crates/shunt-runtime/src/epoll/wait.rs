//! Waiting for events: completion queues first, the kernel every so often, sleep last.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use shunt_engine::conn::poll::KernelReadiness;
use shunt_engine::conn::repeated::are_known;
use shunt_engine::conn::sends_over_tcp;
use shunt_engine::events;
use shunt_engine::events::report;
use shunt_engine::wait::{self, Handlers, Hearing, Set, Slept, Wait, Way, Woken, wait_for};
use shunt_shm::cq::ArmLine;
use shunt_shm::doorbell;
use shunt_shm::region::SLOTS;
use shunt_shm::sync::store_load_fence;

use crate::calls::{Has, Keeper, UnderWay};
use crate::conn::KERNEL_HINT;
use crate::control::link::{self, Link};
use crate::epoll::instance::{Instance, kernel_event};
use crate::epoll::state::{State, Watch, Watched};
use crate::epoll::tell::dispatch;
use crate::epoll::{ready, untag};
use crate::fds::fd_table::Entry;
use crate::point;
use crate::stream::spin::{self, Spun, ThisProcess};
use crate::stream::{liveness, trim};
use crate::system::abi::{c_int, epoll_event, sigset_t};
use crate::system::{clock, errno, next};
use crate::threads::handlers::Seen;
use crate::threads::{handlers, signals};

/// Longest time that the kernel is not asked while completions keep coming.
const VISIT_AFTER: u64 = 20_000;
/// Events that are taken from the kernel at once.
const KERNEL_EVENTS: usize = 128;

/// The program's buffer.
pub struct Out {
    events: *mut epoll_event,
    max: usize,
    len: usize,
}

impl Out {
    /// # Safety
    /// `events` points to room for `max` events.
    pub const unsafe fn new(events: *mut epoll_event, max: usize) -> Self {
        Self { events, max, len: 0 }
    }

    fn full(&self) -> bool {
        self.len == self.max
    }

    fn push(&mut self, event: epoll_event) {
        if self.full() {
            return;
        }
        // SAFETY: below max, for which there is room.
        unsafe { self.events.add(self.len).write_unaligned(event) };
        self.len += 1;
    }

    /// True when the program's buffer is memory that can be written. The kernel is asked about a buffer
    /// that the thread did not use just before.
    fn is_writable(&self) -> bool {
        thread_local! {
            static KNOWN: Cell<*mut epoll_event> = const { Cell::new(core::ptr::null_mut()) };
        }
        let is = KNOWN.get() == self.events || shunt_sys::memory::is_writable(self.events.addr());
        if is {
            KNOWN.set(self.events);
        }
        is
    }
}

/// How long to wait.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Monotonic nanoseconds; `None`: for ever.
    pub deadline: Option<u64>,
    /// The program's signal mask for the wait, or null.
    pub mask: *const sigset_t,
    /// The signal handlers that have run before the call.
    pub seen: Seen,
}

/// epoll_wait on an instance that watches none, yet: the kernel's alone, unless a connection is added
/// to it meanwhile by another thread.
pub fn wait_in_kernel(
    instance: &'static Instance,
    mut out: Out,
    limits: Limits,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // Counted as a sleeper, so that whoever adds a connection wakes us.
    let sleeper = Armed::new(instance);
    store_load_fence();
    if instance.active.load(Ordering::Acquire) > 0 {
        drop(sleeper);
        return wait(instance, out, limits);
    }
    let n = kernel();
    drop(sleeper);
    let Ok(found @ 1..) = usize::try_from(n) else { return n };
    let mut locked = None;
    for i in 0..found {
        // SAFETY: the kernel has just written so many events; `out.len` never runs ahead of `i`.
        let event = unsafe { out.events.add(i).read_unaligned() };
        match untag(event.u64) {
            None => out.push(event),
            Some(None) => {}
            Some(Some(index)) => {
                let state: &mut State = locked.get_or_insert_with(|| instance.lock());
                take_in_conn(instance, state, index, event.events);
            }
        }
    }
    drop(locked);
    match out.len {
        0 => wait(instance, out, limits),
        len => c_int::try_from(len).unwrap_or(n),
    }
}

/// epoll_wait on an instance that watches shunted connections.
pub fn wait(instance: &'static Instance, out: Out, limits: Limits) -> c_int {
    signals::cancellation_point();
    point!(epoll_begins);
    // Nothing has been taken out of a queue yet, so no event is lost by it.
    if !out.is_writable() {
        return errno::fail(libc::EFAULT);
    }
    let mut waiter = Waiter { instance, out, limits, spins: true };
    let n = wait_for(&mut waiter, &ThisProcess);
    if instance.nested.load(Ordering::Relaxed) {
        arm_direct(instance);
    }
    n
}

/// A wait on an instance, as the engine's port.
///
/// Only one answer of the kernel's gets into a result: what it has told of is never thrown away, as it may
/// be told once (`EPOLLET`, `EPOLLONESHOT`), nor told twice.
struct Waiter {
    instance: &'static Instance,
    out: Out,
    limits: Limits,
    /// It may spin: it has not slept yet.
    spins: bool,
}

impl Waiter {
    fn answer(&self) -> c_int {
        c_int::try_from(self.out.len).unwrap_or(c_int::MAX)
    }
}

impl Set for Waiter {
    type Answer = c_int;

    fn look(&mut self) -> Option<c_int> {
        let Self { instance, out, limits, .. } = self;
        let now = clock::now();
        // Not after a sleep in which the kernel has told of something: of what is level-triggered it
        // would tell once more, and a program that accepts for each event would do so in vain.
        let due = out.len == 0
            && now.saturating_sub(instance.visited.load(Ordering::Relaxed)) >= VISIT_AFTER;
        if due && visit(instance, out, now, limits.mask) < 0 {
            return Some(-1);
        }
        gather(instance, out);
        if out.len > 0 {
            return Some(self.answer());
        }
        if !due && visit(instance, out, now, limits.mask) < 0 {
            return Some(-1);
        }
        gather(instance, out);
        let over = limits.deadline.is_some_and(|d| now >= d);
        (out.len > 0 || over).then(|| self.answer())
    }

    fn ended(&mut self, _: Woken) -> c_int {
        -1
    }
}

impl Wait for Waiter {
    fn spin(&mut self) -> bool {
        let Self { instance, limits, .. } = self;
        if !self.spins || !limits.mask.is_null() {
            self.spins = false;
            return false;
        }
        let spun =
            spin::spin(Way::Kernel, &instance.budget, limits.deadline, || any_news(instance));
        spin::count(spun);
        self.spins = spun == Spun::Found;
        self.spins
    }

    fn turn_in(&mut self) -> Result<Way, Woken> {
        Ok(Way::Kernel)
    }

    fn arm<T>(&mut self, _: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        let armed = Armed::new(self.instance);
        let _armed = UnderWay::note(Has::value(&armed));
        arm_direct(self.instance);
        let awaited = self.instance.await_inner();
        let _awaited = UnderWay::note(Has::value(&awaited));
        point!(epoll_armed);
        rest(self, Hearing::Woken)
    }

    fn is_ready(&mut self) -> bool {
        any_news(self.instance)
    }

    fn limits(&mut self, _: Way) -> wait::Limits {
        let now = clock::now();
        self.instance.visited.store(now, Ordering::Relaxed);
        let look = self.instance.next_look();
        wait::Limits { now, deadline: self.limits.deadline, look, is_long: true }
    }

    fn sleep(
        &mut self,
        _: Way,
        longest: Option<u64>,
        awake: impl FnOnce(&mut Self, Slept),
    ) -> Slept {
        let room = (self.out.max - self.out.len).clamp(1, KERNEL_EVENTS);
        let mut buffer = [const { epoll_event { events: 0, u64: 0 } }; KERNEL_EVENTS];
        let max = c_int::try_from(room).unwrap_or(1);
        let n = kernel_sleep(self.instance.raw(), &mut buffer, max, longest, self.limits);
        let slept = Slept::by_call(n, || errno::get() == libc::EINTR);
        awake(self, slept);
        if slept == Slept::Woken {
            // All that it has to say was just said.
            self.instance.visited.store(clock::now(), Ordering::Relaxed);
        }
        point!(epoll_woken);
        take_in(self.instance, &mut self.out, &buffer, n.unwrap_or(0));
        slept
    }

    /// It sleeps in the kernel alone.
    fn visit(&mut self, _: Slept) {}

    fn teaches(&self) -> bool {
        true
    }

    fn rang(&self, _: Way, since: u64) -> Option<u64> {
        let vectors = self.instance.vectors.load(Ordering::Relaxed);
        let mut first: Option<u64> = None;
        for link in link::all().filter(|link| vectors != 0 && !link.is_far()) {
            link.each_vector(vectors, |arm| {
                let rang = arm.rang.load(Ordering::Relaxed);
                first = first.into_iter().chain((rang >= since).then_some(rang)).min();
            });
        }
        first
    }

    fn handlers(&mut self, slept: Slept) -> Handlers {
        let handlers = Handlers::of_a_set(slept, self.limits.seen.is_old());
        if handlers == Handlers::End && slept != Slept::Failed {
            errno::set(libc::EINTR);
        }
        handlers
    }
}

/// A call on an instance, which stays what it is until then, whatever becomes of its descriptors.
pub struct Waiting {
    instance: &'static Instance,
    _under_way: UnderWay,
}

impl Waiting {
    /// Begins. `None` when it is closed already.
    pub fn begin(instance: &'static Instance, entry: Entry) -> Option<Self> {
        let is_held = instance.hold(entry);
        is_held.then(|| Self { instance, _under_way: UnderWay::note(Has::kept(instance, &WAITS)) })
    }
}

// SAFETY: `begin` alone notes with it, an instance.
static WAITS: Keeper = unsafe { Keeper::new(let_go) };

/// # Safety
/// The address is an instance's.
unsafe fn let_go(instance: *const ()) {
    // SAFETY: the caller promises an instance's address; instances are never freed.
    unsafe { &*instance.cast::<Instance>() }.let_go();
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.instance.let_go();
    }
}

impl State {
    /// Puts the watches that are looked at by themselves into the ready list: edge-triggered ones if
    /// something has happened since they were last put there.
    pub fn list_direct(&mut self) {
        for i in 0..self.direct.len() {
            let index = self.direct[i];
            let Some(watch) = self.get(index) else { continue };
            let Some(conn) = watch.conn else { continue };
            if watch.interest & events::ET != 0 {
                let stamp = ready::stamp(conn.conn);
                if core::mem::replace(&mut watch.stamp, stamp) == stamp {
                    continue;
                }
            }
            self.list(index);
        }
    }

    /// Puts the watches into the ready list of connections that are to be looked at now and then.
    pub fn list_doubtful(&mut self) {
        for index in 0..self.watches.len() {
            let conn = self.watches[index].as_ref().and_then(|watch| watch.conn);
            if conn.is_some_and(|c| liveness::is_about(&c.conn)) {
                self.list(index);
            }
        }
    }
}

/// Takes completions and looks at what is in the ready list.
fn gather(instance: &Instance, out: &mut Out) {
    instance.look_at_inner();
    pop_queues(instance);
    let had = out.len;
    let mut state = instance.lock();
    point!(epoll_looks);
    instance.promote_direct(&mut state);
    state.list_direct();
    if liveness::next_look().is_some() && instance.takes_turn_at_doubts(liveness::LOOK / 2) {
        state.list_doubtful();
    }
    // Each at most once: what is kept goes to the end.
    for _ in 0..state.ready.len() {
        if out.full() {
            break;
        }
        let Some(index) = state.ready.pop_front() else { break };
        look(instance.raw(), &mut state, index, out);
    }
    // What the kernel has told is old from now on.
    state.look += 1;
    point!(epoll_looked);
    if out.full() && out.len > had {
        // Whatever is the kernel's has its turn next time.
        instance.visited.store(0, Ordering::Relaxed);
    }
    if !state.ready.is_empty() && out.full() && instance.sleepers.load(Ordering::Relaxed) > 0 {
        // More than this thread can take: another one that sleeps here may have it.
        instance.ring_own(&state);
    }
}

fn look(epfd: c_int, state: &mut State, index: usize, out: &mut Out) {
    let (look, shared) = (state.look, state.shared);
    let Some(watch) = state.get(index) else { return };
    watch.listed = false;
    let wanted = watch.interest;
    let Some(ready) = readiness(watch, look, shared) else { return };
    let verdict = report(wanted, ready);
    watch.interest = verdict.interest;
    await_room(epfd, (index, watch), wanted & events::OUT != 0 && ready & events::OUT == 0);
    if verdict.events == 0 {
        return;
    }
    out.push(epoll_event { events: verdict.events, u64: watch.data });
    if verdict.keep {
        watch.listed = true;
        state.ready.push_back(index);
    }
}

/// Has the kernel tell when there is room in the socket of a connection that was looked at. `asks`: the program waits
/// for room, and there is none.
pub fn await_room(epfd: c_int, (index, watch): (usize, &Watch), asks: bool) {
    let waits_for_room = watch
        .conn
        .is_some_and(|c| (asks && sends_over_tcp(c.conn.record())) || are_known(c.conn.record()));
    if waits_for_room {
        let mut event = kernel_event(index, true);
        // SAFETY: the event is valid.
        unsafe { next::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, watch.fd, &raw mut event) };
    }
}

/// The readiness of what is watched; `None` when nothing is asked for. In a set that is `shared` the
/// kernel may tell another process of news.
fn readiness(watch: &mut Watch, look: u64, shared: bool) -> Option<u32> {
    if watch.parked.is_some() || watch.interest & !events::MODES == 0 {
        return None;
    }
    match (watch.conn, watch.inner) {
        (Some(conn), _) => {
            watch.kernel = watch.kernel.at(look, shared);
            Some(ready::of(conn.conn, watch.interest, &mut watch.kernel))
        }
        (None, Some(inner)) => Some(if inner.readable { events::IN | events::RDNORM } else { 0 }),
        (None, None) => None,
    }
}

/// True when a watch has something to report.
pub fn has_news(state: &mut State, index: usize) -> bool {
    let (look, shared) = (state.look, state.shared);
    let Some(watch) = state.get(index) else { return false };
    readiness(watch, look, shared).is_some_and(|ready| report(watch.interest, ready).events != 0)
}

/// Empties the completion queues of the instance's vectors into the ready lists.
pub fn pop_queues(instance: &Instance) {
    let vectors = instance.vectors.load(Ordering::Relaxed);
    if vectors == 0 {
        return;
    }
    for link in link::all() {
        let Some(lane) = link.lane() else { continue };
        let lane = link.view().lane(lane);
        for vector in doorbell::vectors(vectors).map(|vector| lane.vector(vector)) {
            if vector.queue.is_empty() {
                continue;
            }
            // The queue holds what the peer has put there: also a number that no connection has.
            let place_of = |slot| match slot {
                0..SLOTS => {
                    let theirs = link.view().section(slot, link.side.other());
                    theirs.prod.place.load(Ordering::Relaxed)
                }
                _ => 0,
            };
            vector.queue.pop_all(place_of, |slot| dispatch(link, slot));
        }
    }
}

/// Asks the kernel. Its events of the program go to `out`, those of shunted connections to the ready
/// list. Returns what epoll_pwait2 returned.
fn visit(instance: &Instance, out: &mut Out, now: u64, mask: *const sigset_t) -> c_int {
    instance.visited.store(now, Ordering::Relaxed);
    trim::look(now);
    let room = (out.max - out.len).min(KERNEL_EVENTS);
    if room == 0 {
        return 0;
    }
    let mut buffer = [const { epoll_event { events: 0, u64: 0 } }; KERNEL_EVENTS];
    let max = c_int::try_from(room).unwrap_or(1);
    // SAFETY: the buffer has room for `max` events.
    let n = unsafe { next::epoll_pwait(instance.raw(), buffer.as_mut_ptr(), max, 0, mask) };
    point!(epoll_woken);
    take_in(instance, out, &buffer, n);
    n
}

fn take_in(instance: &Instance, out: &mut Out, buffer: &[epoll_event; KERNEL_EVENTS], n: c_int) {
    let mut locked = None;
    for event in buffer.iter().take(usize::try_from(n).unwrap_or(0)) {
        let (bits, data) = (event.events, event.u64);
        match untag(data) {
            None => out.push(*event),
            Some(None) => {}
            Some(Some(index)) => {
                let state: &mut State = locked.get_or_insert_with(|| instance.lock());
                take_in_conn(instance, state, index, bits);
            }
        }
    }
}

/// The kernel has news of a shunted connection. Its end is remembered also for one that is parked: it is
/// told once. Bytes are not: where they matter the kernel is asked anyhow.
fn take_in_conn(instance: &Instance, state: &mut State, index: usize, bits: u32) {
    let look = state.look;
    if let Some(watch) = state.get(index)
        && bits & !events::OUT != 0
    {
        watch.kernel = KernelReadiness::Told(bits & !events::OUT, look);
        if let Some(conn) = watch.conn.filter(|_| bits & !(events::OUT | events::IN) != 0) {
            conn.conn.put(KERNEL_HINT, true);
        }
    }
    if !instance.is_only_parked(state, index) {
        state.list(index);
    }
}

/// Sleeps so many nanoseconds at the most. What the kernel returned; `None`: there was no sleep.
fn kernel_sleep(
    epfd: c_int,
    buffer: &mut [epoll_event; KERNEL_EVENTS],
    max: c_int,
    nanos: Option<u64>,
    limits: Limits,
) -> Option<c_int> {
    let at = buffer.as_mut_ptr();
    handlers::sleep(limits.seen, nanos, |time| {
        // SAFETY: the buffer has room for `max` events; the time is memory of this thread.
        let n = unsafe { next::epoll_pwait2(epfd, at, max, time, limits.mask) };
        if n >= 0 || errno::get() != libc::ENOSYS {
            return n;
        }
        // Before Linux 5.11: whole milliseconds, rounded up so that no timeout comes early. The time of a signal handler
        // that has just run is not looked at.
        let millis = |n: u64| c_int::try_from(n.div_ceil(1_000_000)).unwrap_or(c_int::MAX);
        // SAFETY: the buffer has room for `max` events; the mask is null, or the program's.
        unsafe { next::epoll_pwait(epfd, at, max, nanos.map_or(-1, millis), limits.mask) }
    })
}

/// True when a completion is queued, or a connection that is looked at by itself has news.
fn any_news(instance: &Instance) -> bool {
    instance.look_at_inner();
    let vectors = instance.vectors.load(Ordering::Relaxed);
    let queued = vectors != 0
        && link::all().any(|link| {
            link.lane().is_some_and(|lane| {
                let lane = link.view().lane(lane);
                doorbell::vectors(vectors).any(|vector| !lane.vector(vector).queue.is_empty())
            })
        });
    queued || direct_news(instance)
}

fn direct_news(instance: &Instance) -> bool {
    let mut state = instance.lock();
    if !state.ready.is_empty() {
        return true;
    }
    (0..state.direct.len()).any(|i| {
        let index = state.direct[i];
        let seen = state.get(index).is_some_and(|watch| {
            watch.interest & events::ET != 0
                && watch.conn.is_some_and(|c| ready::stamp(c.conn) == watch.stamp)
        });
        // The look itself may have promoted a candidate: that counts as news, too.
        !seen && has_news(&mut state, index)
            || state.get(index).and_then(|watch| watch.conn).is_some_and(Watched::is_unregistered)
    })
}

/// A thread that sleeps in an instance, or is about to: the queues are armed as long as this lives,
/// also when the thread is cancelled in its sleep.
struct Armed {
    instance: &'static Instance,
    vectors: u64,
    links: Vec<&'static Link>,
}

impl Armed {
    fn new(instance: &'static Instance) -> Self {
        instance.sleepers.fetch_add(1, Ordering::AcqRel);
        let vectors = instance.vectors.load(Ordering::Relaxed);
        let links: Vec<_> = if vectors == 0 {
            Vec::new()
        } else {
            link::all().filter(|link| link.lane().is_some()).collect()
        };
        for link in &links {
            // They must outlive the sleep.
            link.users.fetch_add(1, Ordering::AcqRel);
            link.each_vector(vectors, ArmLine::arm);
        }
        Self { instance, vectors, links }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        for link in &self.links {
            link.each_vector(self.vectors, ArmLine::disarm);
            link.users.fetch_sub(1, Ordering::AcqRel);
        }
        self.instance.sleepers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Connections that are looked at by themselves are told to ring this thread's doorbell.
pub fn arm_direct(instance: &Instance) {
    let mut state = instance.lock();
    for i in 0..state.direct.len() {
        let index = state.direct[i];
        state.arm(index);
    }
}

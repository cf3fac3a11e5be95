//! Waiting for events: completion queues first, the kernel every so often, sleep last.

use core::sync::atomic::Ordering;

use shunt_engine::events;
use shunt_engine::events::report;
use shunt_engine::wait::{
    self, Handlers, Hearing, Set, Slept, Spared, Stopwatch, Wait, Way, Woken, wait_for,
};
use shunt_shm::cq::ArmLine;
use shunt_shm::region::SLOTS;
use shunt_shm::sync::store_load_fence;
use shunt_shm::waker::Waker;
use shunt_wire::waits::Part;

use crate::calls::{Has, Keeper, UnderWay};
use crate::control::endpoint;
use crate::control::link::looks::{self, Queue};
use crate::epoll::instance::Instance;
use crate::epoll::kernel::{self, KERNEL_EVENTS, visit};
use crate::epoll::out::{Limits, Out};
use crate::epoll::state::{State, Watch};
use crate::epoll::tell::dispatch;
use crate::epoll::{Ours, ready, untag};
use crate::fds::fd_table::Entry;
use crate::point;
use crate::stream::liveness;
use crate::stream::spin::{self, ThisProcess};
use crate::system::abi::{c_int, epoll_event};
use crate::system::{clock, errno};
use crate::threads::placing;
use crate::threads::signals;

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
            Some(Ours::Bell(vector)) => instance.was_rung(vector),
            Some(Ours::Agent) => locked.get_or_insert_with(|| instance.lock()).have_lost_agent(),
            Some(Ours::Watch(index)) => {
                let state: &mut State = locked.get_or_insert_with(|| instance.lock());
                kernel::take_in_conn(instance, state, index, event.events);
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
    let mut waiter = Waiter { instance, out, limits, spins: true, stopwatch: Stopwatch::default() };
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
    stopwatch: Stopwatch,
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
        let due = out.len == 0 && kernel::is_due(instance, now);
        if due && visit(instance, out, now, limits.mask) < 0 {
            return Some(-1);
        }
        gather(instance, out);
        let over = limits.deadline.is_some_and(|d| now >= d);
        if out.len == 0 && !due && (over || !kernel::is_silent(instance)) {
            if visit(instance, out, now, limits.mask) < 0 {
                return Some(-1);
            }
            gather(instance, out);
        }
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
        let mut looks = 0;
        let spared = Spared { way: Way::Kernel, is_shared: instance.sharers.are_asleep() };
        let spun = spin::spin(spared, &instance.budget, limits.deadline, || {
            any_news(instance) || kernel::has_news(instance, &mut looks)
        });
        spin::count(spun);
        self.spins = self.spun(spun);
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

    fn is_heard(&mut self, _: Way) -> bool {
        !self.instance.has_unregistered_inside()
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
        let n = kernel::sleep(self.instance.raw(), &mut buffer, max, longest, self.limits);
        let slept = Slept::by_call(n, || errno::get() == libc::EINTR);
        awake(self, slept);
        if slept == Slept::Woken {
            // All that it has to say was just said.
            self.instance.visited.store(clock::now(), Ordering::Relaxed);
        }
        point!(epoll_woken);
        kernel::take_in(self.instance, &mut self.out, &buffer, n.unwrap_or(0));
        slept
    }

    /// It sleeps in the kernel alone.
    fn visit(&mut self, _: Slept) {}

    fn teaches(&self) -> bool {
        true
    }

    fn rang(&self, _: Way, since: u64) -> Option<Waker> {
        let vectors = self.instance.sharers.vectors();
        let near = looks::awake(vectors).filter(|queue| !queue.link.is_far());
        let rang = near.filter_map(|queue| Some(queue.vector()?.arm.rang.load(Ordering::Relaxed)));
        rang.filter_map(|word| Waker::since(word, since)).min_by_key(|waker| waker.at)
    }

    fn follows(&self) -> bool {
        let state = self.instance.lock();
        let mut conns = state.watches.iter().flatten().filter_map(|watch| watch.conn);
        let first = conns.next().map(|watched| watched.conn.sock());
        first.is_some_and(placing::follows) && conns.next().is_none()
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        &mut self.stopwatch
    }

    fn lasted(&mut self, part: Part, nanos: u64) {
        endpoint::count_wait(part, nanos);
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
    if !state.ready.is_empty() {
        // More than this thread can take, or level-triggered: another one that sleeps here may have it, as ep_done_scan
        // (fs/eventpoll.c) has it.
        instance.ring_if_awaited(&state);
    }
}

fn look(epfd: c_int, state: &mut State, index: usize, out: &mut Out) {
    let (look, shared) = (state.look, state.shared);
    let Some(watch) = state.get(index) else { return };
    watch.listed = false;
    let wanted = watch.interest;
    let path = watch.sends();
    let Some(ready) = readiness(watch, look, shared) else { return };
    let verdict = report(wanted, ready);
    watch.interest = verdict.interest;
    kernel::was_told_once(epfd, (index, watch), wanted);
    let asks = wanted & events::OUT != 0 && ready & events::OUT == 0;
    if asks {
        point!(epoll_found_no_room);
    }
    kernel::await_room(epfd, (index, watch), path.filter(|_| asks));
    if verdict.events == 0 {
        return;
    }
    out.push(epoll_event { events: verdict.events, u64: watch.data });
    if verdict.keep {
        watch.listed = true;
        state.ready.push_back(index);
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

/// The same; what has nothing to report has the kernel tell of room, where that is waited for.
pub fn has_news_or_awaits(instance: &Instance, state: &mut State, index: usize) -> bool {
    let path = state.get(index).and_then(|watch| watch.sends());
    let found = has_news(state, index);
    if !found && let Some(watch) = state.get(index) {
        let asks = watch.interest & events::OUT != 0;
        kernel::await_room(instance.raw(), (index, watch), path.filter(|_| asks));
    }
    found
}

/// Empties the completion queues of the instance's vectors into the ready lists.
pub fn pop_queues(instance: &Instance) {
    // Also where there is no queue to look at: a ring that stays in mind would let nobody sleep.
    let heard = instance.hears();
    let vectors = instance.sharers.vectors();
    if vectors == 0 {
        return;
    }
    let heard = if instance.is_heard_elsewhere() { vectors } else { heard };
    let queues = looks::at_rest(vectors & heard).chain(looks::awake(vectors));
    queues.for_each(|queue| pop(queue, instance));
}

fn pop(queue: Queue, by: &Instance) {
    let Some(vector) = queue.vector().filter(|vector| !vector.queue.is_empty()) else { return };
    queue.is_used();
    let link = queue.link;
    // The queue holds what the peer has put there: also a number that no connection has.
    let place_of = |slot| match slot {
        0..SLOTS => {
            let theirs = link.view().section(slot, link.side.other());
            theirs.prod.place.load(Ordering::Relaxed)
        }
        _ => 0,
    };
    vector.queue.pop_all(place_of, |slot| dispatch(link, slot, Some(by)));
}

/// True when a completion is queued, or a connection that is looked at by itself has news.
fn any_news(instance: &Instance) -> bool {
    instance.look_at_inner();
    let vectors = instance.sharers.vectors();
    instance.has_heard()
        || looks::awake(vectors).any(Queue::has_news)
        || (instance.is_heard_elsewhere() && looks::at_rest(vectors).any(Queue::has_news))
        || direct_news(instance)
}

fn direct_news(instance: &Instance) -> bool {
    let mut state = instance.lock();
    if !state.ready.is_empty() {
        return true;
    }
    let has_news = (0..state.direct.len()).any(|i| {
        let index = state.direct[i];
        let seen = state.get(index).is_some_and(|watch| {
            watch.interest & events::ET != 0
                && watch.conn.is_some_and(|c| ready::stamp(c.conn) == watch.stamp)
        });
        !seen && has_news(&mut state, index)
    });
    // The look itself may have promoted a candidate: that counts as news, too.
    has_news || state.has_unregistered()
}

/// A thread that sleeps in an instance, or is about to: the queues are armed as long as this lives,
/// also when the thread is cancelled in its sleep.
struct Armed {
    instance: &'static Instance,
    /// The vectors (a bit each) on which it sleeps.
    vectors: u64,
    queues: Vec<(Queue, &'static ArmLine)>,
}

impl Armed {
    fn new(instance: &'static Instance) -> Self {
        let vectors = instance.sharers.comes_to_sleep(|| instance.lock(), looks::wakes_up);
        looks::comes_to_sleep(vectors);
        let armed = |queue: Queue| Some((queue, &queue.vector()?.arm));
        let queues: Vec<_> = looks::awake(vectors).filter_map(armed).collect();
        for (queue, arm) in &queues {
            // They must outlive the sleep.
            queue.link.users.fetch_add(1, Ordering::AcqRel);
            arm.arm();
        }
        Self { instance, vectors, queues }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        for (queue, arm) in &self.queues {
            arm.disarm();
            queue.link.users.fetch_sub(1, Ordering::AcqRel);
        }
        looks::wakes_up(self.vectors);
        if self.instance.sharers.wakes_up() {
            // The ring that has woken this thread has disarmed those connections for all.
            arm_direct(self.instance);
        }
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

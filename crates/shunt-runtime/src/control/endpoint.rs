//! This process as its peers and the agent know it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicPtr;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Gid, Uid, getegid, geteuid};
use shunt_engine::buffers;
use shunt_shm::arena::{Arena, Record};
use shunt_shm::capture::Rings;
use shunt_shm::counters::{Counters, RunPage, Shard};
use shunt_shm::decisions::Noted;
use shunt_shm::doorbell;
use shunt_shm::holders::Member;
use shunt_shm::lock::Owner;
use shunt_shm::registry::{Registry, life};
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{EndpointId, MAX_VECTORS};
use shunt_wire::counter::Counter;
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;
use shunt_wire::waits::Part;

use crate::calls::tid;
use crate::control::bells::Bells;
use crate::fds::own_fds::{OwnFd, adopt};
use crate::fds::owner::owner_pid;
use crate::knobs;
use crate::probes;
use crate::system::clock;
use crate::system::cores;
use crate::threads::futexes::Word;

/// An endpoint: made at Hello, one per process and agent. It is never freed, because connections
/// that were made with it outlive the conversation with the agent.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name.
    pub id: EndpointId,
    /// Process that said Hello.
    pub pid: u32,
    /// Its user at that time, or of those that it descends from if it was invited: the agent's if the agent is a user's.
    pub user: u32,
    /// Bytes of memory that it may have; `u64::MAX`: no limit.
    memory: u64,
    /// Link groups' connections of this process.
    carried: AtomicU32,
    /// Most bytes of a ring into which it sends.
    ring: AtomicUsize,
    /// Doorbells of the completion vectors.
    pub bells: Bells,
    /// Listeners on this host.
    pub registry: Registry,
    /// Its connections; shared with forks.
    pub arena: Arena,
    /// What captures see of them; shared with forks.
    pub captures: Option<Rings>,
    hint: AtomicUsize,
    /// This process among those that share the arena: the code of a [`Member`].
    member: AtomicU32,
    /// The same of the child that is about to be forked.
    child: AtomicU32,
    /// The same of the one that has forked this process.
    parent: AtomicU32,
    /// It was made by a parent of this process.
    is_inherited: AtomicBool,
    /// The arena is not there any more: see [`Self::is_shed_first`].
    is_shed: AtomicBool,
    /// The endpoint before it: of this process, or inherited.
    older: Option<&'static Self>,
    /// Who waits by each completion vector: epoll instances, and threads in poll.
    load: [AtomicU32; MAX_VECTORS],
}

/// Counters until (and unless) there is an endpoint, so that nothing is lost.
static HOMELESS: Counters = Counters::new();
static NEWEST: AtomicPtr<Endpoint> = AtomicPtr::new(core::ptr::null_mut());
static CURRENT: AtomicPtr<Endpoint> = AtomicPtr::new(core::ptr::null_mut());

impl Endpoint {
    /// The doorbell of its first completion vector.
    ///
    /// # Errors
    /// Those of eventfd(2), and `EMFILE`.
    pub fn make_bell() -> io::Result<OwnFd> {
        Ok(adopt(doorbell::create()?)?)
    }

    fn of(
        (id, pid, user): (EndpointId, u32, u32),
        memory: u64,
        bell: OwnFd,
        (registry, arena, captures): (Registry, Arena, Option<Rings>),
    ) -> Self {
        let bells = Bells::default();
        bells.keep(0, bell);
        Self {
            id,
            pid,
            user,
            memory,
            carried: AtomicU32::new(0),
            ring: AtomicUsize::new(usize::MAX),
            bells,
            registry,
            arena,
            captures,
            hint: AtomicUsize::new(0),
            member: AtomicU32::new(0),
            child: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            is_inherited: AtomicBool::new(false),
            is_shed: AtomicBool::new(false),
            older: Self::newest(),
            load: [const { AtomicU32::new(0) }; MAX_VECTORS],
        }
    }

    /// Takes over what the agent sent, who takes this process for one of `user`.
    ///
    /// # Errors
    /// Those of mapping the memory.
    pub fn new(
        (id, user): (EndpointId, u32),
        memory: u64,
        bell: OwnFd,
        (registry, arena, rings): (OwnedFd, OwnedFd, Option<OwnedFd>),
    ) -> io::Result<&'static Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        cores::ask();
        // Without them it is not captured.
        let captures = rings.as_ref().and_then(|rings| Rings::map(rings).ok());
        let mapped = (Registry::map(&registry)?, Arena::map(&arena)?, captures);
        let endpoint = Self::of((id, pid, user), memory, bell, mapped);
        for fd in [registry, arena].into_iter().chain(rings) {
            shunt_sys::fds::close(fd);
        }
        let endpoint: &'static Self = Box::leak(Box::new(endpoint));
        let at = core::ptr::from_ref(endpoint).cast_mut();
        // Under the lock of the conversation with the agent, as every change here.
        NEWEST.store(at, Ordering::Release);
        CURRENT.store(at, Ordering::Release);
        Ok(endpoint)
    }

    /// One of which no agent knows, for connections that another program has left; for the constructor. The arena is a
    /// fresh one.
    ///
    /// # Errors
    /// Those of mapping the memory.
    pub fn on_its_own(bell: OwnFd, arena: OwnedFd) -> io::Result<&'static Self> {
        let user = rustix::process::geteuid().as_raw();
        let mapped = (Registry::empty()?, Arena::map(&arena)?, None);
        // The pid is that of no process which asks an agent for link groups.
        let endpoint = Self::of((0, 0, user), u64::MAX, bell, mapped);
        shunt_sys::fds::close(arena);
        let endpoint: &'static Self = Box::leak(Box::new(endpoint));
        NEWEST.store(core::ptr::from_ref(endpoint).cast_mut(), Ordering::Release);
        Ok(endpoint)
    }

    fn newest() -> Option<&'static Self> {
        // SAFETY: only ever set to leaked endpoints.
        unsafe { NEWEST.load(Ordering::Acquire).as_ref() }
    }

    /// Every endpoint of this process and, in a forked child, of those that it descends from.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        core::iter::successors(Self::newest(), |endpoint| endpoint.older)
    }

    /// A connection has come to be carried by a link group of this process, or is not any more.
    pub fn carries(&self, one: bool) {
        let before = if one {
            self.carried.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
        } else {
            self.carried.fetch_sub(1, Ordering::Relaxed).wrapping_sub(1)
        };
        self.ring.store(buffers::ring(self.memory, before), Ordering::Relaxed);
    }

    /// Most bytes of a ring into which this process sends, a power of two.
    #[inline]
    #[must_use]
    pub fn longest_ring(&self) -> usize {
        self.ring.load(Ordering::Relaxed)
    }

    /// This process among those that share the arena.
    #[must_use]
    pub fn member(&self) -> Member {
        Member::from_code(self.member.load(Ordering::Acquire))
    }

    /// Sets it.
    pub fn set_member(&self, member: Member) {
        self.member.store(member.code(), Ordering::Release);
    }

    /// Sets it where nothing was set before; else what was.
    pub fn set_member_once(&self, member: Member) -> Result<(), Member> {
        let (ok, no) = (Ordering::AcqRel, Ordering::Acquire);
        let unnamed = Member::UNNAMED.code();
        let set = self.member.compare_exchange(unnamed, member.code(), ok, no);
        set.map(|_| ()).map_err(Member::from_code)
    }

    /// The child that is about to be forked, among those that share the arena.
    #[must_use]
    pub fn child(&self) -> Member {
        Member::from_code(self.child.load(Ordering::Acquire))
    }

    /// Sets it.
    pub fn set_child(&self, member: Member) {
        self.child.store(member.code(), Ordering::Release);
    }

    /// The process that has forked this one, among those that share the arena.
    #[must_use]
    pub fn parent(&self) -> Member {
        Member::from_code(self.parent.load(Ordering::Acquire))
    }

    /// In a forked child: it has another name than its parent from now on.
    pub fn take_name(&self, child: Member) {
        self.parent.store(self.member.load(Ordering::Acquire), Ordering::Release);
        self.set_child(Member::UNNAMED);
        self.set_member(child);
    }

    /// True in a forked child for what was its parent's.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.is_inherited.load(Ordering::Relaxed)
    }

    /// In a forked child, of each that there is.
    pub fn inherit(&self) {
        self.is_inherited.store(true, Ordering::Relaxed);
    }

    /// True once it is given back.
    pub fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Acquire)
    }

    /// True for the first who gives the arena back, of which it holds nothing.
    pub fn is_shed_first(&self) -> bool {
        !self.is_shed.swap(true, Ordering::AcqRel)
    }

    /// While the agent lives that wakes threads whose peer was killed: a word that changes when it ends, and what that is.
    #[must_use]
    pub fn agent(&'static self) -> Option<Word> {
        let word = self.registry.agent();
        let now = word.load(Ordering::Acquire);
        life::is_alive(now).then_some((word, now))
    }

    /// The endpoint of this process, if it has introduced itself to an agent.
    #[must_use]
    pub fn current() -> Option<&'static Self> {
        // SAFETY: only ever set to leaked endpoints.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    /// In a forked child: the parent's endpoint is not ours.
    pub fn forget_in_child() {
        CURRENT.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Where the next record is looked for.
    pub fn hint(&self) -> usize {
        self.hint.load(Ordering::Relaxed)
    }

    /// A fresh record for this process, which is `member` of the arena. `has_ended`: an owner of its locks certainly has.
    #[must_use]
    pub fn allocate(
        &'static self,
        member: Member,
        has_ended: impl Fn(Owner) -> bool,
    ) -> Option<&'static Record> {
        let mut hint = self.hint();
        let record = self.arena.allocate(member, &mut hint);
        self.hint.store(hint, Ordering::Relaxed);
        if let Some(record) = record {
            record.free_locks(has_ended);
            record.id.pid.store(self.pid, Ordering::Relaxed);
        }
        record
    }

    /// Notes a decision about a connection or (without peer) a listener, for `shunt explain`.
    pub fn note(&self, decision: Decision, reason: Option<Reason>, fd: i32, tuple: FourTuple) {
        probes::decided(decision, reason, fd, &tuple);
        let what = Noted { at: clock::wall(), decision, reason, pid: owner_pid(), fd, tuple };
        if let Some(decisions) = self.arena.decisions() {
            decisions.note(&what);
        }
    }

    /// The completion vectors that some have as their own, or had.
    fn own_vectors(&self) -> impl Iterator<Item = usize> {
        (1..MAX_VECTORS).take_while(|vector| self.bells.has(*vector))
    }

    /// A vector that nobody has as its own any more, used from now on.
    pub fn take_idle_vector(&self) -> Option<usize> {
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        self.own_vectors().find(|v| self.load[*v].compare_exchange(0, 1, ok, no).is_ok())
    }

    /// The least used one, used once more from now on.
    pub fn share_vector(&self) -> usize {
        let load = |vector: &usize| self.load[*vector].load(Ordering::Relaxed);
        let least = self.own_vectors().min_by_key(load).unwrap_or(0);
        self.load[least].fetch_add(1, Ordering::AcqRel);
        least
    }

    /// True when another one may be made: by the process whose endpoint it is, up to `SHUNT_VECTORS`.
    pub fn may_have_more_vectors(&self) -> bool {
        let most = knobs::get().vectors.map_or(MAX_VECTORS - 1, usize::from);
        Self::current().is_some_and(|current| core::ptr::eq(current, self))
            && self.own_vectors().count() < most.min(MAX_VECTORS - 1)
    }

    /// The agent has given a doorbell this number; who has made it uses it.
    pub fn add_vector(&self, vector: usize, bell: OwnFd) {
        self.load[vector % MAX_VECTORS].fetch_add(1, Ordering::AcqRel);
        self.bells.keep(vector, bell);
    }

    /// Gives it back.
    pub fn give_vector(&self, vector: usize) {
        self.load[vector % MAX_VECTORS].fetch_sub(1, Ordering::AcqRel);
    }
}

/// The page of `shunt run --summary`, as it was opened.
struct OpenPage {
    page: RunPage,
    /// Who could open it: `shunt run` is of that user and group, or root's.
    by: (Uid, Gid),
}

/// Null: not tried yet.
static PAGE: AtomicPtr<Option<OpenPage>> = AtomicPtr::new(core::ptr::null_mut());

/// What came of it, where it was tried.
fn known_run_page() -> Option<&'static Option<OpenPage>> {
    // SAFETY: null, or leaked by the first of those who set it.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The page of `shunt run --summary`, if there is one. Without a lock: it is asked in signal handlers
/// and in children of a process that was just opening it.
fn run_page() -> Option<&'static RunPage> {
    let open_page = || {
        let path = knobs::get().run_page.as_deref()?;
        let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let page = RunPage::map(&fd).ok();
        shunt_sys::fds::close(fd);
        Some(OpenPage { page: page?, by: (geteuid(), getegid()) })
    };
    let page = |open: &'static Option<OpenPage>| open.as_ref().map(|open| &open.page);
    if let Some(known) = known_run_page() {
        return page(known);
    }
    let new = Box::into_raw(Box::new(open_page()));
    match PAGE.compare_exchange(core::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made by Box::into_raw just now, and never freed once it is in its place.
        Ok(_) => page(unsafe { &*new }),
        Err(first) => {
            // SAFETY: made by Box::into_raw just now, and known to nobody else.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: not null, so leaked by the first of those who set it.
            page(unsafe { &*first })
        }
    }
}

/// A program that is about to start, and cannot add to the page of its run: it starts as another user, and the page is open to
/// the first one alone. Counted as long as this value lives, and from [`Self::has_started`] on for good.
#[derive(Debug)]
pub struct Uncounted(bool);

impl Uncounted {
    /// Looks whether the next program may open the page. Privileges that this one has kept, as setpriv(1) does, go by the exec.
    #[must_use]
    pub fn begin() -> Self {
        let as_now = (geteuid(), getegid());
        // One that is not known yet could not be opened now, where it matters.
        let known = known_run_page().and_then(Option::as_ref);
        let is_lost = known.is_some_and(|open| !as_now.0.is_root() && open.by != as_now);
        if is_lost {
            count(Counter::Uncounted, 1);
        }
        Self(is_lost)
    }

    /// It does not come back.
    pub fn has_started(mut self) {
        self.0 = false;
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        if self.0 {
            // Counters wrap.
            count(Counter::Uncounted, u64::MAX);
        }
    }
}

/// Opens the run's page now: later it may not be permitted.
pub fn open_run_page() {
    let _ = run_page();
}

fn everywhere(f: impl Fn(&Shard)) {
    let thread = tid();
    // A child that has not introduced itself counts with its parent.
    let counts = Endpoint::current().or_else(|| Endpoint::newest().filter(|e| !e.is_shed()));
    f(counts.map_or(&HOMELESS, |e| e.arena.counters()).of(thread));
    if let Some(page) = run_page() {
        f(page.get().of(thread));
    }
}

/// Adds to a total of this process and of its run.
pub fn count(which: Counter, n: u64) {
    if n > 0 {
        everywhere(|c| c.add(which, n));
    }
}

/// Counts a connection end that stays on, or goes back to, TCP.
pub fn decline(why: Reason) {
    everywhere(|c| c.decline(why));
}

/// Counts a wait for several connections.
pub fn count_wait(part: Part, nanos: u64) {
    if let Some(endpoint) = Endpoint::current() {
        endpoint.arena.count_wait_for_several(tid(), part, nanos);
    }
}

/// Counts a listening socket that the agent does not know.
pub fn leave_unregistered(why: Reason) {
    everywhere(|c| c.leave_unregistered(why));
}

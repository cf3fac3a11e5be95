//! Listening sockets, and the agent's knowledge of them.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::net::sockopt::{Timeout, socket_timeout};
use shunt_shm::table::Table;
use shunt_sys::sockinfo;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;

use crate::control::agent_client;
use crate::control::agent_client::Listening;
use crate::control::endpoint::{self, Endpoint};
use crate::control::unregistered::Why;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::owner::owner_pid;
use crate::system::abi;
use crate::system::abi::c_int;
use crate::system::clock;
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::mutex::{Guard, Mutex};

/// How often a busy acceptor looks whether the agent is still there.
const LOOK_EVERY: u64 = 100_000_000;

/// A listening socket, which the agent knows, or does not for some reason. Never freed: connections that
/// it accepted look for their proposals in its table.
#[derive(Debug)]
#[repr(align(8))]
pub struct Listener {
    id: AtomicU64,
    /// Why the agent does not know it, if that is so.
    pub why: Why,
    /// Open proposals of this machine's programs; of one that the agent knows.
    table: Option<Table>,
    /// The same of other machines'.
    far: Option<Table>,
    /// The memory in which that lies, of those that the agent has joined.
    memory: AtomicU32,
    /// Descriptors of this process that name it.
    fds: AtomicU32,
    /// Process that registered it; another (a forked worker) registers itself when it accepts.
    holder: AtomicU32,
    /// How often the process had forked when it registered it.
    forks: AtomicU32,
    /// Endpoint by which it is registered: another one means another agent.
    endpoint: AtomicU64,
    looked: AtomicU64,
    /// Its own address, unless it takes connections to several.
    pub local: Option<Addr>,
    /// The size of a buffer was set, which what it accepts inherits.
    sized: AtomicBool,
    /// A timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`) may have been set, which what it accepts inherits.
    timed: AtomicBool,
    /// Something that only the kernel does was asked for, which what it accepts inherits.
    pub for_kernel: AtomicBool,
}

/// Held while a listener is entered.
static CHANGES: &Mutex<()> = &ACROSS_FORKS.listeners;

/// How often this process has forked, as far as it is known.
static FORKS: &AtomicU32 = &ACROSS_FORKS.count;

/// The process has forked: its child has the listening sockets, too.
pub fn are_inherited() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Held across fork.
pub fn lock_for_fork() -> Guard<'static, ()> {
    CHANGES.lock()
}

impl Listener {
    /// The listener of a descriptor table entry.
    #[must_use]
    pub fn of(entry: Entry) -> Option<&'static Self> {
        match entry.kind() {
            // SAFETY: such entries are made of listeners, which are never freed.
            Kind::Listener => unsafe { entry.ptr::<Self>().as_ref() },
            _ => None,
        }
    }

    /// Where the proposal for a connection that it has accepted would be.
    pub fn proposals(&self, tuple: &FourTuple) -> Option<&Table> {
        if is_local(tuple) { self.table.as_ref() } else { self.far.as_ref() }
    }

    /// Tells the agent of `endpoint` why it does not know the listener.
    pub fn tell(&self, fd: c_int, endpoint: &'static Endpoint) {
        self.why.tell(fd, endpoint);
        // Another thread may have closed its last descriptor meanwhile.
        if self.fds.load(Ordering::Acquire) == 0 {
            self.why.forget();
        }
    }

    /// True when the size of a buffer, or `SO_RCVLOWAT`, may have been set for what it accepts.
    pub fn is_sized(&self) -> bool {
        self.sized.load(Ordering::Relaxed)
    }

    /// The program sets one.
    pub fn set_sized(&self) {
        self.sized.store(true, Ordering::Relaxed);
    }

    /// True when nobody has set a timeout for what it accepts. Another process that has the socket can do so without a word: so only of one
    /// that this process has made known itself, and has not shared by a fork since.
    pub fn has_no_timeouts(&self) -> bool {
        !self.timed.load(Ordering::Relaxed)
            && self.holder.load(Ordering::Relaxed) == owner_pid()
            && self.forks.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed)
    }

    /// The program sets one.
    pub fn set_timed(&self) {
        self.timed.store(true, Ordering::Relaxed);
    }

    /// The program asks for what only the kernel does.
    pub fn set_for_kernel(&self) {
        self.for_kernel.store(true, Ordering::Relaxed);
    }

    /// One more descriptor.
    pub fn retain(&self) {
        self.fds.fetch_add(1, Ordering::AcqRel);
    }

    /// A descriptor less.
    pub fn release(&self) {
        if self.fds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        self.why.forget();
        self.leave_agent();
    }

    /// Whoever has registered it says that it is not served any more.
    fn leave_agent(&self) {
        if self.holder.load(Ordering::Relaxed) != owner_pid() {
            settle_inheritance();
        } else if self.why.reason().is_none() {
            let id = self.id.load(Ordering::Relaxed);
            if self.forks.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed) {
                agent_client::unlisten(id);
            } else {
                agent_client::bequeath(id);
            }
        }
    }

    /// Registers again when this process has not yet, or when the agent has gone: a new agent knows
    /// nothing of us.
    pub fn keep_registered(&'static self, fd: c_int) {
        let now = clock::now();
        let pid = owner_pid();
        let holder = self.holder.load(Ordering::Relaxed);
        if holder == pid {
            if now.saturating_sub(self.looked.load(Ordering::Relaxed)) < LOOK_EVERY {
                return;
            }
            self.looked.store(now, Ordering::Relaxed);
            let known = self.endpoint.load(Ordering::Relaxed);
            let memory = self.memory.load(Ordering::Relaxed);
            let is_same = |e: &Endpoint| e.id == known && e.registry.memory() == memory;
            if self.why.reason().is_none()
                && !agent_client::hung_up()
                && agent_client::endpoint().is_ok_and(is_same)
            {
                return;
            }
        }
        if let Err(why) = register(fd)
            && self.why.reason().is_some()
        {
            self.why.change(why);
            self.looked.store(now, Ordering::Relaxed);
            self.holder.store(pid, Ordering::Relaxed);
        }
    }

    /// One that is not registered.
    fn unregistered(why: Reason) -> Self {
        Self {
            id: AtomicU64::new(0),
            why: Why::because(why),
            table: None,
            far: None,
            memory: AtomicU32::new(0),
            fds: AtomicU32::new(1),
            holder: AtomicU32::new(owner_pid()),
            forks: AtomicU32::new(0),
            endpoint: AtomicU64::new(0),
            looked: AtomicU64::new(clock::now()),
            local: None,
            sized: AtomicBool::new(false),
            timed: AtomicBool::new(true),
            for_kernel: AtomicBool::new(false),
        }
    }
}

/// Lets go of what keeps inherited listeners listed when none is left.
fn settle_inheritance() {
    let pid = owner_pid();
    let others =
        |(_, entry)| Listener::of(entry).is_some_and(|l| l.holder.load(Ordering::Relaxed) != pid);
    if !fd_table::of_program().any(others) {
        agent_client::let_go_of_inherited();
    }
}

/// Registers the listening socket `fd` and enters it in the table.
pub fn register(fd: c_int) -> Result<&'static Listener, Reason> {
    let registered = enter(fd)?;
    settle_inheritance();
    Ok(registered)
}

fn enter(fd: c_int) -> Result<&'static Listener, Reason> {
    // Before it is asked for: should it change meanwhile, it is asked for again.
    let memory = agent_client::endpoint()?.registry.memory();
    let forks = FORKS.load(Ordering::Relaxed);
    let Listening { listener: id, table, shared, endpoint } =
        agent_client::listen(abi::borrow(fd))?;
    let _changes = CHANGES.lock();
    let known = Listener::of(fd_table::lookup(fd));
    let is_same = |l: &&Listener| {
        l.id.load(Ordering::Relaxed) == id && l.memory.load(Ordering::Relaxed) == memory
    };
    if let Some(same) = known.filter(is_same) {
        if same.holder.swap(endpoint.pid, Ordering::Relaxed) != endpoint.pid {
            same.forks.store(forks, Ordering::Relaxed);
            same.set_timed();
        }
        same.endpoint.store(endpoint.id, Ordering::Relaxed);
        shunt_sys::fds::close(table);
        if let Some((memory, _)) = shared {
            shunt_sys::fds::close(memory);
        }
        return Ok(same);
    }
    let mapped = Table::map(&table).map_err(|_| Reason::NoResources);
    shunt_sys::fds::close(table);
    let far = shared.and_then(|(memory, at)| {
        let far = Table::map_device(&memory, usize::try_from(at).ok()?).ok();
        shunt_sys::fds::close(memory);
        far
    });
    let listener = Listener {
        id: AtomicU64::new(id),
        why: Why::default(),
        table: Some(mapped?),
        far,
        memory: AtomicU32::new(memory),
        fds: AtomicU32::new(1),
        holder: AtomicU32::new(endpoint.pid),
        forks: AtomicU32::new(forks),
        endpoint: AtomicU64::new(endpoint.id),
        looked: AtomicU64::new(clock::now()),
        local: sockinfo::local_addr(abi::borrow(fd)).ok().filter(|addr| !addr.is_unspecified()),
        sized: AtomicBool::new(
            sockinfo::buffer_is_set(abi::borrow(fd)).unwrap_or(true)
                || sockinfo::low_water(abi::borrow(fd)) != Some(1),
        ),
        timed: AtomicBool::new(
            [Timeout::Recv, Timeout::Send]
                .into_iter()
                .any(|which| !matches!(socket_timeout(abi::borrow(fd), which), Ok(None))),
        ),
        for_kernel: AtomicBool::new(sockinfo::asks_for_kernel(abi::borrow(fd))),
    };
    let listener = put(fd, known, listener);
    note(fd, None);
    Ok(listener)
}

/// Notes what has become of a listening socket, for `shunt explain`.
fn note(fd: c_int, why: Option<Reason>) {
    if let (Some(endpoint), Ok(local)) =
        (Endpoint::current(), sockinfo::local_addr(abi::borrow(fd)))
    {
        let decision = why.map_or(Decision::Listening, |_| Decision::Unregistered);
        endpoint.note(decision, why, fd, FourTuple { local, peer: Addr::default() });
    }
}

/// Enters a listener, in the place of what was known of it. Under the lock.
fn put(fd: c_int, known: Option<&'static Listener>, listener: Listener) -> &'static Listener {
    if let Some(known) = known {
        listener.fds.store(known.fds.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let listener: &'static Listener = Box::leak(Box::new(listener));
    let new = Entry::new(Kind::Listener, core::ptr::from_ref(listener));
    match known {
        // Each of its descriptors leads to the new one from now on.
        Some(known) => {
            known.why.forget();
            let old = Entry::new(Kind::Listener, core::ptr::from_ref(known));
            for (fd, entry) in fd_table::of_program() {
                if entry == old {
                    fd_table::replace_if(fd, old, new);
                }
            }
        }
        None => {
            fd_table::set(fd, new);
        }
    }
    listener
}

/// The agent does not know the listening socket `fd`, or shall not any more.
pub fn leave_unregistered(fd: c_int, why: Reason) {
    let changes = CHANGES.lock();
    let before = Listener::of(fd_table::lookup(fd));
    if let Some(known) = before.filter(|listener| listener.why.reason().is_some()) {
        return known.why.change(why);
    }
    let listener = put(fd, before, Listener::unregistered(why));
    drop(changes);
    endpoint::leave_unregistered(why);
    note(fd, Some(why));
    if let Some(before) = before {
        before.leave_agent();
    }
    let is_there = Listener::of(fd_table::lookup(fd)).is_some_and(|l| core::ptr::eq(l, listener));
    if let Some(endpoint) = Endpoint::current().filter(|_| is_there) {
        listener.tell(fd, endpoint);
    }
}

/// Registers the listeners that this process has inherited, before it becomes another user.
pub fn register_inherited() {
    let pid = owner_pid();
    for (fd, entry) in fd_table::of_program() {
        if Listener::of(entry).is_some_and(|l| l.holder.load(Ordering::Relaxed) != pid) {
            let _ = register(fd);
        }
    }
}

/// True for a connection that does not leave the machine, as far as addresses tell.
pub fn is_local(tuple: &FourTuple) -> bool {
    tuple.local.ip == tuple.peer.ip || (tuple.local.is_loopback() && tuple.peer.is_loopback())
}

/// A conversation with an agent has begun.
pub fn tell_all(endpoint: &'static Endpoint) {
    let mut told = core::ptr::null();
    for (fd, entry) in fd_table::of_program() {
        // Duplicates mostly follow each other; a place that is told of twice is the later one.
        if let Some(listener) = Listener::of(entry).filter(|l| !core::ptr::eq(*l, told)) {
            listener.tell(fd, endpoint);
            told = listener;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    #[test]
    fn of_timeouts_nobody_is_sure_who_shares_the_socket() {
        let fresh = || {
            let listener = Listener::unregistered(Reason::NoResources);
            listener.timed.store(false, Ordering::Relaxed);
            listener.forks.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
            listener
        };
        assert!(in_child(|| {
            assert!(!Listener::unregistered(Reason::NoResources).has_no_timeouts());
            assert!(fresh().has_no_timeouts());
            let listener = fresh();
            listener.set_timed();
            assert!(!listener.has_no_timeouts());
            let listener = fresh();
            listener.holder.store(owner_pid() + 1, Ordering::Relaxed);
            assert!(!listener.has_no_timeouts(), "another process has made it known");
            let listener = fresh();
            are_inherited();
            !listener.has_no_timeouts()
        }));
    }
}

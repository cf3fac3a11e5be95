//! Making connections on the server's side: listen and accept.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::{O_NONBLOCK, SOCK_NONBLOCK};
use shunt_engine::handshake::Phase;
use shunt_shm::arena::Record;
use shunt_shm::table::Table;
use shunt_sys::{memory, sockinfo};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::abi;
use crate::abi::{address, c_int, sockaddr, socklen_t};
use crate::activity;
use crate::agent_client::Listening;
use crate::conn::{Conn, NONBLOCK, Sock};
use crate::contain::contain_uncancelled;
use crate::endpoint::{self, Endpoint};
use crate::errno::KeepErrno;
use crate::fd_table::{self, Entry, Kind};
use crate::mutex::Mutex;
use crate::ops::stdio;
use crate::ops::unregistered::Why;
use crate::owner::{may_mutate, owner_pid};
use crate::panics;
use crate::points::point;
use crate::relatives;
use crate::signals::{SettingUp, Uninterrupted};
use crate::stream::{offered, promote};
use crate::{agent_client, clock, fresh, next};

/// How often a busy acceptor looks whether the agent is still there.
const LOOK_EVERY: u64 = 100_000_000;

/// A listening socket, which the agent knows, or does not for some reason. Never freed: connections that
/// it accepted look for their proposals in its table.
#[derive(Debug)]
#[repr(align(8))]
pub struct Listener {
    id: AtomicU64,
    /// Why the agent does not know it, if that is so.
    why: Why,
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
    /// Endpoint by which it is registered: another one means another agent.
    endpoint: AtomicU64,
    looked: AtomicU64,
    /// Its own address, unless it takes connections to several.
    local: Option<Addr>,
    /// The size of a buffer was set, which what it accepts inherits.
    sized: AtomicBool,
    /// Something that only the kernel does was asked for, which what it accepts inherits.
    for_kernel: AtomicBool,
    /// Whether it pays to wait for bytes on what it accepts: what [`spin`](crate::stream::spin) has
    /// learnt.
    pub spins: AtomicU32,
}

/// Held while a listener is entered.
static CHANGES: Mutex<()> = Mutex::new(());

/// Held across fork.
pub fn lock_for_fork() -> impl Sized {
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
            agent_client::unlisten(self.id.load(Ordering::Relaxed));
        }
    }

    /// Registers again when this process has not yet, or when the agent has gone: a new agent knows
    /// nothing of us.
    fn keep_registered(&'static self, fd: c_int) {
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
            endpoint: AtomicU64::new(0),
            looked: AtomicU64::new(clock::now()),
            local: None,
            sized: AtomicBool::new(false),
            for_kernel: AtomicBool::new(false),
            spins: AtomicU32::new(0),
        }
    }
}

/// Lets go of what keeps inherited listeners listed when none is left.
fn settle_inheritance() {
    let pid = owner_pid();
    let others =
        |(_, entry)| Listener::of(entry).is_some_and(|l| l.holder.load(Ordering::Relaxed) != pid);
    if !fd_table::iter(0..=fd_table::high_water()).any(others) {
        agent_client::let_go_of_inherited();
    }
}

/// Registers the listening socket `fd` and enters it in the table.
fn register(fd: c_int) -> Result<&'static Listener, Reason> {
    let registered = enter(fd)?;
    settle_inheritance();
    Ok(registered)
}

fn enter(fd: c_int) -> Result<&'static Listener, Reason> {
    // Before it is asked for: should it change meanwhile, it is asked for again.
    let memory = agent_client::endpoint()?.registry.memory();
    let Listening { listener: id, table, shared, endpoint } =
        agent_client::listen(abi::borrow(fd))?;
    let _changes = CHANGES.lock();
    let known = Listener::of(fd_table::lookup(fd));
    let is_same = |l: &&Listener| {
        l.id.load(Ordering::Relaxed) == id && l.memory.load(Ordering::Relaxed) == memory
    };
    if let Some(same) = known.filter(is_same) {
        same.holder.store(endpoint.pid, Ordering::Relaxed);
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
        endpoint: AtomicU64::new(endpoint.id),
        looked: AtomicU64::new(clock::now()),
        local: sockinfo::local_addr(abi::borrow(fd)).ok().filter(|addr| !addr.is_unspecified()),
        sized: AtomicBool::new(
            sockinfo::buffer_is_set(abi::borrow(fd)).unwrap_or(true)
                || sockinfo::low_water(abi::borrow(fd)) != Some(1),
        ),
        for_kernel: AtomicBool::new(sockinfo::asks_for_kernel(abi::borrow(fd))),
        spins: AtomicU32::new(0),
    };
    Ok(put(fd, known, listener))
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
            for (fd, entry) in fd_table::iter(0..=fd_table::high_water()) {
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
    for (fd, entry) in fd_table::iter(0..=fd_table::high_water()) {
        if Listener::of(entry).is_some_and(|l| l.holder.load(Ordering::Relaxed) != pid) {
            let _ = register(fd);
        }
    }
}

/// # Safety
/// As the C function.
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    if fd >= 0 {
        forget_stale(fd);
        let _keep = KeepErrno::new();
        contain_uncancelled(|| {
            point!(socket_made);
            fresh::note(fd, domain, kind, protocol);
        });
    }
    fd
}

/// A number that the kernel just gave out was closed before, if behind the table's back.
fn forget_stale(fd: c_int) {
    if fd >= 0 && fd_table::lookup(fd) != Entry::KERNEL && may_mutate() {
        let _keep = KeepErrno::new();
        let entry = fd_table::take(fd);
        if entry.is_object() {
            crate::object::abandoned(fd, entry);
        }
    }
}

/// # Safety
/// As the C function.
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::bind(fd, addr, len) }
}

/// # Safety
/// As the C function.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    let concerns_us = || match Listener::of(entry) {
        Some(listener) => listener.why.reason().is_some(),
        None => is_plain(entry) && fresh::is_tcp(fd, entry),
    };
    let ours = (activity::active() || activity::retired()) && concerns_us() && may_mutate();
    if ours && activity::active() {
        let _keep = KeepErrno::new();
        let _ = SettingUp::begin().map(|_setting_up| offered::before_listen(fd));
    }
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::listen(fd, backlog) };
    if result == 0 && ours {
        let _keep = KeepErrno::new();
        contain_uncancelled(|| {
            point!(listen_done);
            let Some(_setting_up) = SettingUp::begin() else { return };
            let registered =
                if activity::retired() { Err(Reason::Bypassed) } else { register(fd).map(|_| ()) };
            // A later agent finds it at the next listen or accept.
            if let Err(why) = registered {
                leave_unregistered(fd, why);
            }
        });
    }
    result
}

/// True for what is no business of Shunt's yet.
pub(super) const fn is_plain(entry: Entry) -> bool {
    matches!(entry.kind(), Kind::Kernel | Kind::Fresh)
}

/// # Safety
/// As the C function.
pub unsafe fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { accepted(fd, None, PeerOut { addr, len }, || next::accept(fd, addr, len)) }
}

/// # Safety
/// As the C function.
pub unsafe fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe {
        accepted(fd, Some(flags), PeerOut { addr, len }, || next::accept4(fd, addr, len, flags))
    }
}

/// Where accept(2) puts the peer's address: null, or `len` bytes.
#[derive(Clone, Copy)]
struct PeerOut {
    addr: *mut sockaddr,
    len: *mut socklen_t,
}

impl PeerOut {
    /// The room there, in bytes; none where the program's length can't be read, of which the kernel will tell
    /// when it has accepted.
    fn room(&self) -> socklen_t {
        if self.addr.is_null() || !self.has_length() {
            return 0;
        }
        // SAFETY: the length can be read.
        unsafe { self.len.read_unaligned() }
    }

    /// True when there is a length. The kernel is asked about one that the thread did not use just before.
    fn has_length(&self) -> bool {
        thread_local! {
            static KNOWN: Cell<*mut socklen_t> = const { Cell::new(core::ptr::null_mut()) };
        }
        let has = !self.len.is_null()
            && (KNOWN.get() == self.len
                || memory::is_readable(self.len.addr(), size_of::<socklen_t>()));
        if has {
            KNOWN.set(self.len);
        }
        has
    }
}

/// # Safety
/// `peer` is what accept(2) asks for.
unsafe fn accepted(
    fd: c_int,
    flags: Option<c_int>,
    peer: PeerOut,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let room = peer.room();
    // Another thread may close the descriptor meanwhile, and open another file by its number.
    let entry = fd_table::lookup(fd);
    let new = kernel();
    if new < 0 {
        return new;
    }
    let look = || {
        point!(accept_done);
        forget_stale(new);
        if activity::retired() && entry.kind() == Kind::Listener {
            endpoint::count(Counter::Connections, 1);
            endpoint::decline(Reason::Bypassed);
        }
        if !activity::active() || matches!(entry.kind(), Kind::Stream | Kind::Tracked | Kind::Epoll)
        {
            return;
        }
        if may_mutate() {
            let _keep = KeepErrno::new();
            // Both parts want it: once is cheaper.
            let _uninterrupted = Uninterrupted::begin();
            let nonblocking = flags.is_some_and(|f| f & SOCK_NONBLOCK != 0);
            // SAFETY: the kernel has just written as many bytes as there is room for, or less.
            let peer = unsafe { address(peer.addr, room.min(peer.room())) };
            if let Some(conn) = take_up(fd, entry, new, nonblocking, peer) {
                promote::at_accept(conn);
            }
        }
    };
    // The kernel has accepted the connection, which is the program's whatever becomes of this.
    if !contain_uncancelled(look)
        && let Some(conn) = Conn::named(new)
    {
        panics::give_back(conn);
    }
    new
}

/// Notes an accepted connection; the candidate, if it is one.
fn take_up(
    fd: c_int,
    entry: Entry,
    new: c_int,
    nonblocking: bool,
    peer: Option<Addr>,
) -> Option<Conn> {
    let _setting_up = SettingUp::begin()?;
    let listener = match Listener::of(entry) {
        Some(listener) if fd_table::lookup(fd) == entry => {
            listener.keep_registered(fd);
            Listener::of(fd_table::lookup(fd)).unwrap_or(listener)
        }
        Some(listener) => listener,
        // Inherited over exec, or listening since before there was an agent.
        None if sockinfo::is_tcp(abi::borrow(new)) => match register(fd) {
            Ok(listener) => listener,
            Err(why) => {
                endpoint::count(Counter::Connections, 1);
                endpoint::decline(why);
                leave_unregistered(fd, why);
                return None;
            }
        },
        None => return None,
    };
    endpoint::count(Counter::Connections, 1);
    if let Some(why) = listener.why.reason() {
        endpoint::decline(why);
        return None;
    }
    let local = listener.local.map_or_else(|| sockinfo::local_addr(abi::borrow(new)), Ok);
    let peer = peer.map_or_else(|| sockinfo::peer_addr(abi::borrow(new)), Ok);
    let (Ok(local), Ok(peer)) = (local, peer) else {
        return None;
    };
    let tuple = FourTuple { local, peer };
    let Some(sock) = track(new, &tuple) else {
        endpoint::decline(Reason::TooManyConnections);
        return None;
    };
    sock.put(NONBLOCK, nonblocking);
    sock.set_listener(listener);
    sock.begin_learnt();
    let conn = Conn::new(new, sock);
    point!(accept_tracked);
    let offered = offered::look_at_accepted(sock, new, fd);
    if listener.for_kernel.load(Ordering::Relaxed) && sockinfo::asks_for_kernel(abi::borrow(new)) {
        fd_table::set(new, sock.entry(Kind::Tracked));
        conn.decline(Reason::Unsupported);
        None
    } else if stdio::uses(new) {
        fd_table::set(new, sock.entry(Kind::Tracked));
        conn.decline(Reason::HandedOver);
        None
    } else if listener.proposals(&tuple).is_some() || offered.is_ok() {
        sock.set_phase(Phase::Candidate);
        sock.record().id.reason.store(Reason::Pending as u32, Ordering::Relaxed);
        fd_table::set(new, sock.entry(Kind::Stream));
        point!(accept_entered);
        Some(conn)
    } else {
        fd_table::set(new, sock.entry(Kind::Tracked));
        conn.decline(offered.err().unwrap_or(Reason::Remote));
        None
    }
}

/// A record and a handle for a connection.
pub fn track(fd: c_int, tuple: &FourTuple) -> Option<&'static Sock> {
    let endpoint = agent_client::endpoint().ok()?;
    let record: &'static Record = relatives::new_record(endpoint)?;
    record.id.set_tuple(tuple);
    record.id.fd.store(fd, Ordering::Relaxed);
    record.id.since.store(clock::now(), Ordering::Relaxed);
    let sock = Sock::new(record, endpoint);
    if sock.is_none() {
        record.id.live.store(0, Ordering::Release);
    }
    sock
}

pub(super) fn is_nonblocking(fd: c_int) -> bool {
    rustix::fs::fcntl_getfl(abi::borrow(fd))
        .is_ok_and(|flags| flags.bits() & O_NONBLOCK.cast_unsigned() != 0)
}

/// True for a connection that does not leave the machine, as far as addresses tell.
pub(super) fn is_local(tuple: &FourTuple) -> bool {
    tuple.local.ip == tuple.peer.ip || (tuple.local.is_loopback() && tuple.peer.is_loopback())
}

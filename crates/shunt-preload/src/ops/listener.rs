//! Making connections on the server's side: listen and accept.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use libc::{O_NONBLOCK, SOCK_NONBLOCK};
use shunt_engine::handshake::Phase;
use shunt_sys::{memory, sockinfo};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::next;
use crate::ops::stdio;
use crate::panics;
use shunt_runtime::activity;
use shunt_runtime::conn::{Conn, NONBLOCK};
use shunt_runtime::contain::contain_uncancelled;
use shunt_runtime::control::endpoint;
use shunt_runtime::control::listener::{Listener, leave_unregistered, register};
use shunt_runtime::fds::fd_table::{self, Entry, Kind};
use shunt_runtime::fds::fresh;
use shunt_runtime::fds::owner::may_mutate;
use shunt_runtime::point;
use shunt_runtime::processes::close;
use shunt_runtime::processes::open::track;
use shunt_runtime::stream::decline::decline;
use shunt_runtime::stream::{offered, promote};
use shunt_runtime::system::abi;
use shunt_runtime::system::abi::{address, c_int, sockaddr, socklen_t};
use shunt_runtime::system::errno::KeepErrno;
use shunt_runtime::threads::signals::{SettingUp, Uninterrupted};

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
            close::abandoned(fd, entry);
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
        decline(conn, Reason::Unsupported);
        None
    } else if stdio::uses(new) {
        fd_table::set(new, sock.entry(Kind::Tracked));
        decline(conn, Reason::HandedOver);
        None
    } else if listener.proposals(&tuple).is_some() || offered.is_ok() {
        sock.set_phase(Phase::Candidate);
        sock.record().id.reason.store(Reason::Pending as u32, Ordering::Relaxed);
        fd_table::set(new, sock.entry(Kind::Stream));
        point!(accept_entered);
        Some(conn)
    } else {
        fd_table::set(new, sock.entry(Kind::Tracked));
        decline(conn, offered.err().unwrap_or(Reason::Remote));
        None
    }
}

pub(super) fn is_nonblocking(fd: c_int) -> bool {
    rustix::fs::fcntl_getfl(abi::borrow(fd))
        .is_ok_and(|flags| flags.bits() & O_NONBLOCK.cast_unsigned() != 0)
}

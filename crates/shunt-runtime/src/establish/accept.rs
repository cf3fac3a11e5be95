//! accept(2).

use core::cell::Cell;
use core::sync::atomic::Ordering;

use libc::SOCK_NONBLOCK;
use shunt_engine::handshake::Phase;
use shunt_sys::{memory, sockinfo};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::counter::Counter;
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;

use crate::activity;
use crate::conn::{Conn, NONBLOCK};
use crate::contain::contain_uncancelled;
use crate::control::endpoint;
use crate::control::listener::{Listener, leave_unregistered, register};
use crate::establish::socket::forget_stale;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::owner::owns_process_state;
use crate::fds::stdio;
use crate::panics;
use crate::point;
use crate::processes::open::track;
use crate::stream::decline::decline;
use crate::stream::{brokered, promote};
use crate::system::abi;
use crate::system::abi::{address, c_int, sockaddr, socklen_t};
use crate::system::errno::KeepErrno;
use crate::threads::signals::{SettingUp, Uninterrupted};

/// accept4(2) with these flags, by `kernel`, which writes the peer's address to `peer`.
///
/// # Safety
/// `peer` is what accept(2) asks for.
pub unsafe fn accept(
    fd: c_int,
    flags: c_int,
    peer: PeerOut,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let room = peer.room();
    // SAFETY: asked for when the kernel has just written as many bytes as there is room for, or less.
    let from = || unsafe { address(peer.addr, room.min(peer.room())) };
    accept_from(fd, flags & SOCK_NONBLOCK != 0, kernel, from)
}

/// Where accept(2) puts the peer's address: null, or `len` bytes.
#[derive(Clone, Copy, Debug)]
pub struct PeerOut {
    /// Where the address goes.
    pub addr: *mut sockaddr,
    /// How much room there is, and then how long the address is.
    pub len: *mut socklen_t,
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

/// Accepts a connection, by `kernel`. `peer`: its address, where the kernel has told the program.
fn accept_from(
    fd: c_int,
    nonblocking: bool,
    kernel: impl FnOnce() -> c_int,
    peer: impl FnOnce() -> Option<Addr>,
) -> c_int {
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
        if owns_process_state() {
            let _keep = KeepErrno::new();
            // Both parts want it: once is cheaper.
            let _uninterrupted = Uninterrupted::begin();
            if let Some(conn) = take_up(fd, entry, new, nonblocking, peer()) {
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
    if listener.has_no_timeouts() {
        sock.record().rx.timeout.set_none();
        sock.record().tx.timeout.set_none();
    }
    sock.begin_learnt();
    let conn = Conn::new(new, sock);
    point!(accept_tracked);
    let offered = brokered::look_at_accepted(sock, new, fd);
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
        sock.note(Decision::Accepted, None);
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

//! accept(2).

use core::sync::atomic::Ordering;

use shunt_engine::handshake::Phase;
use shunt_sys::sockinfo;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::activity;
use crate::conn::{Conn, NONBLOCK};
use crate::contain::contain_uncancelled;
use crate::control::endpoint;
use crate::control::listener::{Listener, leave_unregistered, register};
use crate::establish::socket::forget_stale;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::owner::may_mutate;
use crate::fds::stdio;
use crate::panics;
use crate::point;
use crate::processes::open::track;
use crate::stream::decline::decline;
use crate::stream::{offered, promote};
use crate::system::abi;
use crate::system::abi::c_int;
use crate::system::errno::KeepErrno;
use crate::threads::signals::{SettingUp, Uninterrupted};

/// Accepts a connection, by `kernel`. `peer`: its address, where the kernel has told the program.
pub fn accept(
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
        if may_mutate() {
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

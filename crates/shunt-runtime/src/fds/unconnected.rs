//! The state of a TCP socket that the program has just made, so that connecting it asks the kernel
//! nothing twice.
//!
//! The library relies on it only as long as no other process has the socket, and no option was set
//! that matters. It asks the kernel about a socket that was duplicated, or shared by a fork, or was
//! given a buffer size or a timeout.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{AF_INET, AF_INET6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};
use shunt_sys::sockinfo;

use crate::activity;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::owner::owns_process_state;
use crate::system::abi;

/// The network namespace (`SO_NETNS_COOKIE`) that sockets of this process are made in; 0: not asked yet.
static NETNS: AtomicU64 = AtomicU64::new(0);
/// Some thread has moved to another one: each socket is asked.
static NETNS_VARIES: AtomicBool = AtomicBool::new(false);
/// The first one was asked: such sockets are TCP, and not MPTCP, as a wrapper or a BPF program can have it.
/// One that begins to do so later is not noticed.
static IS_TCP: AtomicBool = AtomicBool::new(false);

/// The program has made a socket.
pub fn note(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    if matches!(domain, AF_INET | AF_INET6)
        && kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) == SOCK_STREAM
        && matches!(protocol, 0 | IPPROTO_TCP)
        && activity::active()
        && owns_process_state()
        && (IS_TCP.load(Ordering::Relaxed) || sockinfo::is_tcp(abi::borrow(fd)))
    {
        IS_TCP.store(true, Ordering::Relaxed);
        fd_table::set(fd, Entry::unconnected());
    }
}

/// Whether the descriptor is a TCP socket.
pub fn is_tcp(fd: c_int, entry: Entry) -> bool {
    entry.kind() == Kind::Unconnected || sockinfo::is_tcp(abi::borrow(fd))
}

/// The socket's network namespace.
pub fn netns(fd: c_int, entry: Entry) -> u64 {
    let ask = || sockinfo::netns_cookie(abi::borrow(fd));
    if entry.kind() != Kind::Unconnected || NETNS_VARIES.load(Ordering::Relaxed) {
        return ask();
    }
    match NETNS.load(Ordering::Relaxed) {
        0 => {
            let netns = ask();
            NETNS.store(netns, Ordering::Relaxed);
            netns
        }
        known => known,
    }
}

/// A thread is about to move to another network namespace, maybe.
pub fn netns_changes() {
    NETNS_VARIES.store(true, Ordering::Relaxed);
}

/// The socket gets another descriptor, or goes to another process.
pub fn forget(fd: c_int, entry: Entry) {
    match entry.kind() {
        Kind::Unconnected => fd_table::replace_if(fd, entry, Entry::KERNEL),
        Kind::Connecting => fd_table::replace_if(fd, entry, entry.no_longer_fresh()),
        _ => return,
    };
}

/// Around a fork: what was fresh is shared from now on, and the child may be in another namespace.
pub fn forget_all() {
    // A page that is written to is copied after a fork.
    if NETNS.load(Ordering::Relaxed) != 0 {
        NETNS.store(0, Ordering::Relaxed);
    }
    for (fd, entry) in fd_table::of_program() {
        forget(fd, entry);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;
    use crate::fds::owner::claim;

    #[test]
    fn what_is_known_of_a_socket_is_what_the_kernel_would_say() {
        assert!(fd_table::reserve() && claim());
        // SAFETY: no pointers; the number is a new descriptor of this test's.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(AF_INET, SOCK_STREAM, 0)) };
        let fd = socket.as_raw_fd();
        let fresh = Entry::unconnected();
        assert_eq!(fresh.kind(), Kind::Unconnected);
        assert!(!fresh.is_object());
        assert_ne!(fresh, Entry::unconnected());
        assert!(is_tcp(fd, fresh) && is_tcp(fd, Entry::KERNEL));
        let asked = netns(fd, Entry::KERNEL);
        assert_eq!([netns(fd, fresh), netns(fd, fresh)], [asked; 2]);
    }

    #[test]
    fn a_fork_leaves_nothing_fresh() {
        assert!(fd_table::reserve());
        let fd = 20_021;
        fd_table::set(fd, Entry::unconnected());
        forget_all();
        assert_eq!(fd_table::lookup(fd), Entry::KERNEL);
    }
}

//! A fork's effect on all parts of the library, in order.

use shunt_engine::handshake::Phase;
use shunt_shm::lock;

use crate::activity;
use crate::calls;
use crate::conn::Conn;
use crate::control::endpoint::Endpoint;
use crate::control::listener;
use crate::control::listener::Listener;
use crate::control::{agent_client, link};
use crate::epoll;
use crate::fds::{fd_table, unconnected};
use crate::memory::{exports, imports};
use crate::point;
use crate::processes::fork_sharing;
use crate::stream::alarm;
use crate::stream::promote;
use crate::threads::kept::Kept;
use crate::threads::mutex::Guard;

/// Locks that are held across fork, so that no other thread has them while the child comes to be: in the order in which they nest. They stay in
/// the thread's memory, as each page that is written costs two copies after a fork.
struct Locks {
    _epoll: epoll::table::ForkLocks,
    _listeners: Guard<'static, ()>,
    _links: link::ForkLocks,
    _agent: agent_client::ForkLocks,
    _exports: lock::Guard<'static>,
    _imports: Guard<'static, ()>,
}

thread_local! {
    static LOCKS: Kept<Locks> = const { Kept::none() };
}

/// The process is about to fork, and the program's own handlers have run.
pub fn prepare() {
    unconnected::forget_all();
    take_answers();
    if activity::active() {
        agent_client::invite_child();
    }
    fork_sharing::fork_begins();
    let held = Locks {
        _epoll: epoll::table::lock_for_fork(),
        _listeners: listener::lock_for_fork(),
        _links: link::lock_for_fork(),
        _agent: agent_client::lock_for_fork(),
        _exports: exports::lock_for_fork(),
        _imports: imports::lock_for_fork(),
    };
    LOCKS.with(|locks| locks.put(held));
    fork_sharing::fork_prepare();
    point!(fork_prepared);
}

/// Clients' ends that were taken up go into the ring. A child could not: the agent gives the acceptor's doorbells to the process alone
/// that has connected. And where it becomes another program it would have to leave a ring into which it never went.
fn take_answers() {
    for (fd, entry) in fd_table::of_program() {
        if let Some(conn) = Conn::of(fd, entry).filter(|conn| conn.phase() == Phase::Proposed) {
            promote::poll_handshake(conn);
        }
    }
}

/// The process has forked (or failed to); this is the parent, and the program's own handlers are next.
pub fn in_parent() {
    point!(fork_parent);
    drop(LOCKS.with(Kept::take));
    listener::are_inherited();
    agent_client::child_has_come();
    fork_sharing::fork_parent();
}

/// The same after a panic in it.
pub fn in_parent_again() {
    drop(LOCKS.with(Kept::take));
    listener::are_inherited();
    agent_client::child_has_come();
    fork_sharing::fork_parent();
}

/// The process has forked; this is the child, with one thread, before the program's own handlers.
/// [`prepare`] did not run if the program forked by a raw system call.
pub fn in_child() {
    point!(fork_child);
    drop(LOCKS.with(Kept::take));
    calls::fork_child();
    unconnected::forget_all();
    promote::forget_in_child();
    agent_client::forget_in_child(has_listeners());
    Endpoint::forget_in_child();
    link::forget_in_child();
    fork_sharing::fork_child();
    alarm::fork_child();
    point!(fork_counted);
    epoll::table::forget_in_child();
    point!(fork_adopted);
}

fn has_listeners() -> bool {
    fd_table::of_program().any(|(_, entry)| Listener::of(entry).is_some())
}

//! What becomes of a connection when the library panics in a call on it.
//!
//! The guard contains the panic and the call goes on to libc, so the connection must be in a state
//! that libc's function and the peer understand:
//!
//! * Nothing was changed yet: the connection goes back to TCP with marks ([`after`]), and libc does
//!   the call.
//! * Bytes are in doubt ([`crate::stream::in_doubt`]): some were moved that the program has not been told of, or a
//!   step is half done. The connection is reset at both ends, and the call fails with `ECONNRESET`.
//!
//! A call whose work the kernel has already done (accept, dup, fork, ...) keeps the kernel's result:
//! there the library's part is contained by itself.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use shunt_engine::handshake::Phase;
use shunt_engine::stretch::{Path, path};
use shunt_wire::reason::Reason;

use crate::activity;
use crate::conn::{Conn, NUMBERED};
use crate::contain::contain;
use crate::epoll;
use crate::epoll::instance::Instance;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::select::{self, Sets};
use crate::stream::hand_over;
use crate::stream::in_doubt::reset;
use crate::system::abi::{epoll_event, nfds_t, pollfd};
use crate::system::errno::{self, KeepErrno};
use crate::system::next;
use crate::threads::signals::Uncancelled;

/// The connection goes back to TCP, or is reset where that fails.
#[cold]
pub fn give_back(conn: Conn) {
    let work = || {
        let _keep = KeepErrno::new();
        let _uncancelled = Uncancelled::begin();
        hand_over::give_back(conn, Reason::Internal);
    };
    let is_the_kernels = || conn.sock().end().is_none_or(|end| end.is_the_kernels());
    // The kernel would number calls without copies anew, and knows nothing of the completions here.
    if conn.has(NUMBERED) || !contain(work) || !is_the_kernels() {
        reset(conn);
    }
}

/// After a panic in a call on `fd`, before libc does the call. True: it fails with `ECONNRESET`.
#[cold]
#[must_use]
pub fn after(fd: c_int) -> bool {
    let Some(conn) = Conn::named(fd) else { return false };
    if conn.phase() != Phase::Broken {
        give_back(conn);
    }
    conn.phase() == Phase::Broken
}

/// After a panic in poll(2), before libc does it.
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn after_poll(fds: *const pollfd, count: nfds_t) {
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        after_wait_for(unsafe { (*fds.add(i)).fd });
    }
}

/// The same in select(2).
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn after_select(count: c_int, sets: Sets) {
    // SAFETY: the caller's promise.
    unsafe { select::descriptors(count, sets) }.for_each(after_wait_for);
}

/// The result of libc's call on `fd` that moves bytes. An end that the kernel tells is none where the
/// peer has ended its direction before it heard that this side has left the ring: what lies there
/// does not come over TCP.
#[cold]
#[must_use]
pub fn whole(fd: c_int, result: isize) -> isize {
    if result != 0 {
        return result;
    }
    let Some(conn) = Conn::named(fd).filter(is_cut_off) else { return result };
    reset(conn);
    errno::fail(libc::ECONNRESET)
}

fn is_cut_off(conn: &Conn) -> bool {
    let rx = &conn.record().rx;
    let marks = rx.marks.load(Ordering::Relaxed);
    let Some((_, theirs)) = conn.sections() else { return false };
    path(marks) == Path::Ring
        && theirs.prod.marks.load(Ordering::Acquire) == marks
        && rx.cursor.refresh(&theirs.prod, conn.ring() as u64) != Ok(0)
}

/// The same for a descriptor of a set. An epoll instance becomes the kernel's alone.
#[cold]
pub fn after_wait_for(fd: c_int) {
    let entry = fd_table::lookup(fd);
    if let Some(instance) = Instance::of(entry) {
        dissolve(instance, entry);
    } else {
        let _is_reset = after(fd);
    }
}

/// An epoll instance and the connections in it become the kernel's.
fn dissolve(instance: &'static Instance, entry: Entry) {
    contain(|| {
        let _keep = KeepErrno::new();
        let _uncancelled = Uncancelled::begin();
        let conns = instance.connections();
        conns.into_iter().filter(|conn| conn.phase() != Phase::Broken).for_each(give_back);
        instance.dissolve();
        for (fd, _) in fd_table::of_program().filter(|(_, now)| *now == entry) {
            fd_table::replace_if(fd, entry, Entry::KERNEL);
        }
    });
}

/// After a panic in epoll_ctl(2), of which the kernel may have done its part.
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    use libc::{EEXIST, ENOENT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

    after_wait_for(epfd);
    if fd_table::lookup(fd).kind() == Kind::Stream {
        let _is_reset = after(fd);
    }
    // SAFETY: the caller's promise.
    let result = unsafe { next::epoll_ctl(epfd, op, fd, event) };
    match (op, errno::get()) {
        _ if result == 0 => 0,
        // SAFETY: the program's event, which the caller vouches for.
        (EPOLL_CTL_ADD, EEXIST) => unsafe { next::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, event) },
        (EPOLL_CTL_DEL, ENOENT) => 0,
        _ => result,
    }
}

/// In a child in which the library has panicked before it knew what it is: its connections are its
/// parent's, whose locks it may have. They are reset, and the library does nothing any more.
#[cold]
pub fn in_child() {
    activity::deactivate();
    for (fd, entry) in fd_table::of_program() {
        if let Some(conn) = Conn::closing(fd, entry) {
            reset(conn);
        }
    }
    contain(|| epoll::all().for_each(Instance::dissolve));
    fd_table::close();
}

//! epoll_create(2) and epoll_ctl(2).

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use shunt_engine::events;

use crate::activity;
use crate::conn::Conn;
use crate::contain::contain_uncancelled;
use crate::epoll::instance::{Instance, flags_are_valid, kernel_event, kernel_event_of_inner};
use crate::epoll::state::{Watch, is_asked_for};
use crate::epoll::{reentrancy, table, wait};
use crate::fds::fd_table::{self, Kind};
use crate::fds::owner::owns_process_state;
use crate::point;
use crate::stream::hand_over;
use crate::stream::promote;
use crate::system::abi::{c_int, epoll_event};
use crate::system::errno::{self, KeepErrno};

/// The program has made an epoll instance, unless `fd` is an error.
pub fn created(fd: c_int) -> c_int {
    if fd >= 0 && activity::active() && owns_process_state() {
        let _keep = KeepErrno::new();
        contain_uncancelled(|| {
            point!(epoll_created);
            if let Some(instance) = table::create(fd)
                && !fd_table::set(fd, instance.entry())
            {
                instance.release(fd);
            }
        });
    }
    fd
}

/// epoll_ctl(2). `event`: the program's, if there is one; it is read where the library has to know it. `kernel` does the
/// call, with the program's event or another one.
pub fn control(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: impl FnOnce() -> Option<epoll_event>,
    kernel: impl FnOnce(Option<&mut epoll_event>) -> c_int,
) -> c_int {
    let Some(instance) = Instance::of(fd_table::lookup(epfd)) else {
        return unseen(op, fd, kernel(None));
    };
    if reentrancy::is_above() {
        // In a signal handler; the one answer of the kernel's that says: not now.
        return errno::fail(libc::ENOMEM);
    }
    let entry = fd_table::lookup(fd);
    let conn = Conn::of(fd, entry).filter(|_| entry.kind() == Kind::Stream);
    if op == EPOLL_CTL_DEL {
        return match conn {
            Some(conn) => unwatch(instance, &conn, fd, || kernel(None)),
            None => forget(instance, fd, || kernel(None)),
        };
    }
    let is_change = matches!(op, EPOLL_CTL_ADD | EPOLL_CTL_MOD);
    let Some(mut asked) = is_change.then(event).flatten() else { return kernel(None) };
    // As do_epoll_ctl (fs/eventpoll.c) does: who asks for nothing still hears of these.
    asked.events |= events::ALWAYS;
    if let Some(conn) = conn {
        let _keep = KeepErrno::new();
        promote::advance(conn);
    }
    // It may just have been declined.
    let conn = conn.filter(|_| fd_table::lookup(fd).kind() == Kind::Stream);
    let change = Change { op, fd, asked };
    // The kernel refuses instances that are to be watched exclusively.
    let inner = Instance::of(entry).filter(|_| asked.events & events::EXCLUSIVE == 0);
    match (conn, inner) {
        (Some(conn), _) => watch(instance, conn, &change, kernel),
        (None, Some(inner)) => watch_inner(instance, inner, &change, kernel),
        (None, None) => pass_on(instance, &change, || kernel(None)),
    }
}

/// An addition to an instance, or a modification there.
struct Change {
    op: c_int,
    fd: c_int,
    asked: epoll_event,
}

/// What the kernel makes of a change is remembered: the descriptor may become a shunted connection.
fn pass_on(instance: &Instance, change: &Change, kernel: impl FnOnce() -> c_int) -> c_int {
    let Change { op, fd, asked } = *change;
    let mut state = instance.lock();
    point!(epoll_ctl_locked);
    let result = kernel();
    if result != 0 {
        return result;
    }
    let _keep = KeepErrno::new();
    point!(epoll_ctl_done);
    if op == EPOLL_CTL_ADD {
        // The number was closed, if it is known, and is used again.
        instance.forget(&mut state, fd);
    }
    let Some(index) = state.find(fd).or_else(|| state.reserve()) else { return result };
    match state.get(index).filter(|watch| watch.fd == fd) {
        Some(watch) => (watch.interest, watch.data) = (asked.events, asked.u64),
        None => state.insert(index, Watch::new(fd, asked.events, asked.u64)),
    }
    result
}

/// Adds a shunted connection, or changes what is asked of it. Only the first addition is the kernel's
/// business.
fn watch(
    instance: &'static Instance,
    conn: Conn,
    change: &Change,
    kernel: impl FnOnce(Option<&mut epoll_event>) -> c_int,
) -> c_int {
    let Change { op, fd, asked } = *change;
    {
        let _keep = KeepErrno::new();
        instance.prepare(&conn);
    }
    let mut state = instance.lock();
    point!(epoll_ctl_locked);
    let same = |watch: &&mut Watch| watch.conn.is_some_and(|c| c.is(&conn));
    let known = state.find(fd);
    let entered = known.and_then(|index| state.get(index)).filter(same);
    let parked = entered.as_ref().is_some_and(|watch| watch.parked.is_some());
    let exists = entered.is_some() && !parked;
    let before = entered.filter(|_| exists).map(|watch| watch.interest);
    if !flags_are_valid(op, asked.events, before) {
        // As the kernel orders its checks: an unknown or known descriptor comes first.
        return errno::fail(match (op, exists) {
            (EPOLL_CTL_ADD, true) => libc::EEXIST,
            (EPOLL_CTL_MOD, false) if asked.events & events::EXCLUSIVE == 0 => libc::ENOENT,
            _ => libc::EINVAL,
        });
    }
    let _keep = match (known, op) {
        (Some(_), EPOLL_CTL_MOD) if parked => return errno::fail(libc::ENOENT),
        (Some(index), _) if parked || (exists && op == EPOLL_CTL_MOD) => {
            let keep = KeepErrno::new();
            if let Some(watch) = state.get(index) {
                (watch.interest, watch.data, watch.parked) = (asked.events, asked.u64, None);
            }
            state.list(index);
            // As ep_modify (fs/eventpoll.c): those who sleep are told of what there is, and armed for what comes. Whoever comes
            // to wait looks at the list.
            let are_waiting = instance.sharers.are_asleep() || instance.is_heard_elsewhere();
            if !parked && are_waiting && !wait::has_news_or_awaits(instance, &mut state, index) {
                return 0;
            }
            keep
        }
        _ => {
            let Some(index) = known.or_else(|| state.reserve()) else {
                return errno::fail(libc::ENOSPC);
            };
            let mut ours = kernel_event(index, false);
            let result = kernel(Some(&mut ours));
            if result != 0 {
                return result;
            }
            let keep = KeepErrno::new();
            point!(epoll_ctl_done);
            // The number was closed, if it is known, and is used again.
            instance.forget(&mut state, fd);
            state.insert(index, Watch::new(fd, asked.events, asked.u64));
            instance.register(&mut state, index, conn);
            keep
        }
    };
    point!(epoll_ctl_entered);
    instance.ring_if_awaited(&state);
    0
}

/// The same for another epoll instance.
fn watch_inner(
    instance: &Instance,
    inner: &'static Instance,
    change: &Change,
    kernel: impl FnOnce(Option<&mut epoll_event>) -> c_int,
) -> c_int {
    let Change { op, fd, asked } = *change;
    {
        let mut state = instance.lock();
        let Some(index) = state.find(fd).or_else(|| state.reserve()) else {
            return errno::fail(libc::ENOSPC);
        };
        let mut ours = kernel_event_of_inner(index, asked.events);
        point!(epoll_ctl_locked);
        let result = kernel(Some(&mut ours));
        if result != 0 {
            return result;
        }
        let _keep = KeepErrno::new();
        point!(epoll_ctl_done);
        let same = |watch: &&mut Watch| watch.inner.is_some_and(|i| i.instance == inner.index());
        match state.get(index).filter(same) {
            Some(watch) if op == EPOLL_CTL_MOD => {
                (watch.interest, watch.data) = (asked.events, asked.u64);
                instance.look_anew(&mut state, index);
            }
            _ => {
                // The number was closed, if it is known, and is used again.
                instance.forget(&mut state, fd);
                state.insert(index, Watch::new(fd, asked.events, asked.u64));
                instance.watch_inner(&mut state, index, inner);
            }
        }
        instance.ring_if_awaited(&state);
    }
    if is_asked_for(asked.events) {
        let _keep = KeepErrno::new();
        inner.arm_for_others();
        if instance.sharers.are_asleep() {
            // Who sleeps in the outer one has not looked there, and the kernel knows of rings alone.
            inner.ring_own(&inner.lock());
        }
    }
    0
}

/// Takes a shunted connection out.
fn unwatch(instance: &Instance, conn: &Conn, fd: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let mut state = instance.lock();
    let same = |watch: &&mut Watch| watch.conn.is_some_and(|c| c.is(conn));
    let entered = state.find(fd).filter(|index| state.get(*index).filter(same).is_some());
    match entered {
        Some(index) if state.is_parked(index) => errno::fail(libc::ENOENT),
        Some(index) if instance.park(&mut state, index) => 0,
        _ => {
            drop(state);
            forget(instance, fd, kernel)
        }
    }
}

/// Takes out what is the kernel's.
fn forget(instance: &Instance, fd: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let result = kernel();
    if result == 0 {
        let _keep = KeepErrno::new();
        point!(epoll_ctl_done);
        instance.forget(&mut instance.lock(), fd);
    }
    result
}

/// After epoll_ctl(2) on an epoll instance that the library does not see (passed by another process,
/// made by a raw system call): it reports what the kernel knows of, so the bytes have to go there.
fn unseen(op: c_int, fd: c_int, result: c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    if result == 0 && op != EPOLL_CTL_DEL && entry.kind() == Kind::Stream {
        let _keep = KeepErrno::new();
        hand_over::hand_over(fd, entry);
    }
    result
}

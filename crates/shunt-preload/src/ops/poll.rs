//! poll and select: which calls concern shunted connections, and the sets of select as poll sees
//! them.

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDNORM, c_short};

use crate::next;
use shunt_runtime::fds::fd_table::{self, Kind};
use shunt_runtime::fds::own_fds;
use shunt_runtime::poll_set;
use shunt_runtime::system::abi::{
    c_int, c_uint, fd_set, nfds_t, pid_t, pollfd, rlimit, sigset_t, size_t, timespec, timeval,
};
use shunt_runtime::system::kernel_poll;
use shunt_runtime::system::{clock, errno};

/// # Safety
/// As the C function.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    match unsafe { shunted(fds, count) } {
        Some(fds) => {
            let deadline = u64::try_from(timeout).ok().map(|ms| clock::now() + ms * 1_000_000);
            poll_set::wait(fds, deadline, core::ptr::null()).found
        }
        // SAFETY: as above.
        None => unsafe { next::poll(fds, count, timeout) },
    }
}

/// # Safety
/// As the C function.
pub unsafe fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
    unsafe {
        if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
            return next::__poll_chk(fds, count, timeout, room);
        }
        poll(fds, count, timeout)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let (found, time) = unsafe { (shunted(fds, count), timeout.as_ref()) };
    match found.filter(|_| is_valid(time)) {
        Some(fds) => poll_set::wait(fds, time.map(deadline), mask).found,
        // SAFETY: as above.
        None => unsafe { next::ppoll(fds, count, timeout, mask) },
    }
}

/// # Safety
/// As the C function.
pub unsafe fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
    unsafe {
        if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
            return next::__ppoll_chk(fds, count, timeout, mask, room);
        }
        ppoll(fds, count, timeout, mask)
    }
}

/// After a panic in poll(2), before libc does it.
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn after_panic(fds: *const pollfd, count: nfds_t) {
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        crate::panics::after_wait_for(unsafe { (*fds.add(i)).fd });
    }
}

/// The same in select(2).
///
/// # Safety
/// As the C function.
#[cold]
pub unsafe fn after_panic_in_select(count: c_int, sets: [*mut fd_set; 3]) {
    for fd in 0..least_count(count) {
        // SAFETY: the caller's promise.
        if sets.iter().any(|set| !set.is_null() && unsafe { is_set(*set, fd) }) {
            crate::panics::after_wait_for(fd);
        }
    }
}

/// What the kernel takes for a time.
pub(super) fn is_valid(time: Option<&timespec>) -> bool {
    time.is_none_or(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec))
}

fn deadline(time: &timespec) -> u64 {
    let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    clock::now().saturating_add(nanos.cast_unsigned())
}

/// The array, if a shunted connection is in it.
///
/// # Safety
/// `fds` points to `count` entries.
unsafe fn shunted<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok()?;
    if fds.is_null() || count == 0 || kernel_poll::refuses(count) {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    poll_set::concerns(fds).then_some(fds)
}

/// # Safety
/// As the C function.
pub unsafe fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::setrlimit(resource, limit) };
    kernel_poll::note_limit();
    result
}

/// # Safety
/// As the C function.
pub unsafe fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::prlimit(pid, resource, new, old) };
    kernel_poll::note_limit();
    result
}

/// # Safety
/// As the C function.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let count = least_count(count);
    // SAFETY: the caller keeps the C function's contract.
    let Some(mut sets) = (unsafe { Sets::shunted(count, read, write, except) }) else {
        // SAFETY: as above.
        return unsafe { next::select(count, read, write, except, timeout) };
    };
    // SAFETY: null or valid by the C function's contract.
    let time = unsafe { timeout.as_mut() };
    if time.as_ref().is_some_and(|t| t.tv_sec < 0 || t.tv_usec < 0) {
        return errno::fail(libc::EINVAL);
    }
    let until = time.as_ref().map(|t| {
        let nanos = t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_usec * 1000);
        clock::now().saturating_add(nanos.cast_unsigned())
    });
    let result = sets.wait(until, core::ptr::null());
    if let (Some(time), Some(until)) = (time, until) {
        // Linux tells how much was left.
        let left = until.saturating_sub(clock::now());
        time.tv_sec = i64::try_from(left / 1_000_000_000).unwrap_or(0);
        time.tv_usec = i64::try_from(left % 1_000_000_000 / 1000).unwrap_or(0);
    }
    result
}

/// # Safety
/// As the C function.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let count = least_count(count);
    // SAFETY: the caller keeps the C function's contract.
    match unsafe { (Sets::shunted(count, read, write, except), timeout.as_ref()) } {
        (Some(mut sets), time) if is_valid(time) => sets.wait(time.map(deadline), mask),
        // SAFETY: as above.
        _ => unsafe { next::pselect(count, read, write, except, timeout, mask) },
    }
}

/// The kernel looks at no more bits of a set than it has places for descriptors, so programs may say
/// `select(getdtablesize(), ...)` with sets of 1,024 bits. The library's own descriptors, at high
/// numbers, make the kernel's table longer: so this says how long it would be without them.
fn least_count(count: c_int) -> c_int {
    /// Bits of a `fd_set`.
    const SET: c_int = 1024;
    if count <= SET {
        return count;
    }
    let Some(highest) = own_fds::highest() else { return count };
    let _keep = errno::KeepErrno::new();
    let ours = table_for(highest);
    if shunt_sys::process::descriptor_places().is_none_or(|places| places > ours) {
        // The program has made it longer.
        return count;
    }
    let is_program = |fd: &c_int| fd_table::lookup(*fd).kind() != Kind::Own;
    let numbers = (SET..ours).filter(is_program);
    let mut asked: Vec<pollfd> = numbers.map(|fd| pollfd { fd, events: 0, revents: 0 }).collect();
    // SAFETY: the array is valid. It asks for nothing but whether the descriptors are open.
    if unsafe { next::poll(asked.as_mut_ptr(), asked.len() as nfds_t, 0) } < 0 {
        return count;
    }
    let open = asked.iter().filter(|p| p.revents & POLLNVAL == 0).map(|p| p.fd).max();
    count.min(open.map_or(SET, table_for))
}

/// Places of the kernel's table where this is the highest descriptor, from 1,024 on
/// (`alloc_fdtable` in fs/file.c).
const fn table_for(highest: c_int) -> c_int {
    (highest + 1).cast_unsigned().next_power_of_two().cast_signed()
}

/// The three sets of select, as poll sees them.
struct Sets {
    sets: [*mut fd_set; 3],
    fds: Vec<pollfd>,
}

const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];
/// What counts as ready in each set (`fs/select.c`). A descriptor that is closed under the call is ready in all, as it is
/// since Linux 5.17: before, the call went on.
const MEANS: [c_short; 3] = [
    POLLIN | POLLRDNORM | POLLHUP | POLLERR | POLLNVAL,
    POLLOUT | libc::POLLWRNORM | POLLERR | POLLNVAL,
    POLLPRI | POLLNVAL,
];

impl Sets {
    /// # Safety
    /// Each set is null or has room for `count` descriptors.
    unsafe fn shunted(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
    ) -> Option<Self> {
        let sets = [read, write, except];
        let mut fds = Vec::new();
        for fd in 0..count {
            let mut events = 0;
            for (set, asked) in sets.iter().zip(ASKED) {
                // SAFETY: the caller's promise.
                if !set.is_null() && unsafe { is_set(*set, fd) } {
                    events |= asked;
                }
            }
            if events != 0 {
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        poll_set::concerns(&fds).then_some(Self { sets, fds })
    }

    fn wait(&mut self, deadline: Option<u64>, mask: *const sigset_t) -> c_int {
        let waited = poll_set::wait(&mut self.fds, deadline, mask);
        if waited.found < 0 {
            return -1;
        }
        if !waited.slept && self.fds.iter().any(|p| p.revents & POLLNVAL != 0) {
            return errno::fail(libc::EBADF);
        }
        let mut bits = 0;
        for p in &self.fds {
            for ((set, asked), means) in self.sets.iter().zip(ASKED).zip(MEANS) {
                if p.events & asked == 0 {
                    continue;
                }
                if p.revents & means != 0 {
                    bits += 1;
                } else {
                    // SAFETY: the bit was set, so the set has room for it.
                    unsafe { clear(*set, p.fd) };
                }
            }
        }
        bits
    }
}

/// Not `FD_ISSET`, which refuses descriptors from 1024 on: programs make larger sets.
///
/// # Safety
/// The set has room for `fd`.
unsafe fn is_set(set: *const fd_set, fd: c_int) -> bool {
    let fd = fd.unsigned_abs() as usize;
    // SAFETY: the caller's promise.
    unsafe { *set.cast::<u64>().add(fd / 64) & 1 << (fd % 64) != 0 }
}

/// # Safety
/// The set has room for `fd`.
unsafe fn clear(set: *mut fd_set, fd: c_int) {
    let fd = fd.unsigned_abs() as usize;
    // SAFETY: the caller's promise.
    unsafe { *set.cast::<u64>().add(fd / 64) &= !(1 << (fd % 64)) }
}

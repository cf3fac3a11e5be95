//! poll and select with shunted connections among the descriptors.
//!
//! Shunted connections are looked at here, all others by the kernel. When nothing is ready the
//! kernel's poll sleeps for both: for the others' events, for the ends of the shunted connections,
//! and for this thread's doorbell.

use core::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, c_short};
use shunt_core::events;
use shunt_core::handshake::SHORTEST_LOOK;
use shunt_shm::doorbell::{arm, on_bell};
use shunt_shm::sync::AtomicU32;
use shunt_wire::counter::Counter;

use crate::abi::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use crate::bell::{self, Bell};
use crate::conn::{KERNEL_HINT, NUMBERED, Sock};
use crate::epoll::{instance::Instance, nested::Awaited, ready};
use crate::errno::KeepErrno;
use crate::fd_table::{self, Kind};
use crate::stream::killed;
use crate::stream::spin::{self, Spun};
use crate::{clock, endpoint, errno, next, signals};

/// # Safety
/// As the C function.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    match unsafe { shunted(fds, count) } {
        Some(fds) => {
            let deadline = u64::try_from(timeout).ok().map(|ms| clock::now() + ms * 1_000_000);
            wait(fds, deadline, core::ptr::null())
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
    let valid = time.is_none_or(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec));
    match found.filter(|_| valid) {
        Some(fds) => wait(fds, time.map(deadline), mask),
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
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    fds.iter().any(|p| is_ours(p.fd)).then_some(fds)
}

fn is_ours(fd: c_int) -> bool {
    let entry = fd_table::lookup(fd);
    match entry.kind() {
        Kind::Stream => true,
        Kind::Epoll => Instance::of(entry).is_some_and(|i| i.active.load(Ordering::Relaxed) > 0),
        _ => false,
    }
}

fn sock(fd: c_int) -> Option<&'static Sock> {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Stream { Sock::of(entry) } else { None }
}

/// One pass over the shunted connections; returns how many are ready.
fn look(fds: &mut [pollfd]) -> c_int {
    let mut found = 0;
    for p in fds {
        let wanted = u32::from(p.events.cast_unsigned());
        let ready = if let Some(sock) = sock(p.fd) {
            ready::of(sock, p.fd, wanted, &mut ready::Heard::Nothing)
        } else if let Some(instance) = Instance::of(fd_table::lookup(p.fd)) {
            if instance.is_readable() { events::IN | events::RDNORM } else { 0 }
        } else {
            continue;
        };
        let ready = ready & (wanted | events::ALWAYS);
        p.revents = c_short::from_ne_bytes(low_half(ready));
        found += c_int::from(p.revents != 0);
    }
    found
}

#[allow(clippy::cast_possible_truncation, reason = "poll's bits are the low half")]
const fn low_half(bits: u32) -> [u8; 2] {
    (bits as u16).to_ne_bytes()
}

/// What the kernel watches, with the doorbell in the last place.
struct KernelSet {
    fds: Vec<pollfd>,
    others: bool,
}

impl KernelSet {
    fn new(fds: &[pollfd]) -> Self {
        let mut set = Self { fds: Vec::with_capacity(fds.len() + 1), others: false };
        for p in fds {
            let mut q = pollfd { revents: 0, ..*p };
            if is_ours(p.fd) {
                // The end of a connection shows as IN; that there is room is no news.
                q.events &= !(POLLOUT | libc::POLLWRNORM);
            } else {
                set.others |= p.fd >= 0;
            }
            set.fds.push(q);
        }
        set
    }

    /// Asks the kernel about the descriptors that are not ours, at once.
    fn ask(&mut self, fds: &mut [pollfd], mask: *const sigset_t) -> c_int {
        // The doorbells, which come after the program's descriptors, are no news to it.
        let mut only = self.fds.get(..fds.len()).unwrap_or(&[]).to_vec();
        for p in &mut only {
            if is_ours(p.fd) {
                p.fd = -1;
            }
        }
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        let n = kernel_poll(&mut only, Some(&now), mask);
        if n > 0 {
            for (p, q) in fds.iter_mut().zip(&only) {
                if q.fd >= 0 {
                    p.revents = q.revents;
                }
            }
        }
        n
    }
}

fn kernel_poll(fds: &mut [pollfd], time: Option<&timespec>, mask: *const sigset_t) -> c_int {
    let time = time.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the slice is valid; the mask is the program's.
    unsafe { next::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, mask) }
}

/// What this thread's spins in poll have taught; shared by the threads of the process.
static BUDGET: AtomicU32 = AtomicU32::new(0);

fn wait(fds: &mut [pollfd], deadline: Option<u64>, mask: *const sigset_t) -> c_int {
    signals::cancellation_point();
    let mut spun = false;
    loop {
        // Anew each time: another thread may change what is ours.
        let mut kernel = KernelSet::new(fds);
        for p in fds.iter_mut() {
            p.revents = 0;
        }
        let mut found = look(fds);
        if kernel.others || !mask.is_null() {
            match kernel.ask(fds, mask) {
                n if n >= 0 => found += n,
                _ if found == 0 => return -1,
                _ => {}
            }
        }
        let now = clock::now();
        if found > 0 || deadline.is_some_and(|d| now >= d) {
            if visit(fds, now) {
                continue;
            }
            return found;
        }
        if !spun && !kernel.others && mask.is_null() && spin(fds, deadline) {
            continue;
        }
        spun = true;
        if sleep(fds, &mut kernel, deadline, mask) < 0 {
            return -1;
        }
    }
}

/// Asks the kernel about the ends of connections, on behalf of who never sleeps: there are only ends of which nobody else can
/// tell. True when there is one.
fn visit(fds: &[pollfd], now: u64) -> bool {
    let is_due = |p: &&pollfd| sock(p.fd).is_some_and(|sock| killed::visit_is_due(sock, now));
    let due = fds.iter().filter(is_due);
    let mut due: Vec<pollfd> =
        due.map(|p| pollfd { fd: p.fd, events: POLLRDHUP, revents: 0 }).collect();
    if due.is_empty() {
        return false;
    }
    let _keep = KeepErrno::new();
    let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
    if kernel_poll(&mut due, Some(&at_once), core::ptr::null()) <= 0 {
        return false;
    }
    hear(&due);
    true
}

/// Notes of which connections the kernel has news.
fn hear(told: &[pollfd]) {
    for p in told {
        if p.revents & !POLLOUT != 0
            && let Some(sock) = sock(p.fd)
        {
            sock.put(KERNEL_HINT, true);
        }
    }
}

fn spin(fds: &mut [pollfd], deadline: Option<u64>) -> bool {
    let spun = spin::spin(&BUDGET, deadline, || look(fds) > 0);
    spun.count();
    spun == Spun::Found
}

/// Arms the connections, looks again, sleeps in the kernel.
fn sleep(
    fds: &mut [pollfd],
    kernel: &mut KernelSet,
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    let mut ears: Vec<Bell> = Vec::new();
    // Without a doorbell to hear (descriptors have run out) look again soon.
    let mut deaf = false;
    for p in fds.iter() {
        let Some(sock) = sock(p.fd) else { continue };
        let Some(bell) = bell::of_this_thread(sock) else {
            deaf = true;
            continue;
        };
        if let Some((mine, _)) = sock.sections() {
            // Also for one who waits for errors alone.
            if p.events & (POLLIN | POLLRDNORM | POLLPRI) != 0 || p.events & POLLOUT == 0 {
                arm(&mine.ctl.rx_arm, on_bell(bell.vector()));
            }
            if p.events & POLLOUT != 0 || sock.has(NUMBERED) {
                arm(&mine.ctl.tx_arm, on_bell(bell.vector()));
            }
        }
        if !ears.iter().any(|e| e.same(&bell)) {
            ears.push(bell);
        }
    }
    let sets = fds.iter().filter_map(|p| Instance::of(fd_table::lookup(p.fd)));
    let _awaited: Vec<Awaited> = sets.map(Awaited::new).collect();
    if look(fds) > 0 {
        return 0;
    }
    let known = fds.len();
    kernel.fds.truncate(known);
    for p in &mut kernel.fds {
        p.revents = 0;
        let tcp_only = sock(p.fd).is_some_and(crate::stream::sends_over_tcp);
        if tcp_only {
            p.events |= fds.iter().find(|q| q.fd == p.fd).map_or(0, |q| q.events & POLLOUT);
        }
        if sock(p.fd).is_some_and(crate::stream::demote::is_pending) {
            p.events |= POLLOUT;
        }
        if sock(p.fd).is_some_and(killed::wakes) {
            p.events |= POLLRDHUP;
        }
    }
    for ear in &ears {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&ear.fd());
        kernel.fds.push(pollfd { fd, events: POLLIN, revents: 0 });
    }
    let candidate = fds.iter().filter_map(|p| sock(p.fd)?.next_look()).min();
    let now = clock::now();
    let left = deadline.map(|d| d.saturating_sub(now));
    let looks = [candidate, crate::stream::doubt::next_look(), deaf.then_some(SHORTEST_LOOK)];
    let left = looks.into_iter().chain([left]).flatten().min();
    let time = left.map(|left| timespec {
        tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
    });
    endpoint::count(Counter::KernelSleeps, 1);
    let n = kernel_poll(&mut kernel.fds, time.as_ref(), mask);
    if n > 0 {
        spin::slept(now);
    }
    ears.iter().for_each(Bell::quiet);
    hear(kernel.fds.get(..known).unwrap_or(&[]));
    n
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
    // SAFETY: the caller keeps the C function's contract.
    match unsafe { (Sets::shunted(count, read, write, except), timeout.as_ref()) } {
        (Some(mut sets), time) => sets.wait(time.map(deadline), mask),
        // SAFETY: as above.
        (None, _) => unsafe { next::pselect(count, read, write, except, timeout, mask) },
    }
}

/// The three sets of select, as poll sees them.
struct Sets {
    sets: [*mut fd_set; 3],
    fds: Vec<pollfd>,
}

const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];
/// What counts as ready in each set (`fs/select.c`).
const MEANS: [c_short; 3] =
    [POLLIN | POLLRDNORM | POLLHUP | POLLERR, POLLOUT | libc::POLLWRNORM | POLLERR, POLLPRI];

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
        let mut ours = false;
        for fd in 0..count {
            let mut events = 0;
            for (set, asked) in sets.iter().zip(ASKED) {
                // SAFETY: the caller's promise.
                if !set.is_null() && unsafe { is_set(*set, fd) } {
                    events |= asked;
                }
            }
            if events != 0 {
                ours |= is_ours(fd);
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        ours.then_some(Self { sets, fds })
    }

    fn wait(&mut self, deadline: Option<u64>, mask: *const sigset_t) -> c_int {
        if wait(&mut self.fds, deadline, mask) < 0 {
            return -1;
        }
        if self.fds.iter().any(|p| p.revents & POLLNVAL != 0) {
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

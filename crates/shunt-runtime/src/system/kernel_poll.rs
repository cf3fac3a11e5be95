//! poll(2), also where it is refused: the kernel takes no more entries than the program may have descriptors, and a
//! program may lower that limit (`RLIMIT_NOFILE`) to nothing while it has connections. It means its own calls; the
//! library's go on by select(2), which knows no such limit.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, c_short};
use rustix::event::{FdSetElement, FdSetIter, Timespec, fd_set_insert, fd_set_num_elements};

use crate::system::abi::{nfds_t, pollfd, sigset_t, timespec};
use crate::system::{abi, errno, next};

/// Of what select(2) cannot tell alone (an end behind bytes that nobody reads) a sleep looks so often for itself.
const LOOK: i64 = 100_000_000;

/// poll(2) with a mask, as libc has it: a cancellation point.
///
/// # Safety
/// The time is null or can be read, also by this thread's signal handlers; the mask is null, or the program's.
pub unsafe fn wait(fds: &mut [pollfd], time: *const timespec, mask: *const sigset_t) -> c_int {
    let before = errno::get();
    // SAFETY: the slice is valid; the caller promises that time and mask are null or can be read.
    let n = unsafe { next::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, mask) };
    if n >= 0 || errno::get() != libc::EINVAL || !is_refused(fds.len()) {
        return n;
    }
    errno::set(before);
    // SAFETY: not null, so the caller promises that it can be read.
    let time = (!time.is_null()).then(|| unsafe { time.read_volatile() });
    by_select(fds, time, |sets, count, time| {
        let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr().cast());
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the sets have room for `count` descriptors; the mask is the program's.
        let n = unsafe { next::pselect(count, read, write, except, time, mask) };
        if n < 0 { Err(errno::get()) } else { Ok(()) }
    })
    .unwrap_or_else(errno::fail)
}

/// poll(2) without a mask, and no cancellation point. The number of entries with events, or the error.
pub fn ask(fds: &mut [pollfd], time: Option<timespec>) -> Result<c_int, c_int> {
    let at = time.map(|t| Timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_nsec });
    // SAFETY: both are `struct pollfd`, as rustix says of its own; each of its descriptors is only looked at.
    let entries = unsafe { &mut *(ptr::from_mut(fds) as *mut [rustix::event::PollFd<'_>]) };
    match rustix::event::poll(entries, at.as_ref()) {
        Ok(n) => Ok(c_int::try_from(n).unwrap_or(c_int::MAX)),
        Err(rustix::io::Errno::INVAL) if is_refused(fds.len()) => {
            by_select(fds, time, |[read, write, except], count, time| {
                let at = time.map(|t| Timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_nsec });
                // SAFETY: the sets have room for `count` descriptors.
                unsafe {
                    rustix::event::select(count, Some(read), Some(write), Some(except), at.as_ref())
                }
                .map(drop)
                .map_err(rustix::io::Errno::raw_os_error)
            })
        }
        Err(error) => Err(error.raw_os_error()),
    }
}

/// [`ask`] about one descriptor, at once.
pub fn readiness(fd: c_int, events: c_short) -> c_short {
    let mut fds = [pollfd { fd, events, revents: 0 }];
    match ask(&mut fds, Some(timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(1..) => fds[0].revents,
        _ => 0,
    }
}

/// [`ask`] about one descriptor, for so many nanoseconds at the most.
pub fn await_one(fd: c_int, events: c_short, nanos: i64) {
    let mut fds = [pollfd { fd, events, revents: 0 }];
    let _ = ask(&mut fds, Some(timespec { tv_sec: 0, tv_nsec: nanos }));
}

/// True when a poll(2) of so many entries is refused.
fn is_refused(entries: usize) -> bool {
    entries > FEW.load(Ordering::Relaxed) || entries > most_descriptors()
}

/// As many as every program may have open that was not given less: with more, the kernel asks first
/// whether it may.
const PERMITTED: usize = 1024;

/// The program may have fewer descriptors open than most may, and so poll fewer: so many. The kernel is not asked for
/// it at each poll, as a filter may forbid that by then.
static FEW: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The limit may be another one by now.
pub fn note_limit() {
    let most = most_descriptors();
    FEW.store(if most < PERMITTED { most } else { usize::MAX }, Ordering::Relaxed);
}

/// True when the kernel refuses to poll so many, as far as is known; it is asked only about more than most may have.
pub fn refuses(entries: usize) -> bool {
    entries > FEW.load(Ordering::Relaxed) || entries > PERMITTED && entries > most_descriptors()
}

/// `RLIMIT_NOFILE`.
fn most_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Sets of descriptors, of any length.
type Sets = [Vec<FdSetElement>; 3];

const READ: c_short = POLLIN | POLLRDNORM;
const WRITE: c_short = POLLOUT | libc::POLLWRNORM;
const EXCEPT: c_short = libc::POLLPRI;

#[cold]
fn by_select(
    fds: &mut [pollfd],
    time: Option<timespec>,
    select: impl FnOnce(&mut Sets, c_int, Option<timespec>) -> Result<(), c_int>,
) -> Result<c_int, c_int> {
    let mut time = time;
    let count = fds.iter().map(|p| p.fd + 1).max().unwrap_or(0).max(0);
    let empty = || vec![FdSetElement::default(); fd_set_num_elements(0, count)];
    let mut sets: Sets = [(); 3].map(|()| empty());
    for p in fds.iter_mut() {
        p.revents = if p.fd >= 0 { end(p.fd, p.events) } else { 0 };
        if p.revents != 0 {
            time = Some(timespec { tv_sec: 0, tv_nsec: 0 });
        }
        for (set, asked) in sets.iter_mut().zip([READ, WRITE, EXCEPT]) {
            if p.fd >= 0 && p.events & asked != 0 {
                fd_set_insert(set, p.fd);
            }
        }
    }
    let unheard = |p: &pollfd| p.fd >= 0 && p.events & READ == 0;
    if fds.iter().any(unheard) && time.is_none_or(|t| t.tv_sec > 0 || t.tv_nsec > LOOK) {
        time = Some(timespec { tv_sec: 0, tv_nsec: LOOK });
    }
    match select(&mut sets, count, time) {
        Err(libc::EBADF) => sets.iter_mut().for_each(|set| set.fill(FdSetElement::default())),
        other => other?,
    }
    let mut found = 0;
    for p in fds.iter_mut().filter(|p| p.fd >= 0) {
        for (set, asked) in sets.iter().zip([READ, WRITE, EXCEPT]) {
            if FdSetIter::new(set).any(|fd| fd == p.fd) {
                p.revents |= p.events & asked;
            }
        }
        p.revents |= end(p.fd, p.events);
        found += c_int::from(p.revents != 0);
    }
    Ok(found)
}

/// What select(2) does not tell of a descriptor: the end of a TCP connection, and that it is not open.
fn end(fd: c_int, events: c_short) -> c_short {
    /// `enum` in `include/net/tcp_states.h`.
    const CLOSE: u64 = 7;
    const AFTER_FIN: [u64; 4] = [6, 8, 9, 11];
    let mut info = [0; 1];
    match shunt_sys::sockinfo::tcp_info(abi::borrow(fd), &mut info) {
        Ok(_) => match info[0].to_ne_bytes()[0].into() {
            CLOSE => POLLHUP | POLLERR | events & POLLRDHUP,
            state if AFTER_FIN.contains(&state) => events & POLLRDHUP,
            _ => 0,
        },
        Err(rustix::io::Errno::BADF) => POLLNVAL,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::testing::in_child;

    /// The answers are those of poll(2), in the bits that it was asked for.
    #[test]
    fn without_leave_for_poll_the_answers_are_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pairs: Vec<(TcpStream, TcpStream)> = (0..5)
            .map(|_| {
                let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (client, listener.accept().unwrap().0)
            })
            .collect();
        // Quiet, bytes, FIN, FIN behind bytes, RST.
        (&pairs[1].0).write_all(b"bytes").unwrap();
        pairs[2].0.shutdown(Shutdown::Write).unwrap();
        (&pairs[3].0).write_all(b"bytes").unwrap();
        pairs[3].0.shutdown(Shutdown::Write).unwrap();
        let at_once = Some(core::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&pairs[4].0, at_once).unwrap();
        let mut pairs = pairs;
        let reset = pairs.pop().unwrap();
        drop(reset.0);
        let ends: Vec<c_int> =
            pairs.iter().map(|(_, end)| end).chain([&reset.1]).map(AsRawFd::as_raw_fd).collect();
        assert!(in_child(|| {
            let asked = [POLLRDHUP, POLLIN, POLLOUT, POLLIN | POLLOUT | POLLRDHUP];
            let all = |fds: &[c_int]| -> Vec<c_short> {
                let of = |fd| asked.map(|events| readiness(fd, events));
                fds.iter().copied().flat_map(of).collect()
            };
            let by_poll = all(&ends);
            let old = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..old }).unwrap();
            let mut entry = pollfd { fd: ends[0], events: 0, revents: 0 };
            // SAFETY: one entry.
            let refused = unsafe { libc::poll(&raw mut entry, 1, 0) } < 0;
            refused && all(&ends) == by_poll && by_poll.iter().any(|bits| bits & POLLRDHUP != 0)
        }));
    }
}

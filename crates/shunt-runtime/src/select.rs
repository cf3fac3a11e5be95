//! select(2): its sets as poll sees them.

use core::cell::Cell;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDNORM, c_short};

use crate::fds::fd_table::{self, Kind};
use crate::fds::own_fds;
use crate::poll_set;
use crate::system::abi::{c_int, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use crate::system::timeout::{nanos_of_timeval, of_nanos, valid_deadline};
use crate::system::{clock, errno, next};

/// The words of a `fd_set`, if there is one: of as many descriptors as the call is about. Programs may pass one set in
/// several places.
type Set<'a> = Option<&'a [Cell<u64>]>;

const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];
/// What counts as ready in each set (`fs/select.c`). A descriptor that is closed under the call is ready in all, as it is
/// since Linux 5.17: before, the call went on.
const MEANS: [c_short; 3] = [
    POLLIN | POLLRDNORM | POLLHUP | POLLERR | POLLNVAL,
    POLLOUT | libc::POLLWRNORM | POLLERR | POLLNVAL,
    POLLPRI | POLLNVAL,
];

/// The descriptors in any of the sets, and what is asked of them. Not by `FD_ISSET`, which refuses descriptors from
/// 1024 on: programs make larger sets.
fn asked(count: c_int, sets: [Set<'_>; 3]) -> impl Iterator<Item = pollfd> {
    (0..count).filter_map(move |fd| {
        let events = sets.iter().zip(ASKED).filter(|(set, _)| has(**set, fd));
        let events = events.fold(0, |events, (_, asked)| events | asked);
        (events != 0).then_some(pollfd { fd, events, revents: 0 })
    })
}

fn place(fd: c_int) -> (usize, u64) {
    let fd = fd.unsigned_abs() as usize;
    (fd / 64, 1 << (fd % 64))
}

fn has(set: Set<'_>, fd: c_int) -> bool {
    let (word, bit) = place(fd);
    set.and_then(|set| set.get(word)).is_some_and(|word| word.get() & bit != 0)
}

fn clear(set: Set<'_>, fd: c_int) {
    let (word, bit) = place(fd);
    if let Some(word) = set.and_then(|set| set.get(word)) {
        word.set(word.get() & !bit);
    }
}

/// Leaves in the sets what is ready; how many bits that are.
fn answer(sets: [Set<'_>; 3], fds: &[pollfd]) -> c_int {
    let mut bits = 0;
    for p in fds {
        for ((set, asked), means) in sets.into_iter().zip(ASKED).zip(MEANS) {
            if p.events & asked == 0 {
                continue;
            }
            if p.revents & means != 0 {
                bits += 1;
            } else {
                clear(set, p.fd);
            }
        }
    }
    bits
}

/// Each is null, or has room for the descriptors of the call, in whole words.
pub type Sets = [*mut fd_set; 3];

/// select(2). What is left of the time is told, as Linux does.
///
/// # Safety
/// The sets have room for `count` descriptors; `timeout` is null or a time.
pub unsafe fn select(count: c_int, sets: Sets, timeout: *mut timeval) -> c_int {
    let count = least_count(count);
    // SAFETY: the caller's promise.
    let Some(mut select) = Select::shunted(count, unsafe { words(count, sets) }) else {
        let [read, write, except] = sets;
        // SAFETY: the caller's promise; it is about no more descriptors than before.
        return unsafe { next::select(count, read, write, except, timeout) };
    };
    // SAFETY: the caller's promise.
    let time = unsafe { timeout.as_mut() };
    if time.as_ref().is_some_and(|t| t.tv_sec < 0 || t.tv_usec < 0) {
        return errno::fail(libc::EINVAL);
    }
    let until = time.as_ref().map(|t| clock::now().saturating_add(nanos_of_timeval(t)));
    let result = select.wait(until, core::ptr::null());
    if let (Some(time), Some(until)) = (time, until) {
        let left = of_nanos(until.saturating_sub(clock::now()));
        (time.tv_sec, time.tv_usec) = (left.tv_sec, left.tv_nsec / 1000);
    }
    result
}

/// The same of pselect(2), which tells nothing of its time.
///
/// # Safety
/// The same; the mask is null or valid.
pub unsafe fn pselect(
    count: c_int,
    sets: Sets,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let count = least_count(count);
    let [read, write, except] = sets;
    // SAFETY: the caller's promise.
    let (sets, time) = unsafe { (words(count, sets), timeout.as_ref()) };
    match (Select::shunted(count, sets), valid_deadline(time)) {
        (Some(mut select), Some(deadline)) => select.wait(deadline, mask),
        // SAFETY: the caller's promise; it is about no more descriptors than before.
        _ => unsafe { next::pselect(count, read, write, except, timeout, mask) },
    }
}

/// The descriptors in any of the sets of a call.
///
/// # Safety
/// The sets have room for `count` descriptors.
pub unsafe fn descriptors(count: c_int, sets: Sets) -> impl Iterator<Item = c_int> {
    let count = least_count(count);
    // SAFETY: the caller's promise.
    asked(count, unsafe { words(count, sets) }).map(|asked| asked.fd)
}

/// # Safety
/// Each set is null or has room for `count` descriptors, in whole words.
unsafe fn words<'a>(count: c_int, sets: Sets) -> [Set<'a>; 3] {
    let len = usize::try_from(count).unwrap_or(0).div_ceil(64);
    sets.map(|set| {
        let words = set.cast::<Cell<u64>>();
        // SAFETY: the caller's promise. A cell is laid out as its word, and may stand in several sets; the kernel, too,
        // takes whole words.
        (!set.is_null()).then(|| unsafe { core::slice::from_raw_parts(words, len) })
    })
}

/// A call with a shunted connection in its sets.
struct Select<'a> {
    sets: [Set<'a>; 3],
    fds: Vec<pollfd>,
}

impl<'a> Select<'a> {
    /// It, unless it is the kernel's business alone.
    fn shunted(count: c_int, sets: [Set<'a>; 3]) -> Option<Self> {
        let fds: Vec<pollfd> = asked(count, sets).collect();
        poll_set::concerns(&fds).then_some(Self { sets, fds })
    }

    /// Waits until something is ready, with these signals blocked.
    fn wait(&mut self, deadline: Option<u64>, mask: *const sigset_t) -> c_int {
        let waited = poll_set::wait(&mut self.fds, deadline, mask);
        if waited.found < 0 {
            return -1;
        }
        if !waited.slept && self.fds.iter().any(|p| p.revents & POLLNVAL != 0) {
            return errno::fail(libc::EBADF);
        }
        answer(self.sets, &self.fds)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words<const N: usize>(fds: &[c_int]) -> [Cell<u64>; N] {
        let set = core::array::from_fn(|_| Cell::new(0));
        for (word, bit) in fds.iter().map(|fd| place(*fd)) {
            set[word].set(set[word].get() | bit);
        }
        set
    }

    #[test]
    fn what_stands_in_several_sets_is_asked_once() {
        let (read, write) = (words::<17>(&[0, 63, 64, 1030]), words::<17>(&[64, 70]));
        let sets = [Some(&read[..]), Some(&write[..]), None];
        let all: Vec<_> = asked(1031, sets).map(|p| (p.fd, p.events)).collect();
        let (r, w) = (POLLIN, POLLOUT);
        assert_eq!(all, [(0, r), (63, r), (64, r | w), (70, w), (1030, r)]);
        assert_eq!(asked(64, sets).map(|p| p.fd).collect::<Vec<_>>(), [0, 63]);
        assert_eq!(asked(-1, sets).count(), 0);
        assert_eq!(asked(1031, [None; 3]).count(), 0);
    }

    #[test]
    fn what_is_not_ready_leaves_the_sets() {
        let (read, write) = (words::<2>(&[3, 64]), words::<2>(&[3]));
        let sets = [Some(&read[..]), Some(&write[..]), None];
        let mut fds: Vec<_> = asked(128, sets).collect();
        fds[0].revents = POLLHUP;
        fds[1].revents = POLLOUT;
        // The end can be read, and is no room; room is nothing to read.
        assert_eq!(answer(sets, &fds), 1);
        assert_eq!((has(sets[0], 3), has(sets[1], 3), has(sets[0], 64)), (true, false, false));
    }

    #[test]
    fn one_set_may_stand_in_two_places() {
        let both = words::<1>(&[5]);
        let sets = [Some(&both[..]), Some(&both[..]), None];
        let mut fds: Vec<_> = asked(64, sets).collect();
        fds[0].revents = POLLERR;
        assert_eq!(answer(sets, &fds), 2);
        fds[0].revents = 0;
        assert_eq!(answer(sets, &fds), 0);
        assert!(!has(sets[0], 5));
    }

    #[test]
    fn the_kernels_table_doubles() {
        assert_eq!([1022, 1023, 1024, 2047, 2048].map(table_for), [1024, 1024, 2048, 2048, 4096]);
    }
}

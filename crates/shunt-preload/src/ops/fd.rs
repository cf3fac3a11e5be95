//! Calls that close, duplicate or control a descriptor, of whatever kind it is.
//!
//! Two rules hold throughout. The table changes *before* the kernel closes a number and *after* it
//! gives one out, because in between no other thread can be given that number. And the library's
//! own descriptors do not exist for the program: calls on them fail with `EBADF`.

use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::os::fd::BorrowedFd;

use crate::next;
use crate::panics;
use shunt_runtime::calls;
use shunt_runtime::conn::{APPENDS, NONBLOCK};
use shunt_runtime::conn::{Conn, Sock};
use shunt_runtime::contain::contain_uncancelled;
use shunt_runtime::epoll::instance::Instance;
use shunt_runtime::fds::fd_table::{self, Entry, Kind};
use shunt_runtime::fds::fresh;
use shunt_runtime::fds::own_fds::{self, OwnFd};
use shunt_runtime::fds::owner::may_mutate;
use shunt_runtime::fds::stdio;
use shunt_runtime::point;
use shunt_runtime::processes::close;
use shunt_runtime::stream::hand_over;
use shunt_runtime::stream::in_doubt;
use shunt_runtime::stream::options;
use shunt_runtime::stream::unread;
use shunt_runtime::system::errno::{self, KeepErrno};

/// `include/uapi/asm-generic/sockios.h`.
const SIOCATMARK: c_ulong = 0x8905;
const CLOSE_RANGE_UNSHARE: c_int = 1 << 1;
const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;

/// # Safety
/// As the C function.
pub unsafe fn close(fd: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    close_by(fd, || unsafe { next::close(fd) })
}

/// close, by whichever way the program has the kernel do it.
pub fn close_by(fd: c_int, kernel_close: impl FnOnce() -> c_int) -> c_int {
    match fd_table::lookup(fd).kind() {
        Kind::Kernel => {}
        Kind::Own => return errno::fail(libc::EBADF),
        _ if may_mutate() && forget(fd) == Close::Later => return 0,
        _ => {}
    }
    kernel_close()
}

/// When the kernel closes a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Close {
    Now,
    /// Once a step of this thread is over above which a signal handler closes it, or no call waits in the
    /// epoll instance any more: they may be about to use the number. Until then it is the library's own.
    Later,
}

/// Takes `fd` out of the table and tells its object, before the kernel closes it.
fn forget(fd: c_int) -> Close {
    // Of two threads that close the same descriptor one tells.
    let entry = fd_table::take(fd);
    if !entry.is_object() {
        return Close::Now;
    }
    let _keep = KeepErrno::new();
    let mut when = Close::Now;
    if !contain_uncancelled(|| when = tell(fd, entry))
        && let Some(conn) = Conn::closing(fd, entry)
    {
        // What the peer has not got, it does not get any more.
        in_doubt::reset(conn);
    }
    when
}

/// Tells the object of a descriptor that this is about to be closed.
fn tell(fd: c_int, entry: Entry) -> Close {
    point!(close_taken);
    if is_in_a_step(entry) && defer(fd, entry) {
        return Close::Later;
    }
    if let Some(instance) = Instance::of(entry)
        && instance.outlives_its_descriptor()
        && let Some(own) = own_fds::adopt_here(fd)
    {
        instance.linger(own);
        instance.release(fd);
        return Close::Later;
    }
    close::before_close(fd, entry);
    Close::Now
}

/// True in a signal handler above a step of this thread on the connection.
fn is_in_a_step(entry: Entry) -> bool {
    calls::is_above_a_step() && Sock::of(entry).is_some_and(Sock::is_in_a_step)
}

/// Has the descriptor closed later. False when there is no place to note it.
fn defer(fd: c_int, entry: Entry) -> bool {
    let Some(own) = own_fds::adopt_here(fd) else { return false };
    let deferred = calls::close_later(own, entry);
    deferred.map_err(OwnFd::give_back).is_ok()
}

/// # Safety
/// As the C function.
pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // Close-on-exec is what the library's own descriptors are anyhow, and changes no table; and
    // what the kernel will refuse must not be acted upon.
    let closes = flags & !CLOSE_RANGE_UNSHARE == 0 && first <= last;
    if !closes || fd_table::high_water().cast_unsigned() < first || !has_close_range() {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::close_range(first, last, flags) };
    }
    // With UNSHARE a thread gets descriptors of its own, and those that it closes stay open in
    // the other threads, to whom the table belongs as well.
    let mutate = may_mutate() && (flags & CLOSE_RANGE_UNSHARE == 0 || is_only_thread());
    // UNSHARE in each call: where there is nothing left to unshare it does nothing.
    // SAFETY: the program closes these descriptors; the library's own are left out.
    close_between_own(first, last, mutate, |from, to| unsafe { next::close_range(from, to, flags) })
}

/// # Safety
/// As the C function.
pub unsafe fn closefrom(low: c_int) {
    let low = low.max(0);
    if fd_table::high_water() < low {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::closefrom(low) };
    }
    let _keep = KeepErrno::new();
    let kernel_closes_ranges = has_close_range();
    // SAFETY: the program closes these descriptors; the library's own are left out.
    close_between_own(low.cast_unsigned(), c_uint::MAX, may_mutate(), |from, to| unsafe {
        if to == c_uint::MAX {
            // Beyond the last own descriptor libc's way will do, whichever that is.
            next::closefrom(c_int::try_from(from).unwrap_or(c_int::MAX));
        } else if kernel_closes_ranges {
            next::close_range(from, to, 0);
        } else {
            (from..=to).filter_map(|fd| c_int::try_from(fd).ok()).for_each(|fd| {
                next::close(fd);
            });
        }
        0
    });
}

/// Closes `first..=last` but for the library's own descriptors, with calls of `kernel_close` for
/// the stretches between these. The first failure ends it.
fn close_between_own(
    first: c_uint,
    last: c_uint,
    mutate: bool,
    kernel_close: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let bound = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let mut from = first;
    for (fd, entry) in fd_table::iter(bound(first)..=bound(last)) {
        let is_own = entry.kind() == Kind::Own;
        if is_own || (mutate && forget(fd) == Close::Later) {
            let own = fd.cast_unsigned();
            if from < own && kernel_close(from, own - 1) != 0 {
                return -1;
            }
            from = own + 1;
        }
    }
    if from <= last { kernel_close(from, last) } else { 0 }
}

/// Whether kernel (5.9) and libc (2.34) have `close_range`: asked with a range that no descriptor
/// is in, since the table may change only if the descriptors will be closed.
fn has_close_range() -> bool {
    let _keep = KeepErrno::new();
    // SAFETY: a descriptor of this number can't be.
    unsafe { next::close_range(c_uint::MAX, c_uint::MAX, CLOSE_RANGE_CLOEXEC) == 0 }
}

/// Whether the process has one thread; false when it can't be told.
fn is_only_thread() -> bool {
    // ".", ".." and one directory per thread link to it.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

/// # Safety
/// As the C function.
pub unsafe fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    duplicate(fd, || unsafe { next::dup(fd) })
}

/// `dup`, or a duplicating `fcntl`: the kernel picks the number.
fn duplicate(fd: c_int, kernel_dup: impl FnOnce() -> c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Own {
        return errno::fail(libc::EBADF);
    }
    if entry.is_object() && !may_mutate() {
        hand_over(fd, entry);
        return kernel_dup();
    }
    let new = kernel_dup();
    if new >= 0 {
        duplicated(fd, new, entry);
    }
    new
}

/// `new` is a duplicate of what `entry` stands for.
fn enter_duplicate(new: c_int, entry: Entry) {
    if !entry.is_object() {
        // What the number was before was closed behind the table's back (a raw system call).
        if fd_table::lookup(new) != Entry::KERNEL && may_mutate() {
            fd_table::take(new);
        }
        return;
    }
    let _keep = KeepErrno::new();
    close::retain(new, entry);
    if !fd_table::set(new, entry) {
        // A number that the table does not reach is always the kernel's.
        close::before_close(new, entry);
        hand_over::hand_over(new, entry);
    } else if stdio::uses(new) {
        hand_over::hand_over(new, entry);
    }
}

/// [`enter_duplicate`] after the kernel has made one of `old`, which stays whatever becomes of this.
fn duplicated(old: c_int, new: c_int, entry: Entry) {
    let enter = || {
        point!(dup_done);
        enter_duplicate(new, entry);
        fresh::forget(old, entry);
    };
    if !contain_uncancelled(enter)
        && let Some(conn) = Conn::of(old, entry)
    {
        // The table may say nothing of the duplicate: it must work as the kernel socket that it is.
        panics::give_back(conn);
    }
}

fn hand_over(fd: c_int, entry: Entry) {
    let _keep = KeepErrno::new();
    hand_over::hand_over(fd, entry);
}

/// # Safety
/// As the C function.
pub unsafe fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    duplicate_onto(old, new, || unsafe { next::dup2(old, new) })
}

/// # Safety
/// As the C function.
pub unsafe fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old == new || flags & !libc::O_CLOEXEC != 0 {
        // SAFETY: the caller keeps the C function's contract. The kernel refuses these.
        return unsafe { next::dup3(old, new, flags) };
    }
    // SAFETY: as above.
    duplicate_onto(old, new, || unsafe { next::dup3(old, new, flags) })
}

/// `dup2` or `dup3`: the program picks the number, and what was there is closed.
fn duplicate_onto(old: c_int, new: c_int, kernel_dup: impl FnOnce() -> c_int) -> c_int {
    let (entry, displaced) = (fd_table::lookup(old), fd_table::lookup(new));
    if entry.kind() == Kind::Own {
        return errno::fail(libc::EBADF);
    }
    if old == new || (entry == Entry::KERNEL && displaced == Entry::KERNEL) {
        return kernel_dup();
    }
    if !may_mutate() {
        if entry.is_object() {
            hand_over(old, entry);
        }
        return kernel_dup();
    }
    if displaced != Entry::KERNEL {
        // The kernel would refuse a closed `old`, and then nothing may have changed.
        if !is_open(old) {
            return kernel_dup();
        }
        if displaced.kind() == Kind::Own {
            if !own_fds::relocate(new, displaced) {
                return errno::fail(libc::EMFILE);
            }
        } else if displaced.is_object() && is_in_a_step(displaced) {
            // In a handler above a call that may be about to use the number. The kernel says so, too,
            // where a number is on its way to somebody else.
            return errno::fail(libc::EBUSY);
        } else {
            forget(new);
            point!(dup_displaced);
        }
    }
    let result = kernel_dup();
    if result >= 0 {
        duplicated(old, new, entry);
    }
    result
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: only looked at; if it is closed the kernel says so.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

/// # Safety
/// As the C function.
pub unsafe fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel_fcntl = || unsafe { next::fcntl(fd, cmd, arg) };
    let entry = fd_table::lookup(fd);
    match entry.kind() {
        Kind::Own => errno::fail(libc::EBADF),
        // Also for the kernel's: the number that it gives out may be in the table still.
        _ if matches!(cmd, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => duplicate(fd, kernel_fcntl),
        Kind::Kernel => kernel_fcntl(),
        _ => {
            let result = kernel_fcntl();
            if cmd == libc::F_SETFL && result == 0 {
                set_nonblocking(entry, arg & c_long::from(libc::O_NONBLOCK) != 0);
                raise_signals(fd, arg & c_long::from(libc::O_ASYNC) != 0);
                set_appending(entry, arg & c_long::from(libc::O_APPEND) != 0);
            }
            result
        }
    }
}

/// The kernel raises a signal when bytes come, or room, or the end (`O_ASYNC`): to its own socket.
fn raise_signals(fd: c_int, on: bool) {
    if on {
        options::go_to_kernel(fd);
    }
}

fn set_nonblocking(entry: Entry, on: bool) {
    let _keep = KeepErrno::new();
    if let Some(sock) = Sock::of(entry) {
        sock.put(NONBLOCK, on);
    }
}

/// # Safety
/// As the C function.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Own {
        return errno::fail(libc::EBADF);
    }
    // Programs ask before each read, so that the ring alone is looked at when it can tell.
    if request == libc::FIONREAD
        && is_mapped(arg)
        && let Some(bytes) = unread::in_ring(entry)
    {
        // SAFETY: the caller keeps the C function's contract.
        unsafe { arg.cast::<c_int>().write_unaligned(bytes) };
        return 0;
    }
    // The kernel first in all other cases: it has its say about the descriptor and the pointer.
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::ioctl(fd, request, arg) };
    if request == libc::FIOASYNC && result == 0 {
        // SAFETY: the kernel has just read the number there.
        raise_signals(fd, unsafe { arg.cast::<c_int>().read_unaligned() } != 0);
    }
    if result != 0 || !entry.is_object() {
        return result;
    }
    let number = arg.cast::<c_int>();
    let answer = match request {
        // SAFETY: the kernel has just read the number there.
        libc::FIONBIO => return set_nonblocking_by(entry, unsafe { number.read_unaligned() }),
        // Also SIOCINQ and SIOCOUTQ, which are the same numbers.
        libc::FIONREAD => Conn::of(fd, entry).and_then(unread::fionread),
        // What has not arrived was not sent either: the receiver's window is closed.
        libc::TIOCOUTQ | SIOCOUTQNSD => unread::outq(fd, entry),
        SIOCATMARK => unread::has_unread(entry).then_some(0),
        _ => None,
    };
    if let Some(bytes) = answer {
        // SAFETY: the kernel has just written a number there.
        unsafe { number.write_unaligned(bytes) };
    }
    result
}

/// Bytes that were not sent (include/uapi/linux/sockios.h).
const SIOCOUTQNSD: c_ulong = 0x894b;

/// False for what programs pass by mistake or to try us out: no page is mapped so low.
fn is_mapped(arg: *const c_void) -> bool {
    const LOWEST: usize = 1 << 16;
    arg.addr() >= LOWEST
}

/// `FIONBIO`: any number but 0 is on.
fn set_nonblocking_by(entry: Entry, number: c_int) -> c_int {
    set_nonblocking(entry, number != 0);
    0
}

/// `O_APPEND` was set to this on a descriptor of the object.
fn set_appending(entry: Entry, on: bool) {
    if let Some(sock) = Sock::of(entry).filter(|sock| sock.has(APPENDS) != on) {
        sock.put(APPENDS, on);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use shunt_runtime::fds::own_fds::{OwnFd, adopt};
    use shunt_runtime::fds::owner;
    use shunt_runtime::testing::in_child;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::empty()).unwrap()
    }

    fn own() -> OwnFd {
        assert!(fd_table::reserve() && owner::claim());
        adopt(event()).unwrap()
    }

    #[test]
    fn own_descriptors_do_not_exist_for_the_program() {
        let own = own();
        let fd = own.raw();
        let refused = |result: c_int| (result, errno::get()) == (-1, libc::EBADF);
        let mut number = 0;
        // SAFETY: the calls are refused; the pointer is valid all the same.
        unsafe {
            assert!(refused(close(fd)));
            assert!(refused(dup(fd)));
            assert!(refused(dup2(fd, fd)));
            assert!(refused(dup2(fd, 400)));
            assert!(refused(dup3(fd, 400, 0)));
            assert!(refused(fcntl(fd, libc::F_GETFD, 0)));
            assert!(refused(fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)));
            assert!(refused(ioctl(fd, libc::FIONREAD, (&raw mut number).cast())));
        }
        assert!(is_open(own.raw()));
    }

    #[test]
    fn an_own_descriptor_makes_room_for_a_duplicate() {
        let own = own();
        let wanted = own.raw();
        rustix::io::write(own.borrow(), &9_u64.to_ne_bytes()).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the descriptors are this test's.
        unsafe {
            // A bad source changes nothing.
            assert_eq!((dup2(99_999, wanted), errno::get()), (-1, libc::EBADF));
            assert_eq!(own.raw(), wanted);
            assert_eq!(dup2(writer.as_raw_fd(), wanted), wanted);
        }
        assert_ne!(own.raw(), wanted);
        assert_eq!(fd_table::lookup(wanted), Entry::KERNEL);
        // SAFETY: the number is the program's now: an end of the pipe.
        rustix::io::write(unsafe { BorrowedFd::borrow_raw(wanted) }, b"x").unwrap();
        let mut buf = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut buf), Ok(1));
        assert_eq!(rustix::io::read(own.borrow(), &mut buf), Ok(8));
        assert_eq!(u64::from_ne_bytes(buf), 9);
        // SAFETY: as above.
        assert_eq!(unsafe { close(wanted) }, 0);
    }

    #[test]
    fn closing_a_range_leaves_own_descriptors_open() {
        let own = own();
        let fd = own.raw();
        assert!(in_child(|| {
            // SAFETY: the child's descriptors.
            unsafe {
                let below = next::fcntl(0, libc::F_DUPFD, 100);
                let above = next::fcntl(0, libc::F_DUPFD, c_long::from(fd) + 1);
                let first = below.cast_unsigned();
                is_open(below)
                    && is_open(above)
                    && close_range(first, c_uint::MAX, 0) == 0
                    && is_open(fd)
                    && !is_open(below)
                    && !is_open(above)
                    && close_range(first, c_uint::MAX, CLOSE_RANGE_UNSHARE) == 0
                    && is_open(fd)
            }
        }));
        assert!(is_open(fd));
    }

    #[test]
    fn closefrom_leaves_own_descriptors_open() {
        let own = own();
        let fd = own.raw();
        let plain = event();
        assert!(in_child(|| {
            // SAFETY: the child's descriptors.
            unsafe { closefrom(3) };
            is_open(fd) && is_open(2) && !is_open(plain.as_raw_fd())
        }));
        assert!(in_child(|| {
            // SAFETY: the child's descriptors. A negative number means all.
            unsafe { closefrom(-5) };
            is_open(fd) && !is_open(0) && !is_open(plain.as_raw_fd())
        }));
    }

    #[test]
    fn nonsense_gets_the_kernels_answer() {
        let own = own();
        let last = own.raw().cast_unsigned();
        // SAFETY: the kernel refuses these.
        unsafe {
            assert_eq!((close_range(last, 0, 0), errno::get()), (-1, libc::EINVAL));
            assert_eq!((close_range(last, last, 64), errno::get()), (-1, libc::EINVAL));
            assert_eq!((dup3(0, 0, 0), errno::get()), (-1, libc::EINVAL));
            assert_eq!((dup3(0, own.raw(), 1), errno::get()), (-1, libc::EINVAL));
            assert_eq!((close(-1), errno::get()), (-1, libc::EBADF));
        }
        assert!(is_open(own.raw()));
    }

    #[test]
    fn close_on_exec_for_a_range_closes_nothing() {
        let own = own();
        let fd = own.raw().cast_unsigned();
        // SAFETY: sets a flag that the descriptor has.
        assert_eq!(unsafe { close_range(fd, fd, CLOSE_RANGE_CLOEXEC) }, 0);
        assert_eq!(fd_table::lookup(own.raw()).kind(), Kind::Own);
    }
}

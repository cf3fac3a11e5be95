//! `syscall(2)`: programs that go to the kernel past libc's functions, by libc's own way.
//!
//! libuv closes its descriptors like this, so that closing is no cancellation point. What such a call
//! does to a descriptor is what the function of that name does, and goes to the same handler. Where the
//! kernel's call and libc's function differ (sets of signals, times that are written back), it is done
//! the kernel's way.
//!
//! Calls by an instruction of the program's own (Go, liburing) are seen by nobody.

use core::ffi::c_long;
use core::mem::MaybeUninit;
use core::ptr;

use crate::ops::{
    connections, epoll, fd as descriptors, inner, memory, poll, process, sockopt, stream as bytes,
    vectors,
};
use crate::{next, panics};
use shunt_runtime::conn::Conn;
use shunt_runtime::descriptors::close::close;
use shunt_runtime::fallback;
use shunt_runtime::memory::mapping::{mapping, remapping, unmapping};
use shunt_runtime::processes::close::ends;
use shunt_runtime::processes::forking::clone_by;
use shunt_runtime::system::abi::{
    c_int, c_uint, c_ulong, c_void, epoll_event, pollfd, rlimit, sigset_t, timespec,
};
use shunt_runtime::system::timeout::{is_valid, nanos, of_nanos};
use shunt_runtime::system::{clock, errno};

/// The system calls that have a handler, by number: those that always have one, and those of forks.
pub static CONCERNS: [u8; 512] = concerns();

/// In [`CONCERNS`]: has one unless the second argument of syscall(2) has one of [`SHARES`], or the third is not 0. The child of
/// those is on another stack, or on this one beside its parent, so nothing must be between the kernel and the program.
pub const FORK: u8 = 1;
/// In [`CONCERNS`]: has one.
const ALWAYS: u8 = 2;

/// Flags of clone(2) with which its child is none of a fork.
pub const SHARES: c_int =
    libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_SETTLS;

/// Calls of every architecture.
const COMMON: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_shutdown,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mlockall,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_socket,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_setsockopt,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit_group,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_prctl,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_seccomp,
    libc::SYS_io_uring_setup,
    libc::SYS_pidfd_getfd,
];

/// Calls that later architectures have in a newer form only.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

const fn concerns() -> [u8; 512] {
    let mut table = [0; 512];
    let mut i = 0;
    while i < COMMON.len() {
        table[size(COMMON[i].cast_unsigned())] = ALWAYS;
        i += 1;
    }
    i = 0;
    while i < OLD.len() {
        table[size(OLD[i].cast_unsigned())] = ALWAYS;
        i += 1;
    }
    table[size(libc::SYS_clone.cast_unsigned())] = FORK;
    table
}

/// An argument as the kernel takes it: the low half of the register.
#[allow(clippy::cast_possible_truncation, reason = "an int is the low half of its register")]
const fn int(word: c_ulong) -> c_int {
    (word as c_uint).cast_signed()
}

const fn uint(word: c_ulong) -> c_uint {
    int(word).cast_unsigned()
}

#[allow(clippy::cast_possible_truncation, reason = "a register is as wide")]
const fn size(word: c_ulong) -> usize {
    word as usize
}

fn at<T>(word: c_ulong) -> *mut T {
    ptr::with_exposed_provenance_mut(size(word))
}

/// After a panic in [`syscall`], before `kernel` does the call.
///
/// # Safety
/// As the C function.
#[allow(clippy::too_many_arguments, reason = "those of syscall(2)")]
pub unsafe fn after_panic(
    number: c_long,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
    _e: c_ulong,
    _f: c_ulong,
    kernel: impl FnOnce() -> c_long,
) -> c_long {
    #[cfg(target_arch = "x86_64")]
    let number = match number {
        libc::SYS_poll => libc::SYS_ppoll,
        libc::SYS_select => libc::SYS_pselect6,
        libc::SYS_epoll_wait => libc::SYS_epoll_pwait,
        other => other,
    };
    let mut is_reset = false;
    // SAFETY: the caller's promise.
    unsafe {
        match number {
            libc::SYS_ppoll => super::poll::after_panic(at(a), b),
            libc::SYS_pselect6 => {
                super::poll::after_panic_in_select(int(a), [at(b), at(c), at(d)]);
            }
            libc::SYS_epoll_ctl => return panics::epoll_ctl(int(a), int(b), int(c), at(d)).into(),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => panics::after_wait_for(int(a)),
            libc::SYS_sendfile => is_reset = panics::after(int(a)) | panics::after(int(b)),
            libc::SYS_splice => is_reset = panics::after(int(a)) | panics::after(int(c)),
            _ => is_reset = panics::after(int(a)),
        }
    }
    if is_reset { errno::fail(libc::ECONNRESET) } else { kernel() }
}

/// # Safety
/// As the C function: the arguments are those that the system call wants.
pub unsafe fn syscall(
    number: c_long,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
    e: c_ulong,
    f: c_ulong,
) -> c_long {
    let words = [a, b, c, d, e, f];
    // SAFETY: the caller keeps the C function's contract.
    let kernel = || unsafe { next::syscall(number, a, b, c, d, e, f) };
    // SAFETY: as above. What the program passes to the system call is what the function of its name wants.
    unsafe { on_bytes(number, words) }
        .or_else(|| unsafe { on_descriptor(number, words) })
        .or_else(|| unsafe { on_set(number, words) })
        .or_else(|| on_memory(number, words, kernel))
        .or_else(|| on_process(number, a, kernel))
        .unwrap_or_else(kernel)
}

/// Calls that move bytes. Only those on a connection: for the others the kernel's call is no
/// cancellation point, as libc's functions are.
///
/// # Safety
/// As [`syscall`].
unsafe fn on_bytes(number: c_long, [a, b, c, d, e, f]: [c_ulong; 6]) -> Option<c_long> {
    let fd = int(a);
    // SAFETY: the caller's promise.
    let moved = unsafe {
        match number {
            libc::SYS_sendmsg => return Some(long(bytes::sendmsg(fd, at(b), int(c)))),
            libc::SYS_sendmmsg => {
                return Some(bytes::sendmmsg(fd, at(b), uint(c), int(d)).into());
            }
            libc::SYS_splice => {
                return Some(long(bytes::splice(fd, at(b), int(c), at(d), size(e), uint(f))));
            }
            libc::SYS_sendfile => bytes::sendfile(fd, int(b), at(c), size(d)),
            _ if Conn::named(fd).is_none() => return None,
            libc::SYS_read => bytes::read(fd, at(b), size(c)),
            libc::SYS_write => bytes::write(fd, at(b), size(c)),
            libc::SYS_readv => bytes::readv(fd, at(b), int(c)),
            libc::SYS_writev => bytes::writev(fd, at(b), int(c)),
            libc::SYS_recvfrom => bytes::recvfrom(fd, at(b), size(c), int(d), at(e), at(f)),
            libc::SYS_sendto => bytes::sendto(fd, at(b), size(c), int(d), at(e), uint(f)),
            libc::SYS_recvmsg => bytes::recvmsg(fd, at(b), int(c)),
            libc::SYS_preadv2 => vectors::preadv2(fd, at(b), int(c), d.cast_signed(), int(f)),
            libc::SYS_pwritev2 => vectors::pwritev2(fd, at(b), int(c), d.cast_signed(), int(f)),
            libc::SYS_recvmmsg => {
                return Some(bytes::recvmmsg(fd, at(b), uint(c), int(d), at(e)).into());
            }
            libc::SYS_shutdown => return Some(bytes::shutdown(fd, int(b)).into()),
            _ => return None,
        }
    };
    Some(long(moved))
}

const fn long(bytes: isize) -> c_long {
    bytes as c_long
}

/// Calls on a descriptor, or that make one; and the ends of the process.
///
/// # Safety
/// As [`syscall`].
unsafe fn on_descriptor(number: c_long, words: [c_ulong; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = words;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_close => {
                close(int(a), || int(next::syscall(number, a, b, c, d, e, f).cast_unsigned()))
            }
            libc::SYS_close_range => descriptors::close_range(uint(a), uint(b), int(c)),
            libc::SYS_dup => descriptors::dup(int(a)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(int(a), int(b)),
            libc::SYS_dup3 => descriptors::dup3(int(a), int(b), int(c)),
            libc::SYS_fcntl if is_known_fcntl(int(b)) => {
                descriptors::fcntl(int(a), int(b), c.cast_signed())
            }
            libc::SYS_ioctl => descriptors::ioctl(int(a), b, at(c)),
            libc::SYS_socket => connections::socket(int(a), int(b), int(c)),
            libc::SYS_listen => connections::listen(int(a), int(b)),
            libc::SYS_accept => connections::accept(int(a), at(b), at(c)),
            libc::SYS_accept4 => connections::accept4(int(a), at(b), at(c), int(d)),
            libc::SYS_connect => connections::connect(int(a), at(b), uint(c)),
            libc::SYS_setsockopt => sockopt::setsockopt(int(a), int(b), int(c), at(d), uint(e)),
            libc::SYS_execve => process::execve(at(a), at(b), at(c)),
            libc::SYS_execveat => process::execveat(int(a), at(b), at(c), at(d), int(e)),
            libc::SYS_exit_group => {
                ends();
                return None;
            }
            libc::SYS_setns => process::setns(int(a), int(b)),
            libc::SYS_unshare => process::unshare(int(a)),
            libc::SYS_prctl => {
                fallback::before_prctl(int(a), b, c);
                return None;
            }
            libc::SYS_mlockall => memory::mlockall(int(a)),
            libc::SYS_setrlimit => poll::setrlimit(uint(a), at::<rlimit>(b)),
            libc::SYS_prlimit64 => poll::prlimit(int(a), uint(b), at::<rlimit>(c), at::<rlimit>(d)),
            libc::SYS_seccomp => {
                fallback::before_seccomp(uint(a).into(), c);
                return None;
            }
            libc::SYS_io_uring_setup => return fallback::before_io_uring(),
            libc::SYS_pidfd_getfd => inner::pidfd_getfd(int(a), int(b), uint(c)),
            _ => return None,
        }
    };
    Some(result.into())
}

/// Calls that map memory. The kernel's own, by `kernel`: the function of the name may be an allocator's, which has
/// called this one.
fn on_memory(
    number: c_long,
    [a, b, c, d, e, f]: [c_ulong; 6],
    kernel: impl FnOnce() -> c_long,
) -> Option<c_long> {
    // An address, or all bits set for an error, as libc's function returns them.
    let address = |at: *mut c_void| long(at.addr().cast_signed());
    let make = || at(kernel().cast_unsigned());
    match number {
        libc::SYS_mmap => {
            let file = (int(e), f.cast_signed());
            Some(address(mapping((at(a), size(b)), int(d), file, make)))
        }
        libc::SYS_mremap => {
            let (old, new) = ((at(a), size(b)), (at(e), size(c)));
            Some(address(remapping(old, new, int(d), make)))
        }
        libc::SYS_munmap => {
            unmapping(at(a), size(b));
            None
        }
        _ => None,
    }
}

/// Calls that make a process.
fn on_process(number: c_long, flags: c_ulong, kernel: impl FnOnce() -> c_long) -> Option<c_long> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(clone_by(0, kernel)),
        libc::SYS_clone => Some(clone_by(flags, kernel)),
        _ => None,
    }
}

/// Commands that mean the same to libc's function, which for others speaks of other structures.
const fn is_known_fcntl(command: c_int) -> bool {
    matches!(
        command,
        libc::F_DUPFD
            | libc::F_DUPFD_CLOEXEC
            | libc::F_GETFD
            | libc::F_SETFD
            | libc::F_GETFL
            | libc::F_SETFL
    )
}

/// Calls on sets of descriptors.
///
/// # Safety
/// As [`syscall`].
unsafe fn on_set(number: c_long, [a, b, c, d, e, f]: [c_ulong; 6]) -> Option<c_long> {
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => poll::poll(at::<pollfd>(a), b, int(c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => poll::select(int(a), at(b), at(c), at(d), at(e)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => epoll::epoll_create(int(a)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(int(a), at(b), int(c), int(d)),
            libc::SYS_epoll_create1 => epoll::epoll_create1(int(a)),
            libc::SYS_epoll_ctl => epoll::epoll_ctl(int(a), int(b), int(c), at::<epoll_event>(d)),
            libc::SYS_epoll_pwait => {
                let mask = Mask::read(e, f)?;
                epoll::epoll_pwait(int(a), at(b), int(c), int(d), mask.get())
            }
            libc::SYS_epoll_pwait2 => {
                let mask = Mask::read(e, f)?;
                epoll::epoll_pwait2(int(a), at(b), int(c), at(d), mask.get())
            }
            libc::SYS_ppoll => {
                let mask = Mask::read(d, e)?;
                let time = Remaining::of(at(c));
                let result = poll::ppoll(at::<pollfd>(a), b, time.asked(), mask.get());
                time.write_back();
                result
            }
            libc::SYS_pselect6 => {
                // The last word points to the set and its size: there is no room for both.
                let pair = at::<[c_ulong; 2]>(f);
                let [set, len] = if pair.is_null() { [0; 2] } else { pair.read_unaligned() };
                let mask = Mask::read(set, len)?;
                let time = Remaining::of(at(e));
                let result = poll::pselect(int(a), at(b), at(c), at(d), time.asked(), mask.get());
                time.write_back();
                result
            }
            _ => return None,
        }
    };
    Some(result.into())
}

/// The kernel's set of signals, which is shorter than libc's.
struct Mask {
    set: MaybeUninit<sigset_t>,
    given: bool,
}

impl Mask {
    /// `None`: the kernel will refuse it.
    ///
    /// # Safety
    /// `word` is null, or the address of a set of `len` bytes.
    unsafe fn read(word: c_ulong, len: c_ulong) -> Option<Self> {
        const KERNEL_SET: usize = 8;
        let mut set = MaybeUninit::<sigset_t>::zeroed();
        if word == 0 {
            return Some(Self { set, given: false });
        }
        if size(len) != KERNEL_SET {
            return None;
        }
        // SAFETY: the caller's promise; a sigset_t is no shorter.
        unsafe { ptr::copy_nonoverlapping(at::<u8>(word), set.as_mut_ptr().cast(), KERNEL_SET) };
        Some(Self { set, given: true })
    }

    const fn get(&self) -> *const sigset_t {
        if self.given { self.set.as_ptr() } else { ptr::null() }
    }
}

/// The time that a call may wait, which the kernel writes back, and libc's functions do not.
struct Remaining {
    place: *mut timespec,
    asked: Option<timespec>,
    began: u64,
}

impl Remaining {
    /// # Safety
    /// `place` is null or points to a time.
    unsafe fn of(place: *mut timespec) -> Self {
        // SAFETY: the caller's promise.
        let asked = (!place.is_null()).then(|| unsafe { place.read_unaligned() });
        Self { place, asked, began: clock::now() }
    }

    fn asked(&self) -> *const timespec {
        self.asked.as_ref().map_or(ptr::null(), ptr::from_ref)
    }

    /// # Safety
    /// As [`Self::of`].
    unsafe fn write_back(&self) {
        let Some(asked) = self.asked.filter(|t| is_valid(Some(t))) else { return };
        let spent = clock::now().saturating_sub(self.began);
        let time = of_nanos(nanos(&asked).saturating_sub(spent));
        // SAFETY: the caller's promise.
        unsafe { self.place.write_unaligned(time) };
    }
}

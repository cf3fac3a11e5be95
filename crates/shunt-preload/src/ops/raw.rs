//! `syscall(2)`: programs that go to the kernel past libc's functions, by libc's own way.
//!
//! libuv closes its descriptors like this, so that closing is no cancellation point. What such a call
//! does to a descriptor is what the function of that name does, and goes to the same handler. Where the
//! kernel's call and libc's function differ (sets of signals, times that are written back), it is done
//! the kernel's way.
//!
//! Calls by an instruction of the program's own (Go, liburing) are seen by nobody.

use core::ffi::c_long;
use core::ptr;

use crate::ops::{around, epoll, fd as descriptors, sockopt, stream as bytes, vectors};
use crate::{next, panics};
use shunt_runtime::conn::Conn;
use shunt_runtime::descriptors::close::close;
use shunt_runtime::descriptors::control::is_known_fcntl;
use shunt_runtime::fallback;
use shunt_runtime::memory::mapping::{mapping, remapping, unmapping};
use shunt_runtime::processes::close::ends;
use shunt_runtime::processes::forking::clone_by;
use shunt_runtime::system::abi::{c_int, c_uint, c_ulong, c_void};
use shunt_runtime::system::errno;
use shunt_runtime::system::kernel_abi::{Mask, Remaining};

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

const fn concerns() -> [u8; 512] {
    let mut table = [0; 512];
    let groups = [ON_CONNECTIONS, ON_DESCRIPTORS, ON_SETS, ON_MEMORY, ON_PROCESSES];
    let mut group = 0;
    while group < groups.len() {
        let mut i = 0;
        while i < groups[group].len() {
            table[size(groups[group][i].cast_unsigned())] = ALWAYS;
            i += 1;
        }
        group += 1;
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

/// What a handler returns, as the result of a system call. `None`: the kernel is to do it.
trait Answer {
    fn word(self) -> Option<c_long>;
}

impl Answer for c_int {
    fn word(self) -> Option<c_long> {
        Some(self.into())
    }
}

impl Answer for c_long {
    fn word(self) -> Option<c_long> {
        Some(self)
    }
}

impl Answer for isize {
    fn word(self) -> Option<c_long> {
        Some(self as c_long)
    }
}

/// An address, or all bits set for an error, as libc's functions return them.
impl Answer for *mut c_void {
    fn word(self) -> Option<c_long> {
        self.addr().cast_signed().word()
    }
}

/// Something that is done before the kernel's call.
impl Answer for () {
    fn word(self) -> Option<c_long> {
        None
    }
}

impl<T: Answer> Answer for Option<T> {
    fn word(self) -> Option<c_long> {
        self.and_then(T::word)
    }
}

/// A group of system calls: the list of their numbers, and the function that has them done.
macro_rules! system_calls {
    ($(#[$doc:meta])* $group:ident, $function:ident[$($word:ident),*], by $kernel:ident;
     $($(#[$cfg:meta])* $number:ident => $result:expr;)*) => {
        $(#[$doc])*
        const $group: &[c_long] = &[$($(#[$cfg])* libc::$number,)*];

        $(#[$doc])*
        ///
        /// # Safety
        /// As [`syscall`].
        #[allow(unused_unsafe, reason = "some handlers are safe")]
        unsafe fn $function(
            number: c_long,
            [$($word),*]: [c_ulong; 6],
            $kernel: impl FnOnce() -> c_long,
        ) -> Option<c_long> {
            // SAFETY: what the program passes to the system call is what the function of its name wants.
            unsafe {
                match number {
                    $($(#[$cfg])* libc::$number => Answer::word($result),)*
                    _ => None,
                }
            }
        }
    };
}

system_calls! {
    /// Calls that move bytes of one connection: for other descriptors the kernel's call is no cancellation point, as
    /// libc's functions are.
    ON_CONNECTIONS, on_connection[a, b, c, d, e, f], by _kernel;
    SYS_read => bytes::read(int(a), at(b), size(c));
    SYS_write => bytes::write(int(a), at(b), size(c));
    SYS_readv => bytes::readv(int(a), at(b), int(c));
    SYS_writev => bytes::writev(int(a), at(b), int(c));
    SYS_preadv2 => vectors::preadv2(int(a), at(b), int(c), d.cast_signed(), int(f));
    SYS_pwritev2 => vectors::pwritev2(int(a), at(b), int(c), d.cast_signed(), int(f));
    SYS_recvfrom => bytes::recvfrom(int(a), at(b), size(c), int(d), at(e), at(f));
    SYS_sendto => bytes::sendto(int(a), at(b), size(c), int(d), at(e), uint(f));
    SYS_recvmsg => bytes::recvmsg(int(a), at(b), int(c));
    SYS_recvmmsg => bytes::recvmmsg(int(a), at(b), uint(c), int(d), at(e));
    SYS_shutdown => bytes::shutdown(int(a), int(b));
}

system_calls! {
    /// Calls on a descriptor, or that make one; and some on the process.
    ON_DESCRIPTORS, on_descriptor[a, b, c, d, e, f], by kernel;
    SYS_sendmsg => bytes::sendmsg(int(a), at(b), int(c));
    SYS_sendmmsg => bytes::sendmmsg(int(a), at(b), uint(c), int(d));
    SYS_sendfile => bytes::sendfile(int(a), int(b), at(c), size(d));
    SYS_splice => bytes::splice(int(a), at(b), int(c), at(d), size(e), uint(f));
    SYS_close => close(int(a), || int(kernel().cast_unsigned()));
    SYS_close_range => around::close_range(uint(a), uint(b), int(c));
    SYS_dup => around::dup(int(a));
    #[cfg(target_arch = "x86_64")]
    SYS_dup2 => around::dup2(int(a), int(b));
    SYS_dup3 => around::dup3(int(a), int(b), int(c));
    SYS_fcntl => is_known_fcntl(int(b)).then(|| around::fcntl(int(a), int(b), c.cast_signed()));
    SYS_ioctl => descriptors::ioctl(int(a), b, at(c));
    SYS_socket => around::socket(int(a), int(b), int(c));
    SYS_listen => around::listen(int(a), int(b));
    SYS_accept => around::accept(int(a), at(b), at(c));
    SYS_accept4 => around::accept4(int(a), at(b), at(c), int(d));
    SYS_connect => around::connect(int(a), at(b), uint(c));
    SYS_setsockopt => sockopt::setsockopt(int(a), int(b), int(c), at(d), uint(e));
    SYS_execve => around::execve(at(a), at(b), at(c));
    SYS_execveat => around::execveat(int(a), at(b), at(c), at(d), int(e));
    SYS_exit_group => ends();
    SYS_setns => around::setns(int(a), int(b));
    SYS_unshare => around::unshare(int(a));
    SYS_prctl => fallback::before_prctl(int(a), b, c);
    SYS_mlockall => around::mlockall(int(a));
    SYS_getrlimit => around::getrlimit(uint(a), at(b));
    SYS_setrlimit => around::setrlimit(uint(a), at(b));
    SYS_prlimit64 => around::prlimit(int(a), uint(b), at(c), at(d));
    SYS_seccomp => fallback::before_seccomp(uint(a).into(), c);
    SYS_io_uring_setup => fallback::before_io_uring();
    SYS_pidfd_getfd => around::pidfd_getfd(int(a), int(b), uint(c));
}

system_calls! {
    /// Calls on sets of descriptors.
    ON_SETS, on_set[a, b, c, d, e, f], by _kernel;
    #[cfg(target_arch = "x86_64")]
    SYS_poll => around::poll(at(a), b, int(c));
    #[cfg(target_arch = "x86_64")]
    SYS_select => around::select(int(a), at(b), at(c), at(d), at(e));
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_create => around::epoll_create(int(a));
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait => around::epoll_wait(int(a), at(b), int(c), int(d));
    SYS_epoll_create1 => around::epoll_create1(int(a));
    SYS_epoll_ctl => epoll::epoll_ctl(int(a), int(b), int(c), at(d));
    SYS_epoll_pwait => Mask::read(at(e), size(f))
        .map(|mask| around::epoll_pwait(int(a), at(b), int(c), int(d), mask.get()));
    SYS_epoll_pwait2 => Mask::read(at(e), size(f))
        .map(|mask| epoll::epoll_pwait2(int(a), at(b), int(c), at(d), mask.get()));
    SYS_ppoll => {
        let mask = Mask::read(at(d), size(e))?;
        let time = Remaining::of(at(c));
        let result = around::ppoll(at(a), b, time.asked(), mask.get());
        time.write_back();
        result
    };
    SYS_pselect6 => {
        // The last word points to the set and its size: there is no room for both.
        let pair = at::<[c_ulong; 2]>(f);
        let [set, len] = if pair.is_null() { [0; 2] } else { pair.read_unaligned() };
        let mask = Mask::read(at(set), size(len))?;
        let time = Remaining::of(at(e));
        let result = around::pselect(int(a), at(b), at(c), at(d), time.asked(), mask.get());
        time.write_back();
        result
    };
}

system_calls! {
    /// Calls that map memory. The kernel's own, by `kernel`: the function of the name may be an allocator's, which has
    /// called this one.
    ON_MEMORY, on_memory[a, b, c, d, e, f], by kernel;
    SYS_mmap => {
        let file = (int(e), f.cast_signed());
        mapping((at(a), size(b)), int(d), file, || at(kernel().cast_unsigned()))
    };
    SYS_mremap => {
        let (old, new) = ((at(a), size(b)), (at(e), size(c)));
        remapping(old, new, int(d), || at(kernel().cast_unsigned()))
    };
    SYS_munmap => unmapping(at(a), size(b));
}

system_calls! {
    /// Calls that make a process.
    ON_PROCESSES, on_process[flags, _b, _c, _d, _e, _f], by kernel;
    #[cfg(target_arch = "x86_64")]
    SYS_fork => clone_by(0, kernel);
    SYS_clone => clone_by(flags, kernel);
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
    // SAFETY: the caller keeps the C function's contract, here and below.
    let kernel = || unsafe { next::syscall(number, a, b, c, d, e, f) };
    // SAFETY: the words are the arguments of the system call of this number, which the caller vouches for.
    unsafe {
        Conn::named(int(a))
            .and_then(|_| on_connection(number, words, kernel))
            .or_else(|| on_descriptor(number, words, kernel))
            .or_else(|| on_set(number, words, kernel))
            .or_else(|| on_memory(number, words, kernel))
            .or_else(|| on_process(number, words, kernel))
    }
    .unwrap_or_else(kernel)
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
            libc::SYS_ppoll => panics::after_poll(at(a), b),
            libc::SYS_pselect6 => panics::after_select(int(a), [at(b), at(c), at(d)]),
            libc::SYS_epoll_ctl => return panics::epoll_ctl(int(a), int(b), int(c), at(d)).into(),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => panics::after_wait_for(int(a)),
            libc::SYS_sendfile => is_reset = panics::after(int(a)) | panics::after(int(b)),
            libc::SYS_splice => is_reset = panics::after(int(a)) | panics::after(int(c)),
            _ => is_reset = panics::after(int(a)),
        }
    }
    if is_reset { errno::fail(libc::ECONNRESET) } else { kernel() }
}

//! Functions of libc that reach the kernel by its inner calls, which no hook sees.
//!
//! Those that read or write a descriptor get a connection that is on TCP ([`before_use`]). Those
//! that put other files in the place of standard input, output and error are watched
//! ([`Replaced`]). `glibc.toml` lists all functions of glibc that have to do with descriptors, and
//! what was decided for each.

use libc::{aiocb, sigevent, termios, winsize};

use crate::next;
use shunt_runtime::descriptors::replaced::Replaced;
use shunt_runtime::descriptors::unseen::{before_getting, before_use};
use shunt_runtime::fds::fd_table;
use shunt_runtime::processes::exec::{before_exec, run_commands};
use shunt_runtime::stream::unread;
use shunt_runtime::system::abi::{c_char, c_int, c_uint, c_void, pid_t};

/// # Safety
/// As the C function: null, or a valid request.
unsafe fn hand_over_request(request: *const aiocb) {
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request.as_ref() } {
        before_use(request.aio_fildes);
    }
}

/// # Safety
/// As the C function.
pub unsafe fn aio_read(request: *mut aiocb) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe {
        hand_over_request(request);
        next::aio_read(request)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn aio_read64(request: *mut aiocb) -> c_int {
    // SAFETY: the caller keeps the C function's contract. Where words have 64 bits the two requests
    // are the same.
    unsafe {
        hand_over_request(request);
        next::aio_read64(request)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn aio_write(request: *mut aiocb) -> c_int {
    // SAFETY: as above.
    unsafe {
        hand_over_request(request);
        next::aio_write(request)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn aio_write64(request: *mut aiocb) -> c_int {
    // SAFETY: as above.
    unsafe {
        hand_over_request(request);
        next::aio_write64(request)
    }
}

/// # Safety
/// `list` points to `count` requests, each null or valid.
unsafe fn hand_over_requests(list: *const *mut aiocb, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    if !list.is_null() {
        // SAFETY: the caller's promise.
        (0..count).for_each(|n| unsafe { hand_over_request(*list.add(n)) });
    }
}

/// # Safety
/// As the C function.
pub unsafe fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut sigevent,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe {
        hand_over_requests(list, count);
        next::lio_listio(mode, list, count, event)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn lio_listio64(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut sigevent,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        hand_over_requests(list, count);
        next::lio_listio64(mode, list, count, event)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn eventfd_read(fd: c_int, value: *mut u64) -> c_int {
    before_use(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::eventfd_read(fd, value) }
}

/// # Safety
/// As the C function.
pub unsafe fn eventfd_write(fd: c_int, value: u64) -> c_int {
    before_use(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::eventfd_write(fd, value) }
}

/// # Safety
/// As the C function.
pub unsafe fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) {
    before_use(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::backtrace_symbols_fd(frames, count, fd) }
}

/// # Safety
/// As the C function.
pub unsafe fn sockatmark(fd: c_int) -> c_int {
    if unread::has_unread(fd_table::lookup(fd)) {
        return 0;
    }
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::sockatmark(fd) }
}

/// # Safety
/// As the C function.
pub unsafe fn wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int {
    const NOCMD: c_int = 1 << 2;
    let runs_commands = flags & NOCMD == 0 && !words.is_null() && {
        // SAFETY: the caller passes a C string.
        run_commands(unsafe { core::ffi::CStr::from_ptr(words) }.to_bytes())
    };
    if runs_commands {
        before_exec();
    }
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::wordexp(words, into, flags) }
}

/// A duplicate of a descriptor of this very process: neither dup(2) nor another process is seen to
/// make it.
///
/// # Safety
/// As the C function.
pub unsafe fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int {
    before_getting(pidfd, target);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::pidfd_getfd(pidfd, target, flags) }
}

/// # Safety
/// As the C function.
pub unsafe fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    let _replaced = Replaced::begin();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::daemon(nochdir, noclose) }
}

/// # Safety
/// As the C function.
pub unsafe fn login_tty(fd: c_int) -> c_int {
    let _replaced = Replaced::begin();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::login_tty(fd) }
}

/// # Safety
/// As the C function.
pub unsafe fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    terminal: *const termios,
    size: *const winsize,
) -> pid_t {
    let _replaced = Replaced::begin();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::forkpty(master, name, terminal, size) }
}

//! The C types that the hook list speaks in, and addresses in them.

use std::os::fd::BorrowedFd;

use shunt_wire::addr::Addr;

pub use libc::{
    FILE, aiocb, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec,
    mmsghdr, msghdr, nfds_t, off_t, off64_t, pid_t, pollfd, posix_spawn_file_actions_t,
    posix_spawnattr_t, rlimit, sigaction as Action, sigevent, sighandler_t, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, termios, timespec, timeval, uid_t, winsize,
};

/// A handler of pthread_atfork(3).
pub type ForkHandler = Option<unsafe extern "C" fn()>;

/// `const char *const argv[]`, as the exec family takes it.
pub type Strings = *const *const c_char;

/// `struct aiocb *const list[]`, as `lio_listio` takes it.
pub type Requests = *const *mut aiocb;

/// `void *const frames[]`, as `backtrace_symbols_fd` takes it.
pub type Frames = *const *mut c_void;

/// True for `AF_UNSPEC`, which ends a connection and leaves a fresh socket.
///
/// # Safety
/// `addr` points to `len` readable bytes.
pub unsafe fn is_unspecific(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: the caller promises `len` readable bytes, and sa_family are the first two.
    len >= 2 && c_int::from(unsafe { (*addr).sa_family }) == libc::AF_UNSPEC
}

/// The TCP address in a C structure.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Option<Addr> {
    if addr.is_null() {
        return None;
    }
    let len = len as usize;
    // SAFETY: sa_family are the first two bytes, if there are so many.
    let family = if len >= 2 { unsafe { (*addr).sa_family } } else { return None };
    match c_int::from(family) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the caller promises `len` readable bytes, which are as many as a sockaddr_in has; read unaligned, as the kernel does.
            let sin = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = core::net::Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
            Some(core::net::SocketAddr::from((ip, u16::from_be(sin.sin_port))).into())
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: the caller promises `len` readable bytes, which are as many as a sockaddr_in6 has; read unaligned.
            let sin6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Addr { ip: sin6.sin6_addr.s6_addr, port: u16::from_be(sin6.sin6_port) })
        }
        _ => None,
    }
}

/// Borrows a descriptor of the program for one call.
pub fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: the program has it open while it is inside our hook; if it closes it in another thread
    // the kernel's answer is EBADF, as without Shunt.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}

/// The registers of the first three arguments of a function, whatever they mean, and where its
/// caller goes on.
pub type Arguments = [usize; 4];

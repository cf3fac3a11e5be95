//! Signals that the kernel raises for descriptors.

use std::io;
use std::os::fd::RawFd;

use libc::c_int;

use super::{check, status_flags};

/// Has `handler` run at this signal, which does not end calls where it need not (`SA_RESTART`).
pub fn on_signal_restarting(signal: c_int, handler: extern "C" fn(c_int)) -> io::Result<()> {
    // SAFETY: all zero is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is valid.
    check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }).map(drop)
}

/// `F_SETOWN` for this process, and `F_SETSIG`.
pub fn own_signals(fd: RawFd, signal: c_int) -> io::Result<()> {
    /// `include/uapi/asm-generic/fcntl.h`.
    const F_SETSIG: c_int = 10;
    // SAFETY: no pointers.
    unsafe {
        check(libc::fcntl(fd, libc::F_SETOWN, libc::getpid()))?;
        check(libc::fcntl(fd, F_SETSIG, signal)).map(drop)
    }
}

fn flags_with(fd: RawFd, on: bool) -> io::Result<c_int> {
    let flags = status_flags(fd)?;
    Ok(if on { flags | libc::O_ASYNC } else { flags & !libc::O_ASYNC })
}

/// Sets or clears `O_ASYNC`.
pub fn set_async(fd: RawFd, on: bool) -> io::Result<()> {
    let flags = flags_with(fd, on)?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

/// The same by `ioctl(FIOASYNC)`.
pub fn set_async_ioctl(fd: RawFd, on: bool) -> io::Result<()> {
    let mut value = c_int::from(on);
    // SAFETY: FIOASYNC reads one int.
    check(unsafe { libc::ioctl(fd, libc::FIOASYNC, &raw mut value) }).map(drop)
}

/// The same by `syscall(2)`.
pub fn set_async_raw(fd: RawFd, on: bool) -> io::Result<()> {
    let flags = flags_with(fd, on)?;
    // SAFETY: no pointers.
    super::check_long(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, flags) }).map(drop)
}

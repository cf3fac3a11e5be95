//! System calls by `syscall(2)`, past the functions of their names.

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_long, pollfd};

use super::check_long;

/// read(2).
pub fn read(fd: RawFd, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid.
    check_long(unsafe { libc::syscall(libc::SYS_read, fd, buf.as_mut_ptr(), buf.len()) })
}

/// write(2).
pub fn write(fd: RawFd, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid.
    check_long(unsafe { libc::syscall(libc::SYS_write, fd, buf.as_ptr(), buf.len()) })
}

/// sendto(2) without an address.
pub fn send(fd: RawFd, buf: &[u8], flags: i32) -> io::Result<usize> {
    let null = std::ptr::null::<u8>();
    // SAFETY: the buffer is valid; there is no address.
    check_long(unsafe {
        libc::syscall(libc::SYS_sendto, fd, buf.as_ptr(), buf.len(), flags, null, 0)
    })
}

/// recvfrom(2) that asks for no address.
pub fn recv(fd: RawFd, buf: &mut [u8], flags: i32) -> io::Result<usize> {
    let null = std::ptr::null_mut::<u8>();
    // SAFETY: the buffer is valid; no address is asked for.
    check_long(unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, buf.as_mut_ptr(), buf.len(), flags, null, null)
    })
}

/// preadv2(2) into one buffer.
pub fn preadv2(fd: RawFd, buf: &mut [u8], offset: i64, flags: i32) -> io::Result<usize> {
    let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: the buffer is valid.
    check_long(unsafe { libc::syscall(libc::SYS_preadv2, fd, &raw const iov, 1, offset, 0, flags) })
}

/// pwritev2(2) of one buffer.
pub fn pwritev2(fd: RawFd, buf: &[u8], offset: i64, flags: i32) -> io::Result<usize> {
    let iov = libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
    // SAFETY: the buffer is valid.
    check_long(unsafe {
        libc::syscall(libc::SYS_pwritev2, fd, &raw const iov, 1, offset, 0, flags)
    })
}

/// sendfile(2) from the file's position on.
pub fn sendfile(out: RawFd, file: RawFd, len: usize) -> io::Result<usize> {
    let null = std::ptr::null_mut::<i64>();
    // SAFETY: there is no offset.
    check_long(unsafe { libc::syscall(libc::SYS_sendfile, out, file, null, len) })
}

/// close(2).
pub fn close(fd: OwnedFd) -> io::Result<usize> {
    // SAFETY: nobody uses the descriptor any more.
    check_long(unsafe { libc::syscall(libc::SYS_close, fd.into_raw_fd()) })
}

/// dup(2), whose number the caller has to close.
pub fn dup(fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: no memory is involved.
    check_long(unsafe { libc::syscall(libc::SYS_dup, fd) })
        .map(|fd| RawFd::try_from(fd).unwrap_or(-1))
}

/// ppoll(2) with an empty set of signals; how many are ready, and whether any of the time was left.
pub fn ppoll(fds: &mut [pollfd], timeout: Duration) -> io::Result<(usize, bool)> {
    let mut time = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // The kernel's set of signals.
    let none = 0_u64;
    // SAFETY: the array, the time and the set are valid; the sizes are theirs.
    let found = check_long(unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            &raw mut time,
            &raw const none,
            size_of_val(&none),
        )
    })?;
    Ok((found, time.tv_sec > 0 || time.tv_nsec > 0))
}

/// epoll_pwait(2) for one event, with an empty set of signals; its data.
pub fn epoll_pwait(set: RawFd, millis: i32) -> io::Result<Option<u64>> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let none = 0_u64;
    // SAFETY: there is room for one event; the set has its size.
    let found = check_long(unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            set,
            &raw mut event,
            1,
            millis,
            &raw const none,
            size_of_val(&none),
        )
    })?;
    Ok((found > 0).then_some(event.u64))
}

/// A call of which nothing is known.
pub fn unknown() -> io::Result<usize> {
    const NO_SUCH_CALL: c_long = 100_000;
    // SAFETY: there is no such call.
    check_long(unsafe { libc::syscall(NO_SUCH_CALL) })
}

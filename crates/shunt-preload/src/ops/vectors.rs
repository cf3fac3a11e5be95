//! `preadv2` and `pwritev2`, which are readv and writev with flags where they name no position.
//!
//! Of the flags two mean something to a socket: `RWF_NOWAIT` and `RWF_NOSIGNAL`. Which others there
//! are, or come to be, and which a socket refuses, the kernel says in a call that moves nothing.

use libc::{EAGAIN, EFAULT, MSG_DONTWAIT, MSG_NOSIGNAL, RWF_NOWAIT};

use crate::next;
use crate::ops::stream as bytes;
use shunt_runtime::conn::Conn;
use shunt_runtime::stream::borrow::Request;
use shunt_runtime::system::abi::{c_int, iovec, msghdr, off_t, ssize_t};
use shunt_runtime::system::errno;

/// The current position, of which a connection has none.
const HERE: off_t = -1;

/// `include/uapi/linux/fs.h`, since Linux 6.18.
const RWF_NOSIGNAL: c_int = 0x100;

/// A message of these buffers.
fn message(iov: *const iovec, count: c_int) -> msghdr {
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.cast_mut();
    msg.msg_iovlen = usize::try_from(count).unwrap_or(usize::MAX);
    msg
}

/// What the flags are to recvmsg(2) and sendmsg(2), or the result of a call that the kernel
/// refuses.
fn meaning(fd: c_int, flags: c_int) -> Result<c_int, ssize_t> {
    let wait = if flags & RWF_NOWAIT == 0 { 0 } else { MSG_DONTWAIT };
    if flags & !RWF_NOWAIT == 0 {
        return Ok(wait);
    }
    let before = errno::get();
    let nowhere = iovec { iov_base: core::ptr::null_mut(), iov_len: 1 };
    // SAFETY: the kernel does not write to an address that is not mapped. It leaves the bytes where
    // they are.
    let n = unsafe { next::preadv2(fd, &raw const nowhere, 1, HERE, flags | RWF_NOWAIT) };
    if n < 0 && !matches!(errno::get(), EAGAIN | EFAULT) {
        return Err(n);
    }
    errno::set(before);
    Ok(wait | if flags & RWF_NOSIGNAL == 0 { 0 } else { MSG_NOSIGNAL })
}

/// # Safety
/// As the C function.
pub unsafe fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let found = Conn::named(fd).filter(|_| offset == HERE);
    // SAFETY: the caller keeps the C function's contract.
    let buffers = found.and_then(|_| unsafe { bytes::vector(iov, count) });
    // What moves nothing, or cannot be, is the kernel's.
    let (Some(found), Some(buffers)) = (found, buffers.filter(|all| all.total > 0)) else {
        // SAFETY: as above.
        return unsafe { next::preadv2(fd, iov, count, offset, flags) };
    };
    let flags = match meaning(fd, flags) {
        Ok(flags) => flags & !MSG_NOSIGNAL,
        Err(refused) => return refused,
    };
    let mut kernel = |fd, extra| {
        let mut msg = message(iov, count);
        // SAFETY: as above.
        unsafe { next::recvmsg(fd, &raw mut msg, flags | extra) }
    };
    bytes::receive(found, Some(buffers), flags, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let found = Conn::named(fd).filter(|_| offset == HERE);
    // SAFETY: the caller keeps the C function's contract.
    let buffers = found.and_then(|_| unsafe { bytes::vector(iov, count) });
    let (Some(found), Some(buffers)) = (found, buffers.filter(|all| all.total > 0)) else {
        // SAFETY: as above.
        return unsafe { next::pwritev2(fd, iov, count, offset, flags) };
    };
    let flags = match meaning(fd, flags) {
        Ok(flags) => flags,
        Err(refused) => return refused,
    };
    let mut kernel = |fd, extra| {
        let msg = message(iov, count);
        // SAFETY: as above.
        unsafe { next::sendmsg(fd, &raw const msg, flags | extra) }
    };
    bytes::transmit(found, Some(buffers), flags, Request::Plain, &mut kernel)
}

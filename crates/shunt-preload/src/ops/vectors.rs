//! `preadv2` and `pwritev2`, which are readv and writev with flags where they name no position.

use libc::MSG_NOSIGNAL;

use crate::next;
use crate::ops::stream as bytes;
use shunt_runtime::conn::Conn;
use shunt_runtime::stream::borrow::Request;
use shunt_runtime::stream::rw_flags::{HERE, meaning};
use shunt_runtime::stream::{recv as rx, send as tx};
use shunt_runtime::system::abi::{c_int, iovec, off_t, ssize_t};

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
        // SAFETY: the program's arguments, by the contract of preadv2(2).
        return unsafe { next::preadv2(fd, iov, count, offset, flags) };
    };
    let flags = match meaning(fd, flags) {
        Ok(flags) => flags & !MSG_NOSIGNAL,
        Err(refused) => return refused,
    };
    let mut kernel = |fd, extra| {
        let mut msg = bytes::message(iov, count);
        // SAFETY: the program's arguments, by the contract of recvmsg(2).
        unsafe { next::recvmsg(fd, &raw mut msg, flags | extra) }
    };
    rx::with_flags(found, Some(buffers), flags, Request::Plain, &mut kernel)
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
        // SAFETY: the program's arguments, by the contract of pwritev2(2).
        return unsafe { next::pwritev2(fd, iov, count, offset, flags) };
    };
    let flags = match meaning(fd, flags) {
        Ok(flags) => flags,
        Err(refused) => return refused,
    };
    let mut kernel = |fd, extra| {
        let msg = bytes::message(iov, count);
        // SAFETY: the program's arguments, by the contract of sendmsg(2).
        unsafe { next::sendmsg(fd, &raw const msg, flags | extra) }
    };
    tx::with_flags(found, Some(buffers), flags, Request::Plain, &mut kernel)
}

//! `preadv2` and `pwritev2`, which are readv and writev with flags where they name no position.

use libc::MSG_NOSIGNAL;

use crate::next;
use crate::ops::stream as bytes;
use shunt_runtime::conn::Conn;
use shunt_runtime::stream::borrow::Request;
use shunt_runtime::stream::bytes::Buffers;
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
    // SAFETY: the program gives `count` entries at `iov`.
    let Some((found, buffers)) = (unsafe { here(fd, iov, count, offset) }) else {
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
    // SAFETY: the program gives `count` entries at `iov`.
    let Some((found, buffers)) = (unsafe { here(fd, iov, count, offset) }) else {
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

/// The connection and the buffers of a call without a position. `None`: it moves nothing, or cannot be, and is the kernel's.
///
/// # Safety
/// `iov` points to `count` entries.
unsafe fn here<'a>(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
) -> Option<(Conn, Buffers<'a>)> {
    let found = Conn::named(fd).filter(|_| offset == HERE)?;
    // SAFETY: the caller promises `count` entries.
    let buffers = unsafe { bytes::vector(iov, count) }?;
    (buffers.total > 0).then_some((found, buffers))
}

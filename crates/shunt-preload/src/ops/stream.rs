//! Calls that move bytes on a connection, or end a direction of it.

use libc::{MSG_ERRQUEUE, MSG_FASTOPEN};

use crate::next;
use shunt_runtime::conn::Conn;
use shunt_runtime::establish::connect;
use shunt_runtime::stream::ancillary::{hand_over_rights, heed_times};
use shunt_runtime::stream::borrow::{Asked, Request};
use shunt_runtime::stream::bytes::Buffers;
use shunt_runtime::stream::hints::Hints;
use shunt_runtime::stream::shut::shut;
use shunt_runtime::stream::{files, inq, recv as rx, send as tx, several, zerocopy};
use shunt_runtime::system::abi::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use shunt_runtime::system::timeout::{is_valid, nanos};

const fn buffer(buf: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: len }
}

/// # Safety
/// As the C function.
pub unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // A read of nothing does not wait (unlike recv).
    let Some(conn) = Conn::named(fd).filter(|_| len > 0) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::read(fd, buf, len) };
    };
    let iov = buffer(buf, len);
    // SAFETY: the program's arguments, by the contract of recv(2).
    let mut kernel = |fd, extra| unsafe { next::recv(fd, buf, len, extra) };
    rx::with_flags(conn, Some(Buffers::one(&iov)), 0, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::readv(fd, iov, count) };
    };
    // SAFETY: the program gives `count` entries at `iov`.
    let buffers = unsafe { vector(iov, count) };
    if buffers.is_some_and(|b| b.total == 0) {
        // SAFETY: the program's arguments, by the contract of readv(2).
        return unsafe { next::readv(fd, iov, count) };
    }
    // SAFETY: the program gives `count` entries at `iov`.
    let mut kernel = |fd, extra| unsafe { kernel_recvmsg(fd, iov, count, extra) };
    rx::with_flags(conn, buffers, 0, Request::Plain, &mut kernel)
}

/// # Safety
/// `iov` points to `count` entries.
pub(super) unsafe fn vector<'a>(iov: *const iovec, count: c_int) -> Option<Buffers<'a>> {
    // SAFETY: the caller's promise.
    unsafe { Buffers::new(iov, usize::try_from(count).ok()?) }
}

/// A message of these buffers.
pub(super) fn message(iov: *const iovec, count: c_int) -> msghdr {
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.cast_mut();
    msg.msg_iovlen = usize::try_from(count).unwrap_or(usize::MAX);
    msg
}

/// readv with flags.
///
/// # Safety
/// As readv.
unsafe fn kernel_recvmsg(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    unsafe {
        if flags == 0 {
            return next::readv(fd, iov, count);
        }
        let mut msg = message(iov, count);
        next::recvmsg(fd, &raw mut msg, flags)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match Conn::named(fd) {
        // SAFETY: the caller keeps the C function's contract.
        Some(conn) => unsafe { recv_on(conn, buf, len, flags) },
        // SAFETY: the program's arguments, by the contract of recv(2).
        None => unsafe { next::recv(fd, buf, len, flags) },
    }
}

/// recv(2) on a connection.
///
/// # Safety
/// As the C function.
#[inline(always)]
pub unsafe fn recv_on(conn: Conn, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let mut kernel = |fd, extra| unsafe { next::recv(fd, buf, len, flags | extra) };
    let iov = buffer(buf, len);
    rx::with_flags(conn, Some(Buffers::one(&iov)), flags, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    let mut kernel =
        |fd, extra| unsafe { next::recvfrom(fd, buf, len, flags | extra, addr, addr_len) };
    let Some(conn) = Conn::named(fd) else { return kernel(fd, 0) };
    let iov = buffer(buf, len);
    let n = rx::with_flags(conn, Some(Buffers::one(&iov)), flags, Request::Plain, &mut kernel);
    if n >= 0 && !addr.is_null() && !addr_len.is_null() {
        // A connected TCP socket tells no address (tcp_recvmsg leaves msg_namelen at 0).
        // SAFETY: the program gave room for the length.
        unsafe { *addr_len = 0 };
    }
    n
}

/// # Safety
/// As the C function.
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(conn) = Conn::named(fd).filter(|_| !msg.is_null()) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::recvmsg(fd, msg, flags) };
    };
    if flags & MSG_ERRQUEUE != 0 {
        // SAFETY: the message is not null, so it is one that the program has given to be filled in.
        let msg = unsafe { &mut *msg };
        // SAFETY: the program's arguments, by the contract of recvmsg(2).
        let kernel = |msg: &mut msghdr| unsafe { next::recvmsg(fd, msg, flags) };
        return zerocopy::receive(conn.sock(), msg, kernel);
    }
    // SAFETY: the message is not null, so it is valid, and so are its entries.
    let (room, buffers) =
        unsafe { ((*msg).msg_controllen, Buffers::new((*msg).msg_iov, (*msg).msg_iovlen)) };
    // SAFETY: the program gives a valid message, with its control buffer.
    let mut asked = unsafe { Asked::of(&*msg, flags) };
    let mut from_kernel = false;
    let mut kernel = |fd, extra| {
        // SAFETY: the program's arguments, by the contract of recvmsg(2). An earlier attempt of this call may have used the room up.
        unsafe {
            (*msg).msg_controllen = room;
            let n = next::recvmsg(fd, msg, flags | extra);
            from_kernel = n >= 0;
            n
        }
    };
    let n = rx::with_flags(conn, buffers, flags, asked.request(), &mut kernel);
    if n >= 0 && !from_kernel {
        // SAFETY: the message is not null, so it is one that the program has given to be filled in.
        unsafe {
            (*msg).msg_namelen = 0;
            (*msg).msg_controllen = asked.answer_len();
            (*msg).msg_flags = 0;
        }
    }
    if n >= 0 && matches!(asked, Asked::Plain) && inq::is_told(conn, room) {
        // SAFETY: the message is not null, so it is one that the program has given to be filled in.
        inq::tell(conn, unsafe { &mut *msg }, (!from_kernel).then_some(room));
    }
    n
}

/// # Safety
/// As the C function.
pub unsafe fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: null or a valid timespec.
    if Conn::named(fd).is_none() || !is_valid(unsafe { timeout.as_ref() }) {
        // SAFETY: the caller keeps the C function's contract. The kernel refuses an invalid time.
        return unsafe { next::recvmmsg(fd, msgs, count, flags, timeout) };
    }
    // SAFETY: null or a valid timespec.
    let limit = unsafe { timeout.as_ref() }.map(nanos);
    several::receive(fd, count, flags, limit, |i, flags| {
        // SAFETY: the caller vouches for `count` entries.
        let entry = unsafe { &mut *msgs.add(i) };
        // SAFETY: the program's arguments, by the contract of recvmsg(2).
        let n = unsafe { recvmsg(fd, &raw mut entry.msg_hdr, flags) };
        if n >= 0 {
            entry.msg_len = c_uint::try_from(n).unwrap_or(c_uint::MAX);
        }
        n
    })
}

/// # Safety
/// As the C function.
pub unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::write(fd, buf, len) };
    };
    let iov = buffer(buf, len);
    // SAFETY: the program's arguments, by the contract of send(2).
    let mut kernel = |fd, extra| unsafe { next::send(fd, buf, len, extra) };
    tx::with_flags(conn, Some(Buffers::one(&iov)), 0, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::writev(fd, iov, count) };
    };
    // SAFETY: the program gives `count` entries at `iov`.
    let buffers = unsafe { vector(iov, count) };
    let mut kernel = |fd, extra| {
        // SAFETY: the program's arguments, by the contract of writev(2).
        unsafe {
            if extra == 0 {
                return next::writev(fd, iov, count);
            }
            let msg = message(iov, count);
            next::sendmsg(fd, &raw const msg, extra)
        }
    };
    tx::with_flags(conn, buffers, 0, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match Conn::named(fd) {
        // SAFETY: the caller keeps the C function's contract.
        Some(conn) => unsafe { send_on(conn, buf, len, flags) },
        // SAFETY: the program's arguments, by the contract of send(2).
        None => unsafe { next::send(fd, buf, len, flags) },
    }
}

/// send(2) on a connection.
///
/// # Safety
/// As the C function.
#[inline(always)]
pub unsafe fn send_on(conn: Conn, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let kernel = |fd, flags| unsafe { next::send(fd, buf, len, flags) };
    let iov = buffer(buf, len);
    tx::numbered(conn, Some(Buffers::one(&iov)), flags, None, &kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |fd, flags| unsafe { next::sendto(fd, buf, len, flags, addr, addr_len) };
    // On a connected TCP socket the address is ignored.
    let Some(conn) = Conn::named(fd) else {
        if flags & MSG_FASTOPEN != 0 {
            // SAFETY: the caller keeps the C function's contract.
            return unsafe { connect::by_send(fd, addr, addr_len, flags, || kernel(fd, flags)) };
        }
        return kernel(fd, flags);
    };
    let iov = buffer(buf, len);
    tx::numbered(conn, Some(Buffers::one(&iov)), flags, None, &kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |fd, flags| unsafe { next::sendmsg(fd, msg, flags) };
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: null or valid by the C function's contract.
        if let Some(msg) = unsafe { msg.as_ref() } {
            // SAFETY: the program gives a valid message, with its control buffer.
            unsafe { hand_over_rights(msg) };
            if flags & MSG_FASTOPEN != 0 {
                let (addr, len) = (msg.msg_name.cast(), msg.msg_namelen);
                // SAFETY: the program gives a valid message, with its address.
                return unsafe { connect::by_send(fd, addr, len, flags, || kernel(fd, flags)) };
            }
        }
        return kernel(fd, flags);
    };
    if msg.is_null() {
        return kernel(fd, flags);
    }
    // SAFETY: the message is not null, so it is valid, and so are its entries.
    let buffers = unsafe { Buffers::new((*msg).msg_iov, (*msg).msg_iovlen) };
    // SAFETY: the program gives a valid message, with its control buffer.
    unsafe { heed_times(conn, &*msg) };
    // SAFETY: the program gives a valid message, with its control buffer.
    let hints = unsafe { Hints::of(&*msg) };
    tx::numbered(conn, buffers, flags, Some(&hints), &kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if Conn::named(fd).is_none() && flags & MSG_FASTOPEN == 0 {
        // SAFETY: the caller keeps the C function's contract, with `count` entries.
        unsafe {
            // As many as the kernel takes at once (UIO_MAXIOV).
            let seen = if msgs.is_null() { 0 } else { count.min(1024) };
            (0..seen).for_each(|i| hand_over_rights(&(*msgs.add(i as usize)).msg_hdr));
            return next::sendmmsg(fd, msgs, count, flags);
        }
    }
    several::send(fd, count, |i| {
        // SAFETY: the caller vouches for `count` entries.
        let entry = unsafe { &mut *msgs.add(i) };
        let wanted = iov_total(&entry.msg_hdr);
        // SAFETY: the program's arguments, by the contract of sendmsg(2).
        let n = unsafe { sendmsg(fd, &raw const entry.msg_hdr, flags) };
        if n >= 0 {
            entry.msg_len = c_uint::try_from(n).unwrap_or(c_uint::MAX);
        }
        (n, wanted)
    })
}

fn iov_total(msg: &msghdr) -> usize {
    // SAFETY: the program's message.
    unsafe { Buffers::new(msg.msg_iov, msg.msg_iovlen) }.map_or(0, |b| b.total)
}

/// # Safety
/// As the C function.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |input| unsafe { next::sendfile(out, input, offset, count) };
    // SAFETY: the program's arguments, by the contract of sendfile(2).
    unsafe { files::sendfile(out, input, offset.cast(), count, kernel) }
}

/// # Safety
/// As the C function.
pub unsafe fn splice(
    input: c_int,
    off_in: *mut off64_t,
    out: c_int,
    off_out: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |input, out| unsafe { next::splice(input, off_in, out, off_out, len, flags) };
    if off_in.is_null() && off_out.is_null() {
        files::splice(input, out, len, flags, kernel)
    } else {
        // A call that is refused.
        kernel(input, out)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |fd| unsafe { next::shutdown(fd, how) };
    match Conn::named(fd) {
        Some(conn) => shut(conn, how, kernel),
        None => kernel(fd),
    }
}

//! Calls that move bytes on a connection, or end a direction of it.

use libc::{MSG_ERRQUEUE, MSG_OOB};
use shunt_engine::conn::End;
use shunt_engine::handshake::Phase;
use shunt_shm::sync::store_load_fence;
use shunt_sys::sockinfo;
use shunt_wire::reason::Reason;

use crate::next;
use shunt_runtime::conn::{Conn, Hold, KERNEL_HINT, SHUT_RD, SHUT_WR, Sock};
use shunt_runtime::fds::fd_table::{self, Kind};
use shunt_runtime::fds::fresh;
use shunt_runtime::point;
use shunt_runtime::stream::borrow::{Asked, Request};
use shunt_runtime::stream::bytes::Buffers;
use shunt_runtime::stream::call::Call;
use shunt_runtime::stream::hand_over;
use shunt_runtime::stream::hints::Hints;
use shunt_runtime::stream::in_doubt::InDoubt;
use shunt_runtime::stream::inq;
use shunt_runtime::stream::{
    demote, doubt, files, notify, promote, recv as rx, send as tx, zerocopy,
};
use shunt_runtime::system::abi::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use shunt_runtime::system::errno;
use shunt_runtime::system::timeout::is_valid;

const fn buffer(buf: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: len }
}

/// Receives into the buffers, unless the flags ask for what only the kernel has.
#[inline(always)]
pub(super) fn receive(
    conn: Conn,
    buffers: Option<Buffers<'_>>,
    flags: c_int,
    request: Request<'_>,
    kernel: &mut dyn FnMut(c_int, c_int) -> isize,
) -> isize {
    let fd = conn.descriptor();
    match buffers {
        Some(buffers) if flags & (MSG_ERRQUEUE | MSG_OOB) == 0 => {
            let hold = Hold::none();
            rx::receive(&mut Call { conn, hold, buffers, flags, request, kernel })
        }
        _ if flags & MSG_ERRQUEUE != 0 => {
            zerocopy::discard(conn.sock()).unwrap_or_else(|| kernel(fd, 0))
        }
        _ => kernel(fd, 0),
    }
}

/// Sends the buffers, unless the flags ask for what only the kernel can do.
#[inline(always)]
pub(super) fn transmit(
    conn: Conn,
    buffers: Option<Buffers<'_>>,
    flags: c_int,
    request: Request<'_>,
    kernel: &mut dyn FnMut(c_int, c_int) -> isize,
) -> isize {
    let Some(buffers) = buffers else { return kernel(conn.descriptor(), 0) };
    if flags & MSG_OOB != 0 {
        // Urgent data are the kernel's: this direction goes back to it.
        demote::leave(conn, Reason::Unsupported);
    }
    let hold = Hold::none();
    tx::transmit(&mut Call { conn, hold, buffers, flags, request, kernel })
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
    // SAFETY: as above.
    let mut kernel = |fd, extra| unsafe { next::recv(fd, buf, len, extra) };
    receive(conn, Some(Buffers::one(&iov)), 0, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if len > room || Conn::named(fd).is_none() {
        // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
        return unsafe { next::__read_chk(fd, buf, len, room) };
    }
    // SAFETY: as above.
    unsafe { read(fd, buf, len) }
}

/// # Safety
/// As the C function.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::readv(fd, iov, count) };
    };
    // SAFETY: as above.
    let buffers = unsafe { vector(iov, count) };
    if buffers.is_some_and(|b| b.total == 0) {
        // SAFETY: as above.
        return unsafe { next::readv(fd, iov, count) };
    }
    // SAFETY: as above.
    let mut kernel = |fd, extra| unsafe { kernel_recvmsg(fd, iov, count, extra) };
    receive(conn, buffers, 0, Request::Plain, &mut kernel)
}

/// # Safety
/// `iov` points to `count` entries.
pub(super) unsafe fn vector<'a>(iov: *const iovec, count: c_int) -> Option<Buffers<'a>> {
    // SAFETY: the caller's promise.
    unsafe { Buffers::new(iov, usize::try_from(count).ok()?) }
}

/// readv with flags.
///
/// # Safety
/// As readv.
unsafe fn kernel_recvmsg(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract; all zero is a valid msghdr.
    unsafe {
        if flags == 0 {
            return next::readv(fd, iov, count);
        }
        let mut msg: msghdr = core::mem::zeroed();
        msg.msg_iov = iov.cast_mut();
        msg.msg_iovlen = usize::try_from(count).unwrap_or(usize::MAX);
        next::recvmsg(fd, &raw mut msg, flags)
    }
}

/// # Safety
/// As the C function.
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match Conn::named(fd) {
        // SAFETY: the caller keeps the C function's contract.
        Some(conn) => unsafe { recv_on(conn, buf, len, flags) },
        // SAFETY: as above.
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
    receive(conn, Some(Buffers::one(&iov)), flags, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room || Conn::named(fd).is_none() {
        // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
        return unsafe { next::__recv_chk(fd, buf, len, room, flags) };
    }
    // SAFETY: as above.
    unsafe { recv(fd, buf, len, flags) }
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
    let n = receive(conn, Some(Buffers::one(&iov)), flags, Request::Plain, &mut kernel);
    if n >= 0 && !addr.is_null() && !addr_len.is_null() {
        // A connected TCP socket tells no address (tcp_recvmsg leaves msg_namelen at 0).
        // SAFETY: the program gave room for the length.
        unsafe { *addr_len = 0 };
    }
    n
}

/// # Safety
/// As the C function.
pub unsafe fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    if len > room || Conn::named(fd).is_none() {
        // SAFETY: the caller keeps the C function's contract. The check is libc's to fail.
        return unsafe { next::__recvfrom_chk(fd, buf, len, room, flags, addr, addr_len) };
    }
    // SAFETY: as above.
    unsafe { recvfrom(fd, buf, len, flags, addr, addr_len) }
}

/// # Safety
/// As the C function.
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(conn) = Conn::named(fd).filter(|_| !msg.is_null()) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::recvmsg(fd, msg, flags) };
    };
    if flags & MSG_ERRQUEUE != 0 {
        // SAFETY: as above; `msg` is not null.
        let msg = unsafe { &mut *msg };
        // SAFETY: as above.
        let kernel = |msg: &mut msghdr| unsafe { next::recvmsg(fd, msg, flags) };
        return zerocopy::receive(conn.sock(), msg, kernel);
    }
    // SAFETY: as above; `msg` is not null.
    let (room, buffers) =
        unsafe { ((*msg).msg_controllen, Buffers::new((*msg).msg_iov, (*msg).msg_iovlen)) };
    // SAFETY: as above.
    let mut asked = unsafe { Asked::of(&*msg, flags) };
    let mut from_kernel = false;
    let mut kernel = |fd, extra| {
        // SAFETY: as above. An earlier attempt of this call may have used the room up.
        unsafe {
            (*msg).msg_controllen = room;
            let n = next::recvmsg(fd, msg, flags | extra);
            from_kernel = n >= 0;
            n
        }
    };
    let n = receive(conn, buffers, flags, asked.request(), &mut kernel);
    if n >= 0 && !from_kernel {
        // SAFETY: as above.
        unsafe {
            (*msg).msg_namelen = 0;
            (*msg).msg_controllen = asked.answer_len();
            (*msg).msg_flags = 0;
        }
    }
    if n >= 0 && matches!(asked, Asked::Plain) && inq::is_told(conn, room) {
        // SAFETY: as above.
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
    let began = shunt_runtime::system::clock::now();
    let mut flags = flags;
    let mut in_doubt = None;
    for i in 0..count {
        if i > 0 {
            in_doubt = in_doubt.or_else(|| Conn::named(fd).map(InDoubt::begins));
        }
        // SAFETY: the caller vouches for `count` entries.
        let entry = unsafe { &mut *msgs.add(i as usize) };
        // SAFETY: as above.
        let n = unsafe { recvmsg(fd, &raw mut entry.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if n < 0 {
            // An error after the first message is told by the next call.
            return if i == 0 { -1 } else { i.cast_signed() };
        }
        entry.msg_len = c_uint::try_from(n).unwrap_or(c_uint::MAX);
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // The timeout is looked at after each message, as in the kernel (recvmmsg(2), BUGS).
        // SAFETY: null or a valid timespec.
        let over = unsafe { timeout.as_ref() }.is_some_and(|t| {
            let nanos = t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec);
            shunt_runtime::system::clock::now() - began >= u64::try_from(nanos).unwrap_or(0)
        });
        if n == 0 || over {
            return (i + 1).cast_signed();
        }
    }
    count.cast_signed()
}

/// # Safety
/// As the C function.
pub unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::write(fd, buf, len) };
    };
    let iov = buffer(buf, len);
    // SAFETY: as above.
    let mut kernel = |fd, extra| unsafe { next::send(fd, buf, len, extra) };
    transmit(conn, Some(Buffers::one(&iov)), 0, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::writev(fd, iov, count) };
    };
    // SAFETY: as above.
    let buffers = unsafe { vector(iov, count) };
    let mut kernel = |fd, extra| {
        // SAFETY: as above; all zero is a valid msghdr.
        unsafe {
            if extra == 0 {
                return next::writev(fd, iov, count);
            }
            let mut msg: msghdr = core::mem::zeroed();
            msg.msg_iov = iov.cast_mut();
            msg.msg_iovlen = usize::try_from(count).unwrap_or(usize::MAX);
            next::sendmsg(fd, &raw const msg, extra)
        }
    };
    transmit(conn, buffers, 0, Request::Plain, &mut kernel)
}

/// # Safety
/// As the C function.
pub unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match Conn::named(fd) {
        // SAFETY: the caller keeps the C function's contract.
        Some(conn) => unsafe { send_on(conn, buf, len, flags) },
        // SAFETY: as above.
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
    let buffers = Some(Buffers::one(&iov));
    zerocopy::numbered(conn, flags, buffers.as_ref(), &Hints::default(), |flags, request| {
        transmit(conn, buffers, flags, request, &mut |fd, extra| kernel(fd, flags | extra))
    })
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
    let Some(conn) = Conn::named(fd) else { return kernel(fd, flags) };
    let iov = buffer(buf, len);
    let buffers = Some(Buffers::one(&iov));
    zerocopy::numbered(conn, flags, buffers.as_ref(), &Hints::default(), |flags, request| {
        transmit(conn, buffers, flags, request, &mut |fd, extra| kernel(fd, flags | extra))
    })
}

/// # Safety
/// As the C function.
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |fd, flags| unsafe { next::sendmsg(fd, msg, flags) };
    let Some(conn) = Conn::named(fd) else {
        // SAFETY: as above.
        unsafe { hand_over_rights(msg) };
        return kernel(fd, flags);
    };
    if msg.is_null() {
        return kernel(fd, flags);
    }
    // SAFETY: as above.
    let buffers = unsafe { Buffers::new((*msg).msg_iov, (*msg).msg_iovlen) };
    // SAFETY: as above.
    if unsafe { asks_for_times(msg) } {
        hand_over::give_back(conn, Reason::Unsupported);
    }
    // SAFETY: as above.
    let hints = unsafe { Hints::of(&*msg) };
    zerocopy::numbered(conn, flags, buffers.as_ref(), &hints, |flags, request| {
        transmit(conn, buffers, flags, request, &mut |fd, extra| kernel(fd, flags | extra))
    })
}

/// True for a message of which the program wants to know when it is sent, acknowledged and so on: a control message that
/// is for this one what `SO_TIMESTAMPING` is for all.
///
/// # Safety
/// `msg` is a valid message.
unsafe fn asks_for_times(msg: *const msghdr) -> bool {
    // SAFETY: the caller's promise; the macros stay inside msg_controllen.
    unsafe {
        if (*msg).msg_control.is_null() {
            return false;
        }
        let mut header = libc::CMSG_FIRSTHDR(msg);
        while let Some(h) = header.as_ref() {
            if sockinfo::is_timestamping(h.cmsg_level, h.cmsg_type)
                && h.cmsg_len == libc::CMSG_LEN(4) as usize
                && sockinfo::are_of_sending(libc::CMSG_DATA(header).cast::<u32>().read_unaligned())
            {
                return true;
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
    false
}

/// Connections whose descriptors are passed to another process (`SCM_RIGHTS`) go back to TCP: the
/// receiver may not run under Shunt.
///
/// # Safety
/// `msg` is null or a valid message.
unsafe fn hand_over_rights(msg: *const msghdr) {
    // SAFETY: the caller's promise; the macros stay inside msg_controllen.
    unsafe {
        if msg.is_null() || (*msg).msg_control.is_null() {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(msg);
        while let Some(h) = header.as_ref() {
            if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
                let bytes = h.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(header).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    let fd = first.add(i).read_unaligned();
                    let entry = fd_table::lookup(fd);
                    if entry.kind() == Kind::Stream {
                        hand_over::hand_over(fd, entry);
                    }
                    fresh::forget(fd, entry);
                }
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
}

/// # Safety
/// As the C function.
pub unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if Conn::named(fd).is_none() {
        // SAFETY: the caller keeps the C function's contract, with `count` entries.
        unsafe {
            // As many as the kernel takes at once (UIO_MAXIOV).
            let seen = if msgs.is_null() { 0 } else { count.min(1024) };
            (0..seen).for_each(|i| hand_over_rights(&raw const (*msgs.add(i as usize)).msg_hdr));
            return next::sendmmsg(fd, msgs, count, flags);
        }
    }
    let mut in_doubt = None;
    for i in 0..count {
        if i > 0 {
            in_doubt = in_doubt.or_else(|| Conn::named(fd).map(InDoubt::begins));
        }
        // SAFETY: the caller vouches for `count` entries.
        let entry = unsafe { &mut *msgs.add(i as usize) };
        let wanted = iov_total(&entry.msg_hdr);
        // SAFETY: as above.
        let n = unsafe { sendmsg(fd, &raw const entry.msg_hdr, flags) };
        if n < 0 {
            return if i == 0 { -1 } else { i.cast_signed() };
        }
        entry.msg_len = c_uint::try_from(n).unwrap_or(c_uint::MAX);
        if n.unsigned_abs() < wanted {
            return (i + 1).cast_signed();
        }
    }
    count.cast_signed()
}

fn iov_total(msg: &msghdr) -> usize {
    // SAFETY: the program's message.
    unsafe { Buffers::new(msg.msg_iov, msg.msg_iovlen) }.map_or(0, |b| b.total)
}

/// As [`Conn::named`], unless the connection is TCP for good.
fn shunted(fd: c_int) -> Option<Conn> {
    Conn::named(fd).filter(|conn| promote::advance(*conn) != Phase::Tcp)
}

/// # Safety
/// As the C function.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if let Some(out) = shunted(out) {
        // SAFETY: the caller keeps the C function's contract; off_t has 64 bits.
        return unsafe { files::send_file(out, input, offset.cast(), count) };
    }
    // SAFETY: as above.
    let kernel = |input| unsafe { next::sendfile(out, input, offset, count) };
    match shunted(input) {
        // To a pipe it is splice(2), which has its say on all else.
        Some(input) if offset.is_null() && count > 0 => {
            files::splice_from(input, out, count, 0, kernel)
        }
        _ => kernel(input),
    }
}

/// # Safety
/// As the C function.
pub unsafe fn sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { sendfile(out, input, offset.cast(), count) }
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
    const KNOWN: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |input, out| unsafe { next::splice(input, off_in, out, off_out, len, flags) };
    // A call that is none, or is refused, is the kernel's.
    if len > 0 && flags & !KNOWN == 0 && off_in.is_null() && off_out.is_null() {
        if let Some(input) = shunted(input) {
            return files::splice_from(input, out, len, flags, |input| kernel(input, out));
        }
        if let Some(out) = shunted(out) {
            return files::splice_to(input, out, len, flags, |out| kernel(input, out));
        }
    }
    kernel(input, out)
}

/// # Safety
/// As the C function.
pub unsafe fn tee(input: c_int, out: c_int, len: size_t, flags: c_uint) -> ssize_t {
    // Between pipes only: never a socket.
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::tee(input, out, len, flags) }
}

/// # Safety
/// As the C function.
pub unsafe fn vmsplice(fd: c_int, iov: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    // Pipes only.
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::vmsplice(fd, iov, count, flags) }
}

/// Tells the peer what is shut, if it has a place where to look. Else whoever promotes the connection does.
fn announce(sock: &Sock, what: fn(&End<'static>)) {
    // The flag before the look: promotion does it in the other order.
    store_load_fence();
    if let Some(end) = sock.end() {
        what(&end);
    }
}

/// # Safety
/// As the C function.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |fd| unsafe { next::shutdown(fd, how) };
    let Some(conn) = Conn::named(fd) else { return kernel(fd) };
    promote::advance(conn);
    let sock = conn.sock();
    let writing = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
    if writing {
        demote::finish(conn);
    }
    let result = {
        let _lock = sock.lock_tx();
        let Some(fd) = conn.kernel() else { return errno::fail(libc::EBADF) };
        // Announced before the FIN: an end that comes unannounced is that of a process that died.
        let before = sock.has(SHUT_WR);
        if writing {
            sock.put(SHUT_WR, true);
            announce(sock, End::announce_end);
        }
        point!(shutdown_announced);
        let result = kernel(fd);
        point!(shutdown_done);
        if result != 0 && !before {
            sock.put(SHUT_WR, false);
            if let Some(end) = sock.end() {
                end.take_end_back();
            }
        }
        if result == 0 && writing {
            doubt::end_loudly(conn);
        }
        result
    };
    if result == 0 {
        if how != libc::SHUT_WR {
            sock.put(SHUT_RD | KERNEL_HINT, true);
        }
        announce(sock, End::announce_shut);
        notify::those_on_futexes(sock);
        notify::own(sock);
    }
    result
}

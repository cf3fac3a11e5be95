//! Socket options. Nearly all are the kernel's alone: the socket below the connection is real.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use shunt_engine::handshake::Phase;
use shunt_engine::kernel::{KernelSocket, has_ended};
use shunt_sys::{memory, sockinfo};
use shunt_wire::reason::Reason;

use crate::next;
use crate::ops;
use shunt_runtime::conn::{Conn, IS_V6, Sock, TELLS_ERRORS, ZEROCOPY};
use shunt_runtime::control::listener::Listener;
use shunt_runtime::fds::fd_table;
use shunt_runtime::fds::fresh;
use shunt_runtime::memory::found;
use shunt_runtime::stream::hand_over;
use shunt_runtime::stream::tcp::Socket;
use shunt_runtime::stream::unread;
use shunt_runtime::stream::{buffers, doubt, killed, promote, tcp};
use shunt_runtime::system::abi;
use shunt_runtime::system::abi::{c_int, c_void, socklen_t};
use shunt_runtime::system::errno;

/// # Safety
/// As the C function.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE)
        && let Some(conn) = Conn::named(fd)
        && promote::advance(conn) != Phase::Tcp
    {
        // SAFETY: as below.
        return unsafe { map_nothing(conn, value, len) };
    }
    let loud = ((level, name) == (libc::IPPROTO_TCP, libc::TCP_LINGER2))
        .then(|| Conn::named(fd))
        .flatten()
        .filter(|conn| doubt::end_quietly(*conn));
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::getsockopt(fd, level, name, value, len) };
    if let Some(conn) = loud {
        let _keep = errno::KeepErrno::new();
        doubt::end_loudly(conn);
    }
    if (result, level, name) == (0, libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(conn) = Conn::named(fd)
        && killed::is_pending(conn)
    {
        let value = value.cast::<c_int>();
        // SAFETY: the kernel has just written to both, and read the length.
        unsafe {
            if *len >= 4 && value.read_unaligned() == 0 {
                value.write_unaligned(libc::ECONNRESET);
            }
        }
    }
    result
}

/// include/uapi/linux/tcp.h.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// The beginning of `struct tcp_zerocopy_receive` (include/uapi/linux/tcp.h). Its first three fields are as old as the
/// option.
#[repr(C)]
struct ZerocopyReceive {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
}

/// The answer to who wants received bytes mapped: what the kernel says of bytes that cannot be, so that the program
/// reads them as usual (`tcp_zerocopy_receive` in net/ipv4/tcp.c). The kernel itself is not asked: it would map what
/// lies behind the bytes in the ring.
///
/// # Safety
/// As for getsockopt(2).
#[cold]
unsafe fn map_nothing(conn: Conn, value: *mut c_void, len: *mut socklen_t) -> c_int {
    if !memory::is_readable(len.addr(), size_of::<socklen_t>()) {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: it can be read, as was just seen; what is there is the program's business.
    let room = unsafe { len.read_unaligned() } as usize;
    if room < offset_of!(ZerocopyReceive, recv_skip_hint) {
        return errno::fail(libc::EINVAL);
    }
    if !memory::is_readable(value.addr(), room.min(size_of::<ZerocopyReceive>())) {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: it can be read, as was just seen.
    if unsafe { value.cast::<u64>().read_unaligned() } % 4096 != 0 {
        return errno::fail(libc::EINVAL);
    }
    let kept = errno::get();
    let fd = conn.descriptor();
    let bytes = unread::fionread(conn).map_or_else(
        || conn.ask(|fd| Socket(fd).waiting()).unwrap_or(0),
        |n| n.unsigned_abs().into(),
    );
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: room for the byte.
    if bytes == 0 && unsafe { ops::stream::recv(fd, (&raw mut byte).cast(), 1, flags) } == 0 {
        return errno::fail(libc::EIO);
    }
    errno::set(kept);
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    // The kernel counts the end.
    let inq =
        bytes.saturating_add(u32::from(conn.ask(|fd| has_ended(&Socket(fd))).unwrap_or(false)));
    let answer = [0, bytes, inq].map(u32::to_ne_bytes).concat();
    let end = room.min(size_of::<ZerocopyReceive>());
    let len = end - offset_of!(ZerocopyReceive, length);
    // SAFETY: the program wants its answer there.
    unsafe {
        let to = value.cast::<u8>().add(offset_of!(ZerocopyReceive, length));
        core::ptr::copy_nonoverlapping(answer.as_ptr(), to, len.min(answer.len()));
    }
    0
}

/// # Safety
/// As the C function.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::setsockopt(fd, level, name, value, len) };
    if result == 0 && needs_kernel(level, name) {
        give_back(fd);
    }
    let is_offset = (level, name) == (libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    if result == 0 && (is_offset || sockinfo::is_timestamping(level, name)) {
        heed_kernel(fd);
    }
    if (result, level, name) == (0, libc::IPPROTO_TCP, sockinfo::TCP_INQ)
        && let Some(conn) = Conn::named(fd)
    {
        ops::inq::learn(conn);
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) {
        // Its connect returns before there is a connection.
        fresh::forget(fd, fd_table::lookup(fd));
    }
    if result == 0
        && (level, name) == (libc::IPPROTO_TCP, libc::TCP_LINGER2)
        && let Some(conn) = Conn::named(fd)
    {
        doubt::fin_timeout_is_set(conn);
    }
    if result == 0
        && (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM)
        && let Some(sock) = Sock::of(fd_table::lookup(fd))
    {
        sock.put(IS_V6, false);
    }
    if result == 0
        && sockinfo::is_for_error_queue(level, name)
        && let Some(sock) = Sock::of(fd_table::lookup(fd))
    {
        sock.put(TELLS_ERRORS, true);
    }
    if (result, level, name) == (0, libc::SOL_SOCKET, libc::SO_LINGER) {
        tcp::LINGERS.store(true, Ordering::Relaxed);
    }
    if result == 0 && level == libc::SOL_SOCKET {
        // SAFETY: as above; the kernel has just read the value.
        unsafe { note(fd, name, value) };
    }
    result
}

/// The connection, if it is one, goes back to the kernel for what that alone can do.
fn give_back(fd: c_int) {
    if let Some(conn) = Conn::named(fd) {
        hand_over::give_back(conn, Reason::Unsupported);
    }
}

/// Times of sending are the kernel's to tell, of bytes that it sends, and so is where a look ended, at bytes that it
/// has received. Where the program asks for them the connection that the socket is, or that it will make or accept, is TCP.
pub fn heed_kernel(fd: c_int) {
    if sockinfo::asks_for_kernel(abi::borrow(fd)) {
        if let Some(listener) = Listener::of(fd_table::lookup(fd)) {
            listener.set_for_kernel();
        }
        go_to_kernel(fd);
    }
}

/// The connection that the descriptor is, or that it will be, is TCP: the program wants something of it that only the
/// kernel can do.
pub fn go_to_kernel(fd: c_int) {
    let _keep = errno::KeepErrno::new();
    fresh::forget(fd, fd_table::lookup(fd));
    give_back(fd);
}

/// Remembers what the library has to heed itself.
///
/// # Safety
/// `value` is what setsockopt(2) has just taken for the option.
unsafe fn note(fd: c_int, name: c_int, value: *const c_void) {
    let entry = fd_table::lookup(fd);
    let is_size = matches!(
        name,
        libc::SO_SNDBUF
            | libc::SO_SNDBUFFORCE
            | libc::SO_RCVBUF
            | libc::SO_RCVBUFFORCE
            | libc::SO_BUF_LOCK
    );
    let is_timeout =
        matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW);
    let is_mark = name == libc::SO_RCVLOWAT;
    if is_size || is_timeout || is_mark {
        fresh::forget(fd, entry);
    }
    if (is_size || is_mark)
        && let Some(listener) = Listener::of(entry)
    {
        listener.set_sized();
    }
    // SAFETY: the kernel has just read an int there.
    if name == libc::SO_ZEROCOPY && unsafe { value.cast::<c_int>().read_unaligned() } != 0 {
        found::want();
    }
    let Some(conn) = Conn::of(fd, entry) else { return };
    let (rx, tx) = (&conn.record().rx, &conn.record().tx);
    match name {
        libc::SO_RCVLOWAT => buffers::mark_changed(conn),
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => rx.timeout.forget(),
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => tx.timeout.forget(),
        // Asked for anew when a call wants it.
        libc::SO_ZEROCOPY => conn.put(ZEROCOPY, false),
        _ if is_size => {
            if conn.phase() == Phase::Active {
                // In a forked child the link group may still be to come.
                promote::glance(conn);
            }
            buffers::changed(conn);
        }
        _ => {}
    }
}

/// `SO_RCVTIMEO` with a 64-bit time on every architecture (include/uapi/asm-generic/socket.h).
const SO_RCVTIMEO_NEW: c_int = 66;
/// See above.
const SO_SNDTIMEO_NEW: c_int = 67;

/// Options that concern the bytes themselves, which then have to go through the kernel.
const fn needs_kernel(level: c_int, name: c_int) -> bool {
    match level {
        libc::IPPROTO_TCP => matches!(name, libc::TCP_REPAIR | libc::TCP_ULP),
        _ => false,
    }
}

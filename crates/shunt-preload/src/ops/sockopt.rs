//! Socket options. Nearly all are the kernel's alone: the socket below the connection is real.

use core::sync::atomic::Ordering;

use crate::abi::{c_int, c_void, socklen_t};
use crate::conn::{Sock, ZEROCOPY};
use crate::fd_table::{self, Kind};
use crate::fresh;
use crate::next;
use crate::object;
use crate::ops::listener::Listener;
use crate::stream::buffers;

/// # Safety
/// As the C function.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::getsockopt(fd, level, name, value, len) }
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
        let entry = fd_table::lookup(fd);
        if entry.kind() == Kind::Stream && Sock::of(entry).is_some() {
            object::hand_over(fd, entry);
        }
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) {
        // Its connect returns before there is a connection.
        fresh::forget(fd, fd_table::lookup(fd));
    }
    if result == 0 && level == libc::SOL_SOCKET {
        // SAFETY: as above; the kernel has just read the value.
        unsafe { note(fd, name, value) };
    }
    result
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
    if is_size || is_timeout {
        fresh::forget(fd, entry);
    }
    if is_size && let Some(listener) = Listener::of(entry) {
        listener.set_sized();
    }
    let Some(sock) = Sock::of(entry) else { return };
    let (rx, tx) = (&sock.record().rx, &sock.record().tx);
    match name {
        libc::SO_RCVLOWAT => {
            // SAFETY: the kernel has just read an int there.
            let mark = unsafe { value.cast::<c_int>().read_unaligned() };
            rx.low_water.store(mark.max(0).cast_unsigned(), Ordering::Relaxed);
        }
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => rx.timeout.forget(),
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => tx.timeout.forget(),
        // Asked for anew when a call wants it.
        libc::SO_ZEROCOPY => sock.put(ZEROCOPY, false),
        _ if is_size => buffers::changed(sock, fd),
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

//! Socket options.

use core::mem::offset_of;

use shunt_sys::memory;

use crate::next;
use crate::ops::stream::recv;
use shunt_runtime::conn::Conn;
use shunt_runtime::stream::options;
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
    if let Some(conn) = options::is_to_be_mapped(fd, (level, name)) {
        // SAFETY: as below.
        return unsafe { map_nothing(conn, value, len) };
    }
    // SAFETY: the caller keeps the C function's contract.
    let kernel = || unsafe { next::getsockopt(fd, level, name, value, len) };
    let result = options::ask(fd, (level, name), kernel);
    if result == 0
        && let Some(error) = options::pending_error(fd, (level, name))
    {
        let value = value.cast::<c_int>();
        // SAFETY: the kernel has just written to both, and read the length.
        unsafe {
            if *len >= 4 && value.read_unaligned() == 0 {
                value.write_unaligned(error);
            }
        }
    }
    result
}

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
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: room for the byte.
    let ends = || unsafe { recv(conn.descriptor(), (&raw mut byte).cast(), 1, flags) } == 0;
    let Some((bytes, inq)) = options::left_to_read(conn, ends) else {
        return errno::fail(libc::EIO);
    };
    errno::set(kept);
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
    // SAFETY: the kernel has just read the value, an int, there.
    let value = || unsafe { value.cast::<c_int>().read_unaligned() };
    options::was_set(fd, (level, name), result == 0, value);
    result
}

//! `TCP_ZEROCOPY_RECEIVE` of getsockopt(2): received bytes are to be mapped, which those in a ring cannot be.

use core::mem::offset_of;

use shunt_sys::memory;

use crate::conn::Conn;
use crate::stream::borrow::Request;
use crate::stream::bytes::Buffers;
use crate::stream::{options, recv};
use crate::system::abi::{c_int, c_void, iovec, socklen_t};
use crate::system::errno;
use crate::system::next;

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
pub unsafe fn map_nothing(conn: Conn, value: *mut c_void, len: *mut socklen_t) -> c_int {
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
    let Some((bytes, inq)) = options::left_to_read(conn, || is_at_end(conn)) else {
        return errno::fail(libc::EIO);
    };
    errno::set(kept);
    let answer = answer(room, bytes, inq);
    // SAFETY: the program wants its answer there, and has room for it.
    unsafe {
        let to = value.cast::<u8>().add(offset_of!(ZerocopyReceive, length));
        core::ptr::copy_nonoverlapping(answer.as_ptr(), to, answer.len());
    }
    0
}

/// Whether a look at the next byte finds the end.
fn is_at_end(conn: Conn) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let iov = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: room for the byte.
    let mut kernel = |fd, extra| unsafe { next::recv(fd, iov.iov_base, 1, flags | extra) };
    recv::with_flags(conn, Some(Buffers::one(&iov)), flags, Request::Plain, &mut kernel) == 0
}

/// From `length` on, as far as there is room: nothing was mapped, `bytes` are to be read, and so many are there.
fn answer(room: usize, bytes: u32, inq: u32) -> Vec<u8> {
    let mut answer = [0, bytes, inq].map(u32::to_ne_bytes).concat();
    let end = room.min(size_of::<ZerocopyReceive>());
    answer.truncate(end - offset_of!(ZerocopyReceive, length));
    answer
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn the_answer_is_as_long_as_the_program_has_room() {
        let whole = [0, 7, 9].map(u32::to_ne_bytes).concat();
        assert_eq!(answer(64, 7, 9), whole);
        for room in 12..=20 {
            assert_eq!(answer(room, 7, 9), whole[..room - 8], "{room}");
        }
    }
}

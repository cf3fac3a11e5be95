//! The flags of preadv2(2) and pwritev2(2).
//!
//! Two of them mean something to a socket: `RWF_NOWAIT` and `RWF_NOSIGNAL`. Which others there
//! are, or come to be, and which a socket refuses, the kernel says in a call that moves nothing.

use libc::{EAGAIN, EFAULT, MSG_DONTWAIT, MSG_NOSIGNAL, RWF_NOWAIT};

use crate::system::abi::{c_int, iovec, off_t, ssize_t};
use crate::system::{errno, next};

/// The current position, of which a connection has none.
pub const HERE: off_t = -1;

/// `include/uapi/linux/fs.h`, since Linux 6.18.
const RWF_NOSIGNAL: c_int = 0x100;

/// What the flags are to recvmsg(2) and sendmsg(2), or the result of a call that the kernel
/// refuses.
pub fn meaning(fd: c_int, flags: c_int) -> Result<c_int, ssize_t> {
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

//! Socket options that rustix does not know.

use core::ffi::c_int;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{Errno, Result};

/// Reads a `SOL_SOCKET` option that consists of exactly `N` 32-bit words.
pub(crate) fn option_words<const N: usize>(fd: BorrowedFd<'_>, name: c_int) -> Result<[u32; N]> {
    let mut words = [0_u32; N];
    let size = size_of_val(&words);
    let mut len = libc::socklen_t::try_from(size).map_err(|_| Errno::INVAL)?;
    // SAFETY: errno is this thread's own word, valid as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // libc::syscall sets errno, which belongs to the program around us.
    // SAFETY: `words` and `len` are live, and `len` is the size of `words`.
    let failed = unsafe {
        let kept = *errno;
        let rc = libc::syscall(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            words.as_mut_ptr(),
            &raw mut len,
        );
        let failed = (rc != 0).then_some(*errno);
        *errno = kept;
        failed
    };
    match failed {
        Some(code) => Err(Errno::from_raw_os_error(code)),
        None if len as usize == size => Ok(words),
        None => Err(Errno::INVAL),
    }
}

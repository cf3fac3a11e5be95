//! Socket options that rustix does not know.

use core::ffi::c_int;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{Errno, Result};

/// Reads an option that consists of exactly `N` 32-bit words.
pub(crate) fn option_words<const N: usize>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> Result<[u32; N]> {
    let mut words = [0_u32; N];
    let size = size_of_val(&words);
    let mut len = libc::socklen_t::try_from(size).map_err(|_| Errno::INVAL)?;
    // SAFETY: `words` and `len` are live, and `len` is the size of `words`.
    quietly(|| unsafe {
        let (words, len) = (words.as_mut_ptr(), &raw mut len);
        libc::syscall(libc::SYS_getsockopt, fd.as_raw_fd(), level, name, words, len)
    })?;
    if len as usize == size { Ok(words) } else { Err(Errno::INVAL) }
}

/// Sets an option of one 32-bit word.
pub(crate) fn set_option_word(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    word: u32,
) -> Result<()> {
    // SAFETY: the word is live.
    quietly(|| unsafe {
        let (word, len) = (&raw const word, size_of::<u32>());
        libc::syscall(libc::SYS_setsockopt, fd.as_raw_fd(), level, name, word, len)
    })
}

/// Runs a call that sets `errno`, which belongs to the program around us.
fn quietly(call: impl FnOnce() -> libc::c_long) -> Result<()> {
    // SAFETY: errno is this thread's own word, valid as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    let failed = call() != 0;
    // SAFETY: as above.
    let code = unsafe { core::mem::replace(&mut *errno, kept) };
    if failed { Err(Errno::from_raw_os_error(code)) } else { Ok(()) }
}

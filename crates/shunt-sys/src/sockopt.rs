//! Socket options that rustix does not know.

use core::ffi::c_int;

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, Result};

use crate::raw::{descriptor, int, syscall};

/// Reads an option that consists of exactly `N` 32-bit words.
pub(crate) fn option_words<const N: usize>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> Result<[u32; N]> {
    let mut words = [0_u32; N];
    let len = read_option(fd, level, name, &mut words)?;
    if len == size_of_val(&words) { Ok(words) } else { Err(Errno::INVAL) }
}

/// Reads an option, as far as there is room for it, and says how many bytes that is.
pub(crate) fn read_option<T: Word>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    room: &mut [T],
) -> Result<usize> {
    let mut len = libc::socklen_t::try_from(size_of_val(room)).map_err(|_| Errno::INVAL)?;
    let (at, len_at) = (room.as_mut_ptr().expose_provenance(), (&raw mut len).expose_provenance());
    // SAFETY: `room` and `len` are live, `len` is the size of `room`, and any bytes are a `Word`.
    unsafe { syscall(libc::SYS_getsockopt, [descriptor(fd), int(level), int(name), at, len_at]) }?;
    Ok(len as usize)
}

/// What any bytes are a value of.
pub(crate) trait Word: Copy {}
impl Word for u32 {}
impl Word for u64 {}

/// Sets an option of one 32-bit word.
pub(crate) fn set_option_word(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    word: u32,
) -> Result<()> {
    let (at, len) = ((&raw const word).expose_provenance(), size_of::<u32>());
    // SAFETY: the word is live, and of this length.
    unsafe { syscall(libc::SYS_setsockopt, [descriptor(fd), int(level), int(name), at, len]) }?;
    Ok(())
}

//! The calls that move bytes between descriptors, with all that can be said in them.

use std::io;
use std::os::fd::RawFd;
use std::ptr;

use libc::{c_int, iovec};

use super::check_len;

fn pointer(offset: Option<&mut i64>) -> *mut i64 {
    offset.map_or(ptr::null_mut(), ptr::from_mut)
}

/// `sendfile(2)`; `None`: from the file's position on.
pub fn sendfile_from(
    out: RawFd,
    file: RawFd,
    offset: Option<&mut i64>,
    len: usize,
) -> io::Result<usize> {
    // SAFETY: NULL, or a valid offset.
    check_len(unsafe { libc::sendfile(out, file, pointer(offset), len) })
}

/// `sendfile64(2)`, as [`sendfile_from`].
pub fn sendfile64_from(
    out: RawFd,
    file: RawFd,
    offset: Option<&mut i64>,
    len: usize,
) -> io::Result<usize> {
    // SAFETY: NULL, or a valid offset.
    check_len(unsafe { libc::sendfile64(out, file, pointer(offset), len) })
}

/// `splice(2)` with offsets.
pub fn splice_at(
    (from, from_at): (RawFd, Option<&mut i64>),
    (to, to_at): (RawFd, Option<&mut i64>),
    len: usize,
    flags: u32,
) -> io::Result<usize> {
    // SAFETY: NULL, or valid offsets.
    check_len(unsafe { libc::splice(from, pointer(from_at), to, pointer(to_at), len, flags) })
}

/// `tee(2)`.
pub fn tee(from: RawFd, to: RawFd, len: usize, flags: u32) -> io::Result<usize> {
    // SAFETY: no memory is involved.
    check_len(unsafe { libc::tee(from, to, len, flags) })
}

/// `vmsplice(2)` of `bytes`.
pub fn vmsplice(fd: RawFd, bytes: &'static [u8]) -> io::Result<usize> {
    let iov = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the bytes live for ever, and nobody writes to them.
    check_len(unsafe { libc::vmsplice(fd, &raw const iov, 1, 0) })
}

/// `copy_file_range(2)` at the positions of both.
pub fn copy_file_range(from: RawFd, to: RawFd, len: usize) -> io::Result<usize> {
    let null = ptr::null_mut();
    // SAFETY: there are no offsets.
    check_len(unsafe { libc::copy_file_range(from, null, to, null, len, 0) })
}

/// `preadv2(2)` into two halves of `buf`.
pub fn preadv2(fd: RawFd, buf: &mut [u8], offset: i64, flags: c_int) -> io::Result<usize> {
    let (a, b) = buf.split_at_mut(buf.len() / 2);
    let iov = [a, b].map(|part| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    // SAFETY: the halves have room for their lengths.
    check_len(unsafe { libc::preadv2(fd, iov.as_ptr(), 2, offset, flags) })
}

/// `pwritev2(2)` of two halves of `buf`.
pub fn pwritev2(fd: RawFd, buf: &[u8], offset: i64, flags: c_int) -> io::Result<usize> {
    let (a, b) = buf.split_at(buf.len() / 2);
    let iov =
        [a, b].map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: the halves are readable over their lengths.
    check_len(unsafe { libc::pwritev2(fd, iov.as_ptr(), 2, offset, flags) })
}

/// `pread(2)`.
pub fn pread(fd: RawFd, buf: &mut [u8], offset: i64) -> io::Result<usize> {
    // SAFETY: buf has room for its length.
    check_len(unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), offset) })
}

/// `pwrite(2)`.
pub fn pwrite(fd: RawFd, buf: &[u8], offset: i64) -> io::Result<usize> {
    // SAFETY: buf is readable over its length.
    check_len(unsafe { libc::pwrite(fd, buf.as_ptr().cast(), buf.len(), offset) })
}

/// Where a file is read from next.
pub fn position(fd: RawFd) -> io::Result<i64> {
    // SAFETY: no memory is involved.
    match unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } {
        -1 => Err(io::Error::last_os_error()),
        at => Ok(at),
    }
}

/// Has it read from there.
pub fn seek(fd: RawFd, to: i64) -> io::Result<i64> {
    // SAFETY: no memory is involved.
    match unsafe { libc::lseek(fd, to, libc::SEEK_SET) } {
        -1 => Err(io::Error::last_os_error()),
        at => Ok(at),
    }
}

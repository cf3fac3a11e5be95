//! What only block devices are asked: ioctl(2)s of `linux/fs.h`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `BLKZEROOUT`: `_IO(0x12, 127)`.
const ZERO_OUT: libc::Ioctl = 0x127f;
/// `BLKGETSIZE64`: `_IOR(0x12, 114, size_t)`.
const SIZE: libc::Ioctl = 0x8008_1272;

/// How many bytes a device has.
///
/// # Errors
/// Those of ioctl(2).
pub fn size(device: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // SAFETY: the kernel writes 64 bits.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), SIZE, &raw mut bytes) };
    if rc == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// These bytes are to be zero. Their room is given back where the device can tell that they are.
///
/// # Errors
/// Those of ioctl(2).
pub fn zero_out(device: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let arguments = [range.start, range.end - range.start];
    // SAFETY: the kernel reads two times 64 bits: start and length.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), ZERO_OUT, arguments.as_ptr()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

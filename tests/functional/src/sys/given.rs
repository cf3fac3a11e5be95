//! Descriptors that go to others: through UNIX sockets, and to stdio.

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, iovec, msghdr};

use super::{check_len, dup};

/// Room for the control message of one descriptor, aligned as its header.
type Control = [u64; 3];

/// A message of one byte with one descriptor.
fn message(vector: &mut iovec, control: &mut Control) -> msghdr {
    // SAFETY: msghdr is plain data; all zeroes means nothing at all.
    let mut msg: msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = vector;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of::<Control>();
    msg
}

/// Passes `fd` through the UNIX socket `through`.
pub fn pass(through: RawFd, fd: RawFd) -> io::Result<()> {
    let (mut byte, mut control) = (0u8, Control::default());
    let mut vector = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let msg = message(&mut vector, &mut control);
    // SAFETY: the control buffer has room for one header with one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const msg);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        ptr::write_unaligned(libc::CMSG_DATA(header).cast(), fd);
        check_len(libc::sendmsg(through, &raw const msg, 0)).map(drop)
    }
}

/// Takes a descriptor that was passed.
pub fn take(through: RawFd) -> io::Result<OwnedFd> {
    let (mut byte, mut control) = (0u8, Control::default());
    let mut vector = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut msg = message(&mut vector, &mut control);
    // SAFETY: msg points to room for one byte and one control message; a descriptor that comes in it is
    // nobody else's.
    unsafe {
        check_len(libc::recvmsg(through, &raw mut msg, libc::MSG_CMSG_CLOEXEC))?;
        let header = libc::CMSG_FIRSTHDR(&raw const msg);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("no descriptor came"));
        }
        let fd: c_int = ptr::read_unaligned(libc::CMSG_DATA(header).cast());
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Writes `bytes` by an unbuffered stdio stream on a duplicate of `fd`; how many were written.
pub fn write_stdio(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    use std::os::fd::IntoRawFd;
    let copy = dup(fd)?.into_raw_fd();
    // SAFETY: the descriptor is open, and the stream takes it over.
    let file = unsafe { libc::fdopen(copy, c"w".as_ptr()) };
    if file.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the stream is open until the end, the bytes are readable.
    let (n, error) = unsafe {
        libc::setvbuf(file, ptr::null_mut(), libc::_IONBF, 0);
        let n = libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), file);
        let error = io::Error::last_os_error();
        libc::fclose(file);
        (n, error)
    };
    if n == 0 { Err(error) } else { Ok(n) }
}

/// Opens a stdio stream on a duplicate of `fd`, and closes it.
pub fn open_stdio(fd: RawFd) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    let copy = dup(fd)?.into_raw_fd();
    // SAFETY: the descriptor is open, and the stream takes it over.
    unsafe {
        let file = libc::fdopen(copy, c"w".as_ptr());
        if file.is_null() {
            return Err(io::Error::last_os_error());
        }
        libc::fclose(file);
    }
    Ok(())
}

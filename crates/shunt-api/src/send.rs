//! Sending without copies: `MSG_ZEROCOPY` (Documentation/networking/msg_zerocopy.rst), and what Shunt adds to it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, msghdr, sock_extended_err};

use crate::message::Hints;

/// Size of `struct sock_extended_err`.
const REPORT: u32 = 16;
const _: () = assert!(REPORT as usize == size_of::<sock_extended_err>());

/// `SO_EE_ORIGIN_ZEROCOPY`, `SO_EE_CODE_ZEROCOPY_COPIED` (include/uapi/linux/errqueue.h).
const ORIGIN: u8 = 5;
const COPIED: u8 = 1;

/// Sets `SO_ZEROCOPY`.
///
/// # Errors
/// Those of setsockopt(2).
pub fn allow(socket: impl AsFd) -> io::Result<()> {
    let one: c_int = 1;
    // SAFETY: the value is an int.
    let rc = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const one).cast(), 4)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// send(2) with `MSG_ZEROCOPY`. The bytes are not the caller's to change until the call is completed.
///
/// # Errors
/// Those of send(2).
pub fn zerocopy(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are there.
    let n = unsafe {
        libc::send(socket.as_fd().as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// What is to become of a buffer of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Hint {
    /// What pays.
    #[default]
    Auto = 0,
    /// A copy.
    Copy = 1,
    /// A grant, however small it is.
    Grant = 2,
}

/// Whether somebody wants to hear when a call is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The error queue tells: [`completed`].
    Told,
    /// Nobody: the peer's answer implies it. What is sent so is copied on a connection that is not shunted.
    Quiet,
}

pub use crate::message::BUFFERS;

/// sendmsg(2) with `MSG_ZEROCOPY` and a hint per buffer; [`Hint::Auto`] for those that have none. The bytes are not the
/// caller's to change until the call is completed, or, if it is quiet, the peer has answered to them.
///
/// # Errors
/// Those of sendmsg(2); `InvalidInput` for more than [`BUFFERS`] buffers.
pub fn hinted(
    socket: impl AsFd,
    buffers: &[IoSlice<'_>],
    hints: &[Hint],
    completion: Completion,
) -> io::Result<usize> {
    if buffers.len() > BUFFERS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut per_buffer = [0; BUFFERS];
    for (to, hint) in per_buffer.iter_mut().zip(hints) {
        *to = *hint as u8;
    }
    let quiet = completion == Completion::Quiet;
    let mut request = Hints::new(quiet, per_buffer);
    let zerocopy = if quiet { 0 } else { libc::MSG_ZEROCOPY };
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = buffers.as_ptr().cast_mut().cast();
    msg.msg_iovlen = buffers.len();
    msg.msg_control = (&raw mut request).cast();
    msg.msg_controllen = Hints::LEN;
    let flags = zerocopy | libc::MSG_NOSIGNAL;
    // SAFETY: an IoSlice is an iovec; the message names buffers that are there.
    let n = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const msg, flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Calls that are completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The first one's number.
    pub first: u32,
    /// The last one's.
    pub last: u32,
    /// Their bytes were copied.
    pub copied: bool,
}

/// The next of them on the error queue, if there is one.
///
/// # Errors
/// Those of recvmsg(2), and a report of anything else.
pub fn completed(socket: impl AsFd) -> io::Result<Option<Completed>> {
    let mut control = [0_u64; 16];
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: the message names the control buffer and no other.
    let n = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut msg, libc::MSG_ERRQUEUE) };
    if n < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    // SAFETY: the macros stay inside of what was filled in; a report is plain data.
    let report = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const msg);
        let least = libc::CMSG_LEN(REPORT) as usize;
        match header.as_ref() {
            Some(found) if found.cmsg_len >= least => {
                libc::CMSG_DATA(header).cast::<sock_extended_err>().read_unaligned()
            }
            _ => return Err(io::Error::other("an error queue without a report")),
        }
    };
    if report.ee_origin != ORIGIN {
        return Err(io::Error::other("a report of something else"));
    }
    let copied = report.ee_code == COPIED;
    Ok(Some(Completed { first: report.ee_info, last: report.ee_data, copied }))
}

/// Waits until there is something on the error queue, or the connection is over.
///
/// # Errors
/// Those of poll(2).
pub fn wait(socket: impl AsFd) -> io::Result<()> {
    let mut fds = [libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: 0, revents: 0 }];
    // SAFETY: one entry.
    let rc = unsafe { libc::poll(fds.as_mut_ptr(), 1, -1) };
    if rc >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

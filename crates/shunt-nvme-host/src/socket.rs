//! TCP sockets by the calls of libc, where a preloaded `libshunt.so` hears of them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::{c_int, iovec, msghdr};
use shunt_api::message::{BUFFERS, Hints};
use shunt_api::send::Hint;

/// Most buffers of a call: so many have hints.
pub(crate) const PARTS: usize = BUFFERS;

/// Hints: what pays, copy.
const AUTO: u8 = Hint::Auto as u8;
const COPY: u8 = Hint::Copy as u8;

/// Buffers of one call. It names memory and owns none.
pub(crate) struct Vectors {
    list: [iovec; PARTS],
    hints: [u8; PARTS],
    count: usize,
    grants: bool,
}

impl Vectors {
    pub(crate) const fn new() -> Self {
        let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { list: [none; PARTS], hints: [COPY; PARTS], count: 0, grants: false }
    }

    /// How many more there can be.
    pub(crate) const fn room(&self) -> usize {
        PARTS - self.count
    }

    /// Adds a buffer, if there is room. `may_grant`: the peer may read it in place.
    pub(crate) fn push(&mut self, at: *mut u8, len: usize, may_grant: bool) -> bool {
        let Some(vector) = self.list.get_mut(self.count) else { return false };
        *vector = iovec { iov_base: at.cast(), iov_len: len };
        self.hints[self.count] = if may_grant { AUTO } else { COPY };
        self.grants |= may_grant;
        self.count += 1;
        true
    }
}

fn result(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Sets `SO_ZEROCOPY`, without which nothing is granted.
pub(crate) fn allow_grants(socket: BorrowedFd<'_>) -> io::Result<()> {
    let one: c_int = 1;
    // SAFETY: the value is an int.
    let rc = unsafe {
        let (fd, value) = (socket.as_raw_fd(), (&raw const one).cast());
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, 4)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends as much as the socket takes, without waiting.
///
/// # Errors
/// Those of sendmsg(2).
///
/// # Safety
/// The buffers can be read; those that may be granted until the peer has answered to them, or the
/// socket is closed.
pub(crate) unsafe fn send(socket: BorrowedFd<'_>, vectors: &mut Vectors) -> io::Result<usize> {
    // As the response tells that the bytes were read, nobody wants to hear of it.
    let mut control = Hints::new(true, vectors.hints);
    // SAFETY: all zero is a valid msghdr.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.list.as_mut_ptr();
    message.msg_iovlen = vectors.count;
    if vectors.grants {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = Hints::LEN;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message names what the caller answers for, and `control`.
    result(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Receives into buffers, without waiting; 0 at the end.
///
/// # Errors
/// Those of recvmsg(2).
///
/// # Safety
/// The buffers can be written.
pub(crate) unsafe fn receive_into(
    socket: BorrowedFd<'_>,
    vectors: &mut Vectors,
) -> io::Result<usize> {
    // SAFETY: all zero is a valid msghdr.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.list.as_mut_ptr();
    message.msg_iovlen = vectors.count;
    // SAFETY: the message names what the caller answers for.
    result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Receives into bytes of this thread's own, without waiting; 0 at the end.
///
/// # Errors
/// Those of recv(2).
pub(crate) fn receive(socket: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: so many bytes are the caller's to write.
    result(unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags) })
}

/// Takes so many bytes at most off the stream, unseen.
///
/// # Errors
/// Those of recv(2).
pub(crate) fn skip(socket: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: of a TCP socket MSG_TRUNC writes nothing to the address (tcp(7)).
    result(unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), len, flags) })
}

/// Waits until one of them is ready for what is asked, or the time is over.
///
/// # Errors
/// Those of poll(2).
pub(crate) fn wait<const N: usize>(
    fds: [(BorrowedFd<'_>, i16); N],
    timeout: Duration,
) -> io::Result<()> {
    let mut fds = fds.map(|(fd, events)| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 });
    // Rounded up, so that a waiter does not turn in the last millisecond.
    let millis = c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
    // SAFETY: so many entries are there.
    let rc = unsafe { libc::poll(fds.as_mut_ptr(), N as libc::nfds_t, millis) };
    if rc >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

//! TCP sockets by the calls of libc, where a preloaded `libshunt.so` hears of them; straight to and from [`Piece`]s.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, iovec, msghdr};
use shunt_api::message::{BUFFERS, Hints};
use shunt_api::send::Hint;

use crate::memory::Piece;

/// Most parts of a call. The library of Shunt takes hints for so many.
pub const PARTS: usize = BUFFERS;

/// A part of what is sent.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes of this thread's own.
    Bytes(&'a [u8]),
    /// Bytes that others may be changing.
    Piece(Span<'a>),
    /// The same, which the peer may read in place if both ends run under Shunt and `SO_ZEROCOPY` is set: while it reads
    /// they may change, but not go.
    Granted(Span<'a>),
}

/// A part of a piece, inside of its bounds by construction.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    piece: &'a Piece,
    from: usize,
    len: usize,
}

impl<'a> Span<'a> {
    /// A part of a piece, cut off at its end.
    #[must_use]
    pub fn new(piece: &'a Piece, from: usize, len: usize) -> Self {
        let from = from.min(piece.len());
        Self { piece, from, len: len.min(piece.len() - from) }
    }

    fn vector(&self) -> iovec {
        let at = self.piece.address().wrapping_add(self.from);
        iovec { iov_base: at.cast(), iov_len: self.len }
    }
}

impl Part<'_> {
    /// How many bytes it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Piece(span) | Self::Granted(span) => span.len,
        }
    }

    /// True without any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn vector(&self) -> iovec {
        match self {
            Self::Bytes(bytes) => {
                iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            Self::Piece(span) | Self::Granted(span) => span.vector(),
        }
    }
}

/// Hints: copy, grant.
const COPY: u8 = Hint::Copy as u8;
const GRANT: u8 = Hint::Grant as u8;

fn result(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Sets `SO_ZEROCOPY`, without which nothing is granted.
///
/// # Errors
/// Those of setsockopt(2).
pub fn allow_grants(socket: BorrowedFd<'_>) -> io::Result<()> {
    let one: c_int = 1;
    // SAFETY: the value is an int.
    let rc = unsafe {
        let (fd, value) = (socket.as_raw_fd(), (&raw const one).cast());
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, 4)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends as much as the socket takes of at most [`PARTS`] parts, without waiting; more of them are left for the next
/// call.
///
/// # Errors
/// Those of sendmsg(2); `WouldBlock` where nothing goes now.
pub fn send(socket: BorrowedFd<'_>, parts: &[Part<'_>]) -> io::Result<usize> {
    let parts = &parts[..parts.len().min(PARTS)];
    let mut vectors = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS];
    let mut hints = [COPY; PARTS];
    let mut grants = false;
    for ((vector, hint), part) in vectors.iter_mut().zip(&mut hints).zip(parts) {
        *vector = part.vector();
        if matches!(part, Part::Granted(_)) {
            *hint = GRANT;
            grants = true;
        }
    }
    // Nobody wants to hear of the completion.
    let mut hints = Hints::new(true, hints);
    // SAFETY: all zero is a valid msghdr.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = parts.len();
    if grants {
        message.msg_control = (&raw mut hints).cast();
        message.msg_controllen = Hints::LEN;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the parts are borrowed for the call, and so are the bytes and mappings that the vectors name.
    result(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Receives into bytes of this thread's own, without waiting; 0 at the end.
///
/// # Errors
/// Those of recv(2).
pub fn receive(socket: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: so many bytes are the caller's to write.
    result(unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags) })
}

/// Receives into a part of a piece, and what comes behind it into bytes of this thread's own.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive_both(socket: BorrowedFd<'_>, span: Span<'_>, room: &mut [u8]) -> io::Result<usize> {
    let room = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let mut vectors = [span.vector(), room];
    // SAFETY: all zero is a valid msghdr.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    // SAFETY: the piece is mapped while it lives, and `room` is the caller's to write.
    result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Takes so many bytes at most off the stream, unseen.
///
/// # Errors
/// Those of recv(2).
pub fn skip(socket: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: of a TCP socket MSG_TRUNC writes nothing to the address (tcp(7)).
    result(unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), len, flags) })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::memory::Memory;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// Asks again until something has come.
    fn until<T>(mut ask: impl FnMut() -> io::Result<T>) -> T {
        loop {
            match ask() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return other.unwrap(),
            }
        }
    }

    #[test]
    fn parts_go_in_order_and_come_in_pieces() {
        let (one, other) = pair();
        let memory = Memory::new("test", 8192).unwrap();
        let (from, to) = (memory.piece(10..15).unwrap(), memory.piece(5000..5004).unwrap());
        from.copy_in(b"piece");
        let whole = Span::new(&from, 0, 99);
        let parts =
            [Part::Bytes(b"head "), Part::Piece(whole), Part::Granted(whole), Part::Bytes(b" end")];
        assert_eq!(send(one.as_fd(), &parts).unwrap(), 19);
        assert_eq!(until(|| skip(other.as_fd(), 5)), 5);
        let mut rest = [0; 64];
        assert_eq!(until(|| receive_both(other.as_fd(), Span::new(&to, 0, 4), &mut rest)), 14);
        let mut start = [0; 4];
        to.copy_out(&mut start);
        assert_eq!((&start, &rest[..10]), (b"piec", b"epiece end".as_slice()));
        let e = receive(other.as_fd(), &mut rest).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
        drop(one);
        assert_eq!(until(|| receive(other.as_fd(), &mut rest)), 0);
    }

    #[test]
    fn more_parts_than_a_call_takes_are_left() {
        let (one, _other) = pair();
        let parts = [Part::Bytes(b"xx"); PARTS + 5];
        assert_eq!(send(one.as_fd(), &parts).unwrap(), 2 * PARTS);
    }
}

//! Received bytes where they are.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use libc::{cmsghdr, iovec, msghdr};

use crate::block::{self, BLOCK};
use crate::message::{BORROW, LEVEL, RELEASE};

/// Pieces that a call tells of at most.
const PIECES: usize = 16;

#[repr(C)]
struct Control {
    header: cmsghdr,
    pieces: [iovec; PIECES],
}

#[repr(C)]
struct Release {
    header: cmsghdr,
    unused: usize,
}

/// Room for bytes that cannot be looked at in place, and for the places of those that can.
pub struct Room {
    copied: Vec<u8>,
    control: Control,
}

// SAFETY: the pointers in it are those of the last call, and are not followed.
unsafe impl Send for Room {}

impl core::fmt::Debug for Room {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Room").field("len", &self.copied.len()).finish_non_exhaustive()
    }
}

/// Bytes that were borrowed of a connection. They stay its next bytes until they are given back, whether this value
/// lives or not.
#[derive(Debug)]
pub struct Borrowed<'a> {
    socket: BorrowedFd<'a>,
    pieces: &'a [iovec],
    len: usize,
}

/// Some of them.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    at: NonNull<u8>,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

/// What became of bytes that were given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Released {
    /// The connection goes on behind them.
    Whole,
    /// They may have changed while they were looked at, as the sender would not wait any longer: they are still the
    /// connection's next bytes, to be borrowed and looked at once more.
    Stale,
}

impl Room {
    /// With room for so many bytes that have to be copied.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let none = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let header = cmsghdr { cmsg_len: 0, cmsg_level: LEVEL, cmsg_type: BORROW };
        Self { copied: vec![0; len.max(1)], control: Control { header, pieces: [none; PIECES] } }
    }

    /// Looks at the next bytes of a connection where they are; none at the end of file.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn borrow<'a>(&'a mut self, socket: &'a impl AsFd) -> io::Result<Borrowed<'a>> {
        let socket = socket.as_fd();
        let (room, len) = (self.copied.as_mut_ptr(), self.copied.len());
        let mut copied = iovec { iov_base: room.cast(), iov_len: len };
        let size = size_of::<Control>();
        self.control.header = cmsghdr { cmsg_len: size, cmsg_level: LEVEL, cmsg_type: BORROW };
        // SAFETY: all zero is a valid msghdr.
        let mut msg: msghdr = unsafe { core::mem::zeroed() };
        msg.msg_iov = &raw mut copied;
        msg.msg_iovlen = 1;
        msg.msg_control = (&raw mut self.control).cast();
        msg.msg_controllen = size;
        // SAFETY: the message names room that is there.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, libc::MSG_PEEK) };
        let len = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        let head = size_of::<cmsghdr>();
        let in_place = self.control.header.cmsg_level == LEVEL && msg.msg_controllen > head;
        let count = if in_place {
            (msg.msg_controllen - head) / size_of::<iovec>()
        } else {
            self.control.pieces[0] = iovec { iov_base: room.cast(), iov_len: len };
            usize::from(len > 0)
        };
        Ok(Borrowed { socket, pieces: &self.control.pieces[..count.min(PIECES)], len })
    }
}

impl<'a> Borrowed<'a> {
    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True at the end of file.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are, in their order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'a>> {
        self.pieces.iter().filter_map(|piece| {
            let at = NonNull::new(piece.iov_base.cast::<u8>())?;
            Some(Piece { at, len: piece.iov_len, life: PhantomData })
        })
    }

    /// Goes on behind the first `len` of them.
    ///
    /// # Errors
    /// Those of recv(2); `InvalidInput` for more than there are.
    pub fn release(self, len: usize) -> io::Result<Released> {
        if len == 0 {
            return Ok(Released::Whole);
        }
        if len > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let size = size_of::<Release>();
        let header = cmsghdr { cmsg_len: size, cmsg_level: LEVEL, cmsg_type: RELEASE };
        let mut request = Release { header, unused: 0 };
        let mut none = iovec { iov_base: core::ptr::null_mut(), iov_len: len };
        // SAFETY: all zero is a valid msghdr.
        let mut msg: msghdr = unsafe { core::mem::zeroed() };
        msg.msg_iov = &raw mut none;
        msg.msg_iovlen = 1;
        msg.msg_control = (&raw mut request).cast();
        msg.msg_controllen = size;
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: bytes that are passed over go nowhere (tcp(7)).
        let n = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut msg, flags) };
        match usize::try_from(n) {
            Ok(n) if n == len => Ok(Released::Whole),
            Ok(_) => Err(io::Error::other("another call has taken some of the bytes")),
            Err(_) => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ESTALE) => Ok(Released::Stale),
                e => Err(e),
            },
        }
    }
}

impl Piece<'_> {
    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first one.
    ///
    /// The sender's process can write there at any time, if it breaks the rules. So a reference to the bytes is
    /// sound only for who trusts it; who does not reads them by volatile or atomic loads, or copies them first.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The bytes in blocks, but for the last ones that fill none ([`Self::rest`]): copies, of which each byte was read once. So
    /// no sender can change what the reader has seen, and few ways to read are faster.
    #[inline]
    pub fn blocks(&self) -> impl Iterator<Item = [u8; BLOCK]> {
        let blocks = 0..self.len / BLOCK;
        // SAFETY: so many blocks can be read there while they are borrowed.
        blocks.map(|i| unsafe { block::read(self.at.as_ptr().add(i * BLOCK)) })
    }

    /// A copy of the bytes behind the last of the [`Self::blocks`].
    pub fn rest(&self) -> Vec<u8> {
        let mut rest = vec![0; self.len % BLOCK];
        self.copy_from(self.len - rest.len(), &mut rest);
        rest
    }

    /// Copies the bytes from `at` on, as many as there are and fit: how many.
    pub fn copy_from(&self, at: usize, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len.saturating_sub(at));
        if n > 0 {
            // SAFETY: so many can be read there while they are borrowed; nobody has a reference to them.
            unsafe {
                core::ptr::copy_nonoverlapping(self.at.as_ptr().add(at), to.as_mut_ptr(), n);
            }
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn without_shunt_bytes_are_copied_and_stay_until_they_are_given_back() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut to = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (from, _) = listener.accept().unwrap();
        to.write_all(b"received bytes").unwrap();
        let mut room = Room::new(100);
        for left in [&b"received bytes"[..], b"bytes"] {
            let mut seen = [0; 100];
            let borrowed = room.borrow(&from).unwrap();
            let piece = borrowed.pieces().next().unwrap();
            let n = piece.copy_from(0, &mut seen);
            assert_eq!((&seen[..n], borrowed.len()), (left, left.len()));
            assert_eq!((piece.blocks().count(), &piece.rest()[..]), (0, left));
            assert_eq!(borrowed.release(left.len().min(9)).unwrap(), Released::Whole);
        }
        drop(to);
        let end = room.borrow(&from).unwrap();
        assert!(end.is_empty() && end.pieces().next().is_none());
    }

    #[test]
    fn what_is_no_connection_is_an_error() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        drop(_peer);
        let mut room = Room::new(1);
        assert!(room.borrow(&socket).unwrap().is_empty());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(room.borrow(&file).is_err());
    }
}

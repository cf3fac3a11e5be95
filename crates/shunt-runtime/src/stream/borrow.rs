//! The requests of a program that knows Shunt, for single calls, in control messages (`shunt.h`): a
//! look at received bytes in place, their return, and the buffers of a call that are to be granted.
//!
//! They are control messages of recvmsg(2) and sendmsg(2), so that the header needs no function of
//! the library. The kernel ignores them, and does the same with a copy. Borrowed bytes stay in
//! front of the reader (a borrow is a `MSG_PEEK`), so the sender and this end's other calls find
//! them where they were.

use core::ptr::NonNull;

use libc::{CMSG_LEN, MSG_PEEK, MSG_TRUNC, c_int, iovec, msghdr};
use shunt_engine::call::Errno;
use shunt_engine::conn::End;
use shunt_engine::zerocopy::batch::Batch;
use shunt_engine::zerocopy::numbers::Outcome;
use shunt_engine::zerocopy::ports::{self, Borrower};
use shunt_shm::Violation;
use shunt_shm::ring::Span;

use crate::conn::Sock;
use crate::control::link::Link;
use crate::stream::grants::Look;
use crate::stream::hints::Hints;
use crate::stream::hints::control;
use crate::stream::transfer::{Sink, Source};

/// `SHUNT_BORROW`, with `MSG_PEEK`: the room behind it is for the places of bytes, which are told in this way. The
/// kernel leaves none: the bytes are in the buffers of the call.
const BORROW: c_int = 1;
/// `SHUNT_RELEASE`, with `MSG_TRUNC`.
const RELEASE: c_int = 2;
/// Most pieces that are lent at once.
const PIECES: usize = 1024;

/// What a call asks for.
#[derive(Debug)]
pub enum Request<'a> {
    /// What the kernel does.
    Plain,
    /// A receiving call: where the bytes are.
    Borrow(&'a mut Lending),
    /// A receiving call: to go on behind borrowed bytes.
    Release,
    /// A sending call: no copies (`MSG_ZEROCOPY`). The pieces that go together are in the caller's frame, as they take much room: other
    /// calls have little stack at times.
    Grant(&'a mut Outcome, &'a Hints<'a>, &'a mut Option<Batch>),
    /// A sending call: the bytes come out of a file or a pipe, and the call has no buffers.
    From(&'a Source),
    /// A receiving call: they go into a pipe. It has no buffers either.
    Into(&'a Sink),
}

/// Room for the places of borrowed bytes, in the program's control message.
#[derive(Debug)]
pub struct Lending {
    pieces: NonNull<iovec>,
    room: usize,
    count: usize,
}

impl Lending {
    /// Tells of some more. False when there is no room left.
    fn tell(&mut self, at: NonNull<u8>, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        if self.count == self.room {
            return false;
        }
        let piece = iovec { iov_base: at.as_ptr().cast(), iov_len: len };
        // SAFETY: `room` entries fit into the program's control message.
        unsafe { self.pieces.add(self.count).write_unaligned(piece) };
        self.count += 1;
        true
    }

    /// The length of the control message with what was told; 0: nothing was.
    fn control_len(&self) -> usize {
        let bytes = u32::try_from(self.count * size_of::<iovec>()).unwrap_or(0);
        // SAFETY: only computes.
        if bytes == 0 { 0 } else { unsafe { CMSG_LEN(bytes) as usize } }
    }
}

/// What a call of recvmsg(2) with these flags asks for.
#[derive(Debug)]
pub enum Asked {
    /// What the kernel does.
    Plain,
    /// Where the bytes are.
    Borrow(Lending),
    /// To go on behind borrowed bytes.
    Release,
}

impl Asked {
    /// What the call with this message and these flags asks for.
    ///
    /// # Safety
    /// As for `control`.
    #[inline]
    pub unsafe fn of(msg: &msghdr, flags: c_int) -> Self {
        if flags & (MSG_PEEK | MSG_TRUNC) == 0 {
            return Self::Plain;
        }
        // SAFETY: the caller's promise.
        match unsafe { control(msg) } {
            Some((BORROW, data, len)) if flags & MSG_PEEK != 0 => {
                let room = (len / size_of::<iovec>()).min(PIECES);
                Self::Borrow(Lending { pieces: data.cast(), room, count: 0 })
            }
            Some((RELEASE, ..)) if flags & MSG_TRUNC != 0 => Self::Release,
            _ => Self::Plain,
        }
    }

    /// The call's request.
    pub fn request(&mut self) -> Request<'_> {
        match self {
            Self::Plain => Request::Plain,
            Self::Borrow(lending) => Request::Borrow(lending),
            Self::Release => Request::Release,
        }
    }

    /// The length of the control message with the answer.
    pub fn answer_len(&self) -> usize {
        match self {
            Self::Borrow(lending) => lending.control_len(),
            Self::Plain | Self::Release => 0,
        }
    }
}

/// A program's list, of which some places are in the ring that begins there.
struct List<'a> {
    lending: &'a mut Lending,
    ring: NonNull<u8>,
}

impl ports::Lending for List<'_> {
    type Mapped = NonNull<u8>;

    fn begin(&mut self) {
        self.lending.count = 0;
    }

    fn tell_mapped(&mut self, bytes: NonNull<u8>, len: usize) -> bool {
        self.lending.tell(bytes, len)
    }

    fn tell_ring(&mut self, at: usize, len: usize) -> bool {
        // SAFETY: the engine tells of places in the ring's buffer alone.
        self.lending.tell(unsafe { self.ring.add(at) }, len)
    }
}

/// Tells where the bytes of `span` are, the receiver's next ones ([`End::lend`]).
pub fn lend(
    sock: &'static Sock,
    (end, link): (&End<'static>, &'static Link),
    (span, reads_pipes): (Span, bool),
    lending: &mut Lending,
) -> Result<Option<usize>, Violation> {
    let look = Look::new(sock, link, None);
    let ring = look.ring();
    end.lend(&look, &sock.lent, (span, reads_pipes), &mut List { lending, ring })
}

/// The error with which `n` borrowed bytes cannot be given back ([`End::refuses`]).
pub fn refusal(sock: &'static Sock, link: &'static Link, n: usize) -> Option<Errno> {
    let look = Look::new(sock, link, None);
    link.end(sock.record()).refuses(look.entries(), &sock.lent, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::hints::tests::message;

    #[test]
    fn a_request_is_heard_only_with_its_flag() {
        let mut room = [0; 16];
        let msg = message(BORROW, &[0; 40], &mut room);
        // SAFETY: valid messages, here and below.
        let heard = |msg: &msghdr, flags| unsafe { Asked::of(msg, flags) };
        assert!(matches!(heard(&msg, MSG_PEEK), Asked::Borrow(Lending { room: 2, .. })));
        assert!(matches!(heard(&msg, MSG_TRUNC), Asked::Plain));
        assert!(matches!(heard(&msg, 0), Asked::Plain));
        let msg = message(RELEASE, &[0; 8], &mut room);
        assert!(matches!(heard(&msg, MSG_TRUNC), Asked::Release));
        assert!(matches!(heard(&msg, MSG_PEEK), Asked::Plain));
        let mut short = message(BORROW, &[0; 40], &mut room);
        for len in [0, 8, 16, 55] {
            short.msg_controllen = len;
            assert!(matches!(heard(&short, MSG_PEEK), Asked::Plain), "{len}");
        }
    }

    #[test]
    fn no_more_is_told_than_fits() {
        let mut room = [0; 16];
        let msg = message(BORROW, &[0; 32], &mut room);
        // SAFETY: a valid message.
        let Asked::Borrow(mut lending) = (unsafe { Asked::of(&msg, MSG_PEEK) }) else {
            panic!("unheard")
        };
        assert_eq!(lending.control_len(), 0);
        let at = NonNull::<u8>::dangling();
        let told: Vec<_> = [5, 0, 7, 0, 9].map(|len| lending.tell(at, len)).into();
        assert_eq!(told, [true, true, true, true, false]);
        assert_eq!(lending.control_len(), 16 + 32);
    }
}

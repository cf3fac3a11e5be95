//! Copy mode: for devices that can't map their peer's memory. The bytes go into an own sndbuf, and
//! the device moves them into the peer's RMB.
//!
//! The sndbuf lies on the stack, and what is moved goes through it piece by piece. So each call has
//! its own, also in a signal handler above another send, and a handler that jumps out of one leaves
//! nothing in use.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use libc::iovec;
use shunt_shm::arena::Mode;
use shunt_shm::region::{RegionView, Side};
use shunt_shm::ring::Span;

use crate::stream::bytes::Buffers;

/// A place that was reserved in the peer's RMB.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The link group's memory.
    pub view: RegionView,
    /// The connection's slot there.
    pub slot: usize,
    /// Whose RMB it is.
    pub receiver: Side,
    /// How bytes come there.
    pub mode: Mode,
    /// Where in the ring.
    pub span: Span,
}

/// Bytes of a sndbuf: the stack may be a signal handler's.
const SNDBUF: usize = 4096;

/// Puts bytes to their place in the receiver's RMB.
#[inline(never)]
pub fn put(buffers: &Buffers<'_>, at: usize, place: &Place) {
    let rmb = place.view.buffer_offset(place.slot, place.receiver);
    let mut sndbuf = [const { MaybeUninit::<u8>::uninit() }; SNDBUF];
    let mut done = at;
    for (to, len) in pieces(place.span) {
        let linear = Span { head: (0, len), tail: (0, 0) };
        // SAFETY: the program's buffers are readable, as send(2) asks; a piece is no longer than
        // the sndbuf.
        unsafe { buffers.copy_in(done, NonNull::from(&mut sndbuf).cast(), linear) };
        // SAFETY: so many bytes were just written.
        let bytes = unsafe { filled(&sndbuf, len) };
        // A span that was reserved lies in the RMB, so all of it is moved.
        let _ = place.view.move_data(rmb + to, bytes);
        done += len;
    }
}

/// Has `read` put bytes into the sndbuf, as long as it fills it, and moves them to the place; how
/// many bytes.
#[inline(never)]
pub fn fill(place: &Place, mut read: impl FnMut(iovec) -> usize) -> usize {
    let mut sndbuf = [const { MaybeUninit::<u8>::uninit() }; SNDBUF];
    let mut done = 0;
    for (to, len) in pieces(place.span) {
        let n = read(iovec { iov_base: sndbuf.as_mut_ptr().cast(), iov_len: len });
        // SAFETY: so many bytes were just read.
        let bytes = unsafe { filled(&sndbuf, n.min(len)) };
        let rmb = place.view.buffer_offset(place.slot, place.receiver);
        // A span that was reserved lies in the RMB, so all of it is moved.
        let _ = place.view.move_data(rmb + to, bytes);
        done += bytes.len();
        if bytes.len() < len {
            break;
        }
    }
    done
}

/// The first `len` bytes of the sndbuf.
///
/// # Safety
/// They were written.
unsafe fn filled(sndbuf: &[MaybeUninit<u8>; SNDBUF], len: usize) -> &[u8] {
    // SAFETY: the caller promises that the first `len` bytes were written, of which the sndbuf has as many.
    unsafe { core::slice::from_raw_parts(sndbuf.as_ptr().cast(), len) }
}

/// A span by pieces that the sndbuf holds: where in the ring, and how long.
fn pieces(span: Span) -> impl Iterator<Item = (usize, usize)> {
    [span.head, span.tail].into_iter().flat_map(|(at, len)| {
        (0..len).step_by(SNDBUF).map(move |done| (at + done, (len - done).min(SNDBUF)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_moved_piece_by_piece_and_in_order() {
        let found = |head, tail| pieces(Span { head, tail }).collect::<Vec<_>>();
        assert_eq!(found((7, 0), (0, 0)), []);
        assert_eq!(found((7, 5), (0, 2)), [(7, 5), (0, 2)]);
        assert_eq!(found((100, SNDBUF), (0, 0)), [(100, SNDBUF)]);
        assert_eq!(found((100, SNDBUF + 1), (0, 3)), [(100, SNDBUF), (100 + SNDBUF, 1), (0, 3)]);
    }
}

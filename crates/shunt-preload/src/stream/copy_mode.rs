//! Copy mode: for devices that can't map their peer's memory. The bytes go into an own sndbuf, and
//! the device moves them into the peer's RMB.

use core::cell::RefCell;
use core::ptr::NonNull;

use shunt_device::loopback;
use shunt_shm::region::{RegionView, Side};
use shunt_shm::ring::Span;

use crate::stream::bytes::Buffers;

/// Bytes of a sndbuf: what is moved at once.
const SNDBUF: usize = 64 * 1024;

thread_local! {
    static SNDBUF_OF_THREAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Puts the span's bytes into the RMB of `receiver`.
pub fn put(
    buffers: &Buffers<'_>,
    at: usize,
    view: RegionView,
    slot: usize,
    receiver: Side,
    span: Span,
) {
    let moved = SNDBUF_OF_THREAD.try_with(|sndbuf| {
        let mut sndbuf = sndbuf.try_borrow_mut().ok()?;
        sndbuf.resize(SNDBUF, 0);
        let len = span.head.1 + span.tail.1;
        let bytes = sndbuf.get_mut(..len)?;
        let linear = Span { head: (0, len), tail: (0, 0) };
        // SAFETY: the program's buffers are readable, as send(2) asks; the sndbuf is long enough.
        unsafe { buffers.copy_in(at, NonNull::from(&mut *bytes).cast(), linear) };
        let rmb = view.buffer_offset(slot, receiver);
        let (head, tail) = bytes.split_at(span.head.1);
        loopback::move_into(view, rmb + span.head.0, head)?;
        loopback::move_into(view, rmb + span.tail.0, tail)
    });
    if !matches!(moved, Ok(Some(()))) {
        // In a signal handler above another send, or while the thread ends: the buffer is not to be
        // had, the bytes must still arrive.
        // SAFETY: as above; the span was reserved in this buffer.
        unsafe { buffers.copy_in(at, view.buffer(slot, receiver), span) };
    }
}

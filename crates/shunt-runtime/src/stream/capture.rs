//! Copies of sent bytes for captures: the sender writes them into the endpoint's rings during a
//! capture, with the lock of the direction held.
//!
//! This file never waits, allocates or takes a lock, so it may run in a signal handler. A record's
//! word says whether a capture runs; it lies beside words that a sender reads anyhow.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use libc::iovec;
use shunt_engine::conn::End;
use shunt_engine::handshake::Phase;
use shunt_engine::kernel::KernelSocket;
use shunt_engine::stretch::{Path, path};
use shunt_shm::arena::Record;
use shunt_shm::capture::{BITS, Event, Part, flag};
use shunt_shm::region::Side;

use crate::conn::Sock;
use crate::stream::bytes::Buffers;
use crate::stream::tcp::Socket;
use crate::stream::transfer::Source;
use crate::system::clock;

/// Entries of a program's buffers that are looked at together.
const ENTRIES: usize = 16;
/// Bytes of a file that are read at once: the stack may be a signal handler's.
const LOOK: usize = 4096;

/// True while somebody captures.
#[inline(always)]
pub fn is_wanted(record: &Record) -> bool {
    record.tx.captures.load(Relaxed) & BITS != 0
}

/// `parts` are about to be published in the ring: they are `len` bytes, or more.
///
/// # Safety
/// They are readable.
#[cold]
pub unsafe fn in_ring(sock: &Sock, end: &End<'_>, len: usize, parts: &[Part]) {
    let at = clock::wall();
    // SAFETY: the caller's promise.
    unsafe { note(sock, (at, ring_offset(sock.record(), end)), 0, len, parts) };
}

/// The same of the program's buffers after the first `skip` bytes, which the receiver is granted.
///
/// # Safety
/// They are readable.
#[cold]
pub unsafe fn granted(sock: &Sock, end: &End<'_>, len: usize, buffers: (&Buffers<'_>, usize)) {
    let at = (clock::wall(), ring_offset(sock.record(), end));
    // SAFETY: the caller's promise.
    unsafe { note_buffers(sock, at, 0, len, buffers) };
}

/// The kernel socket has taken `len` bytes of the program's buffers after the first `skip`. `at`: when it was about to.
///
/// # Safety
/// They are readable.
#[cold]
pub unsafe fn over_kernel(
    (sock, fd): (&Sock, c_int),
    at: u64,
    len: usize,
    buffers: (&Buffers<'_>, usize),
) {
    let before = kernel_offset(sock.record(), fd).saturating_sub(len as u64);
    // SAFETY: the caller's promise.
    unsafe { note_buffers(sock, (at, before), flag::TCP, len, buffers) };
}

/// The kernel has moved `len` bytes from a file or a pipe into its socket. A file is read once more.
#[cold]
pub fn moved((sock, fd): (&Sock, c_int), at: u64, len: usize, source: &Source) {
    let mut offset = kernel_offset(sock.record(), fd).saturating_sub(len as u64);
    let (mut left, mut buffer) = (len, [0; LOOK]);
    while left > 0 {
        let n = source.look_back(left, &mut buffer);
        if n == 0 {
            break;
        }
        // SAFETY: so many bytes are in the buffer.
        unsafe { note(sock, (at, offset), flag::TCP, n, &[(buffer.as_ptr(), n)]) };
        offset = offset.wrapping_add(n as u64);
        left -= n;
    }
    if left > 0 {
        // SAFETY: there are no parts.
        unsafe { note(sock, (at, offset), flag::TCP | flag::UNSEEN, left, &[]) };
    }
}

/// The direction ends, or the connection is reset. `fd`: the kernel socket, where one is left.
#[cold]
pub fn ends(sock: &Sock, fd: Option<c_int>, how: u32) {
    let record = sock.record();
    let offset = match (sock.end(), fd) {
        (Some(end), _) if path(record.tx.marks.load(Relaxed)) == Path::Ring => {
            ring_offset(record, &end)
        }
        (_, Some(fd)) => kernel_offset(record, fd),
        (_, None) => of_ring(record),
    };
    // SAFETY: there are no parts.
    unsafe { note(sock, (clock::wall(), offset), how, 0, &[]) };
}

/// Bytes of the direction before the next one in the ring.
fn ring_offset(record: &Record, end: &End<'_>) -> u64 {
    let marks = record.tx.marks.load(Relaxed) as usize;
    let at = &end.mine.prod.mark_at;
    let over_tcp = at.get(marks % at.len()).map_or(0, |at| at.load(Relaxed));
    over_tcp.wrapping_add(of_ring(record))
}

/// Bytes of the direction before the next one over the kernel socket.
fn kernel_offset(record: &Record, fd: c_int) -> u64 {
    let written = Socket(fd).info().map_or(0, |info| info.written());
    written.wrapping_add(of_ring(record))
}

/// Bytes that went through the ring, less those that the kernel counts as well.
fn of_ring(record: &Record) -> u64 {
    let tx = &record.tx;
    tx.bytes.load(Relaxed).wrapping_sub(tx.repeated.load(Relaxed))
}

/// # Safety
/// The buffers are readable after the first `skip` bytes, `len` bytes long.
unsafe fn note_buffers(
    sock: &Sock,
    (at, offset): (u64, u64),
    flags: u32,
    len: usize,
    (buffers, skip): (&Buffers<'_>, usize),
) {
    let mut done = 0;
    while done < len {
        let mut iov = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; ENTRIES];
        let count = buffers.rest(skip + done, len - done, &mut iov);
        let parts = iov.map(|v| (v.iov_base.cast::<u8>().cast_const(), v.iov_len));
        let parts = parts.get(..count).unwrap_or(&[]);
        let n = parts.iter().map(|part| part.1).sum();
        if n == 0 {
            break;
        }
        // SAFETY: the caller's promise.
        unsafe { note(sock, (at, offset + done as u64), flags, n, parts) };
        done += n;
    }
}

/// # Safety
/// The parts are readable, and `len` bytes or more, or none.
unsafe fn note(sock: &Sock, (at, offset): (u64, u64), flags: u32, len: usize, parts: &[Part]) {
    let (record, endpoint) = (sock.record(), sock.endpoint());
    let word = record.tx.captures.load(Relaxed);
    let Some(rings) = &endpoint.captures else { return };
    let id = &record.id;
    let is_client = sock.phase() != Phase::Candidate && record.side() == Side::Client;
    let event = Event {
        at,
        offset,
        tuple: id.tuple(),
        flags: flags | if is_client { flag::CLIENT } else { 0 },
        len: u32::try_from(len).unwrap_or(u32::MAX),
        peer: sock.peer_endpoint().unwrap_or(0),
        link: id.region.load(Relaxed),
        pid: id.pid.load(Relaxed),
        generation: id.generation.load(Relaxed),
    };
    // SAFETY: the caller's promise.
    let over = unsafe { rings.put(word & BITS, &event, parts, clock::now) };
    if over != 0 {
        endpoint.arena.end_captures(record, word, over);
    }
}

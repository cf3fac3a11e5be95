//! sendfile and splice on a shunted connection, by reading and writing.

use std::cell::RefCell;

use libc::{EAGAIN, EINVAL, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, SEEK_CUR, SEEK_SET};

use crate::abi::{c_int, c_uint, c_void, off64_t};
use crate::errno;
use crate::fd_table;
use crate::next;
use crate::object;
use crate::ops::stream::{recv, send, stream};
use crate::stream::send::{FilePart, transmit_file};

/// Bytes that are moved at once.
const CHUNK: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn with_buffer(f: impl FnOnce(&mut [u8]) -> isize) -> isize {
    BUFFER
        .try_with(|buffer| {
            let mut buffer = buffer.try_borrow_mut().ok()?;
            buffer.resize(CHUNK, 0);
            Some(f(&mut buffer))
        })
        .ok()
        .flatten()
        .unwrap_or_else(|| errno::fail(EAGAIN))
}

/// `sendfile(2)`.
///
/// # Safety
/// `offset` is null or points to an offset.
pub unsafe fn send_file(out: c_int, input: c_int, offset: *mut off64_t, count: usize) -> isize {
    // SAFETY: the caller's promise.
    let given = unsafe { offset.as_mut() };
    let start = match &given {
        Some(at) => **at,
        // SAFETY: no memory is involved.
        None => unsafe { libc::lseek64(input, 0, SEEK_CUR) },
    };
    if start < 0 {
        return errno::fail(if given.is_some() { EINVAL } else { errno::get() });
    }
    let sent = with_buffer(|buffer| send_chunks(out, input, start, count, buffer));
    if sent > 0 {
        let end = start + sent as off64_t;
        match given {
            Some(at) => *at = end,
            // SAFETY: no memory is involved.
            None => unsafe {
                libc::lseek64(input, end, SEEK_SET);
            },
        }
    }
    sent
}

fn send_chunks(out: c_int, input: c_int, start: off64_t, count: usize, buffer: &mut [u8]) -> isize {
    let mut sent = 0_usize;
    while sent < count {
        let want = (count - sent).min(buffer.len());
        let at = start + sent as off64_t;
        let part = FilePart { file: input, at, len: count - sent };
        if let Some(n) = stream(out).and_then(|(_, sock)| transmit_file(sock, out, part)) {
            return match usize::try_from(n) {
                Ok(done) => (sent + done).cast_signed(),
                Err(_) if sent > 0 => sent.cast_signed(),
                Err(_) => n,
            };
        }
        // SAFETY: `want` bytes of the buffer are writable.
        let n = unsafe { libc::pread64(input, buffer.as_mut_ptr().cast(), want, at) };
        let Ok(len) = usize::try_from(n) else {
            return if sent > 0 { sent.cast_signed() } else { -1 };
        };
        if len == 0 {
            break;
        }
        // SAFETY: `len` bytes were just read into the buffer.
        let n = unsafe { send(out, buffer.as_ptr().cast::<c_void>(), len, 0) };
        let Ok(done) = usize::try_from(n) else {
            return if sent > 0 { sent.cast_signed() } else { -1 };
        };
        sent += done;
        if done < len {
            break;
        }
    }
    sent.cast_signed()
}

fn message_flags(flags: c_uint) -> c_int {
    if flags & libc::SPLICE_F_NONBLOCK != 0 { MSG_DONTWAIT } else { 0 }
}

/// `splice(2)` from a connection to a pipe: looks at the bytes, writes what the pipe takes, and takes
/// just that.
pub fn splice_from(input: c_int, out: c_int, len: usize, flags: c_uint) -> isize {
    with_buffer(|buffer| {
        let want = len.min(buffer.len());
        let wait = message_flags(flags);
        // SAFETY: `want` bytes of the buffer are writable.
        let n = unsafe { recv(input, buffer.as_mut_ptr().cast(), want, MSG_PEEK | wait) };
        if n <= 0 {
            return n;
        }
        // SAFETY: `n` bytes were just read into the buffer.
        let written = unsafe { next::write(out, buffer.as_ptr().cast(), n.unsigned_abs()) };
        if let Ok(done @ 1..) = usize::try_from(written) {
            // SAFETY: MSG_TRUNC writes nothing; the bytes are there, so it does not wait.
            unsafe { recv(input, buffer.as_mut_ptr().cast(), done, MSG_TRUNC | MSG_DONTWAIT) };
        }
        written
    })
}

/// `splice(2)` from a pipe to a connection.
pub fn splice_to(input: c_int, out: c_int, len: usize, flags: c_uint) -> isize {
    with_buffer(|buffer| {
        let entry = fd_table::lookup(out);
        let room = object::room(entry).unwrap_or(buffer.len());
        if room == 0 && (flags & libc::SPLICE_F_NONBLOCK != 0 || object::is_nonblocking(entry)) {
            return errno::fail(EAGAIN);
        }
        // No more than fits at once, so that nothing that was read from the pipe is left over.
        let want = len.min(buffer.len()).min(room.max(1));
        // SAFETY: `want` bytes of the buffer are writable.
        let n = unsafe { next::read(input, buffer.as_mut_ptr().cast(), want) };
        let Ok(len @ 1..) = usize::try_from(n) else { return n };
        let mut sent = 0;
        while sent < len {
            // SAFETY: these bytes were just read into the buffer.
            let n = unsafe { send(out, buffer[sent..].as_ptr().cast(), len - sent, 0) };
            match usize::try_from(n) {
                Ok(done) => sent += done,
                // Another thread took the room that was there: wait for the rest.
                Err(_) if errno::get() == EAGAIN => {
                    std::thread::yield_now();
                }
                Err(_) => return -1,
            }
        }
        len.cast_signed()
    })
}

//! sendfile and splice on a shunted connection, by reading and writing.

use core::ptr;
use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use libc::{EAGAIN, EINVAL, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, SEEK_CUR, SEEK_SET};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::pipe::fcntl_getpipe_size;

use crate::abi::{c_int, c_uint, c_void, off64_t};
use crate::conn::{Conn, Hold};
use crate::errno;
use crate::next;
use crate::object;
use crate::ops::stream::{recv_on, send_on};
use crate::panics::InDoubt;
use crate::points::point;
use crate::stream::send::{FilePart, transmit_file};
use crate::stream::tcp;

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
pub unsafe fn send_file(conn: Conn, input: c_int, offset: *mut off64_t, count: usize) -> isize {
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
    let sent = with_buffer(|buffer| send_chunks(conn, input, start, count, buffer));
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

fn send_chunks(conn: Conn, input: c_int, start: off64_t, count: usize, buffer: &mut [u8]) -> isize {
    // All of it goes to the same connection, whatever becomes of the descriptor.
    let mut hold = Hold::none();
    hold.keep(&conn);
    let mut sent = 0_usize;
    let mut in_doubt = None;
    while sent < count {
        let want = (count - sent).min(buffer.len());
        let at = start + sent as off64_t;
        let part = FilePart { file: input, at, len: count - sent };
        if let Some(n) = transmit_file(conn, &mut hold, part) {
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
        let n = unsafe { send_on(conn, buffer.as_ptr().cast::<c_void>(), len, 0) };
        let Ok(done) = usize::try_from(n) else {
            return if sent > 0 { sent.cast_signed() } else { -1 };
        };
        sent += done;
        // The program does not know of it yet.
        if sent > 0 && in_doubt.is_none() {
            in_doubt = Some(InDoubt::begins(conn));
        }
        point!(sendfile_between);
        if done < len {
            break;
        }
    }
    sent.cast_signed()
}

/// Bytes that a pipe with room takes for sure: a page.
const PIPE_PIECE: usize = 4096;

/// Writes what the pipe takes now, as splice(2) does: never waits for more room than it finds, also where
/// the pipe is a blocking one, since the reader may be this very thread.
fn write_some(out: BorrowedFd<'_>, bytes: &[u8], wait: bool) -> isize {
    // Current position: a pipe has none.
    const HERE: u64 = u64::MAX;
    loop {
        let now = pwritev2(out, &[IoSlice::new(bytes)], HERE, ReadWriteFlags::NOWAIT);
        let now = match now {
            // Before Linux 6.4.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_pieces(out, bytes),
            other => other,
        };
        match now {
            Ok(n) => return n.cast_signed(),
            Err(Errno::AGAIN) if wait => {
                if let Err(error) = poll(&mut [PollFd::from_borrowed_fd(out, PollFlags::OUT)], None)
                {
                    return errno::fail(error.raw_os_error());
                }
            }
            Err(error) => return errno::fail(error.raw_os_error()),
        }
    }
}

/// The same by pieces of which each is known to fit.
fn write_pieces(out: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let mut done = 0;
    for piece in bytes.chunks(PIPE_PIECE) {
        if !is_ready(out, PollFlags::OUT) {
            break;
        }
        match rustix::io::write(out, piece) {
            Ok(n) => done += n,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    if done == 0 { Err(Errno::AGAIN) } else { Ok(done) }
}

/// Whether a call would not wait: there is room, are bytes, or is an end.
fn is_ready(pipe: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(pipe, flags)], Some(&at_once)) != Ok(0)
}

fn is_pipe(fd: c_int) -> bool {
    fd >= 0 && fcntl_getpipe_size(tcp::borrow(fd)).is_ok()
}

/// `splice(2)` from a connection to a pipe: looks at the bytes, writes what the pipe takes, and takes
/// just that. `SPLICE_F_NONBLOCK` is about the pipe; a socket waits unless it is `O_NONBLOCK`.
pub fn splice_from(conn: Conn, out: c_int, len: usize, flags: c_uint) -> isize {
    let pipe = tcp::borrow(out);
    if !is_pipe(out) {
        let input = conn.descriptor();
        // The kernel says what is wrong with it.
        // SAFETY: no memory is involved.
        return unsafe { next::splice(input, ptr::null_mut(), out, ptr::null_mut(), len, flags) };
    }
    let wait = flags & libc::SPLICE_F_NONBLOCK == 0
        && fcntl_getfl(pipe).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
    // The kernel asks the pipe first.
    if !wait && !is_ready(pipe, PollFlags::OUT) {
        return errno::fail(EAGAIN);
    }
    // What is taken is what was looked at, whatever becomes of the descriptor.
    let mut hold = Hold::none();
    hold.keep(&conn);
    with_buffer(|buffer| {
        let want = len.min(buffer.len());
        // SAFETY: `want` bytes of the buffer are writable.
        let n = unsafe { recv_on(conn, buffer.as_mut_ptr().cast(), want, MSG_PEEK) };
        if n <= 0 {
            return n;
        }
        let _in_doubt = InDoubt::begins(conn);
        point!(splice_peeked);
        let written = write_some(pipe, &buffer[..n.unsigned_abs().min(want)], wait);
        point!(splice_written);
        if let Ok(done @ 1..) = usize::try_from(written) {
            // SAFETY: MSG_TRUNC writes nothing; the bytes are there, so it does not wait.
            unsafe { recv_on(conn, buffer.as_mut_ptr().cast(), done, MSG_TRUNC | MSG_DONTWAIT) };
        }
        written
    })
}

/// `splice(2)` from a pipe to a connection.
pub fn splice_to(input: c_int, conn: Conn, len: usize, flags: c_uint) -> isize {
    let out = conn.descriptor();
    if !is_pipe(input) {
        // As above.
        // SAFETY: no memory is involved.
        return unsafe { next::splice(input, ptr::null_mut(), out, ptr::null_mut(), len, flags) };
    }
    if flags & libc::SPLICE_F_NONBLOCK != 0 && !is_ready(tcp::borrow(input), PollFlags::IN) {
        return errno::fail(EAGAIN);
    }
    // What was read from the pipe goes to this connection, whatever becomes of the descriptor.
    let mut hold = Hold::none();
    hold.keep(&conn);
    with_buffer(|buffer| {
        let entry = conn.entry();
        let room = match object::room(entry) {
            Some(room) => room,
            None if !object::is_nonblocking(entry) => buffer.len(),
            // A socket that the kernel calls writable takes so much.
            None if conn.ask(|fd| is_ready(tcp::borrow(fd), PollFlags::OUT)) == Some(true) => {
                PIPE_PIECE
            }
            None => 0,
        };
        if room == 0 && object::is_nonblocking(entry) {
            return errno::fail(EAGAIN);
        }
        // No more than fits at once, so that nothing that was read from the pipe is left over.
        let want = len.min(buffer.len()).min(room.max(1));
        // SAFETY: `want` bytes of the buffer are writable.
        let n = unsafe { next::read(input, buffer.as_mut_ptr().cast(), want) };
        let Ok(len @ 1..) = usize::try_from(n) else { return n };
        let _in_doubt = InDoubt::begins(conn);
        point!(splice_read);
        let mut sent = 0;
        while sent < len {
            // SAFETY: these bytes were just read into the buffer.
            let n = unsafe { send_on(conn, buffer[sent..].as_ptr().cast(), len - sent, 0) };
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

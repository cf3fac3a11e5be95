//! sendfile and splice on a shunted connection, by reading and writing.
//!
//! A call goes through the same steps as send(2) and recv(2) do ([`send`], [`recv`]), on the
//! connection on which it began, with a file or a pipe in the place of buffers
//! ([`transfer`](crate::stream::transfer)). It is done in pieces of which each is a call for
//! itself, as in the kernel: `SO_SNDTIMEO` counts anew for each.

use core::ptr;

use libc::{EAGAIN, EFAULT, EINTR, EINVAL, ESPIPE, MSG_DONTWAIT, SEEK_CUR, SEEK_SET};
use libc::{S_IFBLK, S_IFDIR, S_IFMT, S_IFREG};
use shunt_engine::handshake::Phase;
use shunt_wire::reason::Reason;

use crate::conn::{APPENDS, Conn, Hold, NONBLOCK};
use crate::point;
use crate::stream::borrow::Request;
use crate::stream::bytes::Buffers;
use crate::stream::call::Call;
use crate::stream::hand_over;
use crate::stream::in_doubt::InDoubt;
use crate::stream::transfer::{End, Found, Pipe, Sink, Source, Stop};
use crate::stream::{promote, recv, send};
use crate::system::abi;
use crate::system::abi::{c_int, c_uint, iovec, off64_t};
use crate::system::errno;
use crate::system::next;

/// Bytes of a piece.
const PIECE: usize = 64 * 1024;

/// Most bytes that the kernel moves in a call (`MAX_RW_COUNT`).
const MOST: usize = 0x7fff_f000;

/// Sends up to `len` bytes out of the source. `flags` are those of send(2); `how`, of splice(2), is
/// for the kernel, once the connection is TCP for good.
fn send_from(conn: Conn, source: &Source, len: usize, flags: c_int, how: c_uint) -> isize {
    let mut kernel = |fd, _| source.by_kernel(fd, len, how);
    let (hold, buffers, request) = (Hold::none(), Buffers::none(len), Request::From(source));
    send::transmit(&mut Call { conn, hold, buffers, flags, request, kernel: &mut kernel })
}

/// Receives up to `len` bytes into the sink. `kernel`: the same of a descriptor of the kernel
/// socket, once the connection is TCP for good.
fn receive_into(conn: Conn, sink: &Sink, len: usize, kernel: impl Fn(c_int) -> isize) -> isize {
    let mut kernel = |fd, _| kernel(fd);
    let (hold, buffers, request) = (Hold::none(), Buffers::none(len), Request::Into(sink));
    recv::receive(&mut Call { conn, hold, buffers, flags: 0, request, kernel: &mut kernel })
}

/// As [`Conn::named`], unless the connection is TCP for good.
fn shunted(fd: c_int) -> Option<Conn> {
    Conn::named(fd).filter(|conn| promote::advance(*conn) != Phase::Tcp)
}

/// sendfile(2), or `kernel` on what it reads from.
///
/// # Safety
/// `offset` is null or points to one.
pub unsafe fn sendfile(
    out: c_int,
    input: c_int,
    offset: *mut off64_t,
    count: usize,
    kernel: impl Fn(c_int) -> isize,
) -> isize {
    if let Some(out) = shunted(out) {
        // SAFETY: the caller's promise.
        return unsafe { send_file(out, input, offset, count) };
    }
    match shunted(input) {
        // To a pipe it is splice(2), which has its say on all else.
        Some(input) if offset.is_null() && count > 0 => splice_from(input, out, count, 0, kernel),
        _ => kernel(input),
    }
}

/// splice(2) without offsets, or `kernel` on both ends.
pub fn splice(
    input: c_int,
    out: c_int,
    len: usize,
    flags: c_uint,
    kernel: impl Fn(c_int, c_int) -> isize,
) -> isize {
    const KNOWN: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    // A call that is none, or is refused, is the kernel's.
    if len > 0 && flags & !KNOWN == 0 {
        if let Some(input) = shunted(input) {
            return splice_from(input, out, len, flags, |input| kernel(input, out));
        }
        if let Some(out) = shunted(out) {
            return splice_to(input, out, len, flags, |out| kernel(input, out));
        }
    }
    kernel(input, out)
}

/// The pieces of a call, and what they come to.
struct Pieces {
    done: usize,
    len: usize,
}

impl Pieces {
    fn new(len: usize) -> Self {
        Self { done: 0, len: len.min(MOST) }
    }

    /// The length of the next one.
    fn next(&self) -> usize {
        (self.len - self.done).min(PIECE)
    }

    /// The result of a piece of `asked` bytes. `Some`: the result of the call.
    fn add(&mut self, n: isize, asked: usize) -> Option<isize> {
        match usize::try_from(n) {
            Ok(n) => {
                self.done += n;
                (n < asked || self.done >= self.len).then_some(self.done.cast_signed())
            }
            Err(_) => Some(if self.done > 0 { self.done.cast_signed() } else { n }),
        }
    }
}

/// `sendfile(2)`.
///
/// # Safety
/// `offset` is null or points to an offset.
unsafe fn send_file(out: Conn, input: c_int, offset: *mut off64_t, count: usize) -> isize {
    let place = iovec { iov_base: offset.cast(), iov_len: size_of::<off64_t>() };
    if !offset.is_null() && Buffers::one(&place).are_bad() {
        return errno::fail(EFAULT);
    }
    // SAFETY: the caller promises that it is null or points to an offset, which was just seen to be there.
    let given = unsafe { offset.as_mut() };
    let start = match &given {
        Some(at) => **at,
        // SAFETY: no memory is involved.
        None => unsafe { libc::lseek64(input, 0, SEEK_CUR) },
    };
    let file = File { fd: input, start, is_given: given.is_some() };
    let source = Source::file(input, start, out.has(NONBLOCK));
    let before = errno::get();
    let sent = file.send(out, &source, count);
    if sent > 0 {
        errno::set(before);
        match given {
            Some(at) => *at = source.position(),
            // SAFETY: no memory is involved.
            None => unsafe {
                libc::lseek64(input, source.position(), SEEK_SET);
            },
        }
    }
    sent
}

/// The file of a call of sendfile(2).
#[derive(Clone, Copy)]
struct File {
    fd: c_int,
    /// Where it begins; negative where the file has no position.
    start: off64_t,
    /// The program has said so, and not the file's position.
    is_given: bool,
}

/// What a file is, as far as sendfile(2) is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nature {
    /// What read(2) gives is what sendfile(2) would send.
    Plain,
    /// The kernel has to say: devices, and files whose contents it makes up.
    Odd,
    /// Directories, and what has no type (eventfd and its kind), cannot be sent.
    Unsendable,
}

impl File {
    fn send(self, out: Conn, source: &Source, count: usize) -> isize {
        let end = isize::try_from(count).ok().and_then(|n| self.start.checked_add(n as off64_t));
        let is_sound = self.start >= 0 && end.is_some() && count > 0;
        if !is_sound || out.has(APPENDS) {
            let nothing = count == 0 && end.is_some();
            let other = || if nothing { 0 } else { errno::fail(EINVAL) };
            return self.refusal(out).unwrap_or_else(other);
        }
        let sent = Self::send_pieces(out, source, count);
        let is_over = source.stopped() == Some(Stop::End);
        if sent < 0 && self.has_failed(source) {
            return self.refusal(out).unwrap_or_else(|| match self.nature() {
                Nature::Unsendable => errno::fail(EINVAL),
                Nature::Plain | Nature::Odd => Self::send_by_kernel(out, source, count),
            });
        }
        match sent {
            0 if is_over && self.nature() == Nature::Odd => {
                Self::send_by_kernel(out, source, count)
            }
            // A position behind which no file can reach is not the end of this one.
            0 if is_over && self.is_beyond_end() => {
                let behind = Self { start: self.start.saturating_add(1), is_given: true, ..self };
                behind.refusal(out).unwrap_or(0)
            }
            _ => sent,
        }
    }

    /// True when not the connection has failed, but the file, or the position that the library has
    /// named.
    fn has_failed(self, source: &Source) -> bool {
        match source.stopped() {
            Some(Stop::Failed(error)) => error != EINTR,
            _ => !self.is_given && errno::get() == ESPIPE,
        }
    }

    /// Takes this direction back to TCP, so that the kernel sends it.
    fn send_by_kernel(out: Conn, source: &Source, count: usize) -> isize {
        hand_over::give_back(out, Reason::Unsupported);
        source.go_on();
        Self::send_pieces(out, source, count)
    }

    fn send_pieces(out: Conn, source: &Source, count: usize) -> isize {
        // All of it goes to the same connection, whatever becomes of the descriptor.
        let mut hold = Hold::none();
        hold.keep(&out);
        let mut in_doubt = None;
        let mut pieces = Pieces::new(count);
        loop {
            let asked = pieces.next();
            let n = send_from(out, source, asked, 0, 0);
            if let Some(result) = pieces.add(n, asked) {
                return result;
            }
            // The program does not know of it yet.
            in_doubt.get_or_insert_with(|| InDoubt::begins(out));
            point!(sendfile_between);
        }
    }

    /// The kernel's refusal of both descriptors and the position, by a call that moves nothing.
    fn refusal(self, out: Conn) -> Option<isize> {
        let mut at = self.start;
        let out = out.descriptor();
        let place = if self.is_given { &raw mut at } else { ptr::null_mut() };
        // SAFETY: null, or a valid offset.
        let n = unsafe { next::sendfile64(out, self.fd, place, 0) };
        (n < 0).then_some(n)
    }

    fn stat(self) -> Option<rustix::fs::Stat> {
        (self.fd >= 0).then(|| rustix::fs::fstat(abi::borrow(self.fd)).ok())?
    }

    fn nature(self) -> Nature {
        match self.stat().map(|stat| stat.st_mode & S_IFMT) {
            Some(S_IFREG | S_IFBLK) => Nature::Plain,
            Some(S_IFDIR | 0) => Nature::Unsendable,
            _ => Nature::Odd,
        }
    }

    fn is_beyond_end(self) -> bool {
        self.stat().is_some_and(|stat| self.start > stat.st_size)
    }
}

/// `splice(2)`, or sendfile(2), from a connection to a pipe. `SPLICE_F_NONBLOCK` is about the pipe;
/// a socket waits unless it is `O_NONBLOCK`. `kernel`: the same of a descriptor of the kernel
/// socket.
fn splice_from(
    input: Conn,
    out: c_int,
    len: usize,
    flags: c_uint,
    kernel: impl Fn(c_int) -> isize,
) -> isize {
    let Some(pipe) = Pipe::of(out, End::Write) else { return kernel(input.descriptor()) };
    let wait = pipe.waits(flags);
    let mut hold = Hold::none();
    hold.keep(&input);
    let before = errno::get();
    loop {
        // The kernel asks the pipe first.
        if let Err(error) = pipe.find_room(wait) {
            return errno::fail(error);
        }
        let sink = Sink::new(pipe.fd());
        let n = receive_into(input, &sink, len.min(MOST), &kernel);
        // Somebody else has filled it.
        if n >= 0 || !sink.is_full() || !wait {
            return n;
        }
        errno::set(before);
    }
}

/// `splice(2)` from a pipe to a connection.
fn splice_to(
    input: c_int,
    out: Conn,
    len: usize,
    flags: c_uint,
    kernel: impl Fn(c_int) -> isize,
) -> isize {
    let Some(pipe) = Pipe::of(input, End::Read) else { return kernel(out.descriptor()) };
    if out.has(APPENDS) {
        return errno::fail(EINVAL);
    }
    let wait = pipe.waits(flags);
    let before = errno::get();
    // As in `File::send_pieces`.
    let mut hold = Hold::none();
    hold.keep(&out);
    let mut in_doubt = None;
    let mut pieces = Pieces::new(len);
    let mut is_asked = false;
    loop {
        let asked = pieces.next();
        // The kernel asks the pipe first: with nothing in it no call waits for room in the
        // connection.
        let has_bytes = pipe.has_bytes();
        if !has_bytes && pieces.done > 0 {
            return pieces.done.cast_signed();
        }
        let source = Source::pipe(pipe.fd(), out.has(NONBLOCK));
        let patience = if has_bytes { 0 } else { MSG_DONTWAIT };
        let n = send_from(out, &source, asked, patience, flags);
        let is_empty = match source.stopped() {
            Some(stop) => n == 0 && stop == Stop::Empty,
            None => n < 0 && !has_bytes && errno::get() == EAGAIN,
        };
        if is_empty && pieces.done == 0 {
            errno::set(before);
            // Whether there is a writer to be waited for the kernel alone can say.
            if pipe.is_named() && !core::mem::replace(&mut is_asked, true) {
                hand_over::give_back(out, Reason::Unsupported);
                continue;
            }
            match pipe.find_bytes(wait) {
                Ok(Found::Bytes) => continue,
                Ok(Found::End) => return 0,
                Err(error) => return errno::fail(error),
            }
        }
        if let Some(result) = pieces.add(n, asked) {
            if result > 0 {
                errno::set(before);
            }
            return result;
        }
        in_doubt.get_or_insert_with(|| InDoubt::begins(out));
    }
}

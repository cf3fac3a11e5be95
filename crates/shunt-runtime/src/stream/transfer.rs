//! Files and pipes in the place of the program's buffers: where the bytes of sendfile(2) and
//! splice(2) come from, and where they go.
//!
//! Both work while the lock of a direction is held, so neither waits. A source reads only what has
//! its place already, in the ring or in the kernel socket; a sink takes out of a connection only
//! what the pipe has taken. So nothing is left over when a call ends early, by a signal, a timeout,
//! or a jump out of a handler, and there is no buffer that could stay borrowed.

use core::cell::Cell;
use core::ptr;
use std::os::fd::BorrowedFd;

use libc::{EAGAIN, ENOSYS, EOPNOTSUPP, POLLERR, POLLIN, POLLOUT, c_int, iovec};
use rustix::net::sockopt::socket_send_buffer_size;
use shunt_engine::call::{Errno, Kernel};
use shunt_engine::events;
use shunt_engine::kernel::{Look, look};
use shunt_shm::arena::Mode;
use shunt_shm::region::{RegionView, Side};
use shunt_shm::ring::Span;

use crate::stream::copy_mode::{self, Place};
use crate::stream::tcp::{self, Socket};
use crate::system::abi;
use crate::system::abi::{c_uint, pollfd};
use crate::system::errno;
use crate::system::kernel_poll;
use crate::system::next;
use crate::threads::handlers::{self, Seen};
use crate::threads::signals;

/// The current position: a pipe has none.
const HERE: i64 = -1;
const NOWAIT: c_int = libc::RWF_NOWAIT;

/// Means nothing to a read, and is refused by files that have no more than a plain read(2), as many
/// in /proc: these are what sendfile(2) refuses, too.
const SENDABLE: c_int = libc::RWF_DSYNC;

/// What a pipe that is ready takes, or has, for sure: one of its places.
const PLACE: usize = 4096;

/// Most bytes for the kernel socket at a time.
const MOST: usize = 256 * 1024;

/// Where a sending call's bytes come from.
#[derive(Debug)]
pub struct Source {
    fd: c_int,
    /// Where in a file the next byte is; a pipe has no places.
    at: Option<Cell<i64>>,
    /// The socket is `O_NONBLOCK`, so that the kernel's calls do not wait for room.
    nonblocking: bool,
    /// Why it gave no more.
    stopped: Cell<Option<Stop>>,
}

/// Why a source gave no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// At the end of the file, or of a pipe that nobody writes to any more.
    End,
    /// The pipe is empty.
    Empty,
    /// A read of the file failed with this.
    Failed(c_int),
}

/// The parts of a place, as the kernel writes to them or reads from them.
fn parts(place: &Place) -> [iovec; 2] {
    ring_parts(place.view, place.slot, place.receiver, place.span)
}

/// A span of a ring as two buffers; the second one may be empty.
fn ring_parts(view: RegionView, slot: usize, side: Side, span: Span) -> [iovec; 2] {
    let ring = view.buffer(slot, side).as_ptr();
    [span.head, span.tail]
        .map(|(at, len)| iovec { iov_base: ring.wrapping_add(at).cast(), iov_len: len })
}

impl Source {
    /// A file, from `at` on.
    pub const fn file(fd: c_int, at: i64, nonblocking: bool) -> Self {
        Self { fd, at: Some(Cell::new(at)), nonblocking, stopped: Cell::new(None) }
    }

    /// A pipe.
    pub const fn pipe(fd: c_int, nonblocking: bool) -> Self {
        Self { fd, at: None, nonblocking, stopped: Cell::new(None) }
    }

    /// Where in the file the next byte is.
    pub fn position(&self) -> i64 {
        self.at.as_ref().map_or(0, Cell::get)
    }

    /// Reads the last `back` bytes once more, from their beginning on. 0: they are a pipe's, or not there any more.
    pub fn look_back(&self, back: usize, into: &mut [u8]) -> usize {
        let (Some(at), Some(file)) = (&self.at, borrow(self.fd)) else { return 0 };
        let from = u64::try_from(at.get()).ok().and_then(|at| at.checked_sub(back as u64));
        let len = back.min(into.len());
        let (Some(from), Some(into)) = (from, into.get_mut(..len)) else { return 0 };
        rustix::io::pread(file, into, from).unwrap_or(0)
    }

    /// Why it gave no more.
    pub const fn stopped(&self) -> Option<Stop> {
        self.stopped.get()
    }

    /// Tries again after it gave no more.
    pub fn go_on(&self) {
        self.stopped.set(None);
    }

    /// Reads what there is to the place, and says how many bytes that are. 0: there are none, for
    /// the reason in [`Self::stopped`].
    pub fn fill(&self, place: &Place) -> usize {
        match place.mode {
            Mode::Copy => copy_mode::fill(place, |piece| self.read(&[piece])),
            _ => self.read(&parts(place)),
        }
    }

    fn read(&self, to: &[iovec]) -> usize {
        if self.stopped.get().is_some() {
            return 0;
        }
        let before = errno::get();
        let n = match &self.at {
            // SAFETY: the places are writable over their lengths.
            Some(at) => unsafe {
                next::preadv2(self.fd, to.as_ptr(), count(to), at.get(), SENDABLE)
            },
            None => read_now(self.fd, to),
        };
        let error = errno::get();
        errno::set(before);
        self.stopped.set(match n {
            1.. => None,
            0 => Some(Stop::End),
            _ if error == EAGAIN && self.at.is_none() => Some(Stop::Empty),
            _ => Some(Stop::Failed(error)),
        });
        if let Some(at) = &self.at {
            at.set(at.get().saturating_add(n.max(0) as i64));
        }
        usize::try_from(n).unwrap_or(0)
    }

    /// Has the kernel send up to `len` bytes, without waiting.
    pub fn to_socket(&self, socket: c_int, len: usize) -> Kernel {
        let room = if self.nonblocking { Some(MOST) } else { room(socket) };
        let Some(room) = room else { return Kernel::Nothing };
        let before = errno::get();
        match usize::try_from(self.by_kernel(socket, len.min(room), libc::SPLICE_F_NONBLOCK)) {
            Ok(0) => self.stopped.set(Some(Stop::End)),
            Ok(n) => return Kernel::Moved(n),
            Err(_) if errno::get() != EAGAIN => {
                return Kernel::Failed(Errno::from_raw_os_error(errno::get()));
            }
            Err(_) => {
                errno::set(before);
                if self.at.is_some() || has_bytes(self.fd) {
                    return Kernel::Nothing;
                }
                self.stopped.set(Some(Stop::Empty));
            }
        }
        Kernel::Moved(0)
    }

    /// The kernel's call, which waits as the program's would. `flags` are those of splice(2).
    pub fn by_kernel(&self, socket: c_int, len: usize, flags: c_uint) -> isize {
        let null = ptr::null_mut();
        // SAFETY: the position is valid.
        unsafe {
            match &self.at {
                Some(at) => next::sendfile64(socket, self.fd, at.as_ptr(), len),
                None => next::splice(self.fd, null, socket, null, len, flags),
            }
        }
    }
}

/// Bytes that the kernel socket takes without waiting for room, though it may not be `O_NONBLOCK`.
fn room(socket: c_int) -> Option<usize> {
    if tcp::readiness(socket, events::OUT) == 0 {
        return None;
    }
    // What poll(2) calls writable has a third of its buffer left (`sk_stream_is_writeable`).
    let size = socket_send_buffer_size(abi::borrow(socket)).unwrap_or(PLACE);
    Some((size / 4).clamp(1, MOST))
}

/// The pipe into which a receiving call's bytes go.
#[derive(Debug)]
pub struct Sink {
    fd: c_int,
    /// The pipe had no room.
    is_full: Cell<bool>,
}

impl Sink {
    /// That pipe.
    pub const fn new(fd: c_int) -> Self {
        Self { fd, is_full: Cell::new(false) }
    }

    /// True when the pipe had no room.
    pub const fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// Writes what the pipe takes now of a ring's span.
    pub fn put_span(
        &self,
        (view, slot, side): (RegionView, usize, Side),
        span: Span,
    ) -> Result<usize, c_int> {
        self.put(&ring_parts(view, slot, side, span))
    }

    /// The same of some bytes.
    pub fn put_bytes(&self, bytes: &mut [u8]) -> Result<usize, c_int> {
        self.put(&[iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }])
    }

    fn put(&self, from: &[iovec]) -> Result<usize, c_int> {
        let before = errno::get();
        // SAFETY: the places are readable over their lengths.
        let mut n = unsafe { next::pwritev2(self.fd, from.as_ptr(), count(from), HERE, NOWAIT) };
        if n < 0 && is_unknown(errno::get()) {
            n = self.put_pieces(from);
        }
        let result = usize::try_from(n).map_err(|_| errno::get());
        self.is_full.set(result == Err(EAGAIN));
        if result.is_ok() {
            errno::set(before);
        }
        result
    }

    /// By pieces of which each is known to fit.
    fn put_pieces(&self, from: &[iovec]) -> isize {
        let mut done = 0;
        for part in from {
            let mut at = 0;
            while at < part.iov_len {
                let piece = part.iov_base.wrapping_byte_add(at);
                let len = (part.iov_len - at).min(PLACE);
                if done > 0 && !is_ready(self.fd, POLLOUT) {
                    return done;
                }
                if done == 0 && !is_ready(self.fd, POLLOUT) {
                    return errno::fail(EAGAIN);
                }
                // SAFETY: a piece of a readable place.
                let n = unsafe { next::write(self.fd, piece, len) };
                let Ok(wrote) = usize::try_from(n) else { return if done > 0 { done } else { n } };
                done += n;
                at += wrote;
            }
        }
        done
    }

    /// Has the kernel move up to `limit` bytes from the socket into the pipe, without waiting.
    pub fn from_socket(&self, socket: c_int, limit: usize) -> Kernel {
        let len = match look(&Socket(socket)) {
            Look::Silent => return Kernel::Nothing,
            Look::OwnEnd => return Kernel::Moved(0),
            Look::Bytes(there) => limit.min(usize::try_from(there).unwrap_or(usize::MAX)),
            Look::Eof | Look::Error => limit,
        };
        let (null, flags) = (ptr::null_mut(), libc::SPLICE_F_NONBLOCK);
        // SAFETY: no memory is involved.
        let n = unsafe { next::splice(socket, null, self.fd, null, len, flags) };
        match usize::try_from(n) {
            Ok(n) => Kernel::Moved(n),
            Err(_) => {
                self.is_full.set(errno::get() == EAGAIN);
                Kernel::Failed(Errno::from_raw_os_error(errno::get()))
            }
        }
    }
}

/// A pipe as splice(2) finds it.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    fd: c_int,
    /// `O_NONBLOCK` is set on it.
    nonblocking: bool,
}

/// What was found in a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Bytes.
    Bytes,
    /// Nobody writes to it any more.
    End,
}

/// Which end of a pipe a call wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// That bytes come out of.
    Read,
    /// That they go into.
    Write,
}

impl Pipe {
    /// The pipe of a descriptor; `None` where it is none, or its other end: the kernel says what is
    /// wrong with it.
    pub fn of(fd: c_int, end: End) -> Option<Self> {
        use rustix::fs::{OFlags, fcntl_getfl};
        let pipe = borrow(fd)?;
        rustix::pipe::fcntl_getpipe_size(pipe).ok()?;
        let flags = fcntl_getfl(pipe).ok()?;
        let other = if end == End::Read { OFlags::WRONLY } else { OFlags::RDONLY };
        let is_other = flags & OFlags::RWMODE == other;
        (!is_other).then_some(Self { fd, nonblocking: flags.contains(OFlags::NONBLOCK) })
    }

    /// Its number.
    pub const fn fd(self) -> c_int {
        self.fd
    }

    /// True for one that has a name: it may have had no writer yet.
    pub fn is_named(self) -> bool {
        const PIPEFS: i64 = 0x5049_5045;
        borrow(self.fd)
            .and_then(|pipe| rustix::fs::fstatfs(pipe).ok())
            .is_some_and(|stat| stat.f_type != PIPEFS)
    }

    /// Whether a call with these flags waits for it.
    pub const fn waits(self, flags: u32) -> bool {
        flags & libc::SPLICE_F_NONBLOCK == 0 && !self.nonblocking
    }

    /// True when there are bytes in it.
    pub fn has_bytes(self) -> bool {
        has_bytes(self.fd)
    }

    /// Looks for bytes, and waits for them, or for the last writer's end, if it may.
    pub fn find_bytes(self, wait: bool) -> Result<Found, c_int> {
        let found = find(self.fd, POLLIN, wait)?;
        if found & POLLIN != 0 { Ok(Found::Bytes) } else { Ok(Found::End) }
    }

    /// Comes back when there is room, waiting for it if it may.
    pub fn find_room(self, wait: bool) -> Result<(), c_int> {
        if find(self.fd, POLLOUT, wait)? & POLLERR != 0 {
            // SAFETY: a number; as the kernel does where nobody can read.
            unsafe { libc::raise(libc::SIGPIPE) };
            return Err(libc::EPIPE);
        }
        Ok(())
    }
}

/// Reads what a pipe has now.
fn read_now(pipe: c_int, to: &[iovec]) -> isize {
    // SAFETY: the places are writable over their lengths.
    let n = unsafe { next::preadv2(pipe, to.as_ptr(), count(to), HERE, NOWAIT) };
    if n >= 0 || !is_unknown(errno::get()) {
        return n;
    }
    if !is_ready(pipe, POLLIN) {
        return errno::fail(EAGAIN);
    }
    // SAFETY: the places are writable over their lengths.
    unsafe { next::readv(pipe, to.as_ptr(), count(to)) }
}

/// True for a pipe that does not know of `RWF_NOWAIT`: before Linux 6.4, and where the kernel's
/// splice(2) has used it.
const fn is_unknown(error: c_int) -> bool {
    matches!(error, EOPNOTSUPP | ENOSYS)
}

fn count(parts: &[iovec]) -> c_int {
    c_int::try_from(parts.len()).unwrap_or(0)
}

fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    (fd >= 0).then(|| abi::borrow(fd))
}

fn has_bytes(pipe: c_int) -> bool {
    borrow(pipe).is_some_and(|pipe| rustix::io::ioctl_fionread(pipe).is_ok_and(|n| n > 0))
}

/// Whether a call would not wait.
fn is_ready(pipe: c_int, events: i16) -> bool {
    ready(pipe, events) != 0
}

fn ready(pipe: c_int, events: i16) -> i16 {
    let found = tcp::readiness(pipe, u32::from(events.cast_unsigned()));
    i16::try_from(found).unwrap_or(POLLERR)
}

/// What poll(2) says of a pipe; `EAGAIN` when that is nothing, and the call may not wait.
fn find(pipe: c_int, events: i16, wait: bool) -> Result<i16, c_int> {
    match ready(pipe, events) {
        0 if wait => wait_for(pipe, events),
        0 => Err(EAGAIN),
        found => Ok(found),
    }
}

/// Waits in poll(2) as long as it takes.
fn wait_for(pipe: c_int, events: i16) -> Result<i16, c_int> {
    let mut seen = Seen::now();
    loop {
        let mut fds = [pollfd { fd: pipe, events, revents: 0 }];
        let before = errno::get();
        let n = handlers::sleep(seen, None, |time| {
            // libc's, which is a cancellation point, as splice(2) is.
            // SAFETY: memory of this thread; no mask.
            unsafe { kernel_poll::wait(&mut fds, time, ptr::null()) }
        });
        let n = n.unwrap_or(0);
        let error = if n < 0 { errno::get() } else { libc::EINTR };
        errno::set(before);
        match n {
            1.. => return Ok(fds[0].revents),
            _ if error != libc::EINTR => return Err(error),
            _ if signals::interrupts(&mut seen, n < 0, false) => return Err(error),
            _ => {}
        }
    }
}

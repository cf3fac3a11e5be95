//! Before another program starts: the unread bytes of rings go along with it.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::iovec;
use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, getrlimit};
use shunt_engine::conn::repeated::are_awaited;
use shunt_engine::handshake::Phase;
use shunt_engine::kernel::progress;
use shunt_engine::stretch::{Path, path};
use shunt_shm::leftover::{Draft, Facts};
use shunt_shm::ring::{RxCursor, Span};
use shunt_sys::sockinfo;
use shunt_wire::counter::Counter;

use crate::conn::{Conn, LEFTOVER, Sock};
use crate::control::endpoint;
use crate::fds::fd_table;
use crate::fds::own_fds::{self, OwnFd};
use crate::fds::owner::owns_process_state;
use crate::memory::imports;
use crate::point;
use crate::stream::bytes::Buffers;
use crate::stream::grants::{self, Use};
use crate::stream::leftover::{Program, catch_up, read_so_far, sync};
use crate::stream::tcp::Socket;
use crate::system::abi;
use crate::system::errno::KeepErrno;

/// Most connections of which something goes along.
const MOST: usize = 64;
/// The numbers at which the next program looks: so many, from one of [`places`] downwards.
pub const PLACES: c_int = 64;
/// The descriptors are sought below this number even where more are permitted.
const CEILING: u64 = 4096;
/// With fewer descriptors a program keeps them all for itself.
const LEAST_LIMIT: u64 = 256;
/// A child that shares its parent's memory is looked through up to this number, at least.
const LOW: c_int = 255;
/// Bytes that are copied at a time.
const PIECE: usize = 64 << 10;

/// Where the numbers begin, going down, at which the next program looks: the second where the program has taken the first.
pub fn places() -> impl Iterator<Item = c_int> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(CEILING).min(CEILING);
    let first = [limit, limit / 2].into_iter().filter(move |_| limit >= LEAST_LIMIT);
    first.filter_map(|limit| c_int::try_from(limit - 1).ok())
}

/// What goes along with a program that is about to start. Closed here when this value goes: it has started, or has not.
#[derive(Debug, Default)]
pub struct Passed {
    own: Vec<OwnFd>,
    // Of a child that has its parent's memory, in which nothing may be noted of them.
    raw: Vec<OwnedFd>,
}

impl Passed {
    /// Puts the memory where the next program looks for it.
    fn add(&mut self, memory: BorrowedFd<'_>) -> io::Result<()> {
        for from in places() {
            // Somebody else's at the first number: the next program would stop there.
            let here =
                self.own.iter().map(OwnFd::raw).chain(self.raw.iter().map(AsRawFd::as_raw_fd));
            let begins = !here.into_iter().any(|fd| (from - PLACES..=from).contains(&fd));
            for number in (from - PLACES + 1..=from).rev() {
                let placed = fcntl_dupfd_cloexec(memory, number)?;
                if placed.as_raw_fd() == number {
                    fcntl_setfd(&placed, FdFlags::empty())?;
                    return self.hold(placed);
                }
                drop(placed);
                if begins {
                    break;
                }
            }
        }
        Err(rustix::io::Errno::MFILE.into())
    }

    fn hold(&mut self, placed: OwnedFd) -> io::Result<()> {
        if owns_process_state() {
            let own = own_fds::adopt_here(placed.as_raw_fd()).ok_or(rustix::io::Errno::MFILE)?;
            let _ = std::os::fd::IntoRawFd::into_raw_fd(placed);
            self.own.push(own);
        } else {
            self.raw.push(placed);
        }
        Ok(())
    }
}

/// What lies unread on connections that stay open in a program which is about to start goes along with it; they are
/// handed over already. `is_named`: it gets a duplicate of this one, whatever becomes of its descriptors.
///
/// # Safety
/// As for [`Program::is_without_library`].
pub unsafe fn pass(to: &Program, is_named: impl Fn(&Sock) -> bool) -> Passed {
    let mut passed = Passed::default();
    // With the library inert nothing is in a ring.
    if fd_table::high_water() < 0 {
        return passed;
    }
    let _keep = KeepErrno::new();
    let mut is_without = None;
    for (conn, fd) in staying(is_named) {
        let Some(memory) = unread(conn, fd) else { continue };
        // SAFETY: the caller promises that path and environment are what execve(2) wants.
        let is_without = *is_without.get_or_insert_with(|| unsafe { to.is_without_library() });
        if is_without && conn.has(LEFTOVER) {
            catch_up(conn, true);
        }
        let is_full = passed.own.len() + passed.raw.len() >= MOST;
        let mut is_passed =
            || memory.make(conn).and_then(|memory| passed.add(memory.as_fd())).is_ok();
        if is_without || is_full || !is_passed() {
            endpoint::count(Counter::UnreadLeft, 1);
        } else {
            endpoint::count(Counter::UnreadPassed, 1);
        }
        point!(exec_passes);
    }
    passed
}

/// True while exec leaves the descriptor open.
pub fn survives(fd: c_int) -> bool {
    fcntl_getfd(looking(fd)).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

/// The connections that stay open, each once, and a descriptor of each.
fn staying(is_named: impl Fn(&Sock) -> bool) -> Vec<(Conn, c_int)> {
    let all = fd_table::of_program().filter_map(|(fd, entry)| Conn::of(fd, entry));
    let mut shunted = all.filter(|conn| conn.phase() == Phase::Active && conn.link().is_some());
    let mut found: Vec<(Conn, c_int)> = Vec::new();
    if owns_process_state() {
        for conn in shunted {
            let stays = survives(conn.descriptor()) || is_named(conn.sock());
            if stays && is_new(&found, conn) {
                found.push((conn, conn.descriptor()));
            }
        }
        return found;
    }
    // A child that has its parent's memory, but descriptors of its own, of which the table says nothing.
    let Some(first) = shunted.next() else { return found };
    let known: Vec<Conn> = core::iter::once(first).chain(shunted).collect();
    for fd in (0..=fd_table::high_water().max(LOW)).filter(|fd| survives(*fd)) {
        let Ok(tuple) = sockinfo::four_tuple(abi::borrow(fd)) else { continue };
        let is_it = |conn: &Conn| conn.record().id.tuple() == tuple;
        if let Some(conn) = known.iter().copied().find(|conn| is_it(conn))
            && is_new(&found, conn)
        {
            found.push((conn, fd));
        }
    }
    found
}

/// Whether another descriptor of the connection is none of these.
fn is_new(found: &[(Conn, c_int)], conn: Conn) -> bool {
    !found.iter().any(|(other, _)| ptr::eq(other.sock(), conn.sock()))
}

/// Descriptors that are only looked at: one that is closed (a vfork child may have closed it) the kernel names so.
fn looking<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: nothing is done with it but to ask.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// What lies unread on a connection.
enum Unread {
    /// What a program before this one has left.
    Left(c_int),
    /// In the ring: where, and what is known of it.
    InRing(Span, Facts),
}

/// What lies unread on a connection that takes nothing from its ring any more; `fd`: a descriptor of its socket.
fn unread(conn: Conn, fd: c_int) -> Option<Unread> {
    let sock = conn.sock();
    let (_, theirs) = sock.sections()?;
    let lock = sock.lock_rx();
    if lock.nested() {
        return None;
    }
    sync(sock, fd);
    let (rx, ring) = (&sock.record().rx, sock.ring() as u64);
    let (marks, pos) = (rx.marks.load(Relaxed), rx.cursor.pos());
    // The marks before the bytes: all that the peer put there before it set one is seen.
    let end = RxCursor::ring_end(&theirs.prod, marks).ok()?;
    let len = rx.cursor.refresh(&theirs.prod, ring).ok()?;
    if sock.has(LEFTOVER)
        && let Some(left) = sock.left()
        && is_open(left.fd.raw())
    {
        // Also where all was taken: what comes a second time is to be dropped there.
        let facts = left.memory.known();
        let is_dropped =
            || left.memory.is_left_to_kernel() || read_so_far(fd, facts) >= facts.end();
        let is_over = len == 0 && is_dropped();
        return (!is_over).then(|| Unread::Left(left.fd.raw()));
    }
    if len == 0 || are_awaited(sock.record()) {
        return None;
    }
    let (start, in_ring) = match path(marks) {
        Path::Ring => (progress(&Socket(fd), u64::MAX)?.read, true),
        // Some bytes in front of the ring are in the kernel socket still.
        Path::Tcp => (RxCursor::next_mark(&theirs.prod, marks).ok()??, false),
    };
    // What a peer that stays has put there it sends once more; one that has left by itself does so from its mark on.
    let again = end.map_or(Some(len), |at| (pos + len).checked_sub(at.max(pos)))?;
    let cookie = sockinfo::cookie(abi::borrow(fd)).ok()?;
    let inode = fstat(abi::borrow(fd)).ok()?.st_ino;
    let span = rx.cursor.readable(&theirs.prod, ring, len).ok()?;
    Some(Unread::InRing(span, Facts { cookie, inode, start, len, again, in_ring }))
}

/// True where the library's own descriptor is open: a child that has its parent's memory may have closed it.
fn is_open(own: c_int) -> bool {
    fcntl_getfd(looking(own)).is_ok()
}

impl Unread {
    /// The memory that goes along.
    fn make(&self, conn: Conn) -> io::Result<OwnedFd> {
        match *self {
            Self::Left(fd) => Ok(fcntl_dupfd_cloexec(looking(fd), 0)?),
            Self::InRing(span, facts) => {
                let mut draft = Draft::new(facts)?;
                let bytes = if has_grants(conn.sock()) {
                    copy_granted(conn.sock(), span).ok_or(io::ErrorKind::Other)?
                } else {
                    copy(conn.sock(), span, &mut draft)?;
                    Vec::new()
                };
                draft.put(&bytes)?;
                draft.finish()
            }
        }
    }
}

fn has_grants(sock: &Sock) -> bool {
    sock.sections().is_some_and(|(_, theirs)| {
        theirs.prod.grants.load(Relaxed) != sock.record().rx.grants.load(Relaxed)
    })
}

/// A piece at a time, as the memory of a program that is about to go shall not grow by what a ring holds.
fn copy(sock: &'static Sock, span: Span, draft: &mut Draft) -> io::Result<()> {
    let link = sock.link().ok_or(io::ErrorKind::NotFound)?;
    let (slot, side) = (sock.record().slot(), sock.record().side());
    let mut piece = vec![0; PIECE.min(span.len())];
    for (at, len) in [span.head, span.tail] {
        let mut done = 0;
        while done < len {
            let n = PIECE.min(len - done);
            draft.put(link.view().copy_to(slot, side, at + done, &mut piece[..n]))?;
            done += n;
        }
    }
    Ok(())
}

/// The same of bytes of which some are granted.
fn copy_granted(sock: &'static Sock, span: Span) -> Option<Vec<u8>> {
    // What a peer has granted is mapped in the parent's memory, if it is.
    if !owns_process_state() {
        return None;
    }
    let (link, lock) = (sock.link()?, sock.lock_rx());
    if lock.nested() {
        return None;
    }
    let mut bytes = vec![0; span.len()];
    let iov = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let pipe_reads = &sock.record().rx.pipe_reads;
    // Twice: pipes may be found only just now.
    for _ in 0..2 {
        let has_pipes = imports::has_pipes(sock);
        if has_pipes {
            pipe_reads.begin().ok()?;
        }
        let to = Use::Seen(&Buffers::one(&iov), 0);
        let seen = grants::take(sock, link, to, (span, has_pipes));
        if has_pipes {
            pipe_reads.end();
        }
        if seen.ok()?.is_some() {
            return Some(bytes);
        }
    }
    None
}

//! When a program starts: the unread bytes that the one before exec has left.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, getrlimit};
use shunt_engine::handshake::Phase;
use shunt_shm::handover;
use shunt_shm::leftover::Leftover;
use shunt_shm::region::{self, SLOTS, Side};
use shunt_shm::ring::TxCursor;
use shunt_shm::{arena, doorbell};
use shunt_sys::sockinfo;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::conn::Left;
use crate::conn::{LEFTOVER, NONBLOCK, Sock, WANT_TCP};
use crate::control::endpoint::{self, Endpoint};
use crate::control::link::{self, Link};
use crate::fds::fd_table::{self, Kind};
use crate::fds::own_fds::adopt;
use crate::processes::fork_sharing;
use crate::stream::leftover::pass::{PLACES, places};
use crate::system::abi;

/// Descriptors beyond are not looked at.
const MOST: u64 = 16_384;

/// Takes up what the program before exec has left, and closes the descriptors by which it came; for the constructor.
pub fn take_up() {
    // SAFETY: a vector of the process, that is there from the beginning.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // Who starts a program with other rights than its own gives it nothing.
        return;
    }
    for first in places() {
        if !is_left_at(first) {
            continue;
        }
        let mut home = None;
        for fd in (first - PLACES + 1..=first).rev().filter(|fd| is_left_at(*fd)) {
            // SAFETY: left for this library, which alone knows of it: the program has not begun.
            let memory = unsafe { OwnedFd::from_raw_fd(fd) };
            let _ = rustix::io::fcntl_setfd(&memory, rustix::io::FdFlags::CLOEXEC);
            if take_over(memory, &mut home).is_none() {
                endpoint::count(Counter::UnreadLeft, 1);
            }
        }
    }
}

fn is_left_at(fd: c_int) -> bool {
    // SAFETY: only looked at.
    fd > 2 && Leftover::facts(unsafe { BorrowedFd::borrow_raw(fd) }).is_some()
}

/// Where connections are of which something was left, though no agent knows of them.
struct Home {
    endpoint: &'static Endpoint,
    link: &'static Link,
    /// The next slot.
    next: usize,
}

impl Home {
    fn make() -> Option<Self> {
        // For a file that is too long the kernel would send a signal.
        let longest = region::LEN.max(arena::LEN) as u64;
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < longest) {
            return None;
        }
        let bell = adopt(doorbell::create().ok()?).ok()?;
        let endpoint = Endpoint::on_its_own(bell, arena::create().ok()?).ok()?;
        let link = link::on_its_own(endpoint).ok()?;
        Some(Self { endpoint, link, next: 0 })
    }
}

/// Takes one connection over. `None`: it is not open here, or there is no room; then it is TCP, as it would be without.
fn take_over(memory: OwnedFd, home: &mut Option<Home>) -> Option<()> {
    let (left, bytes) = Leftover::open(memory.as_fd()).ok()?;
    let facts = *left.known();
    let mut descriptors = sockets(facts.inode, facts.cookie);
    let first = descriptors.next()?;
    if home.is_none() {
        *home = Home::make();
    }
    let home = home.as_mut()?;
    let (link, slot, side) = (home.link, home.next, Side::Client);
    if slot >= SLOTS {
        return None;
    }
    link.open_slot(slot).ok()?;
    home.next += 1;
    let view = link.view();
    let (mine, theirs) = (view.section(slot, side), view.section(slot, side.other()));
    view.move_data(view.buffer_offset(slot, side), &bytes)?;
    // A peer that has entered the ring, and has left it by itself: what lies behind its second mark comes once more.
    theirs.prod.prod.store(facts.len, Relaxed);
    TxCursor::set_mark(&theirs.prod, facts.start);
    TxCursor::set_mark(&theirs.prod, facts.len - facts.again);
    mine.cons.marks_passed.store(facts.in_ring.into(), Relaxed);
    // Others may have the socket: what is left at the end is no reason for RST.
    mine.ctl.handed_over.store(handover::STAYS, Relaxed);

    let socket = abi::borrow(first);
    let record = fork_sharing::new_record(home.endpoint)?;
    record.id.set_tuple(&sockinfo::four_tuple(socket).ok()?);
    record.id.fd.store(first, Relaxed);
    record.id.reason.store(Reason::HandedOver as u32, Relaxed);
    record.rx.marks.store(facts.in_ring.into(), Relaxed);
    record.rx.low_water.store(sockinfo::low_water(socket).unwrap_or(0), Relaxed);
    let sock = Sock::new(record, home.endpoint)?;
    sock.activate(link, side, slot, 0);
    sock.set_link(link);
    let flags = rustix::fs::fcntl_getfl(socket).ok()?;
    sock.put(NONBLOCK, flags.contains(rustix::fs::OFlags::NONBLOCK));
    sock.put(WANT_TCP | LEFTOVER, true);
    let fd = adopt(memory).ok()?;
    sock.leftover.store(Box::into_raw(Box::new(Left { memory: left, fd })), Release);
    sock.set_phase(Phase::Active);
    fd_table::set(first, sock.entry(Kind::Stream));
    for other in descriptors {
        sock.retain();
        fd_table::set(other, sock.entry(Kind::Stream));
    }
    Some(())
}

/// The descriptors of a socket.
fn sockets(inode: u64, cookie: u64) -> impl Iterator<Item = c_int> {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(MOST).min(MOST);
    (0..c_int::try_from(limit).unwrap_or(0)).filter(move |fd| {
        let fd = abi::borrow(*fd);
        fstat(fd).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Socket
                && stat.st_ino == inode
                && sockinfo::cookie(fd).is_ok_and(|is| is == cookie)
        })
    })
}

//! Registered memory of peers that this process has mapped, and their pipes, to read granted bytes
//! from.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use rustix::fs::OFlags;
use shunt_engine::zerocopy::ports;
use shunt_shm::grants::place_in;
use shunt_shm::memfd::{self, Map};
use shunt_sys::fds::{Fds, close, reopen};
use shunt_wire::agent::{LANES, RegionId};
use shunt_wire::counter::Counter;

use crate::calls::Which;
use crate::conn::Sock;
use crate::control::agent_client;
use crate::control::endpoint;
use crate::fds::own_fds::{self, OwnFd};
use crate::system::abi;
use crate::system::clock;
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::mutex::{Guard, Mutex};

/// Regions that a process maps at a time, a bit each in [`Sock::imports`].
pub const IMPORTS: usize = 64;

/// Longest wait for a thread that copies.
const PATIENCE: Duration = Duration::from_millis(200);

/// Pipes in which a peer pins memory.
pub type Pipes = [OwnFd; LANES];

#[derive(Debug)]
struct Import {
    name: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// `is_kept`: it was made to be shown, so it stays for connections to come. What the program at the other end has for
    /// itself may be gone there at any time, and is not to be kept from being freed.
    Memory {
        map: Map,
        is_kept: bool,
    },
    Pipes(Pipes),
}

impl What {
    const fn is_kept(&self) -> bool {
        matches!(self, Self::Memory { is_kept: true, .. })
    }
}

/// Where granted bytes are.
pub type Bytes = ports::Bytes<NonNull<u8>, &'static Pipes>;

/// Connections that use the region of the same place.
static USERS: [AtomicU32; IMPORTS] = [const { AtomicU32::new(0) }; IMPORTS];
/// When it was offered last, or a connection that used it ended: the clock's nanoseconds.
static USED: [AtomicU64; IMPORTS] = [const { AtomicU64::new(0) }; IMPORTS];
static TABLE: [AtomicPtr<Import>; IMPORTS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; IMPORTS];
/// Which places hold pipes, a bit each.
static PIPES: AtomicU64 = AtomicU64::new(0);
/// Serializes changes to the table.
static CHANGES: &Mutex<()> = &ACROSS_FORKS.imports;

/// Held across fork.
pub fn lock_for_fork() -> Guard<'static, ()> {
    CHANGES.lock()
}

fn at(index: usize) -> Option<&'static Import> {
    // SAFETY: an import is freed only when no connection uses it, and only connections that do look.
    unsafe { TABLE[index].load(Ordering::Acquire).as_ref() }
}

/// True when the connection has pipes of its peer's.
#[inline]
pub fn has_pipes(sock: &Sock) -> bool {
    sock.imports.load(Ordering::Relaxed) & PIPES.load(Ordering::Relaxed) != 0
}

/// Where `len` bytes are, `from` in the region of this name, if the connection has it and it is so long.
#[inline]
pub fn find(sock: &Sock, name: u64, from: u64, len: u64) -> Option<Bytes> {
    let mut left = sock.imports.load(Ordering::Relaxed);
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(import) = at(index).filter(|import| import.name == name) else { continue };
        return match &import.what {
            What::Memory { map, .. } => {
                let at = place_in(map.len(), from, len)?;
                // SAFETY: inside the mapping, as just checked.
                Some(Bytes::Mapped(unsafe { map.base().add(at) }))
            }
            What::Pipes(pipes) => Some(Bytes::Piped(pipes)),
        };
    }
    None
}

/// Maps memory that a party of the link group `region` offers on a connection, which uses it from now on. False when
/// it is not to be had.
pub fn accept(sock: &Sock, region: RegionId, name: u64) -> bool {
    let _changes = CHANGES.lock();
    let known = (0..IMPORTS).find(|i| at(*i).is_some_and(|import| import.name == name));
    let how = if known.is_some() { Counter::ImportHits } else { Counter::ImportMisses };
    endpoint::count(how, 1);
    // Pipes are one connection's. Another peer that names them is not to have what they hold read as its own.
    let is_anothers = |index: &usize| {
        let bit = 1 << index;
        PIPES.load(Ordering::Relaxed) & !sock.imports.load(Ordering::Relaxed) & bit != 0
    };
    if known.as_ref().is_some_and(is_anothers) {
        return false;
    }
    let Some(index) = known.or_else(|| fetch(sock, region, name)) else { return false };
    USED[index].store(clock::now(), Ordering::Relaxed);
    let bit = 1 << index;
    if sock.imports.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        USERS[index].fetch_add(1, Ordering::AcqRel);
    }
    true
}

/// Maps it in the place of one that nobody uses.
fn fetch(sock: &Sock, region: RegionId, name: u64) -> Option<usize> {
    let is_free = |i: &usize| USERS[*i].load(Ordering::Acquire) == 0;
    // Empty ones first: what was used once may be offered again; then what was not for the longest time.
    let empty = (0..IMPORTS).find(|i| at(*i).is_none());
    let oldest = || (0..IMPORTS).filter(is_free).min_by_key(|i| USED[*i].load(Ordering::Relaxed));
    let index = empty.or_else(oldest)?;
    let socket = sock.descriptor().map(abi::borrow);
    let fds = agent_client::import((region, sock.record().slot()), name, socket).ok()?;
    let what = if fds.len() == LANES { pipes(fds)? } else { memory(fds)? };
    match what {
        What::Pipes(_) => PIPES.fetch_or(1 << index, Ordering::Relaxed),
        What::Memory { .. } => PIPES.fetch_and(!(1 << index), Ordering::Relaxed),
    };
    let import = Box::into_raw(Box::new(Import { name, what }));
    let old = TABLE[index].swap(import, Ordering::AcqRel);
    if !old.is_null() {
        endpoint::count(Counter::ImportsReplaced, 1);
        // SAFETY: made by `Box::into_raw` above; no connection uses it.
        drop(unsafe { Box::from_raw(old) });
    }
    Some(index)
}

fn memory(mut fds: Fds) -> Option<What> {
    let fd = fds.take()?;
    let map = Map::to_read(&fd);
    let is_kept = memfd::is_published(&fd);
    close(fd);
    Some(What::Memory { map: map.ok()?, is_kept })
}

/// Opened anew: whether the peer's descriptor waits for bytes is the peer's to say.
fn pipes(mut fds: Fds) -> Option<What> {
    let mut own = || {
        let fd = fds.take()?;
        let anew = reopen(&fd, OFlags::RDONLY | OFlags::NONBLOCK);
        close(fd);
        own_fds::adopt(anew.ok()?).ok()
    };
    Some(What::Pipes([own()?, own()?]))
}

/// The connection is gone from this process. A thread that is still copying keeps what it has mapped, for good.
pub fn release(sock: &Sock) {
    if sock.imports.load(Ordering::Relaxed) == 0 {
        return;
    }
    let quiet = sock.lock_within(Which::Rx, PATIENCE);
    let mut left = sock.imports.swap(0, Ordering::Relaxed);
    let Some(_quiet) = quiet else { return };
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        USED[index].store(clock::now(), Ordering::Relaxed);
        let is_kept = at(index).is_some_and(|import| import.what.is_kept());
        if USERS[index].fetch_sub(1, Ordering::AcqRel) == 1 && !is_kept {
            unmap(index);
        }
        left &= left - 1;
    }
}

fn lock_within(patience: Duration) -> Option<Guard<'static, ()>> {
    let until = clock::now() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    loop {
        match CHANGES.try_lock() {
            Some(changes) => return Some(changes),
            None if clock::now() > until => return None,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Lets go of a region, unless a connection has begun to use it.
fn unmap(index: usize) {
    // In a signal handler above a change it stays until its place is wanted.
    let Some(_changes) = lock_within(PATIENCE) else { return };
    if USERS[index].load(Ordering::Acquire) == 0 {
        let old = TABLE[index].swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: made by `Box::into_raw` in `fetch`; no connection uses it.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}

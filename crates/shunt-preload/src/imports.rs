//! Registered memory of peers that this process has mapped, to read what was granted.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use shunt_shm::grants::place_in;
use shunt_shm::memfd::{self, Map};
use shunt_sys::fds::close;
use shunt_wire::agent::RegionId;
use shunt_wire::counter::Counter;

use crate::agent_client;
use crate::clock;
use crate::conn::Sock;
use crate::endpoint;
use crate::stream::{tcp, tid};

/// Regions that a process maps at a time, a bit each in [`Sock::imports`].
pub const IMPORTS: usize = 64;

/// Longest wait for a thread that copies.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Import {
    name: u64,
    map: Map,
    /// It was made to be shown, so it stays for connections to come. What the program at the other end has for itself may be
    /// gone there at any time, and is not to be kept from being freed.
    is_kept: bool,
}

/// Connections that use the region of the same place.
static USERS: [AtomicU32; IMPORTS] = [const { AtomicU32::new(0) }; IMPORTS];
/// When it was offered last, or a connection that used it ended: the clock's nanoseconds.
static USED: [AtomicU64; IMPORTS] = [const { AtomicU64::new(0) }; IMPORTS];
static TABLE: [AtomicPtr<Import>; IMPORTS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; IMPORTS];
/// Serializes changes to the table.
static CHANGES: Mutex<()> = Mutex::new(());

/// Held across fork.
pub fn lock_for_fork() -> impl Sized {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn at(index: usize) -> Option<&'static Import> {
    // SAFETY: an import is freed only when no connection uses it, and only connections that do look.
    unsafe { TABLE[index].load(Ordering::Acquire).as_ref() }
}

/// Where `len` bytes are, `from` in the region of this name, if the connection has it and it is so long.
#[inline]
pub fn find(sock: &Sock, name: u64, from: u64, len: u64) -> Option<NonNull<u8>> {
    let mut left = sock.imports.load(Ordering::Relaxed);
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(import) = at(index).filter(|import| import.name == name) else { continue };
        let at = place_in(import.map.len(), from, len)?;
        // SAFETY: inside the mapping, as just checked.
        return Some(unsafe { import.map.base().add(at) });
    }
    None
}

/// Maps memory that a party of the link group `region` offers on a connection, which uses it from now on. False when
/// it is not to be had.
pub fn accept(sock: &Sock, region: RegionId, name: u64) -> bool {
    let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = (0..IMPORTS).find(|i| at(*i).is_some_and(|import| import.name == name));
    let how = if known.is_some() { Counter::ImportHits } else { Counter::ImportMisses };
    endpoint::count(how, 1);
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
    let socket = sock.descriptor().map(tcp::borrow);
    let fd = agent_client::import((region, sock.record().slot()), name, socket).ok()?;
    let map = Map::to_read(&fd);
    let is_kept = memfd::is_published(&fd);
    close(fd);
    let import = Box::into_raw(Box::new(Import { name, map: map.ok()?, is_kept }));
    let old = TABLE[index].swap(import, Ordering::AcqRel);
    if !old.is_null() {
        endpoint::count(Counter::ImportsReplaced, 1);
        // SAFETY: made by `Box::into_raw` above; no connection uses it.
        drop(unsafe { Box::from_raw(old) });
    }
    Some(index)
}

/// The connection is gone from this process. A thread that is still copying keeps what it has mapped, for good.
pub fn release(sock: &Sock) {
    let mut left = sock.imports.swap(0, Ordering::Relaxed);
    if left == 0 {
        return;
    }
    let lock = &sock.record().rx.lock;
    let Some(_quiet) = lock.lock_within(tid(), PATIENCE) else { return };
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        USED[index].store(clock::now(), Ordering::Relaxed);
        let is_kept = at(index).is_some_and(|import| import.is_kept);
        if USERS[index].fetch_sub(1, Ordering::AcqRel) == 1 && !is_kept {
            unmap(index);
        }
        left &= left - 1;
    }
}

fn lock_within(patience: Duration) -> Option<MutexGuard<'static, ()>> {
    let until = clock::now() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    loop {
        match CHANGES.try_lock() {
            Ok(changes) => return Some(changes),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if clock::now() > until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
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

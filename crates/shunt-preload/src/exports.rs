//! Registered memory: what the program allocates to send from, and peers may map to read.
//!
//! `shunt_alloc` gives memory that is a sealed memfd. The agent gets a descriptor by which it can only be read
//! (`F_SEAL_FUTURE_WRITE`), and hands it to the other parties of a link group whose sender has offered it.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use shunt_shm::memfd::{self, Map};

use crate::agent_client;
use crate::endpoint::Endpoint;
use crate::own_fds::{self, OwnFd};

/// Regions that a process can register.
pub const EXPORTS: usize = 64;

const PAGE: usize = 4096;

/// A registered region.
#[derive(Debug)]
pub struct Export {
    base: AtomicUsize,
    /// 0: none here.
    len: AtomicUsize,
    /// The endpoint that told the agent of it, 0: none.
    told_by: AtomicU64,
    /// The agent's name for it.
    name: AtomicU64,
}

static TABLE: [Export; EXPORTS] = [const {
    Export {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        told_by: AtomicU64::new(0),
        name: AtomicU64::new(0),
    }
}; EXPORTS];

/// What goes with the entries of the table; serializes changes to it.
/// Without a descriptor, where none was to be had, it cannot be exported, and is copied like any other.
static MEMORY: Mutex<[Option<Memory>; EXPORTS]> = Mutex::new([const { None }; EXPORTS]);
type Memory = (Map, Option<OwnFd>);

/// Held across fork.
pub fn lock_for_fork() -> impl Sized {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of the program's in a registered region.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Which.
    pub export: &'static Export,
    /// Offset in it.
    pub from: usize,
}

/// The region in which these bytes lie, all of them.
#[inline]
pub fn find(address: usize, len: usize) -> Option<Place> {
    TABLE.iter().find_map(|export| {
        let from = address.wrapping_sub(export.base.load(Ordering::Relaxed));
        let room = export.len.load(Ordering::Acquire).checked_sub(from)?;
        (len <= room).then_some(Place { export, from })
    })
}

/// True when these bytes are in the region of this name, as this process has it: a relative may have registered it
/// later than they parted, and have something else there.
pub fn has(name: u64, address: usize, len: usize) -> bool {
    find(address, len).is_some_and(|place| place.export.name.load(Ordering::Relaxed) == name)
}

impl Export {
    /// The agent's name for it, if it was told.
    pub fn name(&self) -> Option<u64> {
        let me = Endpoint::current()?.id;
        (self.told_by.load(Ordering::Acquire) == me).then(|| self.name.load(Ordering::Relaxed))
    }

    /// The same, after telling the agent if need be.
    pub fn tell(&self) -> Option<u64> {
        if let Some(name) = self.name() {
            return Some(name);
        }
        let memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        let index = TABLE.iter().position(|export| core::ptr::eq(export, self))?;
        let (_, fd) = memory[index].as_ref()?;
        let (name, endpoint) = agent_client::export(fd.as_ref()?.borrow()).ok()?;
        self.name.store(name, Ordering::Relaxed);
        self.told_by.store(endpoint, Ordering::Release);
        Some(name)
    }
}

fn make(len: usize) -> Option<*mut c_void> {
    let len = len.max(1).checked_next_multiple_of(PAGE)?;
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let index = memory.iter().position(Option::is_none)?;
    let (map, fd): (Map, OwnedFd) = memfd::create_published("shunt-memory", len).ok()?;
    let base = map.base();
    memory[index] = Some((map, own_fds::adopt(fd).ok()));
    let export = &TABLE[index];
    export.told_by.store(0, Ordering::Relaxed);
    export.name.store(0, Ordering::Relaxed);
    export.base.store(base.addr().get(), Ordering::Relaxed);
    export.len.store(len, Ordering::Release);
    Some(base.as_ptr().cast())
}

/// Memory of at least `len` bytes that is registered; null when there is none to be had. Aligned to a page and zero.
pub fn alloc(len: usize) -> *mut c_void {
    make(len).unwrap_or(core::ptr::null_mut())
}

/// Gives it back, after what is granted of it was copied. False for what [`alloc`] did not give.
pub fn free(base: usize) -> bool {
    let Some(index) = (0..EXPORTS).find(|i| {
        let export = &TABLE[*i];
        export.base.load(Ordering::Relaxed) == base && export.len.load(Ordering::Acquire) > 0
    }) else {
        return false;
    };
    let export = &TABLE[index];
    crate::stream::grants::take_back_in(base, export.len.load(Ordering::Relaxed));
    export.len.store(0, Ordering::Release);
    if let Some(name) = export.name() {
        agent_client::unexport(name);
    }
    let gone = MEMORY.lock().unwrap_or_else(PoisonError::into_inner)[index].take();
    drop(gone);
    true
}

//! Registered memory: the program sends from it without copies, and peers may map it to read.
//!
//! `shunt_alloc` gives memory that is a sealed memfd. The library finds other memfds of the program
//! when the program maps them ([`crate::memory::discovered_memory`]). The agent gets a descriptor
//! by which such memory can only be read, and hands it to the other parties of a link group whose
//! sender has offered it.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};

use shunt_shm::holders::Member;
use shunt_shm::lock::{self, Owner, OwnerLock};
use shunt_shm::memfd::{self, Map};
use shunt_wire::agent::{EndpointId, Exported};

use crate::callback::Callback;
use crate::calls;
use crate::control::agent_client;
use crate::control::endpoint::Endpoint;
use crate::fds::own_fds::{self, OwnFd};
use crate::memory::mappings::{Window, Windows};
use crate::system::errno::KeepErrno;
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::mutex::Mutex;
use crate::threads::signals::{SettingUp, Uncancelled};

/// Pieces of memory that a process can have of `shunt_alloc`: the first places of the table.
pub const ASKED: usize = 64;
/// Memfds of its own that are known at a time: the other places.
pub const FOUND: usize = 32;
const EXPORTS: usize = ASKED + FOUND;

/// Longest wait for another thread that changes the table.
const PATIENCE: Duration = Duration::from_millis(200);

/// What everybody may look at of registered memory.
#[derive(Debug)]
pub struct Export {
    /// The endpoint that told the agent of it, 0: none.
    told_by: AtomicU64,
    /// The agent's name for it.
    name: AtomicU64,
    /// Bytes that a peer can map.
    size: AtomicUsize,
}

impl Export {
    /// The agent's name for it, if this process has told it.
    fn name(&self) -> Option<u64> {
        let me = Endpoint::current()?.id;
        (self.told_by.load(Ordering::Acquire) == me).then(|| self.name.load(Ordering::Relaxed))
    }

    fn forget(&self) {
        self.told_by.store(0, Ordering::Relaxed);
        self.name.store(0, Ordering::Relaxed);
        self.size.store(0, Ordering::Relaxed);
    }
}

static TABLE: [Export; EXPORTS] = [const {
    Export { told_by: AtomicU64::new(0), name: AtomicU64::new(0), size: AtomicUsize::new(0) }
}; EXPORTS];

/// Where the memory of `shunt_alloc` is.
static MADE: Windows = Windows::new();
/// Where the program has mapped memfds of its own.
static SEEN: Windows = Windows::new();

/// Serializes changes to all of this. Not held while the agent is spoken to.
static CHANGES: &OwnerLock = &ACROSS_FORKS.exports;

/// What goes with the entries of the table.
static MEMORY: Mutex<Changes> = Mutex::new(Changes([const { None }; EXPORTS]));

/// A window may be somewhere else by now, since a change could not be made: nothing that was found is used any more.
static LOST: AtomicBool = AtomicBool::new(false);

/// Registered memory.
pub struct Memory {
    /// To read it. None where none was to be had: it cannot be exported then, and is copied like any other.
    fd: Option<OwnFd>,
    /// The agent does not take it.
    refused_by: Option<EndpointId>,
    /// Threads that will map it anew.
    pins: u32,
    /// Whose it is.
    kind: Kind,
}

/// Whose memory it is.
enum Kind {
    /// The library's, for the program, as long as this is there.
    Asked { _map: Map },
    /// The program's.
    Found(Found),
}

/// A memfd of the program's.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Device and inode.
    pub file: (u64, u64),
    /// Whether it may be shown, once that was looked at.
    pub verdict: Option<bool>,
}

impl Found {
    /// True for memory that a peer may map: nobody can cut it short, and no page of it has to be found when it is read.
    pub fn may_be_shown(&mut self, fd: BorrowedFd<'_>) -> bool {
        *self.verdict.get_or_insert_with(|| {
            fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
                && !has_missing_pages(fd)
        })
    }
}

/// True for huge pages that are not there yet: they may have run out when a peer reads them, for which it gets `SIGBUS`.
fn has_missing_pages(fd: BorrowedFd<'_>) -> bool {
    const BLOCK: i64 = 512;
    let is_huge = fstatfs(fd).is_ok_and(|fs| fs.f_type == libc::HUGETLBFS_MAGIC);
    is_huge && !fstat(fd).is_ok_and(|stat| stat.st_blocks * BLOCK >= stat.st_size)
}

impl Memory {
    /// A memfd of the program's.
    pub fn found(fd: OwnFd, found: Found) -> Self {
        Self { fd: Some(fd), refused_by: None, pins: 0, kind: Kind::Found(found) }
    }
}

/// The table with its lock.
pub struct Changes([Option<Memory>; EXPORTS]);

/// Changes the table. `None` where that has to wait for too long, or in a signal handler above a change.
pub fn change<T>(how: impl FnOnce(&mut Changes) -> T) -> Option<T> {
    let _lock = CHANGES.lock_within(me(), PATIENCE, |_| false)?;
    let mut memory = MEMORY.lock();
    Some(how(&mut memory))
}

impl Changes {
    fn free_place(&self, among: Range<usize>) -> Option<usize> {
        among.into_iter().find(|index| self.0[*index].is_none())
    }

    fn put(&mut self, index: usize, memory: Memory) {
        TABLE[index].forget();
        self.0[index] = Some(memory);
    }

    /// The memory of the program's for which `is_it` says so, or that of `make`, which is entered.
    pub fn found(
        &mut self,
        is_it: impl Fn(&Found) -> bool,
        make: impl FnOnce() -> Option<Memory>,
    ) -> Option<usize> {
        let known = (ASKED..EXPORTS).find(|index| {
            let memory = self.0[*index].as_ref();
            memory.is_some_and(|memory| matches!(&memory.kind, Kind::Found(found) if is_it(found)))
        });
        known.or_else(|| {
            let index = self.free_place(ASKED..EXPORTS)?;
            self.put(index, make()?);
            Some(index)
        })
    }

    /// Enters a window. One too many stays unknown, and is copied.
    pub fn show(&mut self, window: Window) {
        SEEN.add(window);
    }

    /// Keeps memory for a window that is about to come, or does no longer.
    pub fn pin(&mut self, index: usize, is_kept: bool) {
        if let Some(memory) = &mut self.0[index] {
            memory.pins = if is_kept { memory.pins + 1 } else { memory.pins.saturating_sub(1) };
        }
    }

    /// Memory of the program's that it has mapped nowhere any more, with the name that the agent knows.
    fn take_unused(&mut self) -> Option<(Memory, Option<u64>)> {
        (ASKED..EXPORTS).find_map(|index| {
            let is_unused = self.0[index].as_ref()?.pins == 0 && !SEEN.show(index);
            is_unused.then(|| self.take(index))?
        })
    }

    fn take(&mut self, index: usize) -> Option<(Memory, Option<u64>)> {
        let name = TABLE[index].name();
        TABLE[index].forget();
        Some((self.0[index].take()?, name))
    }
}

/// Held across fork.
pub fn lock_for_fork() -> lock::Guard<'static> {
    CHANGES.lock(me(), |_| false)
}

/// This thread: nobody but the threads of this process has the lock.
fn me() -> Owner {
    Owner::new(Member::UNNAMED, calls::serial())
}

/// Bytes of the program's in registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    window: Window,
}

/// Where in registered memory these bytes lie, all of them.
#[inline]
pub fn find(address: usize, len: usize) -> Option<Place> {
    let window = MADE.find(address, len).or_else(|| {
        let window = SEEN.find(address, len)?;
        (!LOST.load(Ordering::Relaxed)).then_some(window)
    });
    Some(Place { window: window? })
}

impl Place {
    /// Offset in the memory.
    pub const fn from(&self) -> usize {
        self.window.from
    }

    /// The agent's name for the memory, if it was told, and if a peer can map these bytes.
    pub fn name(&self) -> Option<u64> {
        let export = &TABLE[self.window.export];
        let end = self.window.from.checked_add(self.window.len)?;
        let name = export.name()?;
        (end <= export.size.load(Ordering::Relaxed)).then_some(name)
    }

    /// The same, after telling the agent if need be.
    pub fn tell(&self) -> Option<u64> {
        if TABLE[self.window.export].name().is_none() {
            tell(self.window.export)?;
        }
        self.name()
    }

    /// False for bytes that the program has cut off from its memory: the kernel would say `EFAULT` of them.
    pub fn is_there(&self) -> bool {
        let page = page_size();
        let size = change(|changes| {
            let memory = changes.0[self.window.export].as_ref()?;
            memfd::size(memory.fd.as_ref()?.borrow()).ok()
        });
        let size = size.flatten().map(|size| size.next_multiple_of(page));
        let end = self.window.from.saturating_add(self.window.len);
        size.is_none_or(|size| end <= size)
    }
}

/// Tells the agent of memory, if it may be shown.
#[cold]
fn tell(index: usize) -> Option<()> {
    // In a child that has not spoken to the agent yet it is another one.
    let me = agent_client::endpoint().ok()?.id;
    // The conversation may take a while, so it is held with a descriptor of its own.
    let (fd, size, what) = change(|changes| {
        let memory = changes.0[index].as_mut()?;
        if memory.refused_by == Some(me) {
            return None;
        }
        let fd = memory.fd.as_ref()?;
        let what = match &mut memory.kind {
            Kind::Asked { .. } => Exported::Asked,
            Kind::Found(found) => found.may_be_shown(fd.borrow()).then_some(Exported::Found)?,
        };
        let size = memfd::size(fd.borrow()).ok()?;
        let fd = rustix::io::fcntl_dupfd_cloexec(fd.borrow(), 0).ok()?;
        Some((own_fds::adopt(fd).ok()?, size, what))
    })??;
    let told = agent_client::export(what, &[fd.borrow()]);
    let is_noted = change(|changes| {
        let memory = changes.0[index].as_mut()?;
        let export = &TABLE[index];
        let Ok((name, endpoint)) = told else {
            memory.refused_by = (what == Exported::Found).then_some(me);
            return None;
        };
        export.size.store(size, Ordering::Relaxed);
        export.name.store(name, Ordering::Relaxed);
        export.told_by.store(endpoint, Ordering::Release);
        Some(())
    });
    is_noted?
}

/// True when this process has told the agent of the memory of this name.
pub fn is_told_of(name: u64) -> bool {
    TABLE.iter().any(|export| export.name() == Some(name))
}

/// Copies bytes of the memory of this name to `to`, as this process has it: a relative may have registered it later
/// than they parted. Read by the descriptor, so that it does not matter what has become of the program's mapping. False
/// where they are not to be had.
///
/// # Safety
/// There is room for `len` bytes at `to`.
pub unsafe fn copy_out(name: u64, from: u64, to: NonNull<u8>, len: usize) -> bool {
    let _keep = KeepErrno::new();
    let _uncancelled = Uncancelled::begin();
    let read = |fd: &OwnFd| {
        let mut done = 0;
        while done < len {
            let at = i64::try_from(from + done as u64).unwrap_or(i64::MAX);
            // SAFETY: the caller promises room for `len` bytes, of which `done` are filled.
            let n =
                unsafe { libc::pread64(fd.raw(), to.add(done).as_ptr().cast(), len - done, at) };
            match usize::try_from(n) {
                Ok(n) if n > 0 => done += n,
                _ => return false,
            }
        }
        true
    };
    let copied = change(|changes| {
        let is_it = |export: &Export| {
            export.told_by.load(Ordering::Acquire) != 0
                && export.name.load(Ordering::Relaxed) == name
        };
        let index = TABLE.iter().position(is_it)?;
        changes.0[index].as_ref()?.fd.as_ref().map(read)
    });
    copied.flatten().unwrap_or(false)
}

/// The program's mappings in `range` are about to go, or to become others: nothing more is granted from there, and what
/// was is copied.
pub fn forget(range: Range<usize>) {
    if SEEN.may_touch(&range) {
        forget_mapped(range);
    }
}

#[cold]
fn forget_mapped(range: Range<usize>) {
    let _keep = KeepErrno::new();
    withdraw(&range);
    release_unused();
}

/// The first half of that.
pub fn withdraw(range: &Range<usize>) {
    if change(|_| SEEN.remove(range)).is_none() {
        LOST.store(true, Ordering::Relaxed);
    }
    take_back(range.start, range.len());
}

/// The second: what the program has not mapped any more is its own alone.
pub fn release_unused() {
    while let Some((memory, name)) = change(Changes::take_unused).flatten() {
        give_up(memory, name);
    }
}

/// In a signal handler above a conversation with the agent its descriptor stays there as long as this process.
fn give_up(memory: Memory, name: Option<u64>) {
    drop(memory);
    if let Some(name) = name
        && let Some(_setting_up) = SettingUp::begin()
    {
        agent_client::unexport(name);
    }
}

/// The window in which this address is, from there on.
pub fn window_at(address: usize, len: usize) -> Option<Window> {
    SEEN.find(address, len)
}

/// False as long as no memory of the program's was ever found.
#[inline]
pub fn is_any_known() -> bool {
    SEEN.were_any()
}

/// Bytes of a page. Of libc, which knows without a system call.
pub fn page_size() -> usize {
    // SAFETY: takes a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// True when the program may have mapped memory there that is known.
#[inline]
pub fn may_touch(range: &Range<usize>) -> bool {
    SEEN.may_touch(range)
}

fn make(len: usize) -> Option<*mut c_void> {
    let page = page_size();
    let len = len.max(1).checked_next_multiple_of(page)?;
    let (map, fd): (Map, OwnedFd) = memfd::create_published("shunt-memory", len).ok()?;
    let base = map.base();
    change(|changes| {
        let export = changes.free_place(0..ASKED)?;
        let window = Window { base: base.addr().get(), len, export, from: 0 };
        let fd = own_fds::adopt(fd).ok();
        let kind = Kind::Asked { _map: map };
        MADE.add(window).then(|| {
            changes.put(export, Memory { fd, refused_by: None, pins: 0, kind });
            base.as_ptr().cast()
        })
    })?
}

/// Copies what is granted of memory that is about to go: where it begins, and how many bytes.
pub static TAKE_BACK: Callback<fn(usize, usize)> = Callback::none();

fn take_back(base: usize, len: usize) {
    if let Some(take_back) = TAKE_BACK.get() {
        take_back(base, len);
    }
}

/// Memory of at least `len` bytes that is registered; null when there is none to be had. Aligned to a page and zero.
pub fn alloc(len: usize) -> *mut c_void {
    make(len).unwrap_or(core::ptr::null_mut())
}

/// Gives it back, after what is granted of it was copied. False for what [`alloc`] did not give.
pub fn free(base: usize) -> bool {
    let taken = change(|_| {
        let window = MADE.at(base)?;
        MADE.remove(&(window.base..window.base + window.len));
        Some(window)
    });
    let Some(window) = taken.flatten() else { return false };
    take_back(window.base, window.len);
    if let Some((memory, name)) = change(|changes| changes.take(window.export)).flatten() {
        give_up(memory, name);
    }
    true
}

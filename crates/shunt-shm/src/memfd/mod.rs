//! Sealed memory that is passed between processes as a file descriptor.
#![cfg_attr(miri, allow(unused_imports, reason = "calls that `plain` takes the place of"))]

use core::ops::Range;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, open,
};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous,
    mprotect, mremap, munlock, munmap,
};
use rustix::param::page_size;

use crate::sync::own::{AtomicUsize, Ordering};

#[cfg(miri)]
mod plain;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A zeroed memfd of `len` bytes that nobody can resize any more.
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and fcntl(2).
pub fn create_sealed(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = create(name, len)?;
    seal(&fd, SEALS)?;
    Ok(fd)
}

/// The same with its one writable mapping, and a descriptor by which others can only read it: also who
/// opens it anew, through `/proc`.
///
/// # Errors
/// As for [`create_sealed`], and those of mmap(2) and of open(2) on `/proc/self/fd`.
pub fn create_published(name: &str, len: usize) -> io::Result<(Map, OwnedFd)> {
    let fd = create(name, len)?;
    let map = Map::of(&fd, 0, len, true)?;
    seal(&fd, SEALS.union(SealFlags::FUTURE_WRITE))?;
    if cfg!(miri) {
        return Ok((map, fd));
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok((map, open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
}

/// True for memory of [`create_published`].
pub fn is_published(fd: impl AsFd) -> bool {
    seals(fd).is_ok_and(|seals| seals.contains(SEALS.union(SealFlags::FUTURE_WRITE)))
}

fn seal(fd: impl AsFd, seals: SealFlags) -> io::Result<()> {
    #[cfg(miri)]
    return plain::seal(fd, seals);
    #[cfg(not(miri))]
    Ok(fcntl_add_seals(fd, seals)?)
}

fn seals(fd: impl AsFd) -> io::Result<SealFlags> {
    #[cfg(miri)]
    return plain::seals(fd);
    #[cfg(not(miri))]
    Ok(fcntl_get_seals(fd)?)
}

#[cfg(miri)]
fn create(_name: &str, len: usize) -> io::Result<OwnedFd> {
    plain::create(len)
}

#[cfg(not(miri))]
fn create(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// Length of the memory behind a descriptor. It means something only once [`Map::new`] has found the
/// seals in place.
///
/// # Errors
/// Those of fstat(2).
pub fn size(fd: impl AsFd) -> io::Result<usize> {
    #[cfg(miri)]
    return plain::size(fd);
    #[cfg(not(miri))]
    usize::try_from(fstat(fd)?.st_size).map_err(|_| io::ErrorKind::InvalidInput.into())
}

static IN_DUMPS: OnceLock<()> = OnceLock::new();

/// Has core dumps of this process hold what is mapped from now on.
pub fn keep_in_dumps() {
    let _ = IN_DUMPS.set(());
}

/// Keeps a mapping of the library's out of core dumps, which it would make large, and which others may read than
/// those to whom the bytes belong. Not after [`keep_in_dumps`].
///
/// # Safety
/// The mapping is the caller's.
pub unsafe fn leave_out_of_dumps(at: NonNull<u8>, len: usize) {
    if IN_DUMPS.get().is_none() && !cfg!(miri) {
        // SAFETY: the advice changes nothing that is in memory; the caller promises that the mapping is its own.
        let _ = unsafe { madvise(at.as_ptr().cast(), len, Advice::LinuxDontDump) };
    }
}

/// Mappings, by address, of which most is never used: mlockall(2) is to lock none of them.
struct Unlocked {
    places: [Place; Self::MOST],
}

/// A mapping; a length of 0: none.
struct Place {
    base: AtomicUsize,
    len: AtomicUsize,
}

static UNLOCKED: Unlocked = Unlocked {
    places: [const { Place { base: AtomicUsize::new(0), len: AtomicUsize::new(0) } };
        Unlocked::MOST],
};

impl Unlocked {
    /// More than a process has link groups; what does not fit is locked with the rest.
    const MOST: usize = 8192;

    /// Places are taken from here on: a thread or a fork in the middle of it loses one place at most.
    fn add(&self, at: NonNull<u8>, len: usize) {
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        let base = at.addr().get();
        let is_free = |place: &&Place| place.base.compare_exchange(0, base, ok, no).is_ok();
        if let Some(place) = self.places.iter().find(is_free) {
            place.len.store(len, Ordering::Release);
        }
    }

    fn remove(&self, at: NonNull<u8>, len: usize) {
        let is = |place: &&Place| {
            place.base.load(Ordering::Acquire) == at.addr().get()
                && place.len.load(Ordering::Relaxed) == len
        };
        if let Some(place) = self.places.iter().find(is) {
            place.len.store(0, Ordering::Relaxed);
            place.base.store(0, Ordering::Release);
        }
    }
}

/// Has a mapping left out of what mlockall(2) locks. It is entered before it is unlocked, so that a call at the same
/// time finds it, or leaves it to this.
///
/// # Safety
/// The mapping is the caller's.
pub unsafe fn leave_unlocked(at: NonNull<u8>, len: usize) {
    if cfg!(miri) {
        return;
    }
    UNLOCKED.add(at, len);
    // SAFETY: memory stays what it is; the caller promises that the mapping is its own.
    let _ = unsafe { munlock(at.as_ptr().cast(), len) };
}

/// Where the mappings of [`leave_unlocked`] are.
pub fn unlocked() -> impl Iterator<Item = Range<usize>> {
    UNLOCKED.places.iter().filter_map(|place| {
        let base = place.base.load(Ordering::Acquire);
        let len = place.len.load(Ordering::Acquire);
        (len > 0).then(|| base..base.saturating_add(len))
    })
}

/// How many bytes of addresses [`Map`]s may take, with all else that [`unlocked`] knows.
static MOST_ADDRESSES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on nothing is mapped beyond so many bytes of addresses.
pub fn keep_within(most: usize) {
    MOST_ADDRESSES.store(most, Ordering::Relaxed);
}

/// # Errors
/// `ENOMEM` where `len` more bytes are beyond what [`keep_within`] allows.
fn room_for(len: usize) -> io::Result<()> {
    let most = MOST_ADDRESSES.load(Ordering::Relaxed);
    let taken = || unlocked().map(|range| range.len()).sum::<usize>();
    if most != usize::MAX && taken().saturating_add(len) > most {
        return Err(rustix::io::Errno::NOMEM.into());
    }
    Ok(())
}

/// A mapping of a sealed memfd (or of anonymous shared memory). Unmapped on drop.
#[derive(Debug)]
pub struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that stays where it is; all access goes through atomics or
// raw copies whose callers uphold the protocol.
unsafe impl Send for Map {}
// SAFETY: a shared reference gives addresses, and atomics whose user has promised that they are such; nothing else is read or
// written but by raw copies.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes of `fd`, after checking that it is sealed against resizing and long enough,
    /// so that no access can ever fault because its maker shrank it.
    ///
    /// # Errors
    /// `EINVAL` when the seals or the size are not as they must be, and those of mmap(2).
    pub fn new(fd: impl AsFd, len: usize, writable: bool) -> io::Result<Self> {
        Self::sealed(&fd, len)?;
        Self::of(fd, 0, len, writable)
    }

    /// The same of `len` bytes from `offset` on, whole pages, to read and to write.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn part(fd: impl AsFd, offset: usize, len: usize) -> io::Result<Self> {
        Self::sealed(&fd, offset.saturating_add(len))?;
        Self::of(fd, offset, len, true)
    }

    fn sealed(fd: impl AsFd, len: usize) -> io::Result<()> {
        if !seals(&fd)?.contains(SealFlags::SHRINK | SealFlags::SEAL) || size(&fd)? < len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    /// A further mapping of the same memory, to which no descriptor is needed: of `len` bytes that begin `skip` bytes
    /// behind `offset`, which is inside of this one. All are whole pages. The memory reaches so far.
    ///
    /// # Errors
    /// Those of mremap(2).
    pub fn beyond(&self, offset: usize, skip: usize, len: usize) -> io::Result<Self> {
        let from = self.place(offset, 1).ok_or(io::ErrorKind::InvalidInput)?;
        room_for(len)?;
        // SAFETY: with an old length of 0 nothing is moved: a shared mapping is made once more, elsewhere.
        let base = unsafe { mremap(from.as_ptr().cast(), 0, skip + len, MremapFlags::MAYMOVE) }?;
        // SAFETY: what comes before is a part of the fresh mapping.
        let base = unsafe {
            if skip > 0 {
                munmap(base, skip)?;
            }
            NonNull::new(base.cast::<u8>().wrapping_add(skip)).ok_or(io::ErrorKind::OutOfMemory)?
        };
        Ok(Self::fresh(base, len))
    }

    /// Nobody can look at a part of it any more, of whole pages; its addresses stay taken.
    ///
    /// # Safety
    /// Nobody uses that part.
    pub unsafe fn hide(&self, offset: usize, len: usize) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        if let Some(at) = self.place(offset, len) {
            // SAFETY: inside of this mapping, and the caller promises that nobody uses that part.
            let _ = unsafe { mmap_anonymous(at.as_ptr().cast(), len, ProtFlags::empty(), flags) };
        }
    }

    /// Gives the memory of a part of it back, as far as it is whole pages: it is zero then, for all who map it, and taken
    /// anew when it is next touched. What cannot be given back stays as it is.
    ///
    /// # Safety
    /// Nobody relies on what is there.
    pub unsafe fn discard(&self, offset: usize, len: usize) {
        let page = page_size();
        let (from, to) = (offset.next_multiple_of(page), (offset + len) / page * page);
        if let Some(at) =
            to.checked_sub(from).filter(|len| *len > 0).and_then(|n| self.place(from, n))
        {
            // SAFETY: inside of this mapping, and the caller promises that nobody relies on what is there.
            let _ = unsafe { madvise(at.as_ptr().cast(), to - from, Advice::LinuxRemove) };
        }
    }

    /// Puts memory of this process alone in its place, all of it zero: who looks there still finds nothing. There must be
    /// nothing but atomics and bytes in it.
    pub fn blank(&self) {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: replaces this mapping, in which zero is as good as whatever a peer could write.
        let _ = unsafe { mmap_anonymous(self.base.as_ptr().cast(), self.len, prot, flags) };
        // SAFETY: the fresh mapping.
        unsafe { leave_out_of_dumps(self.base, self.len) };
    }

    /// Memory of this process alone, all of it zero.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn empty(len: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address that the kernel chooses; it aliases no Rust object.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), len, prot, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self::fresh(base, len))
    }

    /// Maps all of memory that a peer shows, to read it, after checking that nobody can cut it short.
    ///
    /// # Errors
    /// `EINVAL` where somebody could, and those of mmap(2).
    pub fn to_read(fd: impl AsFd) -> io::Result<Self> {
        if !seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The length is that of now: it may become longer, never shorter.
        let len = size(&fd)?;
        Self::of(fd, 0, len, false)
    }

    /// Maps `len` bytes from `offset` on (whole pages) of a device's memory, to read and to write. There are no seals to
    /// look at: who calls this has the descriptor, and where it is to be mapped, from somebody it trusts.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn device(fd: impl AsFd, offset: usize, len: usize) -> io::Result<Self> {
        Self::with((fd, offset), len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps memory that is known to be so long and to stay so.
    fn of(fd: impl AsFd, offset: usize, len: usize, writable: bool) -> io::Result<Self> {
        if cfg!(miri) {
            return Self::with((fd, offset), len, ProtFlags::empty());
        }
        // After mlockall(MCL_FUTURE) the kernel brings in, at once, all of a mapping that can be accessed. What is
        // mapped here is long, and little of it is ever used.
        let map = Self::with((fd, offset), len, ProtFlags::empty())?;
        let writes = if writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: the fresh mapping, of which nobody knows yet.
        unsafe { mprotect(map.base.as_ptr().cast(), len, MprotectFlags::READ | writes) }?;
        Ok(map)
    }

    fn with((fd, offset): (impl AsFd, usize), len: usize, prot: ProtFlags) -> io::Result<Self> {
        #[cfg(miri)]
        {
            let _ = prot;
            Ok(Self { base: plain::map(fd, offset, len)?, len })
        }
        #[cfg(not(miri))]
        Self::mapped((fd, offset), len, prot)
    }

    #[cfg(not(miri))]
    fn mapped((fd, offset): (impl AsFd, usize), len: usize, prot: ProtFlags) -> io::Result<Self> {
        room_for(len)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses; it aliases no Rust object.
        let base = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            mmap(core::ptr::null_mut(), len, prot, flags, fd, offset as u64)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self::fresh(base, len))
    }

    /// Takes over a shared mapping.
    ///
    /// # Safety
    /// It is the caller's, so long, readable and writable, and nobody else unmaps it.
    #[must_use]
    pub unsafe fn adopt(base: NonNull<u8>, len: usize) -> Self {
        Self::fresh(base, len)
    }

    /// A mapping that was just made.
    fn fresh(base: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the fresh mapping.
        unsafe {
            leave_out_of_dumps(base, len);
            leave_unlocked(base, len);
        }
        Self { base, len }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True for a mapping of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Start of the mapping.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Sets bytes that nobody uses to zero; those outside of the mapping are left out.
    pub fn zero(&self, at: usize, len: usize) {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        // SAFETY: inside the mapping, which is writable where this is called; no Rust reference points at bytes.
        unsafe { self.base.byte_add(at).write_bytes(0, len) };
    }

    /// Where `len` bytes at `offset` lie; `None` when not all of them are inside.
    fn place(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: inside the mapping, as the comparison has shown.
        (end <= self.len).then(|| unsafe { self.base.byte_add(offset) })
    }

    /// Copies `data` to `offset`. `None`: it does not fit, and nothing is copied. Only for a writable mapping.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        let to = self.place(offset, data.len())?;
        // SAFETY: there is room for `data` there; private memory does not overlap it.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to.as_ptr(), data.len()) };
        Some(())
    }

    /// Copies the bytes at `offset` out. `None`: not all of them are inside, and nothing is copied.
    #[must_use]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        let from = self.place(offset, into.len())?;
        // SAFETY: so many bytes are there; private memory does not overlap them.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Some(())
    }

    /// A reference to a `T` at `offset`, or `None` when it does not lie wholly inside, aligned.
    ///
    /// # Safety
    /// `T` must consist of atomics only and be valid for every bit pattern.
    #[must_use]
    pub unsafe fn at<T>(&self, offset: usize) -> Option<&T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping and aligned (the base is page-aligned); the caller promises
        // that a T consists of atomics, for which any bytes are values.
        Some(unsafe { self.base.byte_add(offset).cast::<T>().as_ref() })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if cfg!(miri) {
            return;
        }
        UNLOCKED.remove(self.base, self.len);
        // SAFETY: base and len are those of our mmap; `at` borrows from self, so no reference is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

//! Address space for what grows: reserved at once, opened piece by piece.
//!
//! What is reserved and not opened cannot be touched, is not locked by mlockall(2), and is in no
//! core dump.

use core::ffi::c_void;
use core::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// The smallest page; the kernel rounds up.
pub const PAGE: usize = 4096;

/// Reserves `len` bytes that cannot be touched yet.
pub fn reserve(len: usize) -> Option<NonNull<u8>> {
    let at = map(len, ProtFlags::empty(), MapFlags::NORESERVE)?;
    // SAFETY: the fresh mapping.
    unsafe { shunt_shm::memfd::leave_unlocked(at, len) };
    Some(at)
}

/// Opens `len` bytes at `at`, both multiples of a page. False without memory for it.
///
/// # Safety
/// They lie in what [`reserve`] returned.
pub unsafe fn open(at: NonNull<u8>, len: usize) -> bool {
    let flags = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the caller promises that the pages lie in what `reserve` has mapped, of which nothing is in use before.
    unsafe { rustix::mm::mprotect(at.as_ptr().cast::<c_void>(), len, flags).is_ok() }
}

/// `len` zeroed bytes.
pub fn get(len: usize) -> Option<NonNull<u8>> {
    map(len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
}

fn map(len: usize, access: ProtFlags, flags: MapFlags) -> Option<NonNull<u8>> {
    // SAFETY: a fresh anonymous mapping; nothing is replaced.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE | flags)
    };
    let at: NonNull<u8> = NonNull::new(mapped.ok()?.cast())?;
    // SAFETY: the advice concerns the fresh mapping alone. Without it a core dump is larger.
    let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), len, Advice::LinuxDontDump) };
    Some(at)
}

/// Gives pages back.
///
/// # Safety
/// They came from [`get`], and nobody uses them any more.
pub unsafe fn release(at: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller promises that `get` has mapped them, and that nobody uses them any more.
        let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
    }
}

/// `len` zeroed bytes at a multiple of `align`; both are multiples of a page.
pub fn get_aligned(len: usize, align: usize) -> Option<NonNull<u8>> {
    let first = get(len.checked_add(align)?)?;
    let skip = first.as_ptr().align_offset(align);
    if skip > align {
        return None;
    }
    // SAFETY: `skip` is at most `align`, so both ends lie in the fresh mapping; nobody uses them.
    unsafe {
        let at = first.add(skip);
        release(first.as_ptr(), skip);
        release(at.add(len).as_ptr(), align - skip);
        Some(at)
    }
}

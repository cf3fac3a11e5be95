//! mmap(2) and its kind, by which memory is found from which the program may send without copies ([`crate::found`]).
//!
//! What does the work is given: an allocator may have put itself before libc's function, and come back by syscall(2).

use crate::abi::{c_int, c_void, off_t, size_t};
use crate::found::{self, Moving};
use crate::guard::contain;
use crate::next;

/// A mapping of `len` bytes that `make` makes.
pub fn mapping(
    (addr, len): (*mut c_void, size_t),
    flags: c_int,
    (fd, offset): (c_int, off_t),
    make: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0 {
        contain(|| found::unmapped(addr, len));
    }
    let at = make();
    // The mapping is not to be made once more whatever happens here.
    contain(|| found::mapped(at, len, flags, fd, offset));
    at
}

/// One that `make` moves, or makes longer or shorter.
pub fn remapping(
    (old, old_len): (*mut c_void, size_t),
    (new, len): (*mut c_void, size_t),
    flags: c_int,
    make: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if flags & libc::MREMAP_FIXED != 0 {
        found::unmapped(new, len);
    }
    let moving = Moving::begin(old, old_len);
    let at = make();
    if let Some(moving) = moving {
        contain(|| moving.end(at, len));
    }
    at
}

/// # Safety
/// As the C function.
pub unsafe fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    mapping((addr, len), flags, (fd, offset), || {
        // SAFETY: the caller keeps the C function's contract.
        unsafe { next::mmap(addr, len, prot, flags, fd, offset) }
    })
}

/// # Safety
/// As the C function.
pub unsafe fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    found::unmapped(addr, len);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::munmap(addr, len) }
}

/// # Safety
/// As the C function.
pub unsafe fn mremap(
    old: *mut c_void,
    old_len: size_t,
    len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    remapping((old, old_len), (new, len), flags, || {
        // SAFETY: the caller keeps the C function's contract.
        unsafe { next::mremap(old, old_len, len, flags, new) }
    })
}

//! mmap(2) and its kind, by which memory is found from which the program may send without copies ([`crate::found`]).

use crate::abi::{c_int, c_void, off_t, size_t};
use crate::found::{self, Moving};
use crate::guard::contain;
use crate::next;

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
    if flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0 {
        contain(|| found::unmapped(addr, len));
    }
    // SAFETY: the caller keeps the C function's contract.
    let at = unsafe { next::mmap(addr, len, prot, flags, fd, offset) };
    // The mapping is not to be made once more whatever happens here.
    contain(|| found::mapped(at, len, flags, fd, offset));
    at
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
    if flags & libc::MREMAP_FIXED != 0 {
        found::unmapped(new, len);
    }
    let moving = Moving::begin(old, old_len);
    // SAFETY: the caller keeps the C function's contract.
    let at = unsafe { next::mremap(old, old_len, len, flags, new) };
    if let Some(moving) = moving {
        contain(|| moving.end(at, len));
    }
    at
}

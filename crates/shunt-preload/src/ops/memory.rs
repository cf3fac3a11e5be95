//! mmap(2) and its kind.

use crate::next;
use shunt_runtime::memory::locking::lock_all;
use shunt_runtime::memory::mapping::{mapping, remapping, unmapping};
use shunt_runtime::system::abi::{c_int, c_void, off_t, size_t};

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
    unmapping(addr, len);
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

/// Of the library's memory, most of which is never used, nothing is locked: all would be brought in.
///
/// # Safety
/// As the C function.
pub unsafe fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    lock_all(flags, |flags| unsafe { next::mlockall(flags) })
}

//! mmap(2) and its kind: by these calls the library finds memory from which the program may send
//! without copies ([`discovered_memory`]).
//!
//! The caller passes the function that does the work: an allocator may have put itself before
//! libc's function, and come back by syscall(2).

use crate::contain::contain;
use crate::memory::discovered_memory::{self, Moving};
use crate::system::abi::{c_int, c_void, off_t, size_t};

/// These bytes are about to be unmapped.
pub fn unmapping(addr: *mut c_void, len: size_t) {
    discovered_memory::unmapped(addr, len);
}

/// A mapping of `len` bytes that `make` makes.
pub fn mapping(
    (addr, len): (*mut c_void, size_t),
    flags: c_int,
    (fd, offset): (c_int, off_t),
    make: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0 {
        contain(|| discovered_memory::unmapped(addr, len));
    }
    let at = make();
    // The mapping is not to be made once more whatever happens here.
    contain(|| discovered_memory::mapped(at, len, flags, fd, offset));
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
        discovered_memory::unmapped(new, len);
    }
    let moving = Moving::begin(old, old_len);
    let at = make();
    if let Some(moving) = moving {
        contain(|| moving.end(at, len));
    }
    at
}

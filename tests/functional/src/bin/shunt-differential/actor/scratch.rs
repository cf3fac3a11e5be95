//! Memory for the bytes of one call: also in signal handlers, and so not of the heap.

use std::ptr;
use std::slice;

use rustix::mm::{MapFlags, ProtFlags};

/// What lies on the stack.
const SMALL: usize = 16 << 10;

/// Calls `with` with so many bytes.
pub fn scratch<T>(len: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    if len <= SMALL {
        return with(&mut [0; SMALL][..len]);
    }
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, where the kernel likes.
    let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, flags) };
    let Ok(base) = base else { return with(&mut []) };
    // SAFETY: the mapping is that long, zeroed, and nobody else's.
    let result = with(unsafe { slice::from_raw_parts_mut(base.cast(), len) });
    // SAFETY: nothing refers to it any more. An error leaves it there.
    let _left = unsafe { rustix::mm::munmap(base, len) };
    result
}

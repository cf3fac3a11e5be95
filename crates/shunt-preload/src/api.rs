//! What programs may call that know of Shunt: declared in `shunt.h`.

use core::ffi::c_void;
use std::panic::catch_unwind;

use shunt_runtime::memory::exports;
use shunt_runtime::system::errno;

/// `shunt_alloc(3)`: memory to send from without copies (`MSG_ZEROCOPY`), of at least `len` bytes, zero, at the start of
/// a page; null with `ENOMEM` when there is none to be had, or too many were asked for.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_alloc(len: usize) -> *mut c_void {
    let memory = catch_unwind(|| exports::alloc(len)).unwrap_or(core::ptr::null_mut());
    if memory.is_null() {
        errno::set(libc::ENOMEM);
    }
    memory
}

/// `shunt_free(3)`: gives memory of [`shunt_alloc`] back; null is fine. What was sent from it and not read yet is copied
/// first. -1 with `EINVAL` for any other address.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_free(memory: *mut c_void) -> libc::c_int {
    let kept = errno::get();
    if memory.is_null() || catch_unwind(|| exports::free(memory.addr())).unwrap_or(true) {
        errno::set(kept);
        return 0;
    }
    errno::fail(libc::EINVAL)
}

//! stdio on a descriptor. It reads and writes by libc's inner functions, which no hook sees, so a
//! connection goes back to TCP first.

use crate::next;
use shunt_runtime::descriptors::unseen::before_use;
use shunt_runtime::processes::close;
use shunt_runtime::system::abi::Arguments;
use shunt_runtime::system::abi::{FILE, c_char, c_int, c_void};

/// # Safety
/// As the C function.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    before_use(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::fdopen(fd, mode) }
}

/// # Safety
/// As the C function.
pub unsafe fn fclose(file: *mut FILE) -> c_int {
    // It closes the descriptor by libc's inner function.
    if !file.is_null() {
        // SAFETY: the caller passes an open stream.
        close::forget(unsafe { libc::fileno(file) });
    }
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::fclose(file) }
}

/// # Safety
/// As the C function.
pub unsafe fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    // It closes the descriptor, and gives its number to the new file, by libc's inner functions.
    // Also when it fails.
    if !file.is_null() {
        // SAFETY: the caller passes an open stream.
        close::forget(unsafe { libc::fileno(file) });
    }
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::freopen(path, mode, file) }
}

/// # Safety
/// As the C function.
pub unsafe fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    if !file.is_null() {
        // SAFETY: as above.
        close::forget(unsafe { libc::fileno(file) });
    }
    // SAFETY: as above.
    unsafe { next::freopen64(path, mode, file) }
}

/// Before `dprintf`, whose first argument is the descriptor.
#[allow(clippy::cast_possible_truncation, reason = "an int is the low half of its register")]
pub fn before_print([first, ..]: Arguments) {
    before_use((first as u32).cast_signed());
}

/// `args` is C's `va_list`, which is passed by address.
///
/// # Safety
/// As the C function.
pub unsafe fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
    before_use(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::vdprintf(fd, format, args) }
}

/// # Safety
/// As the C function.
pub unsafe fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    before_use(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::__vdprintf_chk(fd, flag, format, args) }
}

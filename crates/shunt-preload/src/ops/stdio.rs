//! stdio on a descriptor. It reads and writes by libc's inner functions, which no hook sees, so a
//! connection goes back to TCP first.

use crate::abi::{FILE, c_char, c_int, c_void};
use crate::errno::KeepErrno;
use crate::fd_table::{self, Kind};
use crate::{next, object};

fn hand_over(fd: c_int) {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Stream {
        let _keep = KeepErrno::new();
        object::hand_over(fd, entry);
    }
}

/// # Safety
/// As the C function.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    hand_over(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::fdopen(fd, mode) }
}

/// # Safety
/// As the C function.
pub unsafe fn fclose(file: *mut FILE) -> c_int {
    // It closes the descriptor by libc's inner function.
    if !file.is_null() {
        // SAFETY: the caller passes an open stream.
        super::fd::forget_object(unsafe { libc::fileno(file) });
    }
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::fclose(file) }
}

/// Before `dprintf`, whose first argument is the descriptor.
#[allow(clippy::cast_possible_truncation, reason = "an int is the low half of its register")]
pub fn before_print(first: usize) {
    hand_over((first as u32).cast_signed());
}

/// `args` is C's `va_list`, which is passed by address.
///
/// # Safety
/// As the C function.
pub unsafe fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
    hand_over(fd);
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
    hand_over(fd);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::__vdprintf_chk(fd, flag, format, args) }
}

//! Socket options.

use crate::next;
use shunt_runtime::stream::mapped::map_nothing;
use shunt_runtime::stream::options;
use shunt_runtime::system::abi::{c_int, c_void, socklen_t};

/// # Safety
/// As the C function.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some(conn) = options::is_to_be_mapped(fd, (level, name)) {
        // SAFETY: the program's arguments, by the contract of getsockopt(2).
        return unsafe { map_nothing(conn, value, len) };
    }
    // SAFETY: the caller keeps the C function's contract.
    let kernel = || unsafe { next::getsockopt(fd, level, name, value, len) };
    let result = options::ask(fd, (level, name), kernel);
    if result == 0
        && let Some(error) = options::pending_error(fd, (level, name))
    {
        let value = value.cast::<c_int>();
        // SAFETY: the kernel has just written to both, and read the length.
        unsafe {
            if *len >= 4 && value.read_unaligned() == 0 {
                value.write_unaligned(error);
            }
        }
    }
    result
}

/// # Safety
/// As the C function.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::setsockopt(fd, level, name, value, len) };
    // SAFETY: the kernel has just read the value, an int, there.
    let value = || unsafe { value.cast::<c_int>().read_unaligned() };
    options::was_set(fd, (level, name), result == 0, value);
    result
}

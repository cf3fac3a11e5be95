//! Fork, spawn and the end of a process, where the list of hooks does not say all.

use core::ffi::c_int;

use crate::next;
use shunt_runtime::calls;
use shunt_runtime::fds::owner;
use shunt_runtime::processes::close::ends;
use shunt_runtime::system::abi::Arguments;

/// Before vfork(3) and clone(3), whose child may share this memory. Their first argument is of no
/// interest.
pub fn memory_is_lent(_: Arguments) {
    owner::lend();
}

/// Before longjmp(3) and its kind, whose first argument says where to.
pub fn before_longjmp([env, ..]: Arguments) {
    calls::before_longjmp(env);
}

/// # Safety
/// As the C function.
pub unsafe fn _exit(status: c_int) -> ! {
    ends();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::_exit(status) }
}

/// An error number where libc has no such function, of which a stand-in says -1.
pub fn or_absent(result: c_int) -> c_int {
    if result < 0 { libc::ENOSYS } else { result }
}

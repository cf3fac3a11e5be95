//! Changes of the user, and of the root directory.

use core::ffi::{c_char, c_int};

use crate::next;
use shunt_runtime::control::invitation;
use shunt_runtime::control::user::{UserChange, speak_while_permitted};
use shunt_runtime::system::abi::uid_t;

/// # Safety
/// As the C function.
pub unsafe fn chroot(path: *const c_char) -> c_int {
    speak_while_permitted(true);
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::chroot(path) };
    if result == 0 {
        invitation::leave_reach();
    }
    result
}

/// # Safety
/// As the C function.
pub unsafe fn setuid(uid: uid_t) -> c_int {
    let _change = UserChange::begin(uid);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::setuid(uid) }
}

/// # Safety
/// As the C function.
pub unsafe fn seteuid(uid: uid_t) -> c_int {
    let _change = UserChange::begin(uid);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::seteuid(uid) }
}

/// # Safety
/// As the C function.
pub unsafe fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    let _change = UserChange::begin(effective);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::setreuid(real, effective) }
}

/// # Safety
/// As the C function.
pub unsafe fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    let _change = UserChange::begin(effective);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::setresuid(real, effective, saved) }
}

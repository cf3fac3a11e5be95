//! Calls by which the process, or a thread of it, comes to see other namespaces, or another root directory.

use core::ffi::c_int;

use crate::control::invitation;
use crate::control::user::{self, namespaces_change, speak_while_permitted};

/// setns(2) or unshare(2), by `kernel`.
pub fn moving(kernel: impl FnOnce() -> c_int) -> c_int {
    namespaces_change();
    let result = kernel();
    user::forget();
    result
}

/// chroot(2), by `kernel`.
pub fn change_root(kernel: impl FnOnce() -> c_int) -> c_int {
    speak_while_permitted(true);
    let result = kernel();
    if result == 0 {
        invitation::leave_reach();
    }
    result
}

//! What ends a process that hangs, and says where.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use shunt_functional::sys;

/// Longest time for one thing, in seconds.
const LONGEST: u32 = 8;

static WHAT: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

extern "C" fn is_stuck(_: c_int) {
    let what = WHAT.load(Ordering::Acquire);
    let prefix = b"stuck: ";
    // SAFETY: what was put there is a C string that is never freed; the rest are system calls.
    unsafe {
        libc::write(2, prefix.as_ptr().cast(), prefix.len());
        libc::write(2, what.cast(), libc::strlen(what));
        libc::write(2, b"\n".as_ptr().cast(), 1);
        libc::kill(libc::getpid(), libc::SIGABRT);
    }
}

/// Something begins, which must not take long.
pub fn begin(what: &str) {
    let what = CString::new(what).unwrap_or_default().into_raw();
    if WHAT.swap(what, Ordering::AcqRel).is_null() {
        // It is known where it could not be installed.
        let _ = sys::on_signal(libc::SIGALRM, is_stuck);
    }
    sys::end_within(LONGEST);
}

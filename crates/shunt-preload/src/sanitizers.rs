//! Sanitizers whose runtime is a shared library of the program: GCC's, and Clang's with `-shared-libsan`.
//!
//! Their runtimes wrap the same functions as the hooks do, and come after the preloaded library: they are what
//! [`crate::next`] finds. Those that are linked into the program come before it, and need nothing.

use core::ffi::{CStr, c_char};

/// AddressSanitizer's runtime ends a program in which it is not the first library, unless it is told not to look.
/// It asks for options by this function, which a program may define; a program's own comes before this one.
///
/// Its order does not matter here: the program begins with it (`.preinit_array`), before any constructor.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn __asan_default_options() -> *const c_char {
    // Called before the constructor: nothing but a constant can be had.
    c"verify_asan_link_order=0".as_ptr()
}

/// True where ThreadSanitizer's runtime comes after the library. It takes sockets for something that orders threads: who has
/// received comes after who has sent. Of a connection in a ring it would see neither, and report races that there are not.
#[must_use]
pub fn orders_threads_by_sockets() -> bool {
    const INIT: &CStr = c"__tsan_init";
    // SAFETY: the name is a C string.
    let is_there = unsafe { !libc::dlsym(libc::RTLD_NEXT, INIT.as_ptr()).is_null() };
    if !is_there {
        // SAFETY: takes no arguments; it clears the error that the program would else see at its next dlerror().
        unsafe { libc::dlerror() };
    }
    is_there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_runtime_is_here() {
        assert!(!orders_threads_by_sockets());
        // SAFETY: takes no arguments.
        assert!(unsafe { libc::dlerror() }.is_null());
        // SAFETY: a C string.
        let options = unsafe { CStr::from_ptr(__asan_default_options()) };
        assert_eq!(options, c"verify_asan_link_order=0");
    }
}

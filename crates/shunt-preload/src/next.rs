//! The next definition of every hooked function: libc's, or that of another preloaded library.
//!
//! The constructor resolves all of them at once, so a call costs one relaxed load and a check for
//! null. A hook that is called before the constructor (an allocator that reads its configuration
//! while it starts) finds null and resolves its own entry; a `dlsym` that succeeds does not
//! allocate, so this can't recurse.

use core::ffi::CStr;
use core::mem;

use shunt_runtime::system::abi::*;
use shunt_runtime::system::next::{Absent, Function, Slot};
use shunt_runtime::{c_name, next_functions, next_slots};

use crate::hooks::for_each_hook;

/// The same of a symbol of a version.
///
/// # Safety
/// `version` is a C string.
pub unsafe fn versioned(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    type Signature = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: the slot has libc's `dlvsym`, which has this signature; the caller promises the version, and the name is a C string.
    unsafe {
        let dlvsym = mem::transmute::<*mut c_void, Signature>(slots::dlvsym.get());
        dlvsym(handle, name.as_ptr(), version)
    }
}

/// Ends the process where libc has no function that does.
fn end_now(status: c_int) -> ! {
    loop {
        // SAFETY: a number.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

macro_rules! next_table {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path;)*
     $(around fn $around:ident($($around_arg:ident: $around_ty:ty),*) -> $around_ret:ty = |$onward:ident| $body:expr;)*
     $(never fn $never:ident($($never_arg:ident: $never_ty:ty),*) = $end:path;)*
     $(some fn $some:ident($($some_arg:ident: $some_ty:ty),*) -> $some_ret:ty = $some_handler:path, where $table:path;)*
     $(tail $tail:ident = $before:path;)*) => {
        next_functions! { $(fn $name($($arg: $ty),*) -> $ret;)* $(fn $around($($around_arg: $around_ty),*) -> $around_ret;)* $(fn $some($($some_arg: $some_ty),*) -> $some_ret;)* }

        $(
            #[doc = concat!("The next `", stringify!($never), "`.")]
            ///
            /// # Safety
            /// As the C function.
            #[allow(non_snake_case, reason = "each has the name of its function")]
            #[inline]
            pub unsafe fn $never($($never_arg: $never_ty),*) -> ! {
                let target = slots::$never.get();
                // SAFETY: the slot has the next function of this name, whose signature the list gives; the caller keeps its contract.
                unsafe {
                    type Signature = unsafe extern "C-unwind" fn($($never_ty),*) -> !;
                    mem::transmute::<*mut c_void, Signature>(target)($($never_arg),*)
                }
            }
        )*

        /// One slot per hooked function.
        #[allow(non_upper_case_globals, reason = "each has the name of its function")]
        pub mod slots {
            use super::*;

            next_slots! { $(fn $name($($arg: $ty),*) -> $ret;)* $(fn $around($($around_arg: $around_ty),*) -> $around_ret;)* $(fn $some($($some_arg: $some_ty),*) -> $some_ret;)* }
            $(
                #[doc = concat!("Of `", stringify!($never), "`.")]
                pub static $never: Slot = {
                    unsafe extern "C-unwind" fn absent($($never_arg: $never_ty),*) -> ! {
                        end_now($($never_arg),*)
                    }
                    type Signature = unsafe extern "C-unwind" fn($($never_ty),*) -> !;
                    // SAFETY: a function pointer stays one; `next` casts it back before the call.
                    let absent = unsafe { mem::transmute::<Signature, Function>(absent) };
                    Slot::new(c_name!($never), absent)
                };
            )*
            $(
                #[doc = concat!("Of `", stringify!($tail), "`.")]
                pub static $tail: Slot = {
                    // Its arguments are the caller's to clean up, so a stand-in needs to name none.
                    unsafe extern "C-unwind" fn absent() -> c_int {
                        Absent::absent()
                    }
                    type Signature = unsafe extern "C-unwind" fn() -> c_int;
                    // SAFETY: a function pointer stays one; it is only ever jumped to.
                    let absent = unsafe { mem::transmute::<Signature, Function>(absent) };
                    Slot::new(c_name!($tail), absent)
                };
            )*
        }

        /// The slot of a hooked function.
        #[must_use]
        pub fn slot(name: &CStr) -> Option<&'static Slot> {
            $(if name == c_name!($name) { return Some(&slots::$name); })*
            $(if name == c_name!($around) { return Some(&slots::$around); })*
            $(if name == c_name!($some) { return Some(&slots::$some); })*
            $(if name == c_name!($never) { return Some(&slots::$never); })*
            $(if name == c_name!($tail) { return Some(&slots::$tail); })*
            None
        }

        /// Resolves every function; for the constructor.
        pub fn resolve_all() {
            $(let _ = slots::$name.get();)*
            $(let _ = slots::$around.get();)*
            $(let _ = slots::$some.get();)*
            $(let _ = slots::$never.get();)*
            $(let _ = slots::$tail.get();)*
        }
    };
}

for_each_hook!(next_table);

//! The next definition of every hooked function: libc's, or that of another preloaded library.
//!
//! The constructor resolves all of them at once, so a call costs one relaxed load and a check for
//! null. A hook that is called before the constructor (an allocator that reads its configuration
//! while it starts) finds null and resolves its own entry; a `dlsym` that succeeds does not
//! allocate, so this can't recurse.
//!
//! The functions here are `C-unwind`: most are cancellation points, and glibc cancels a thread by
//! unwinding its stack.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::{mem, ptr};

use crate::abi::*;
use crate::dynamic;
use crate::errno;
use crate::hooks::for_each_hook;

/// Any function; never called as this type.
type Function = unsafe extern "C-unwind" fn();

/// Where one function goes on to.
pub struct Slot {
    /// Null until resolved; then never null again.
    target: AtomicPtr<c_void>,
    name: &'static CStr,
    /// Stands in for a function that this libc does not have.
    absent: Function,
}

impl Slot {
    /// Where [`Self::get`] finds the address, for assembly.
    pub const TARGET: usize = core::mem::offset_of!(Self, target);

    const fn new(name: &'static CStr, absent: Function) -> Self {
        Self { target: AtomicPtr::new(ptr::null_mut()), name, absent }
    }

    /// The address of the next definition; never null.
    #[inline]
    #[must_use]
    pub fn get(&self) -> *mut c_void {
        // Relaxed: what the pointer points to is code, which was there before the pointer.
        let target = self.target.load(Ordering::Relaxed);
        if target.is_null() { self.resolve() } else { target }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let _keep = errno::KeepErrno::new();
        let mut target = symbol(libc::RTLD_NEXT, self.name);
        if target.is_null() {
            // SAFETY: takes no arguments; it clears the error that the program would else see at
            // its next dlerror().
            unsafe { libc::dlerror() };
            target = self.absent as *mut c_void;
        }
        self.target.store(target, Ordering::Relaxed);
        target
    }
}

/// What libc's own `dlsym` says, on behalf of this library: that of its name here is a hook. Null
/// where there is no such symbol; the error stays for dlerror(3).
pub(crate) fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut dlsym = FOUND.load(Ordering::Relaxed);
    if dlsym.is_null() {
        dlsym = dynamic::function(c"dlsym");
        if dlsym.is_null() {
            return ptr::null_mut();
        }
        FOUND.store(dlsym, Ordering::Relaxed);
    }
    type Signature = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the function of this name, of this signature. The name is a C string, and the handle
    // the caller's to vouch for, as the program does for its own.
    unsafe { mem::transmute::<*mut c_void, Signature>(dlsym)(handle, name.as_ptr()) }
}

/// The same of a symbol of a version.
///
/// # Safety
/// `version` is a C string.
pub(crate) unsafe fn versioned(
    handle: *mut c_void,
    name: &CStr,
    version: *const c_char,
) -> *mut c_void {
    type Signature = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: as above, of `dlvsym`.
    unsafe {
        let dlvsym = mem::transmute::<*mut c_void, Signature>(slots::dlvsym.get());
        dlvsym(handle, name.as_ptr(), version)
    }
}

/// What a function returns when the libc of this machine does not have it.
trait Absent {
    fn absent() -> Self;
}

macro_rules! absent_is_minus_one {
    ($($ty:ty)+) => {$(
        impl Absent for $ty {
            fn absent() -> Self {
                errno::fail(libc::ENOSYS)
            }
        }
    )+};
}
absent_is_minus_one!(c_int ssize_t c_long);

impl Absent for () {
    fn absent() {}
}

impl Absent for sighandler_t {
    fn absent() -> Self {
        errno::set(libc::ENOSYS);
        libc::SIG_ERR
    }
}

impl Absent for *mut c_void {
    fn absent() -> Self {
        errno::set(libc::ENOSYS);
        libc::MAP_FAILED
    }
}

impl Absent for *mut FILE {
    fn absent() -> Self {
        errno::set(libc::ENOSYS);
        ptr::null_mut()
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
    (functions $(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            #[doc = concat!("The next `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the C function.
            #[allow(non_snake_case, reason = "each has the name of its function")]
            #[inline]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                let target = slots::$name.get();
                // SAFETY: the slot holds the function of this name, or its stand-in, both of this
                // signature; the caller keeps the C function's contract.
                unsafe {
                    type Signature = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                    mem::transmute::<*mut c_void, Signature>(target)($($arg),*)
                }
            }
        )*
    };
    (slots $(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
            $(
                #[doc = concat!("Of `", stringify!($name), "`.")]
                pub static $name: Slot = {
                    unsafe extern "C-unwind" fn absent($(_: $ty),*) -> $ret {
                        Absent::absent()
                    }
                    type Signature = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                    // SAFETY: a function pointer stays one; `next` casts it back before the call.
                    let absent = unsafe { mem::transmute::<Signature, Function>(absent) };
                    Slot::new(c_name!($name), absent)
                };
            )*
    };
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path;)*
     $(never fn $never:ident($($never_arg:ident: $never_ty:ty),*) = $end:path;)*
     $(some fn $some:ident($($some_arg:ident: $some_ty:ty),*) -> $some_ret:ty = $some_handler:path, where $table:path;)*
     $(tail $tail:ident = $before:path;)*) => {
        next_table!(functions $(fn $name($($arg: $ty),*) -> $ret;)* $(fn $some($($some_arg: $some_ty),*) -> $some_ret;)*);

        $(
            #[doc = concat!("The next `", stringify!($never), "`.")]
            ///
            /// # Safety
            /// As the C function.
            #[allow(non_snake_case, reason = "each has the name of its function")]
            #[inline]
            pub unsafe fn $never($($never_arg: $never_ty),*) -> ! {
                let target = slots::$never.get();
                // SAFETY: as above.
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

            next_table!(slots $(fn $name($($arg: $ty),*) -> $ret;)* $(fn $some($($some_arg: $some_ty),*) -> $some_ret;)*);
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
            $(if name == c_name!($some) { return Some(&slots::$some); })*
            $(if name == c_name!($never) { return Some(&slots::$never); })*
            $(if name == c_name!($tail) { return Some(&slots::$tail); })*
            None
        }

        /// Resolves every function; for the constructor.
        pub fn resolve_all() {
            $(let _ = slots::$name.get();)*
            $(let _ = slots::$some.get();)*
            $(let _ = slots::$never.get();)*
            $(let _ = slots::$tail.get();)*
        }
    };
}

macro_rules! c_name {
    ($name:ident) => {
        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("an identifier has no NUL"),
        }
    };
}

for_each_hook!(next_table);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_functions_are_libcs_and_unknown_ones_say_enosys() {
        resolve_all();
        // SAFETY: takes no arguments.
        let fd = unsafe { epoll_create1(0) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is ours.
        assert_eq!(unsafe { close(fd) }, 0);

        unsafe extern "C-unwind" fn absent() -> c_int {
            Absent::absent()
        }
        type Signature = unsafe extern "C-unwind" fn() -> c_int;
        // SAFETY: cast back before it is called.
        let absent = unsafe { mem::transmute::<Signature, Function>(absent) };
        let slot = Slot::new(c"shunt_no_such_function", absent);
        errno::set(0);
        // SAFETY: resolved to the stand-in, of this signature.
        let result = unsafe { mem::transmute::<*mut c_void, Signature>(slot.get())() };
        assert_eq!((result, errno::get()), (-1, libc::ENOSYS));
    }
}

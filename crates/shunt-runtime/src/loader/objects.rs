//! Which program or library has a function.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{self, MaybeUninit};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::system::next::symbol;

/// The hook of this name.
pub fn own(name: &CStr) -> *mut c_void {
    match library() {
        handle if handle.is_null() => ptr::null_mut(),
        // SAFETY: a handle of dlopen(3).
        handle => unsafe { symbol(handle, name) },
    }
}

/// A handle of this library: a program's own functions come before it for all others. Null where
/// the loader does not find it by the name that it gives it itself.
fn library() -> *mut c_void {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let known = HANDLE.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let Some(info) = information(own as *const c_void) else { return ptr::null_mut() };
    type Signature = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: what dlsym(3) takes. The function of this name has this signature; the library's name lives as long as it does.
    let handle = unsafe {
        let dlopen = symbol(libc::RTLD_NEXT, c"dlopen");
        if dlopen.is_null() {
            return ptr::null_mut();
        }
        let dlopen = mem::transmute::<*mut c_void, Signature>(dlopen);
        dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
    };
    HANDLE.store(handle, Ordering::Relaxed);
    handle
}

fn information(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::uninit();
    // SAFETY: any address, and room for the answer, which is there when it says so.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

/// Where the program or library begins that has this address; null: none has.
pub fn object_of(address: *mut c_void) -> *mut c_void {
    information(address).map_or(ptr::null_mut(), |info| info.dli_fbase)
}

/// The same of libc, by a function that nobody wraps.
pub fn libc() -> *mut c_void {
    object_of(libc::gnu_get_libc_version as *mut c_void)
}

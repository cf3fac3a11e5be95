//! The dynamic loader, by which a program can find libc's functions past the hooks. What it is to find is
//! [`shunt_runtime::loader`].
//!
//! What the loader's functions do may depend on who calls them (`RUNPATH`, `RTLD_NEXT`), so they
//! are gone on to by a jump.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::ptr::{self, NonNull};

use crate::next;
use shunt_runtime::loader::{self, deep};
use shunt_runtime::system::abi::Arguments;
use shunt_runtime::system::next::symbol;

/// Before `dlopen(path, flags)`: what is called instead.
pub fn before_dlopen(arguments: Arguments) -> Option<NonNull<c_void>> {
    loader::before_dlopen(arguments).then(|| NonNull::new(open_deep as *mut c_void))?
}

/// `dlopen` of a library that binds past the hooks.
///
/// # Safety
/// As the C function.
unsafe extern "C-unwind" fn open_deep(path: *const c_char, flags: c_int) -> *mut c_void {
    type Signature = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the slot has the next `dlopen`, which has this signature; the arguments are the caller's.
    let load = || unsafe {
        let dlopen = mem::transmute::<*mut c_void, Signature>(next::slots::dlopen.get());
        dlopen(path, flags)
    };
    deep::open(load, next::slot)
}

/// Before `dlsym(handle, name)`: what is called instead.
pub fn before_dlsym([handle, name, _, caller]: Arguments) -> Option<NonNull<c_void>> {
    // The hook is in front of all others there.
    let is_asked = ptr::with_exposed_provenance_mut(handle) != libc::RTLD_DEFAULT;
    (is_asked && is_ours(handle, name, caller)).then(|| NonNull::new(find as *mut c_void))?
}

/// The same before `dlvsym(handle, name, version)`. No hook has a version, so the loader finds none by any handle.
pub fn before_dlvsym([handle, name, _, caller]: Arguments) -> Option<NonNull<c_void>> {
    is_ours(handle, name, caller).then(|| NonNull::new(find_versioned as *mut c_void))?
}

fn is_ours(handle: usize, name: usize, caller: usize) -> bool {
    let name = ptr::with_exposed_provenance::<c_char>(name);
    // SAFETY: null, or a C string by the function's contract.
    let slot = (!name.is_null()).then(|| next::slot(unsafe { CStr::from_ptr(name) })).flatten();
    let [handle, caller] = [handle, caller].map(ptr::with_exposed_provenance_mut);
    slot.is_some_and(|slot| loader::is_ours(slot, handle, caller))
}

/// `dlsym` of a hooked name.
///
/// # Safety
/// As the C function.
unsafe extern "C-unwind" fn find(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a C string, and a handle.
    let (name, found) = unsafe {
        let name = CStr::from_ptr(name);
        (name, symbol(handle, name))
    };
    loader::hook_for(found, name, next::slot(name))
}

/// `dlvsym` of a hooked name.
///
/// # Safety
/// As the C function.
unsafe extern "C-unwind" fn find_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    // SAFETY: the caller passes a C string, its version, and a handle.
    let (name, found) = unsafe {
        let name = CStr::from_ptr(name);
        (name, next::versioned(handle, name, version))
    };
    loader::hook_for(found, name, next::slot(name))
}

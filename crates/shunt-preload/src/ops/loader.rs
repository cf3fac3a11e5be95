//! The dynamic loader, by which a program can find libc's functions past the hooks.
//!
//! * `dlsym(dlopen("libc.so.6"), "recv")` and `dlsym(RTLD_NEXT, "recv")`, and `dlvsym` likewise, give the hook of that
//!   name, where the hook goes on to what they would give. Where it does not, as another library
//!   wraps that function, too, the caller is to have libc's: everything goes back to TCP.
//! * A library that is loaded with `RTLD_DEEPBIND`, or into a namespace of its own (`dlmopen`),
//!   binds to libc before the hooks. Everything goes back to TCP first.
//!
//! What the loader's functions do may depend on who calls them (`RUNPATH`, `RTLD_NEXT`), so they
//! are gone on to by a jump.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{self, MaybeUninit};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::next;
use shunt_runtime::contain::contain;
use shunt_runtime::fallback::before_unseen_calls;
use shunt_runtime::system::abi::Arguments;
use shunt_runtime::system::next::{Slot, symbol};

/// There is a namespace besides the program's, in which `RTLD_NEXT` means another libc.
static HAS_NAMESPACES: AtomicBool = AtomicBool::new(false);

/// Before `dlopen(path, flags)`.
pub fn before_dlopen([path, flags, ..]: Arguments) {
    before_loading(path, flags);
}

/// Before `dlmopen(namespace, path, flags)`.
pub fn before_dlmopen([namespace, path, flags, _]: Arguments) {
    if usize::try_from(libc::LM_ID_BASE) == Ok(namespace) {
        before_loading(path, flags);
    } else {
        HAS_NAMESPACES.store(true, Ordering::Relaxed);
        before_unseen_calls();
    }
}

fn before_loading(path: usize, flags: usize) {
    const DEEPBIND: usize = libc::RTLD_DEEPBIND.cast_unsigned() as usize;
    const NOLOAD: usize = libc::RTLD_NOLOAD.cast_unsigned() as usize;
    if path != 0 && flags & DEEPBIND != 0 && flags & NOLOAD == 0 {
        before_unseen_calls();
    }
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

/// Whether the hook of this name may have to be found, where the loader would find what is behind it.
fn is_ours(handle: usize, name: usize, caller: usize) -> bool {
    let handle = ptr::with_exposed_provenance_mut::<c_void>(handle);
    let name = ptr::with_exposed_provenance::<c_char>(name);
    if name.is_null() {
        return false;
    }
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(slot) = next::slot(name) else { return false };
    let behind = object_of(slot.get());
    // Of whoever asks for the next one the hook is in front, or libc's definition comes next.
    let is_next = handle == libc::RTLD_NEXT;
    if is_next && (HAS_NAMESPACES.load(Ordering::Relaxed) || behind != libc()) {
        return false;
    }
    // A library that wraps the function, and that the hook goes on to, is to have what it asks for.
    behind != object_of(ptr::with_exposed_provenance_mut(caller))
}

/// `dlsym` of a hooked name.
///
/// # Safety
/// As the C function.
unsafe extern "C-unwind" fn find(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a C string, and a handle.
    unsafe {
        let name = CStr::from_ptr(name);
        hook_for(symbol(handle, name), name)
    }
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
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the same of the version.
    hook_for(unsafe { next::versioned(handle, name, version) }, name)
}

/// What is found in the place of this.
fn hook_for(mut found: *mut c_void, name: &CStr) -> *mut c_void {
    contain(|| {
        if let Some(slot) = next::slot(name).filter(|_| !found.is_null()) {
            found = in_place_of(found, name, slot);
        }
    });
    found
}

/// The hook, where it goes on to what was found.
fn in_place_of(found: *mut c_void, name: &CStr, slot: &Slot) -> *mut c_void {
    let hook = own(name);
    if found == slot.get() && !hook.is_null() {
        return hook;
    }
    if found != hook && object_of(found) == libc() {
        before_unseen_calls();
    }
    found
}

/// The hook of this name.
fn own(name: &CStr) -> *mut c_void {
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
    let Some(info) = information(before_dlopen as *const c_void) else { return ptr::null_mut() };
    type Signature = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the function of this name, of this signature. The name lives as long as the library.
    let handle = unsafe {
        let dlopen = mem::transmute::<*mut c_void, Signature>(next::slots::dlopen.get());
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
fn object_of(address: *mut c_void) -> *mut c_void {
    information(address).map_or(ptr::null_mut(), |info| info.dli_fbase)
}

/// The same of libc, by a function that nobody wraps.
fn libc() -> *mut c_void {
    object_of(libc::gnu_get_libc_version as *mut c_void)
}

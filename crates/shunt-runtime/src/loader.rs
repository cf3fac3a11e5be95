//! What a program that finds functions by the dynamic loader is to find.
//!
//! * `dlsym(dlopen("libc.so.6"), "recv")` and `dlsym(RTLD_NEXT, "recv")`, and `dlvsym` likewise, give the hook of that
//!   name, where the hook goes on to what they would give. Where it does not, as another library
//!   wraps that function, too, the caller is to have libc's: everything goes back to TCP.
//! * A library that is loaded with `RTLD_DEEPBIND`, or into a namespace of its own (`dlmopen`),
//!   binds to libc before the hooks. Everything goes back to TCP first.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{self, MaybeUninit};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::contain::contain;
use crate::fallback::before_unseen_calls;
use crate::system::abi::Arguments;
use crate::system::next::{Slot, symbol};

/// There is a namespace besides the program's, in which `RTLD_NEXT` means another libc.
static HAS_NAMESPACES: AtomicBool = AtomicBool::new(false);

/// Before `dlopen(path, flags)`.
pub fn before_dlopen([path, flags, ..]: Arguments) {
    if binds_past_hooks(path, flags) {
        before_unseen_calls();
    }
}

/// Before `dlmopen(namespace, path, flags)`.
pub fn before_dlmopen([namespace, path, flags, _]: Arguments) {
    if usize::try_from(libc::LM_ID_BASE) == Ok(namespace) {
        before_dlopen([path, flags, 0, 0]);
    } else {
        HAS_NAMESPACES.store(true, Ordering::Relaxed);
        before_unseen_calls();
    }
}

/// Whether a library that is loaded so finds libc's functions before the hooks. One that is only looked for does not, and
/// the program itself, which has no path, is there.
const fn binds_past_hooks(path: usize, flags: usize) -> bool {
    const DEEPBIND: usize = libc::RTLD_DEEPBIND.cast_unsigned() as usize;
    const NOLOAD: usize = libc::RTLD_NOLOAD.cast_unsigned() as usize;
    path != 0 && flags & DEEPBIND != 0 && flags & NOLOAD == 0
}

/// Whether the hook of this slot may have to be found, where the loader would find what is behind it. `caller`: where the
/// question comes from.
#[must_use]
pub fn is_ours(slot: &Slot, handle: *mut c_void, caller: *mut c_void) -> bool {
    let behind = object_of(slot.get());
    // Of whoever asks for the next one the hook is in front, or libc's definition comes next.
    let is_next = handle == libc::RTLD_NEXT;
    if is_next && (HAS_NAMESPACES.load(Ordering::Relaxed) || behind != libc()) {
        return false;
    }
    // A library that wraps the function, and that the hook goes on to, is to have what it asks for.
    behind != object_of(caller)
}

/// What is found in the place of this by a name, of which the slot is that of its hook.
pub fn hook_for(mut found: *mut c_void, name: &CStr, slot: Option<&Slot>) -> *mut c_void {
    contain(|| {
        if let Some(slot) = slot.filter(|_| !found.is_null()) {
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
fn object_of(address: *mut c_void) -> *mut c_void {
    information(address).map_or(ptr::null_mut(), |info| info.dli_fbase)
}

/// The same of libc, by a function that nobody wraps.
fn libc() -> *mut c_void {
    object_of(libc::gnu_get_libc_version as *mut c_void)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::next::slots;

    #[test]
    fn a_library_that_is_loaded_deep_binds_past_the_hooks() {
        let flags = |flags: c_int| flags.cast_unsigned() as usize;
        let (lazy, deep) = (flags(libc::RTLD_LAZY), flags(libc::RTLD_LAZY | libc::RTLD_DEEPBIND));
        assert!(binds_past_hooks(1, deep) && !binds_past_hooks(1, lazy));
        assert!(!binds_past_hooks(0, deep), "the program itself");
        assert!(
            !binds_past_hooks(1, deep | flags(libc::RTLD_NOLOAD)),
            "it is there, or is not loaded"
        );
    }

    #[test]
    fn whoever_the_hook_goes_on_to_finds_what_the_loader_does() {
        let (here, there) = (before_dlopen as *mut c_void, slots::recv.get());
        assert_eq!(object_of(there), libc());
        assert_ne!(object_of(here), libc());
        assert!(is_ours(&slots::recv, libc::RTLD_NEXT, here));
        assert!(!is_ours(&slots::recv, libc::RTLD_NEXT, there));
        assert!(is_ours(&slots::recv, ptr::dangling_mut(), here));
        assert!(object_of(ptr::null_mut()).is_null());
    }

    #[test]
    fn what_is_no_hook_or_is_not_found_stays() {
        let found = slots::recv.get();
        assert_eq!(hook_for(found, c"recv", None), found);
        assert!(hook_for(ptr::null_mut(), c"recv", Some(&slots::recv)).is_null());
    }
}

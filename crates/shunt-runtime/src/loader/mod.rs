//! What a program that finds functions by the dynamic loader is to find.
//!
//! * `dlsym(dlopen("libc.so.6"), "recv")` and `dlsym(RTLD_NEXT, "recv")`, and `dlvsym` likewise, give the hook of that
//!   name, where the hook goes on to what they would give. Where it does not, as another library
//!   wraps that function, too, the caller is to have libc's: everything goes back to TCP.
//! * A library that is loaded with `RTLD_DEEPBIND` binds to libc before the hooks, and is led to them afterwards ([`deep`]).
//! * One that is loaded into a namespace of its own (`dlmopen`) has a libc of its own. Everything goes back to TCP first.

pub mod deep;
mod objects;

use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::contain::contain;
use crate::fallback::before_unseen_calls;
use crate::system::abi::Arguments;
use crate::system::next::Slot;
use objects::{libc, object_of, own};

/// There is a namespace besides the program's, in which `RTLD_NEXT` means another libc.
static HAS_NAMESPACES: AtomicBool = AtomicBool::new(false);

/// Before `dlopen(path, flags)`. True where [`deep::open`] is to do it instead.
#[must_use]
pub fn before_dlopen([path, flags, ..]: Arguments) -> bool {
    if !binds_past_hooks(path, flags) {
        return false;
    }
    // SAFETY: not null, so a C string by the function's contract.
    let path = unsafe { CStr::from_ptr(ptr::with_exposed_provenance::<c_char>(path)) };
    if is_found_from_anywhere(path) && !HAS_NAMESPACES.load(Ordering::Relaxed) {
        return true;
    }
    before_unseen_calls();
    false
}

/// Before `dlmopen(namespace, path, flags)`.
pub fn before_dlmopen([namespace, path, flags, _]: Arguments) {
    let is_own = usize::try_from(libc::LM_ID_BASE) != Ok(namespace);
    if is_own {
        HAS_NAMESPACES.store(true, Ordering::Relaxed);
    }
    if is_own || binds_past_hooks(path, flags) {
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

/// Whether the loader finds this library whoever asks for it: it looks for one without a directory where the caller's `RUNPATH`
/// says, and takes `$ORIGIN` for the caller's directory.
fn is_found_from_anywhere(path: &CStr) -> bool {
    let path = path.to_bytes();
    path.contains(&b'/') && !path.contains(&b'$')
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

#[cfg(test)]
mod tests {
    use core::ffi::c_int;

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
    fn a_library_is_loaded_for_another_caller_where_that_makes_no_difference() {
        assert!(is_found_from_anywhere(c"/usr/lib/php/ctype.so") && is_found_from_anywhere(c"./a"));
        assert!(!is_found_from_anywhere(c"libm.so.6") && !is_found_from_anywhere(c"$ORIGIN/a"));
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

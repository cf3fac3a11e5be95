//! Points of the library, where something may be made to happen: functions that a library exports that was
//! built with the feature `points`, and no other.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};

type Plan = unsafe extern "C" fn(*const c_char) -> c_int;
type Passed = unsafe extern "C" fn(*const c_char) -> c_ulong;
type Names = unsafe extern "C" fn() -> *const c_char;
type Contained = unsafe extern "C" fn() -> c_ulong;

fn find(name: &CStr) -> Option<*mut libc::c_void> {
    // SAFETY: a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// Says what happens at which points from now on: `recv.taken=panic@1,sleep.armed=signal:10`. False without
/// a library that has them.
///
/// # Panics
/// When the text makes no sense.
pub fn plan(text: &str) -> bool {
    let Some(at) = find(c"shunt_points") else { return false };
    let what = CString::new(text).expect("no zero in it");
    // SAFETY: the function of this name has this signature.
    let rc = unsafe { std::mem::transmute::<*mut libc::c_void, Plan>(at)(what.as_ptr()) };
    assert_eq!(rc, 0, "{text}");
    true
}

/// How often a point was passed since the last [`plan`].
#[must_use]
pub fn passed(point: &str) -> u64 {
    let (Some(at), Ok(point)) = (find(c"shunt_points_passed"), CString::new(point)) else {
        return 0;
    };
    // SAFETY: the function of this name has this signature; the name is a C string.
    unsafe { std::mem::transmute::<*mut libc::c_void, Passed>(at)(point.as_ptr()) }
}

/// The names of all points; none without such a library.
#[must_use]
pub fn names() -> Vec<String> {
    let Some(at) = find(c"shunt_points_names") else { return Vec::new() };
    // SAFETY: the function of this name has this signature; it returns a C string that stays where it is.
    let text = unsafe { CStr::from_ptr(std::mem::transmute::<*mut libc::c_void, Names>(at)()) };
    text.to_string_lossy().split(',').map(str::to_owned).collect()
}

/// Panics of this process that the library has contained.
#[must_use]
pub fn contained() -> u64 {
    let Some(at) = find(c"shunt_points_contained") else { return 0 };
    // SAFETY: the function of this name has this signature.
    unsafe { std::mem::transmute::<*mut libc::c_void, Contained>(at)() }
}

//! The objects that are loaded, as `dl_iterate_phdr` of libc tells of them: while it does, none comes and none goes.

use core::ffi::{c_int, c_void};
use core::mem;
use core::ops::Range;
use core::ptr;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use libc::{PT_DYNAMIC, PT_GNU_RELRO, PT_LOAD, dl_phdr_info};

use crate::system::dynamic::{Import, Tables, function};

/// A program or library, while [`each`] lasts.
pub struct Loaded<'a> {
    info: &'a dl_phdr_info,
    tables: Tables,
}

impl Loaded<'_> {
    /// What tells it from all others that are loaded now.
    #[must_use]
    pub fn id(&self) -> usize {
        self.info.dlpi_phdr.addr()
    }

    /// It says where libraries are looked for that others need.
    #[must_use]
    pub const fn has_path(&self) -> bool {
        self.tables.has_path()
    }

    /// Functions of others that it has the addresses of.
    pub fn imports(&self) -> impl Iterator<Item = Import<'_>> {
        self.tables.imports()
    }

    /// All that it takes up.
    #[must_use]
    pub fn extent(&self) -> Range<usize> {
        self.parts(PT_LOAD)
            .reduce(|all, part| all.start.min(part.start)..all.end.max(part.end))
            .unwrap_or_default()
    }

    /// Where it can only be read once it is loaded.
    #[must_use]
    pub fn read_only(&self) -> Option<Range<usize>> {
        self.parts(PT_GNU_RELRO).next()
    }

    fn parts(&self, kind: u32) -> impl Iterator<Item = Range<usize>> {
        parts(self.info, kind)
    }
}

fn parts(info: &dl_phdr_info, kind: u32) -> impl Iterator<Item = Range<usize>> {
    // SAFETY: the loader's table of so many headers.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let place = |value: u64| usize::try_from(value).unwrap_or(0);
    headers.iter().filter(move |header| header.p_type == kind).map(move |header| {
        let begin = place(info.dlpi_addr).wrapping_add(place(header.p_vaddr));
        begin..begin.wrapping_add(place(header.p_memsz))
    })
}

/// Has `look` see all of them, the program first. It must not wait for other threads, so not allocate: one that has the lock of an
/// allocator may be about to ask the same. How many objects were unloaded so far; `None`: nobody knows all of them.
pub fn each(mut look: impl FnMut(&Loaded<'_>)) -> Option<u64> {
    type Visit = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;
    type Iterate = unsafe extern "C" fn(Visit, *mut c_void) -> c_int;
    struct State<'a> {
        look: &'a mut dyn FnMut(&Loaded<'_>),
        unloaded: u64,
        panic: Option<Box<dyn Any + Send>>,
    }
    unsafe extern "C" fn visit(info: *mut dl_phdr_info, _: usize, state: *mut c_void) -> c_int {
        // SAFETY: the loader's own, and what `each` has passed.
        let (info, state) = unsafe { (&*info, &mut *state.cast::<State<'_>>()) };
        state.unloaded = info.dlpi_subs;
        let seen = catch_unwind(AssertUnwindSafe(|| {
            let dynamic = parts(info, PT_DYNAMIC).next();
            let base = usize::try_from(info.dlpi_addr).unwrap_or(0);
            let tables = dynamic.and_then(|dynamic| {
                // SAFETY: its dynamic section; it stays loaded while the loader tells of it.
                unsafe { Tables::of(base, ptr::with_exposed_provenance(dynamic.start)) }
            });
            if let Some(tables) = tables {
                (state.look)(&Loaded { info, tables });
            }
        }));
        state.panic = seen.err();
        c_int::from(state.panic.is_some())
    }
    let iterate = function(c"dl_iterate_phdr");
    if iterate.is_null() {
        return None;
    }
    let mut state = State { look: &mut look, unloaded: 0, panic: None };
    // SAFETY: the function of this name has this signature; the state outlives the call.
    let result = unsafe {
        let iterate = mem::transmute::<*mut c_void, Iterate>(iterate);
        iterate(visit, (&raw mut state).cast())
    };
    if let Some(panic) = state.panic {
        resume_unwind(panic);
    }
    (result == 0).then_some(state.unloaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_there_with_what_it_imports() {
        let mut finds = 0;
        let mut first = None;
        let here = function as *const () as usize;
        let mut has_dlsym = false;
        each(|object| {
            let extent = object.extent();
            first.get_or_insert(extent.contains(&here));
            for import in object.imports() {
                finds += 1;
                // SAFETY: a place of an object that is there.
                let found = unsafe { import.place.read() };
                let expected = function(import.name).addr();
                if import.name == c"dlsym" && extent.contains(&here) && !extent.contains(&found) {
                    assert_eq!(found, expected);
                    has_dlsym = true;
                }
            }
        })
        .unwrap();
        assert_eq!(first, Some(true), "the program comes first");
        assert!(finds > 10 && has_dlsym);
    }
}

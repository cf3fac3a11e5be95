//! Symbols of libc, read from its own tables.
//!
//! All that libc has for that purpose is a hook of this library: called from here, it would be found here. So the
//! first symbol, `dlsym`, is looked for where the loader does: in the table that the GNU hash of its name
//! leads to. What is loaded is known by the loader's list for debuggers: other preloaded libraries have a
//! `dl_iterate_phdr` of their own, and are not ready for it at the start.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use libc::Elf64_Sym;

/// A loaded object (`struct link_map` of link.h).
#[repr(C)]
struct Object {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const Object,
    before: *const Object,
}

/// The beginning of `struct r_debug` of link.h.
#[repr(C)]
struct Loaded {
    version: c_int,
    first: *const Object,
}

unsafe extern "C" {
    /// What the loader has loaded, in the order in which it came.
    #[link_name = "_r_debug"]
    static LOADED: Loaded;
}

/// An entry of the dynamic section.
#[repr(C)]
pub(super) struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_RPATH: i64 = 15;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// In a symbol's information: it is a function.
const STT_FUNC: u8 = 2;
/// Relocations that are the address of a symbol: `R_X86_64_64`, `R_X86_64_GLOB_DAT`, `R_X86_64_JUMP_SLOT`.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u32; 3] = [1, 6, 7];
/// The same: `R_AARCH64_ABS64`, `R_AARCH64_GLOB_DAT`, `R_AARCH64_JUMP_SLOT`.
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u32; 3] = [257, 1025, 1026];
/// In a symbol's version: there is another one of the same name that is meant where none is asked for.
const HIDDEN: u16 = 0x8000;

/// The dynamic section of a loaded object, as far as it is of use here. The tables live as long as the object.
pub(super) struct Tables {
    base: usize,
    symbols: *const Elf64_Sym,
    names: *const c_char,
    hash: *const u32,
    /// Null: the symbols have no versions.
    versions: *const u16,
    /// Relocations with a symbol or an addend each, and those of functions that are called: where, and how many.
    relocations: [(*const Relocation, usize); 2],
    /// It says where what it needs is looked for first, also for what those need in turn.
    has_path: bool,
}

/// A relocation (`Elf64_Rela` of elf.h).
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// A place in an object that has the address of a function of another one, once the loader has found it.
pub struct Import<'a> {
    /// Of the function.
    pub name: &'a CStr,
    /// Where the address stands.
    pub place: *mut usize,
}

impl Tables {
    /// # Safety
    /// The dynamic section is that of an object, loaded at `base`, that stays loaded.
    pub(super) unsafe fn of(base: usize, mut entry: *const Dynamic) -> Option<Self> {
        // The loader has made addresses of the values, or has left them as they are in the file.
        let place = |value: u64| {
            let value = usize::try_from(value).unwrap_or(0);
            if value < base { value.wrapping_add(base) } else { value }
        };
        let [mut symbols, mut names, mut hash, mut versions] = [0; 4];
        let mut relocations = [(0, 0); 2];
        let mut has_path = false;
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(0) / size_of::<Relocation>();
        // SAFETY: the section ends with an entry that says so.
        while let Dynamic { tag, value } = unsafe { &*entry }
            && *tag != DT_NULL
        {
            match *tag {
                DT_SYMTAB => symbols = place(*value),
                DT_STRTAB => names = place(*value),
                DT_GNU_HASH => hash = place(*value),
                DT_VERSYM => versions = place(*value),
                DT_RELA => relocations[0].0 = place(*value),
                DT_RELASZ => relocations[0].1 = count(*value),
                DT_JMPREL => relocations[1].0 = place(*value),
                DT_PLTRELSZ => relocations[1].1 = count(*value),
                DT_RPATH => has_path = true,
                _ => {}
            }
            // SAFETY: this was not the entry that ends the section, so one follows.
            entry = unsafe { entry.add(1) };
        }
        let is_whole = symbols != 0 && names != 0 && hash != 0;
        is_whole.then_some(Self {
            base,
            symbols: ptr::with_exposed_provenance(symbols),
            names: ptr::with_exposed_provenance(names),
            hash: ptr::with_exposed_provenance(hash),
            versions: ptr::with_exposed_provenance(versions),
            relocations: relocations.map(|(at, n)| (ptr::with_exposed_provenance(at), n)),
            has_path,
        })
    }

    /// See [`Self::has_path`].
    pub(super) const fn has_path(&self) -> bool {
        self.has_path
    }

    /// What the object has from others.
    pub(super) fn imports(&self) -> impl Iterator<Item = Import<'_>> {
        let tables = self.relocations.into_iter().filter(|(at, n)| !at.is_null() && *n > 0);
        // SAFETY: the tables as the linker has made them, which live as long as the object.
        let all = tables.flat_map(|(at, n)| unsafe { core::slice::from_raw_parts(at, n) });
        all.filter_map(|relocation| {
            let symbol = usize::try_from(relocation.info >> 32).ok()?;
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is the kind")]
            let is_address = ADDRESSES.contains(&(relocation.info as u32));
            if symbol == 0 || !is_address || relocation.addend != 0 {
                return None;
            }
            // SAFETY: the number of a symbol, and the place of its name.
            let (symbol, name) = unsafe {
                let symbol = &*self.symbols.add(symbol);
                (symbol, CStr::from_ptr(self.names.add(symbol.st_name as usize)))
            };
            // Its own ones are no imports.
            let is_import = symbol.st_shndx == 0;
            let place = self.base.wrapping_add(usize::try_from(relocation.offset).ok()?);
            is_import.then(|| Import { name, place: ptr::with_exposed_provenance_mut(place) })
        })
    }

    /// The function of this name, in the version that is meant where none is asked for.
    fn function(&self, name: &CStr) -> Option<*mut c_void> {
        const WORDS_OF_HEADER: usize = 4;
        let wanted = hash(name);
        // SAFETY: the table as the linker has made it: its header, a filter, buckets, chains. An index
        // from there is that of a symbol; a name is where its symbol says.
        unsafe {
            let word = |at: usize| *self.hash.add(at) as usize;
            let [buckets, first, filter] = [word(0), word(1), word(2)];
            let buckets_at = WORDS_OF_HEADER + filter * (size_of::<usize>() / size_of::<u32>());
            let mut index = word(buckets_at + (wanted as usize).checked_rem(buckets)?);
            while index >= first && index != 0 {
                let found = *self.hash.add(buckets_at + buckets + index - first);
                let symbol = &*self.symbols.add(index);
                if found | 1 == wanted | 1
                    && symbol.st_shndx != 0
                    && symbol.st_info & 0xf == STT_FUNC
                    && CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name
                    && (self.versions.is_null() || *self.versions.add(index) & HIDDEN == 0)
                {
                    let at = self.base.wrapping_add(usize::try_from(symbol.st_value).ok()?);
                    return Some(ptr::with_exposed_provenance_mut(at));
                }
                // The last of a chain.
                if found & 1 != 0 {
                    break;
                }
                index += 1;
            }
            None
        }
    }
}

fn hash(name: &CStr) -> u32 {
    let add = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.to_bytes().iter().fold(5381, add)
}

impl Object {
    /// True for libc, and for the library in which the loader's functions were before glibc 2.34.
    fn is_libc(&self) -> bool {
        if self.name.is_null() {
            return false;
        }
        // SAFETY: the loader's name of the object is a C string.
        let path = unsafe { CStr::from_ptr(self.name) }.to_bytes();
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        name.starts_with(b"libc.so.") || name.starts_with(b"libdl.so.")
    }
}

/// libc's function of this name; null: there is none.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the loader's list of what is loaded. The search ends at libc, which came at the start with all that
    // is in front of it: that is not unloaded.
    unsafe {
        let mut object = LOADED.first;
        while let Some(this) = object.as_ref() {
            let tables = if this.is_libc() { Tables::of(this.base, this.dynamic) } else { None };
            if let Some(found) = tables.and_then(|tables| tables.function(name)) {
                return found;
            }
            object = this.next;
        }
    }
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the loader finds, of names in all kinds of chains; with several versions, the one that is meant.
    #[test]
    fn what_is_found_is_what_the_loader_finds() {
        for name in [
            c"dlsym",
            c"dlvsym",
            c"dlopen",
            c"recv",
            c"send",
            c"fork",
            c"posix_spawn",
            c"pthread_cond_wait",
            c"__register_atfork",
            c"qsort",
        ] {
            // SAFETY: a C string.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!(function(name), expected, "{name:?}");
        }
        for name in [c"no_such_function", c"dlsy", c"", c"environ"] {
            assert!(function(name).is_null(), "{name:?}");
        }
    }
}

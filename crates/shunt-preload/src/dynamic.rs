//! Symbols of libc, read from its own tables.
//!
//! All that libc has for that purpose is a hook of this library: called from here, it would be found here. So the
//! first symbol, `dlsym`, is looked for where the loader does: in the table that the GNU hash of its name
//! leads to.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use libc::{Elf64_Sym, dl_phdr_info};

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// In a symbol's information: it is a function.
const STT_FUNC: u8 = 2;
/// In a symbol's version: there is another one of the same name that is meant where none is asked for.
const HIDDEN: u16 = 0x8000;

/// The dynamic section of a loaded object, as far as it is of use here. The tables live as long as the object.
struct Tables {
    base: usize,
    symbols: *const Elf64_Sym,
    names: *const c_char,
    hash: *const u32,
    /// Null: the symbols have no versions.
    versions: *const u16,
}

impl Tables {
    /// # Safety
    /// `info` is of an object that is loaded, and stays so.
    unsafe fn of(info: &dl_phdr_info) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: the loader gives as many headers as it says.
        let headers =
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let section = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let at = base.wrapping_add(usize::try_from(section.p_vaddr).ok()?);
        let mut entry = ptr::with_exposed_provenance::<Dynamic>(at);
        // The loader has made addresses of the values, or has left them as they are in the file.
        let place = |value: u64| {
            let value = usize::try_from(value).unwrap_or(0);
            if value < base { value.wrapping_add(base) } else { value }
        };
        let [mut symbols, mut names, mut hash, mut versions] = [0; 4];
        // SAFETY: the section ends with an entry that says so.
        while let Dynamic { tag, value } = unsafe { &*entry }
            && *tag != DT_NULL
        {
            match *tag {
                DT_SYMTAB => symbols = place(*value),
                DT_STRTAB => names = place(*value),
                DT_GNU_HASH => hash = place(*value),
                DT_VERSYM => versions = place(*value),
                _ => {}
            }
            // SAFETY: as above: this was not the last one.
            entry = unsafe { entry.add(1) };
        }
        let is_whole = symbols != 0 && names != 0 && hash != 0;
        is_whole.then_some(Self {
            base,
            symbols: ptr::with_exposed_provenance(symbols),
            names: ptr::with_exposed_provenance(names),
            hash: ptr::with_exposed_provenance(hash),
            versions: ptr::with_exposed_provenance(versions),
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

/// True for libc, and for the library in which the loader's functions were before glibc 2.34.
fn is_libc(info: &dl_phdr_info) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: the loader's name of the object is a C string.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libc.so.") || name.starts_with(b"libdl.so.")
}

/// A search of what is loaded.
struct Search<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

/// libc's function of this name; null: there is none.
pub fn function(name: &CStr) -> *mut c_void {
    unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the loader's information, and the search below, for this call.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<'_>>()) };
        if is_libc(info) {
            // SAFETY: libc is not unloaded.
            let tables = unsafe { Tables::of(info) };
            search.found =
                tables.and_then(|tables| tables.function(search.name)).unwrap_or(ptr::null_mut());
        }
        c_int::from(!search.found.is_null())
    }
    let mut search = Search { name, found: ptr::null_mut() };
    // SAFETY: the callback is called with this search, before the call returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
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

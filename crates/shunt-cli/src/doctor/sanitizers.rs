//! Programs that are built with a sanitizer whose runtime is a shared library.

use std::fs::File;
use std::path::Path;

use object::elf::{DT_NEEDED, FileHeader64, SHN_UNDEF, SHT_DYNSYM};
use object::read::elf::{Dyn, FileHeader, Sym};
use object::{Endianness, ReadCache};

use super::finding::Finding;

/// The variable with AddressSanitizer's options, and the one that lets it start where it is not the first library.
pub const VARIABLE: &str = "ASAN_OPTIONS";
/// See [`VARIABLE`].
pub const ANY_ORDER: &str = "verify_asan_link_order=0";

/// By which a program gives itself options; the library's are not asked for then.
const OWN_OPTIONS: &[u8] = b"__asan_default_options";

/// What a program is built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sanitizer {
    Address { own_options: bool },
    Thread,
}

fn is_address(library: &[u8]) -> bool {
    library.starts_with(b"libasan.so") || library.starts_with(b"libclang_rt.asan")
}

fn is_thread(library: &[u8]) -> bool {
    library.starts_with(b"libtsan.so") || library.starts_with(b"libclang_rt.tsan")
}

fn look(program: &Path) -> Option<Sanitizer> {
    // Read in parts: a program may be large, and this is done at each `shunt run`.
    let data = ReadCache::new(File::open(program).ok()?);
    let found = || -> object::Result<Option<Sanitizer>> {
        let header = FileHeader64::<Endianness>::parse(&data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &data)?;
        let Some((dynamic, strings)) = sections.dynamic(endian, &data)? else { return Ok(None) };
        let strings = sections.strings(endian, &data, strings)?;
        let needs = |is_it: fn(&[u8]) -> bool| {
            dynamic.iter().any(|entry| {
                entry.tag(endian) == DT_NEEDED && entry.string(endian, strings).is_ok_and(is_it)
            })
        };
        if needs(is_thread) {
            return Ok(Some(Sanitizer::Thread));
        }
        if !needs(is_address) {
            return Ok(None);
        }
        let symbols = sections.symbols(endian, &data, SHT_DYNSYM)?;
        let own_options = symbols.iter().any(|symbol| {
            symbol.st_shndx(endian) != SHN_UNDEF
                && symbol.name(endian, symbols.strings()).is_ok_and(|name| name == OWN_OPTIONS)
        });
        Ok(Some(Sanitizer::Address { own_options }))
    };
    found().ok().flatten()
}

/// What has to be said of a program.
pub fn examine(program: &Path) -> Option<Finding> {
    let name = program.display();
    Some(match look(program)? {
        Sanitizer::Address { own_options: false } => Finding::good(format!(
            "{name} is built with AddressSanitizer, which the library lets come after itself"
        )),
        Sanitizer::Address { own_options: true } => Finding::warning(format!(
            "{name} is built with AddressSanitizer and has options of its own (__asan_default_options): \
             `shunt run` adds {ANY_ORDER} to {VARIABLE}, without which it would not start; where \
             another program starts it, set that there"
        )),
        Sanitizer::Thread => Finding::obstacle(format!(
            "{name} is built with ThreadSanitizer, which would take threads that hand each other data over \
             a shunted connection for a race; use a build without it"
        )),
    })
}

/// True for a program that does not start with the library unless [`VARIABLE`] says [`ANY_ORDER`].
#[must_use]
pub fn needs_options(program: &Path) -> bool {
    look(program) == Some(Sanitizer::Address { own_options: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_none() {
        for path in ["/proc/self/exe", "/bin/sh", "/etc/passwd", "/", "/no/such/file"] {
            assert_eq!(look(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn runtimes_are_known_by_their_names() {
        assert!(is_address(b"libasan.so.8") && is_address(b"libclang_rt.asan-x86_64.so"));
        assert!(is_thread(b"libtsan.so.2") && is_thread(b"libclang_rt.tsan-x86_64.so"));
        assert!(!is_address(b"libtsan.so.2") && !is_thread(b"libubsan.so.1") && !is_address(b"x"));
    }
}

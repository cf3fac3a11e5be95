//! Versions of glibc: the one that a library needs, and the one that a C library offers.
//!
//! The loader ends a program when a preloaded library needs a newer version than the program's own
//! glibc. So `shunt` has to know both before.

use std::fs;
use std::path::Path;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

/// Such as 2.34.
pub type Version = (u32, u32);

/// What symbols of glibc are marked with.
const MARK: &[u8] = b"GLIBC_";

/// The newest version of glibc that a library or program needs; `None`: it is no such file, or needs none.
#[must_use]
pub fn needed(file: &Path) -> Option<Version> {
    let data = fs::read(file).ok()?;
    let newest = || -> object::Result<Option<Version>> {
        let header = FileHeader64::<Endianness>::parse(&*data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &*data)?;
        let Some((mut files, link)) = sections.gnu_verneed(endian, &*data)? else {
            return Ok(None);
        };
        let names = sections.strings(endian, &*data, link)?;
        let mut newest = None;
        while let Some((_, mut versions)) = files.next()? {
            while let Some(version) = versions.next()? {
                newest = newest.max(parse(version.name(endian, names)?));
            }
        }
        Ok(newest)
    };
    newest().ok().flatten()
}

/// The newest version that a C library offers; `None`: it is no glibc.
#[must_use]
pub fn offered(library: &Path) -> Option<Version> {
    let data = fs::read(library).ok()?;
    let newest = || -> object::Result<Option<Version>> {
        let header = FileHeader64::<Endianness>::parse(&*data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &*data)?;
        let Some((mut all, link)) = sections.gnu_verdef(endian, &*data)? else { return Ok(None) };
        let names = sections.strings(endian, &*data, link)?;
        let mut newest = None;
        while let Some((_, mut version)) = all.next()? {
            // The first name is its own; others are those that it builds on.
            if let Some(name) = version.next()? {
                newest = newest.max(parse(name.name(endian, names)?));
            }
        }
        Ok(newest)
    };
    newest().ok().flatten()
}

/// `GLIBC_2.34`; what is private (`GLIBC_PRIVATE`) has no number.
fn parse(name: &[u8]) -> Option<Version> {
    let (major, minor) = std::str::from_utf8(name.strip_prefix(MARK)?).ok()?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(parse(b"GLIBC_2.34"), Some((2, 34)));
        assert_eq!(parse(b"GLIBC_2.2.5"), Some((2, 2)));
        for other in ["GLIBC_PRIVATE", "GCC_3.0", "GLIBC_2", "GLIBC_x.y"] {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn this_program_needs_no_more_than_its_c_library_offers() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut files = maps.lines().filter_map(|l| l.split_whitespace().nth(5));
        let libc = files.find(|f| f.ends_with("/libc.so.6")).unwrap();
        let (needed, offered) = (needed(Path::new("/proc/self/exe")), offered(Path::new(libc)));
        assert!(needed.is_some() && needed <= offered, "{needed:?} {offered:?}");
        assert_eq!(super::offered(Path::new("/proc/self/exe")), None);
        assert_eq!(super::needed(Path::new("/etc/passwd")), None);
    }
}

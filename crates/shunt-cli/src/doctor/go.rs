//! Programs that hold Go code: Go makes its system calls by itself, so the library sees none of them.

use std::fs::File;
use std::path::Path;

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, elf};

/// In which Go's linker says how the program was built; `go version` reads it.
const BUILD_INFO: &[u8] = b".go.buildinfo";
/// Owner of the note with Go's build id, which stays where the sections' names are stripped.
const NOTE: &[u8] = b"Go";

/// True for a program that holds Go code, statically linked or not.
#[must_use]
pub fn is_in(program: &Path) -> bool {
    let Ok(file) = File::open(program) else { return false };
    // Read in parts: a program may be large.
    let data = ReadCache::new(file);
    look(&data).unwrap_or(false)
}

fn look(data: &ReadCache<File>) -> object::Result<bool> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    if sections.section_by_name(endian, BUILD_INFO).is_some() {
        return Ok(true);
    }
    for segment in header.program_headers(endian, data)? {
        let Some(mut notes) = segment.notes(endian, data)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == NOTE {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// This test program with other sections: none but one of this name.
    pub fn program_with_section(name: &str) -> Vec<u8> {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        let names = format!("\0{name}\0.shstrtab\0");
        let strings = bytes.len();
        bytes.extend(names.as_bytes());
        let table = bytes.len();
        // Null, the section, the table of names: sh_name, sh_type, flags, address, offset, size, and the rest.
        for (at, kind, size) in [(0_u32, 0_u32, 0), (1, 1, 1), (2 + len(name), 3, len(&names))] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&at.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&(strings as u64).to_le_bytes());
            header[32..40].copy_from_slice(&u64::from(size).to_le_bytes());
            bytes.extend(header);
        }
        bytes[40..48].copy_from_slice(&(table as u64).to_le_bytes());
        bytes[58..64].copy_from_slice(&[64, 0, 3, 0, 2, 0]);
        bytes
    }

    fn len(text: &str) -> u32 {
        u32::try_from(text.len()).unwrap()
    }

    #[test]
    fn go_is_known_by_what_its_linker_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        for (name, expected) in [(".go.buildinfo", true), (".comment", false)] {
            std::fs::write(&path, program_with_section(name)).unwrap();
            assert_eq!(is_in(&path), expected, "{name}");
        }
        for other in ["/proc/self/exe", "/bin/sh", "/etc/passwd", "/", "/no/such/file"] {
            assert!(!is_in(Path::new(other)), "{other}");
        }
    }
}

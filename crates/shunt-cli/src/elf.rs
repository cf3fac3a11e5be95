//! The part of ELF that says whether the dynamic loader will preload a library into a program.

use std::fs::File;
use std::io::{self, Read};

use object::elf::{FileHeader64, Machine};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};

/// What kind of executable a file is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `#!` with this interpreter and argument.
    Script(String, Option<String>),
    /// Started by this dynamic loader.
    Dynamic(String),
    /// Needs no dynamic loader.
    Static,
    /// For another architecture or word length.
    Foreign,
    /// No format that the kernel runs by itself.
    Unknown,
}

/// Longest first line of a script that the kernel reads (`BINPRM_BUF_SIZE`), which also holds the
/// head of an ELF file.
const HEAD: u64 = 256;

#[cfg(target_arch = "x86_64")]
const MACHINE: Machine = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: Machine = object::elf::EM_AARCH64;

/// Looks at a file.
///
/// # Errors
/// Those of reading it.
pub fn inspect(mut file: &File) -> io::Result<Kind> {
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    Ok(match FileKind::parse(&*head) {
        Ok(FileKind::Elf32) => Kind::Foreign,
        // Read in parts: a program may be large.
        Ok(FileKind::Elf64) => loader(&ReadCache::new(&mut file)).unwrap_or(Kind::Unknown),
        _ => Kind::Unknown,
    })
}

fn script(line: &[u8]) -> Kind {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut parts = line.trim().splitn(2, [' ', '\t']);
    match parts.next() {
        Some(interpreter) if !interpreter.is_empty() => {
            let argument = parts.next().map(|a| a.trim().to_owned());
            Kind::Script(interpreter.to_owned(), argument)
        }
        _ => Kind::Unknown,
    }
}

/// Follows the program headers to PT_INTERP. An error: the file is no sound ELF file.
fn loader(data: &ReadCache<&mut &File>) -> object::Result<Kind> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    if endian != Endianness::Little || header.e_machine(endian) != MACHINE {
        return Ok(Kind::Foreign);
    }
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            return Ok(Kind::Dynamic(String::from_utf8_lossy(path).into_owned()));
        }
    }
    Ok(Kind::Static)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use object::elf::{PT_INTERP, PT_LOAD, ProgramType};

    use super::*;

    fn of(bytes: &[u8]) -> Kind {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        inspect(&file).unwrap()
    }

    /// A minimal ELF file with these program headers (type, file offset, length).
    fn elf(headers: &[(ProgramType, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(headers.len()).unwrap().to_le_bytes());
        for (kind, offset, len) in headers {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.0.to_le_bytes());
            header[8..16].copy_from_slice(&offset.to_le_bytes());
            header[32..40].copy_from_slice(&len.to_le_bytes());
            bytes.extend(header);
        }
        bytes
    }

    #[test]
    fn scripts() {
        let script = |i: &str, a: Option<&str>| Kind::Script(i.into(), a.map(Into::into));
        assert_eq!(of(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(of(b"#! /usr/bin/env python3 -u\n"), script("/usr/bin/env", Some("python3 -u")));
        assert_eq!(of(b"#!\n"), Kind::Unknown);
        assert_eq!(of(b"echo"), Kind::Unknown);
        assert_eq!(of(b""), Kind::Unknown);
    }

    #[test]
    fn elf_files() {
        assert_eq!(of(&elf(&[(PT_LOAD, 0, 0)])), Kind::Static);
        let mut dynamic = elf(&[(PT_LOAD, 0, 0), (PT_INTERP, 176, 9)]);
        dynamic.extend(b"/lib/ld\0\0");
        assert_eq!(of(&dynamic), Kind::Dynamic("/lib/ld".into()));
        let mut foreign = elf(&[]);
        foreign[4] = 1;
        assert_eq!(of(&foreign), Kind::Foreign);
        // Another machine, and this one with the other order of bytes.
        let mut foreign = elf(&[]);
        foreign[18] = 3;
        assert_eq!(of(&foreign), Kind::Foreign);
        let mut foreign = elf(&[]);
        foreign[5] = 2;
        foreign[18..20].copy_from_slice(&MACHINE.0.to_be_bytes());
        assert_eq!(of(&foreign), Kind::Foreign);
        let own = File::open("/proc/self/exe").unwrap();
        assert!(matches!(inspect(&own).unwrap(), Kind::Dynamic(_)));
    }

    #[test]
    fn broken_files_are_no_surprise() {
        let whole = elf(&[(PT_INTERP, u64::MAX, 100), (PT_LOAD, 0, 0)]);
        for len in 0..whole.len() {
            of(&whole[..len]);
        }
        assert_eq!(of(&elf(&[(PT_INTERP, 0, u64::MAX)])), Kind::Unknown);
        let mut far = elf(&[(PT_LOAD, 0, 0)]);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&far), Kind::Unknown);
    }
}

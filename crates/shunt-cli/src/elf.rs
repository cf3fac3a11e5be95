//! As much of ELF as says whether the dynamic loader will preload a library into a program.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

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

const PT_INTERP: u32 = 3;
/// Longest first line of a script that the kernel reads (`BINPRM_BUF_SIZE`), which also holds the
/// head of an ELF file.
const HEAD: usize = 256;
/// Longest path of a loader, and most program headers, that are believed.
const MAX_INTERP: u64 = 4096;
const MAX_HEADERS: u64 = 1024;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

fn le<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    le(bytes, at).map(u16::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    le(bytes, at).map(u64::from_le_bytes)
}

/// Looks at a file.
///
/// # Errors
/// Those of reading it.
pub fn inspect(file: &File) -> io::Result<Kind> {
    let mut head = [0; HEAD];
    let len = read_up_to(file, &mut head, 0)?;
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Unknown);
    }
    // e_ident: 64 bit, little-endian; then e_machine.
    if head.get(4..6) != Some(&[2, 1]) || u16_at(head, 18) != Some(MACHINE) {
        return Ok(Kind::Foreign);
    }
    Ok(loader(file, head)?.unwrap_or(Kind::Unknown))
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

/// Follows e_phoff to PT_INTERP. `None`: the file is not a sound ELF file.
fn loader(file: &File, head: &[u8]) -> io::Result<Option<Kind>> {
    let fields = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56));
    let (Some(offset), Some(size), Some(count)) = fields else { return Ok(None) };
    if u64::from(count) > MAX_HEADERS || size != 56 {
        return Ok(None);
    }
    for i in 0..u64::from(count) {
        let mut header = [0; 56];
        let Some(at) = offset.checked_add(i * u64::from(size)) else { return Ok(None) };
        if read_up_to(file, &mut header, at)? < header.len() {
            return Ok(None);
        }
        if le(&header, 0).map(u32::from_le_bytes) != Some(PT_INTERP) {
            continue;
        }
        let (Some(at), Some(len)) = (u64_at(&header, 8), u64_at(&header, 32)) else {
            return Ok(None);
        };
        if len > MAX_INTERP {
            return Ok(None);
        }
        let mut path = vec![0; usize::try_from(len).unwrap_or(0)];
        let len = read_up_to(file, &mut path, at)?;
        let path = path[..len].split(|b| *b == 0).next().unwrap_or_default();
        return Ok(Some(Kind::Dynamic(String::from_utf8_lossy(path).into_owned())));
    }
    Ok(Some(Kind::Static))
}

fn read_up_to(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    // What lies beyond the longest file is as good as empty.
    if i64::try_from(at).is_err() {
        return Ok(0);
    }
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], at.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn of(bytes: &[u8]) -> Kind {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        inspect(&file).unwrap()
    }

    /// A minimal ELF file with these program headers (type, file offset, length).
    fn elf(headers: &[(u32, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(headers.len()).unwrap().to_le_bytes());
        for (kind, offset, len) in headers {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
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
        assert_eq!(of(&elf(&[(1, 0, 0)])), Kind::Static);
        let mut dynamic = elf(&[(1, 0, 0), (PT_INTERP, 176, 9)]);
        dynamic.extend(b"/lib/ld\0\0");
        assert_eq!(of(&dynamic), Kind::Dynamic("/lib/ld".into()));
        let mut foreign = elf(&[]);
        foreign[4] = 1;
        assert_eq!(of(&foreign), Kind::Foreign);
        let own = File::open("/proc/self/exe").unwrap();
        assert!(matches!(inspect(&own).unwrap(), Kind::Dynamic(_)));
    }

    #[test]
    fn broken_files_are_no_surprise() {
        let whole = elf(&[(PT_INTERP, u64::MAX, 100), (1, 0, 0)]);
        for len in 0..whole.len() {
            of(&whole[..len]);
        }
        assert_eq!(of(&elf(&[(PT_INTERP, 0, u64::MAX)])), Kind::Unknown);
        let mut far = elf(&[(1, 0, 0)]);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&far), Kind::Unknown);
    }
}

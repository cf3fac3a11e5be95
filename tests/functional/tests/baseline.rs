//! What the library asks of the system that it is preloaded on.

use std::fs;
use std::path::Path;
use std::process::Command;

use shunt_functional::binaries::{built, program};

/// 2.34 of `GLIBC_2.34`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

/// The oldest glibc, as a document states it: the number after these words.
fn stated(document: &str) -> (u32, u32) {
    const WORDS: &str = "needs glibc ";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once(WORDS).unwrap_or_else(|| panic!("{document} does not say"));
    let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    version(number.trim_end_matches('.')).unwrap()
}

#[test]
fn the_library_needs_no_newer_glibc_than_stated() {
    let mut command = Command::new(program("objdump"));
    let output = command.arg("-T").arg(built("libshunt.so")).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    let needed = |line: &str| {
        let (_, name) = line.split_once("*UND*")?.1.split_once("GLIBC_")?;
        Some((version(name.split(')').next()?.trim())?, line.to_owned()))
    };
    let newest = table.lines().filter_map(needed).max().expect("it needs glibc");
    for document in ["docs/limits.md", "docs/containers.md"] {
        let stated = stated(document);
        assert!(newest.0 <= stated, "{document} says {stated:?}, but: {}", newest.1);
    }
}

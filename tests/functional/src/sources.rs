//! Sources of the distribution's programs, which hold the suites that test them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries;

/// The unpacked source of an installed package, kept beside the build; `None`, with a word on the
/// console, when it cannot be had: not every machine reaches the distribution's archive.
#[must_use]
pub fn unpacked(package: &str, source: &str) -> Option<PathBuf> {
    let version = version_of(package)?;
    let directory = binaries::dir().join("sources").join(format!("{source}-{version}"));
    if let Some(found) = unpacked_in(&directory, source) {
        return Some(found);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fetch-source");
    let what = format!("{source}={version}");
    let out = Command::new(script).arg(&what).arg(&directory).output().ok()?;
    let found = unpacked_in(&directory, source).filter(|_| out.status.success());
    if found.is_none() {
        println!("skipped: no source of {what}: {}", String::from_utf8_lossy(&out.stderr));
    }
    found
}

/// dpkg-source leaves one directory, named like the source and its upstream version.
fn unpacked_in(directory: &Path, source: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut paths = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    paths.find(|path| {
        path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(source))
    })
}

/// The installed version of a package.
#[must_use]
pub fn version_of(package: &str) -> Option<String> {
    let out = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output().ok()?;
    let version = String::from_utf8(out.stdout).ok()?;
    (out.status.success() && !version.is_empty()).then_some(version)
}

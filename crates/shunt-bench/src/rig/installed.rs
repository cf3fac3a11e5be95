//! Programs that are installed.

use std::path::PathBuf;

use crate::failure::{Failure, Result};

/// A program of the system. Debian keeps servers in directories that are not in every PATH.
///
/// # Errors
/// [`Failure::Skipped`], with the package that holds it.
pub fn program(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .chain(versions("/usr/lib/postgresql"))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Failure::Skipped(format!("{name} is not installed (Debian: {package})")))
}

/// The directories of programs of which several versions can be installed, the latest first.
fn versions(of: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| entry.path().join("bin")).collect();
    all.sort();
    all.reverse();
    all
}

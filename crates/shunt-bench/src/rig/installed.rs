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
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Failure::Skipped(format!("{name} is not installed (Debian: {package})")))
}

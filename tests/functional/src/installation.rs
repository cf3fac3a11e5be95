//! Installations as packagers make them, below directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::program;

/// The directory with the sources.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Installs what was built into `release`, with a prefix below `root`.
///
/// # Panics
/// When that fails.
pub fn install(release: &Path, root: &Path, prefix: &str) {
    let define = |name: &str, path: &Path| format!("{name}={}", path.display());
    let output = Command::new(program("make"))
        .current_dir(repository())
        // Those of a make that runs this test are not for this one.
        .env_remove("MAKEFLAGS")
        .args(["install-built", &format!("PREFIX={prefix}")])
        .args([define("RELEASE", release), define("DESTDIR", root)])
        .arg(define("TARGET", &root.join("generated")))
        .output()
        .expect("make");
    assert!(output.status.success(), "{output:?}");
    fs::remove_dir_all(root.join("generated")).expect("what was generated");
}

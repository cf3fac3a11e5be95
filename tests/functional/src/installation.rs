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
    let generated = root.join("generated");
    make(release, &generated, root, prefix, "install-built");
    fs::remove_dir_all(generated).expect("what was generated");
}

/// Makes a goal of the Makefile. `target`: where what is generated goes.
///
/// # Panics
/// When that fails.
pub fn make(release: &Path, target: &Path, root: &Path, prefix: &str, goal: &str) {
    let define = |name: &str, path: &Path| format!("{name}={}", path.display());
    let output = Command::new(program("make"))
        .current_dir(repository())
        // Those of a make that runs this test are not for this one.
        .env_remove("MAKEFLAGS")
        .args([goal, &format!("PREFIX={prefix}")])
        .args([define("RELEASE", release), define("DESTDIR", root), define("TARGET", target)])
        .output()
        .expect("make");
    assert!(output.status.success(), "{output:?}");
}

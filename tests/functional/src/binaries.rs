//! Where the programs under test are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The directory of `shunt`, `libshunt.so` and the test programs: `SHUNT_TEST_BIN_DIR`, or the
/// target directory that this executable was built into.
#[must_use]
pub fn dir() -> PathBuf {
    if let Some(dir) = env::var_os("SHUNT_TEST_BIN_DIR") {
        return dir.into();
    }
    let exe = env::current_exe().unwrap_or_default();
    let parent = exe.parent().unwrap_or(Path::new("."));
    // Tests are in target/release/deps, programs in target/release.
    if parent.ends_with("deps") { parent.parent().unwrap_or(parent).into() } else { parent.into() }
}

/// A file of the build.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let path = dir().join(name);
    assert!(
        path.exists(),
        "{} is missing: `cargo build --release --workspace`, or set SHUNT_TEST_BIN_DIR",
        path.display()
    );
    path
}

/// A program of the system. Debian keeps servers in directories that are not in every PATH.
///
/// # Panics
/// When it is not installed: a missing program is a failed test, never a skipped one.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .chain(postgres_dirs())
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: `make deps-test`"))
}

/// A library of the system, by its soname.
///
/// # Panics
/// When it is not installed.
#[must_use]
pub fn library(name: &str) -> PathBuf {
    let listed = Command::new(program("ldconfig")).arg("-p").output();
    let listed = listed.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let listed = listed.unwrap_or_default();
    let line = listed.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    line.and_then(|line| line.split_once(" => ")).map_or_else(
        || panic!("{name} is not installed: `make deps-test`"),
        |(_, path)| path.into(),
    )
}

/// Debian's directories of PostgreSQL's servers, the newest version first.
fn postgres_dirs() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    let mut versions: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.iter().map(|v| format!("/usr/lib/postgresql/{v}/bin").into()).collect()
}

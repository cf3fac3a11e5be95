//! A library with points, at which tests stop, interrupt and end threads (`make points`).

use std::env;
use std::path::PathBuf;

use crate::binaries;
use crate::mode::Mode;
use crate::sandbox::Sandbox;

/// That library: in `SHUNT_TEST_POINTS_DIR`, or where `make points` puts it.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn library() -> PathBuf {
    let beside = || binaries::dir().join("../points/release");
    let dir = env::var_os("SHUNT_TEST_POINTS_DIR").map_or_else(beside, PathBuf::from);
    let path = dir.join("libshunt.so");
    assert!(
        path.exists(),
        "{} is missing: `make points`, or set SHUNT_TEST_POINTS_DIR",
        path.display()
    );
    path
}

/// A sandbox whose programs run with it.
#[must_use]
pub fn sandbox(mode: Mode) -> Sandbox {
    Sandbox::new(mode).with_env("SHUNT_LIB", library())
}

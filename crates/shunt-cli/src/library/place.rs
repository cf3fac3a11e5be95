//! The place of libshunt.so.

use std::env;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the library's file.
pub const NAME: &str = "libshunt.so";

#[cfg(target_arch = "x86_64")]
const MULTIARCH: &str = "lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const MULTIARCH: &str = "lib/aarch64-linux-gnu";

/// Where glibc's loader looks when a path holds `$LIB`, by how distributions build it.
pub const LIB_DIRECTORIES: [&str; 3] = ["lib", "lib64", MULTIARCH];

/// Why there is no library to preload.
#[derive(Debug)]
pub enum Missing {
    /// `SHUNT_LIB` names something that is not there.
    Given(PathBuf),
    /// It is at none of these places.
    Nowhere(Vec<PathBuf>),
    /// `LD_PRELOAD` could not carry this path.
    Unspeakable(PathBuf),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(path) => write!(
                f,
                "SHUNT_LIB names {}, which is not a readable file; correct or unset it",
                path.display()
            ),
            Self::Nowhere(places) => {
                write!(f, "{NAME} was not found (looked for")?;
                for place in places {
                    write!(f, " {}", place.display())?;
                }
                f.write_str("); install it, or name it in SHUNT_LIB")
            }
            Self::Unspeakable(path) => write!(
                f,
                "the path {} holds a space or a colon, which LD_PRELOAD cannot carry; move the \
                 library",
                path.display()
            ),
        }
    }
}

/// The library: `SHUNT_LIB`, else beside the executable, else where an installation puts it.
///
/// # Errors
/// Where it is not.
pub fn find() -> Result<PathBuf, Missing> {
    let path = match env::var_os("SHUNT_LIB").filter(|v| !v.is_empty()) {
        // Absolute, because the program may look it up from another directory.
        Some(given) => {
            let given = PathBuf::from(given);
            let found = std::path::absolute(&given).ok().filter(|path| readable(path));
            found.ok_or(Missing::Given(given))?
        }
        None => {
            let exe = env::current_exe().unwrap_or_default();
            let beside = exe.parent().unwrap_or(Path::new("/"));
            let up = beside.parent().unwrap_or(Path::new("/"));
            let places =
                [beside.join(NAME), up.join("lib/shunt").join(NAME), up.join("lib").join(NAME)];
            match places.iter().find(|path| readable(path)) {
                Some(path) => path.clone(),
                None => return Err(Missing::Nowhere(places.into())),
            }
        }
    };
    if path.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) {
        return Err(Missing::Unspeakable(path));
    }
    Ok(path)
}

fn readable(path: &Path) -> bool {
    path.is_file() && std::fs::File::open(path).is_ok()
}

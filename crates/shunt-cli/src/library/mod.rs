//! libshunt.so: finding it, naming it to the loader, and `shunt library`.

mod install;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::cli::{Library, LibraryCommand};
use crate::{complain, print};

/// Name of the library's file.
pub const NAME: &str = "libshunt.so";

/// The variable that has the loader preload it.
pub const VARIABLE: &str = "LD_PRELOAD";

#[cfg(target_arch = "x86_64")]
const MULTIARCH: &str = "lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const MULTIARCH: &str = "lib/aarch64-linux-gnu";

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

/// Runs the subcommand.
pub fn run(args: &Library) -> u8 {
    let LibraryCommand::Install(args) = &args.command;
    let found = find().map_err(|why| why.to_string());
    match found.and_then(|library| install::install(&library, &args.directory)) {
        Ok(path) => print(&format!("{} is in place\n", path.display())),
        Err(why) => {
            complain(&why);
            1
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

/// Where glibc's loader looks when a path holds `$LIB`, by how distributions build it.
pub const LIB_DIRECTORIES: [&str; 3] = ["lib", "lib64", MULTIARCH];

/// The library as `LD_PRELOAD` is to name it: by `$LIB` where it is installed for that. glibc's loader replaces
/// it; musl's takes it for a name, finds nothing and goes on, while it ends a program with a library that it
/// cannot use.
#[must_use]
pub fn entry(library: &Path) -> PathBuf {
    let dir = library.parent().unwrap_or(Path::new("/"));
    let installed =
        |lib| library.file_name() == Some(NAME.as_ref()) && dir.join(lib).join(NAME).exists();
    if LIB_DIRECTORIES.into_iter().all(installed) {
        dir.join("$LIB").join(NAME)
    } else {
        library.to_path_buf()
    }
}

fn readable(path: &Path) -> bool {
    path.is_file() && std::fs::File::open(path).is_ok()
}

/// `LD_PRELOAD` with the library first, and what was there after it.
#[must_use]
pub fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let Some(before) = before.filter(|v| !v.is_empty()) else { return library.into() };
    let there = before.as_bytes().split(|b| b" :".contains(b));
    if there.into_iter().any(|entry| entry == library.as_os_str().as_bytes()) {
        return before;
    }
    let mut value = OsString::from(library);
    value.push(":");
    value.push(before);
    value
}

/// `LD_PRELOAD` without the library; `None`: it does not hold it.
#[must_use]
pub fn without(preloaded: &OsStr) -> Option<OsString> {
    let entries = || preloaded.as_bytes().split(|b| b" :".contains(b));
    let is_ours =
        |entry: &&[u8]| Path::new(OsStr::from_bytes(entry)).file_name() == Some(NAME.as_ref());
    if !entries().any(|entry| is_ours(&entry)) {
        return None;
    }
    let others: Vec<_> = entries().filter(|entry| !is_ours(entry)).collect();
    Some(OsString::from_vec(others.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays() {
        let lib = Path::new("/l/libshunt.so");
        assert_eq!(preload(lib, None), "/l/libshunt.so");
        assert_eq!(preload(lib, Some("".into())), "/l/libshunt.so");
        assert_eq!(preload(lib, Some("a.so b.so".into())), "/l/libshunt.so:a.so b.so");
        let nested = "x.so:/l/libshunt.so";
        assert_eq!(preload(lib, Some(nested.into())), nested);
    }

    #[test]
    fn an_installed_library_is_named_so_that_musl_does_not_find_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(NAME);
        std::fs::write(&path, "").unwrap();
        for lib in LIB_DIRECTORIES {
            assert_eq!(entry(&path), path, "{lib} is missing still");
            let dir = temp.path().join(lib);
            std::fs::create_dir_all(&dir).unwrap();
            std::os::unix::fs::symlink(&path, dir.join(NAME)).unwrap();
        }
        assert_eq!(entry(&path), temp.path().join("$LIB").join(NAME));
    }

    #[test]
    fn what_else_was_preloaded_stays_when_it_goes() {
        let left = |value: &str| without(value.as_ref());
        assert_eq!(left(""), None);
        assert_eq!(left("/l/other.so"), None);
        assert_eq!(left("/l/libshunt.so"), Some("".into()));
        assert_eq!(left("a.so /l/libshunt.so:b.so"), Some("a.so:b.so".into()));
    }
}

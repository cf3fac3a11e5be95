//! The name of libshunt.so for the loader.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::place::{LIB_DIRECTORIES, NAME};

/// The variable that has the loader preload it.
pub const VARIABLE: &str = "LD_PRELOAD";

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

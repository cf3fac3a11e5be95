//! The file with the agent's secret key. Nobody but its owner may read it, or have written it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use shunt_peer::{KeyError, SecretKey};
use zeroize::Zeroizing;

/// Bytes that are read at most: a key is shorter.
const MOST: u64 = 256;

/// Why there is no key.
#[derive(Debug)]
pub enum KeyFileError {
    /// There is no such file.
    Missing(PathBuf),
    /// It cannot be opened, read or made.
    System(PathBuf, io::Error),
    /// It is no regular file.
    NoFile(PathBuf),
    /// Others may read or write it. With its mode.
    Mode(PathBuf, u32),
    /// It is another user's. With that.
    Owner(PathBuf, u32),
    /// There is no key in it.
    Key(PathBuf, KeyError),
}

/// What to do about a place where no key can be.
const ELSEWHERE: &str =
    "name another one by `--file` of `shunt agent-key` and `--rdma-key` of `shunt agent`";

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => {
                write!(f, "there is no key at {}: make one by `shunt agent-key`", path.display())
            }
            Self::System(path, error) => {
                write!(f, "the key file {}: {error}; {ELSEWHERE}", path.display())
            }
            Self::NoFile(path) => {
                write!(f, "the key file {} is no regular file: {ELSEWHERE}", path.display())
            }
            Self::Mode(path, mode) => write!(
                f,
                "the mode {mode:04o} of the key file {path} lets others read or write it: `chmod 600 {path}`, and make a new key \
                 if anybody may have read this one",
                path = path.display()
            ),
            Self::Owner(path, uid) => write!(
                f,
                "the key file {} is the user's with id {uid}, not this one's: {ELSEWHERE}",
                path.display()
            ),
            Self::Key(path, why) => write!(f, "the key file {}: {why}", path.display()),
        }
    }
}

impl std::error::Error for KeyFileError {}

fn system(path: &Path) -> impl Fn(io::Error) -> KeyFileError {
    move |error| KeyFileError::System(path.to_owned(), error)
}

/// Reads the key.
///
/// # Errors
/// Why there is none that can be trusted.
pub fn load(path: &Path) -> Result<SecretKey, KeyFileError> {
    // Nothing that makes whoever opens it wait, and no link.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Err(KeyFileError::Missing(path.to_owned())),
        Err(rustix::io::Errno::LOOP) => return Err(KeyFileError::NoFile(path.to_owned())),
        Err(error) => return Err(system(path)(error.into())),
    };
    let facts = file.metadata().map_err(system(path))?;
    if !facts.is_file() {
        return Err(KeyFileError::NoFile(path.to_owned()));
    }
    let (mode, owner) = (facts.mode() & 0o7777, facts.uid());
    if owner != geteuid().as_raw() {
        return Err(KeyFileError::Owner(path.to_owned(), owner));
    }
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Mode(path.to_owned(), mode));
    }
    let mut text = Zeroizing::new(String::with_capacity(usize::try_from(MOST).unwrap_or(0)));
    file.take(MOST).read_to_string(&mut text).map_err(system(path))?;
    text.trim_end().parse().map_err(|why| KeyFileError::Key(path.to_owned(), why))
}

/// Makes a key and a file for it, and the directory where it is missing. A file that is there stays as it is.
///
/// # Errors
/// Why there is none.
pub fn make(path: &Path) -> Result<SecretKey, KeyFileError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory).map_err(system(path))?;
    }
    let key = SecretKey::generate().map_err(|why| KeyFileError::Key(path.to_owned(), why))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(file.map_err(|error| system(path)(error.into()))?);
    let text = key.text();
    let written = file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n"));
    let written = written.and_then(|()| file.sync_all());
    if let Err(error) = written {
        // What is half written is no key, and would be in the way of the next one.
        let _ = std::fs::remove_file(path);
        return Err(system(path)(error));
    }
    Ok(key)
}

/// Reads the key, or makes one where there is no file.
///
/// # Errors
/// Why there is none.
pub fn load_or_make(path: &Path) -> Result<SecretKey, KeyFileError> {
    match load(path) {
        Err(KeyFileError::Missing(_)) => make(path),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/key");
        assert!(matches!(load(&path), Err(KeyFileError::Missing(_))));
        let key = load_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(load_or_make(&path).unwrap().public(), key.public());
        assert!(matches!(make(&path), Err(KeyFileError::System(..))));
        assert_eq!(load(&path).unwrap().public(), key.public());
    }

    #[test]
    fn one_that_others_can_read_or_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        make(&path).unwrap();
        for mode in [0o640, 0o620, 0o604, 0o602, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let why = load(&path).unwrap_err();
            assert!(matches!(why, KeyFileError::Mode(_, found) if found == mode), "{why}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        load(&path).unwrap();
    }

    #[test]
    fn what_is_no_file_of_ones_own_with_a_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        make(&path("key")).unwrap();
        symlink(path("key"), path("link")).unwrap();
        assert!(matches!(load(&path("link")), Err(KeyFileError::NoFile(_))));
        assert!(matches!(load(dir.path()), Err(KeyFileError::NoFile(_))));
        for (name, text) in
            [("empty", ""), ("public", "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\n")]
        {
            fs::write(path(name), text).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).unwrap();
            assert!(
                matches!(load(&path(name)), Err(KeyFileError::Key(_, KeyError::NotSecret))),
                "{name}"
            );
        }
        // Of root's alone another user's can be made.
        if geteuid().is_root() {
            std::os::unix::fs::chown(path("key"), Some(1), None).unwrap();
            assert!(matches!(load(&path("key")), Err(KeyFileError::Owner(_, 1))));
        }
    }
}

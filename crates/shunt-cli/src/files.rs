//! Files that are replaced whole, or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// What a new file is called until it is whole. Another directory would give it another label where security modules
/// label files.
pub fn unfinished(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.new"))
}

/// Makes directories that are missing, open to all whatever the umask is.
///
/// # Errors
/// When that fails; what was there is there still.
pub fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(above) = directory.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_directory(above)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        Ok(()) => {
            fs::set_permissions(directory, fs::Permissions::from_mode(DIRECTORY_MODE))?;
            sync_parent(directory)
        }
        // By somebody else meanwhile.
        Err(_) if directory.is_dir() => Ok(()),
        Err(e) => Err(e),
    }
}

/// Puts these bytes into a file, by a name that holds the old ones or the new.
///
/// # Errors
/// When that fails; what was there is there still.
pub fn replace_file(target: &Path, bytes: &[u8]) -> io::Result<()> {
    // What is the same stays the same file; of a library the kernel keeps one copy for all programs.
    let is_file = target
        .symlink_metadata()
        .is_ok_and(|there| there.is_file() && there.permissions().mode() & 0o7777 == FILE_MODE);
    if is_file && fs::read(target).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    replace(target, |unfinished| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(unfinished)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
        // A name on disk must not come before its bytes.
        file.sync_all()
    })
}

/// The same of a link.
///
/// # Errors
/// When that fails; what was there is there still.
pub fn replace_link(link: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|there| there == to) {
        return Ok(());
    }
    replace(link, |unfinished| symlink(to, unfinished))
}

/// Has `make` make something under another name, and renames it.
fn replace(target: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let unfinished = unfinished(target);
    // Of an installation that was interrupted.
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let made = make(&unfinished).and_then(|()| fs::rename(&unfinished, target));
    made.inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })?;
    sync_parent(target)
}

fn sync_parent(of: &Path) -> io::Result<()> {
    let parent = of.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

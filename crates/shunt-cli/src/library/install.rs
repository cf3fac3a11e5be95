//! `shunt library install`: puts the library where programs find it, also while programs run with
//! the old one.
//!
//! A running program has the library mapped. A write into that file, or a cut, changes the
//! program's code: the program crashes, even where the bytes are the same. So this command never
//! writes to a file that has its final name. It makes the new file beside it, whole and on disk,
//! and gives it the name by rename(2). A program that opens the name finds the old library or the
//! new one, each whole.
//!
//! Running programs keep the old file, and so do containers that have it mounted. The kernel frees
//! it with the last of them. No other collection of old versions is needed, and this one cannot
//! come too early.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::place::{LIB_DIRECTORIES, NAME};
use crate::elf::{self, Kind};
use crate::files::{create_directory, replace_file, replace_link};

/// Puts the library into a directory, and links to it where loaders look for `$LIB`. Returns its path.
///
/// # Errors
/// What could not be done, in a sentence. The library that was there stays.
pub fn install(library: &Path, directory: &Path) -> Result<PathBuf, String> {
    let failed = |what: &Path, e: &io::Error| format!("{} cannot be written: {e}", what.display());
    let bytes = read(library)?;
    create_directory(directory).map_err(|e| failed(directory, &e))?;
    // One at a time: what is unfinished is nobody else's then. Gone with the descriptor.
    let lock = File::open(directory).map_err(|e| failed(directory, &e))?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(|e| format!("{} cannot be locked: {e}", directory.display()))?;
    let target = directory.join(NAME);
    replace_file(&target, &bytes).map_err(|e| failed(&target, &e))?;
    for lib in LIB_DIRECTORIES {
        let link = directory.join(lib).join(NAME);
        let up = Path::new(lib).components().map(|_| Component::ParentDir);
        let to: PathBuf = up.chain([Component::Normal(NAME.as_ref())]).collect();
        create_directory(&directory.join(lib)).map_err(|e| failed(&link, &e))?;
        replace_link(&link, &to).map_err(|e| failed(&link, &e))?;
    }
    Ok(target)
}

/// The library's bytes, if it is one.
fn read(library: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |e: io::Error| format!("{} cannot be read: {e}", library.display());
    let file = File::open(library).map_err(unreadable)?;
    // A shared object names no loader, as a static program does not.
    if elf::inspect(&file).map_err(unreadable)? != Kind::Static {
        return Err(format!("{} is no library for this machine", library.display()));
    }
    fs::read(library).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const UNFINISHED: &str = ".libshunt.so.new";

    /// A shared object, of which `tail` is a part that no loader looks at.
    fn library(path: &Path, tail: &[u8]) {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let mut bytes = fs::read(files.find(|file| file.contains("libgcc_s")).unwrap()).unwrap();
        bytes.extend(tail);
        fs::write(path, bytes).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_mapped_is_never_written_to() {
        let temp = tempfile::tempdir().unwrap();
        let (new, to) = (temp.path().join("new.so"), temp.path().join("a/b"));
        library(&new, b"1");
        let target = install(&new, &to).unwrap();
        assert_eq!(target, to.join(NAME));
        assert_eq!(target.metadata().unwrap().mode() & 0o7777, 0o644);
        let open = File::open(&target).unwrap();
        let inode = || target.metadata().unwrap().ino();
        let (first, old) = (inode(), fs::read(&target).unwrap());
        // The same one: nothing happens.
        install(&new, &to).unwrap();
        assert_eq!(inode(), first);
        // Another one, and back again.
        for tail in [&b"22"[..], b"1"] {
            library(&new, tail);
            install(&new, &to).unwrap();
            assert_ne!(inode(), first);
            assert_eq!(fs::read(&target).unwrap(), fs::read(&new).unwrap());
        }
        let mut kept = Vec::new();
        io::Read::read_to_end(&mut &open, &mut kept).unwrap();
        assert!(kept == old && open.metadata().unwrap().nlink() == 0);
    }

    #[test]
    fn copies_of_an_older_way_become_links() {
        let temp = tempfile::tempdir().unwrap();
        let (new, to) = (temp.path().join("new.so"), temp.path().join("to"));
        library(&new, b"1");
        for lib in LIB_DIRECTORIES {
            fs::create_dir_all(to.join(lib)).unwrap();
            fs::write(to.join(lib).join(NAME), "old").unwrap();
        }
        // And an installation was interrupted.
        fs::write(to.join(UNFINISHED), "half").unwrap();
        install(&new, &to).unwrap();
        for lib in LIB_DIRECTORIES {
            let path = to.join(lib).join(NAME);
            assert_eq!(path.canonicalize().unwrap(), to.join(NAME).canonicalize().unwrap());
            assert!(fs::read_link(&path).unwrap().is_relative(), "it is mounted elsewhere");
            assert_eq!(
                names(path.parent().unwrap()).iter().filter(|n| n.contains("new")).count(),
                0
            );
        }
        assert_eq!(names(&to), ["lib", "lib64", NAME]);
        assert_eq!(super::super::preload::entry(&to.join(NAME)), to.join("$LIB").join(NAME));
    }

    #[test]
    fn what_cannot_be_done_leaves_the_old_library() {
        let temp = tempfile::tempdir().unwrap();
        let (new, to) = (temp.path().join("new.so"), temp.path().join("to"));
        library(&new, b"1");
        install(&new, &to).unwrap();
        let before = fs::read(to.join(NAME)).unwrap();
        fs::write(&new, "no library").unwrap();
        assert!(install(&new, &to).unwrap_err().contains("is no library"));
        assert!(install(&temp.path().join("none"), &to).unwrap_err().contains("cannot be read"));
        library(&new, b"2");
        fs::create_dir(to.join(UNFINISHED)).unwrap();
        assert!(install(&new, &to).unwrap_err().contains("cannot be written"));
        assert_eq!(fs::read(to.join(NAME)).unwrap(), before);
        assert!(install(&new, Path::new("/dev/null/x")).is_err());
    }

    #[test]
    fn installations_at_the_same_time_end_in_a_whole_library() {
        let temp = tempfile::tempdir().unwrap();
        let to = temp.path().join("to");
        let sources: Vec<_> = (0..4).map(|i| temp.path().join(format!("{i}.so"))).collect();
        for (i, source) in sources.iter().enumerate() {
            library(source, &vec![b'x'; i * 100_000]);
        }
        let all: Vec<_> = sources.iter().map(|source| fs::read(source).unwrap()).collect();
        std::thread::scope(|scope| {
            for source in &sources {
                scope.spawn(|| (0..20).for_each(|_| drop(install(source, &to).unwrap())));
            }
            for _ in 0..200 {
                if let Ok(bytes) = fs::read(to.join(NAME)) {
                    assert!(all.contains(&bytes));
                }
            }
        });
    }
}

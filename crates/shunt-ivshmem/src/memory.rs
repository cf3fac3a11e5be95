//! The shared memory: a sealed memfd, or a file of huge pages.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fmt, process};

use rustix::fs::{
    FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_get_seals, fstat, fstatfs, ftruncate,
    open, unlink,
};
use rustix::io::Errno;
use shunt_shm::memfd;

use crate::config::Config;

/// The least that can be shared.
pub const MIN_SIZE: u64 = 4096;
/// The most: what all of today's processors can address.
pub const MAX_SIZE: u64 = 1 << 46;

/// What hugetlbfs calls itself in statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Why there is no shared memory.
#[derive(Debug)]
pub enum MemoryError {
    /// The size is none that a device can have.
    Size(u64),
    /// A file of huge pages cannot have this size: theirs.
    PageSize(u64, u64),
    /// The directory is in another file system.
    NotHugetlbfs(PathBuf),
    /// Not so many huge pages are free.
    NoHugePages(PathBuf),
    /// A system call failed.
    System(&'static str, io::Error),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(
                f,
                "the size of {size} bytes is not a power of two from {MIN_SIZE} to {MAX_SIZE}, as \
                 a PCI device needs it; give another --size"
            ),
            Self::PageSize(size, page) => write!(
                f,
                "the size of {size} bytes is not a multiple of the huge pages' size, {page}; give \
                 a larger --size"
            ),
            Self::NotHugetlbfs(dir) => write!(
                f,
                "{} is not in a file system of huge pages; mount one (`mount -t hugetlbfs none \
                 DIRECTORY`), or leave out --hugetlbfs",
                dir.display()
            ),
            Self::NoHugePages(dir) => write!(
                f,
                "{} has not so many free huge pages; raise their number (vm.nr_hugepages), or give \
                 a smaller --size",
                dir.display()
            ),
            Self::System(what, e) => write!(f, "{what} failed: {e}"),
        }
    }
}

impl std::error::Error for MemoryError {}

/// The shared memory.
#[derive(Debug)]
pub struct Region {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// Its bytes.
    pub size: u64,
    /// It is a file of huge pages.
    pub huge_pages: bool,
}

impl Region {
    /// Makes what `config` asks for.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn create(config: &Config) -> Result<Self, MemoryError> {
        let size = config.size;
        let possible = size.is_power_of_two() && (MIN_SIZE..=MAX_SIZE).contains(&size);
        let len = usize::try_from(size).ok().filter(|_| possible).ok_or(MemoryError::Size(size))?;
        let fd = match &config.hugetlbfs {
            None => memfd::create_sealed("shunt-ivshmem", len)
                .map_err(|e| MemoryError::System("making the shared memory", e))?,
            Some(dir) => in_huge_pages(dir, size)?,
        };
        Ok(Self { fd, size, huge_pages: config.hugetlbfs.is_some() })
    }

    /// Takes that of another server. `None`: it does not have that size, or somebody can change it (but
    /// for huge pages, which cannot be sealed).
    #[must_use]
    pub fn adopt(fd: OwnedFd, size: u64, huge_pages: bool) -> Option<Self> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let fits = fstat(&fd).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(size));
        let sealed = || fcntl_get_seals(&fd).is_ok_and(|there| there.contains(seals));
        (fits && (huge_pages || sealed())).then_some(Self { fd, size, huge_pages })
    }
}

/// A file without a name, whose pages are all there: a client can't be killed for want of one later.
fn in_huge_pages(dir: &Path, size: u64) -> Result<OwnedFd, MemoryError> {
    let failed = |what| move |e: Errno| MemoryError::System(what, e.into());
    // hugetlbfs has no unnamed files before Linux 5.1.
    let path = dir.join(format!(".shunt-ivshmem-{}", process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(&path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(failed("making a file in the directory of --hugetlbfs"))?;
    unlink(&path).map_err(failed("removing the name of the file of huge pages"))?;
    let system = fstatfs(&file).map_err(failed("statfs"))?;
    if u64::try_from(system.f_type).ok() != Some(HUGETLBFS_MAGIC) {
        return Err(MemoryError::NotHugetlbfs(dir.to_owned()));
    }
    let page = u64::try_from(system.f_bsize).unwrap_or(0).max(1);
    if !size.is_multiple_of(page) {
        return Err(MemoryError::PageSize(size, page));
    }
    ftruncate(&file, size).map_err(failed("giving the file of huge pages its size"))?;
    match fallocate(&file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(file),
        Err(Errno::NOSPC | Errno::NOMEM) => Err(MemoryError::NoHugePages(dir.to_owned())),
        Err(e) => Err(failed("taking huge pages")(e)),
    }
}

/// Text in a memfd, as it is passed between processes.
///
/// # Errors
/// Those of making and writing it.
pub(crate) fn of_text(text: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd::create_sealed("shunt-ivshmem-text", text.len())?;
    let mut done = 0;
    while let Some(rest) = text.get(done..).filter(|rest| !rest.is_empty()) {
        done += rustix::io::pwrite(&fd, rest, done as u64)?;
    }
    Ok(fd)
}

/// The reverse, of at most `most` bytes.
///
/// # Errors
/// Those of reading, and when it is longer.
pub(crate) fn text_of(fd: &OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    let len = u64::try_from(fstat(fd)?.st_size).ok().filter(|len| *len <= most);
    let len = len.and_then(|len| usize::try_from(len).ok()).ok_or(io::ErrorKind::FileTooLarge)?;
    let mut text = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(fd, &mut text[done..], done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(size: u64) -> Config {
        Config { size, ..Config::new(PathBuf::new()) }
    }

    #[test]
    fn it_keeps_its_size() {
        let Region { fd, size, huge_pages } = Region::create(&config(1 << 20)).unwrap();
        assert_eq!((size, huge_pages), (1 << 20, false));
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 1 << 21), Err(Errno::PERM));
        assert!(Region::adopt(fd.try_clone().unwrap(), 1 << 21, false).is_none());
        assert!(Region::adopt(fd, 1 << 20, false).is_some());
        let soft = tempfile::tempfile().unwrap();
        soft.set_len(1 << 20).unwrap();
        assert!(Region::adopt(soft.into(), 1 << 20, false).is_none());
    }

    #[test]
    fn sizes_that_no_device_has() {
        for size in [0, 1, 2048, 4097, 3 << 20, 1 << 47, u64::MAX] {
            let refused = Region::create(&config(size));
            assert!(matches!(refused, Err(MemoryError::Size(_))), "{size}");
        }
    }

    #[test]
    fn a_directory_of_another_kind() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { hugetlbfs: Some(dir.path().to_owned()), ..config(2 << 20) };
        assert!(matches!(Region::create(&config), Err(MemoryError::NotHugetlbfs(_))));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn text_comes_back() {
        let fd = of_text(b"some text").unwrap();
        assert_eq!(text_of(&fd, 100).unwrap(), b"some text");
        assert_eq!(text_of(&fd, 9).unwrap(), b"some text");
        assert!(text_of(&fd, 8).is_err());
    }
}

//! Memory for Miri, which maps no files: plain memory of this process, known by what stands in the file.
//!
//! All mappings of one file are the same memory, as they are in the kernel, at one address; it is never given back. What a
//! mapping alone can do (to hide, to discard, to read only) is not modelled.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use rustix::fs::SealFlags;

struct Memory {
    base: NonNull<u8>,
    len: usize,
    seals: SealFlags,
}

// SAFETY: plain memory that stays where it is, reached by atomics and raw copies alone.
unsafe impl Send for Memory {}

/// All that was ever made, by the number that its file holds.
static MADE: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

fn of<R>(fd: impl AsFd, with: impl FnOnce(&mut Memory) -> R) -> io::Result<R> {
    let mut number = [0; 8];
    File::from(fd.as_fd().try_clone_to_owned()?).read_exact_at(&mut number, 0)?;
    let mut made = MADE.lock().map_err(|_| io::ErrorKind::Other)?;
    let memory = made.get_mut(usize::from_ne_bytes(number));
    memory.map(with).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Memory of `len` zero bytes.
pub(super) fn create(len: usize) -> io::Result<OwnedFd> {
    let layout = Layout::from_size_align(len.max(1), 4096).map_err(io::Error::other)?;
    // SAFETY: a layout of at least a byte.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut made = MADE.lock().map_err(|_| io::ErrorKind::Other)?;
    let path =
        std::env::temp_dir().join(format!("shunt-miri-{}-{}", std::process::id(), made.len()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    file.write_all_at(&made.len().to_ne_bytes(), 0)?;
    made.push(Memory { base, len, seals: SealFlags::empty() });
    Ok(file.into())
}

pub(super) fn seal(fd: impl AsFd, seals: SealFlags) -> io::Result<()> {
    of(fd, |memory| memory.seals |= seals)
}

pub(super) fn seals(fd: impl AsFd) -> io::Result<SealFlags> {
    of(fd, |memory| memory.seals)
}

pub(super) fn size(fd: impl AsFd) -> io::Result<usize> {
    of(fd, |memory| memory.len)
}

/// "Maps" `len` bytes from `offset` on.
pub(super) fn map(fd: impl AsFd, offset: usize, len: usize) -> io::Result<NonNull<u8>> {
    let place = of(fd, |memory| {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= memory.len);
        // SAFETY: inside of the memory.
        is_inside.then(|| unsafe { memory.base.byte_add(offset) })
    })?;
    place.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

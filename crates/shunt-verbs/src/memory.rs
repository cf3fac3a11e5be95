//! Memory that a device reads and writes beside the program.

use core::any::Any;
use core::ops::Range;
use core::ptr::{self, NonNull};
use std::io;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};
use shunt_shm::region::{Region, Side};

/// Mapped memory, which stays where it is as long as a copy of this value or a registration of it lives.
///
/// No reference ever leads there, since the device, the peer behind it and other processes write it at any time: bytes are
/// copied through raw pointers.
#[derive(Clone, Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    // Unmaps it.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address of memory that the owner, which goes along, keeps mapped.
unsafe impl Send for Memory {}
// SAFETY: bytes are reached by raw copies alone; who reads while another one writes gets some of either, which no caller trusts.
unsafe impl Sync for Memory {}

/// A mapping that this crate has made.
#[derive(Debug)]
struct Own(NonNull<u8>, usize);

// SAFETY: an address; whoever has the value unmaps it, once.
unsafe impl Send for Own {}
// SAFETY: it is not used but to unmap it.
unsafe impl Sync for Own {}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no `Memory` is left that leads there.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

impl Memory {
    /// Fresh memory of zeroes, of so many bytes or a few more.
    ///
    /// It is shared with forks of this process: a private page would be copied when either of them writes it, and the device
    /// would go on with the one that may not be this process's.
    ///
    /// # Errors
    /// `EINVAL` for no bytes; `ENOMEM`.
    pub fn new(len: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { base, len, _owner: Arc::new(Own(base, len)) })
    }

    /// Memory that something else has mapped.
    ///
    /// # Safety
    /// `len` bytes from `base` on are mapped, readable and writable, as long as `owner` lives, and no reference leads there.
    #[must_use]
    pub unsafe fn of(base: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, len, _owner: owner }
    }

    /// Both rings of a connection in a region: the client's, then the acceptor's. `None`: there is no such place.
    #[must_use]
    pub fn rings(region: &Arc<Region>, slot: usize) -> Option<Self> {
        let view = region.view();
        if slot >= view.geometry().slots() || !region.has(slot) {
            return None;
        }
        let (base, len) = (view.buffer(slot, Side::Client), 2 * view.geometry().ring());
        let owner: Arc<Region> = Arc::clone(region);
        // SAFETY: both rings of a connection lie side by side, mapped as long as the region, and are reached by raw copies alone.
        Some(unsafe { Self::of(base, len, owner) })
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Address of a byte in this process.
    #[must_use]
    pub fn address(&self, at: usize) -> u64 {
        self.base.as_ptr().addr() as u64 + at as u64
    }

    /// Where a part of it begins. `None`: it does not lie inside.
    pub(crate) fn part(&self, range: &Range<usize>) -> Option<NonNull<u8>> {
        let is_inside = range.start <= range.end && range.end <= self.len;
        // SAFETY: inside of the mapping, as just checked.
        is_inside.then(|| unsafe { self.base.byte_add(range.start) })
    }

    /// Copies from `at` on. `None`: so much does not lie inside, and nothing is copied.
    #[must_use]
    pub fn read(&self, at: usize, to: &mut [u8]) -> Option<()> {
        let from = self.part(&(at..at.checked_add(to.len())?))?;
        // SAFETY: the part lies in the mapping, and private memory does not overlap it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies to `at`. `None`: so much does not lie inside, and nothing is copied.
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> Option<()> {
        let to = self.part(&(at..at.checked_add(from.len())?))?;
        // SAFETY: the part lies in the mapping, and private memory does not overlap it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside() {
        let memory = Memory::new(4096).unwrap();
        memory.write(4094, b"ab").unwrap();
        let mut read = [0; 2];
        memory.read(4094, &mut read).unwrap();
        assert_eq!(&read, b"ab");
        assert!(memory.write(4095, b"cd").is_none());
        assert!(memory.read(usize::MAX, &mut read).is_none());
        memory.read(4094, &mut read).unwrap();
        assert_eq!(&read, b"ab");
    }

    #[test]
    fn the_last_copy_unmaps() {
        let memory = Memory::new(4096).unwrap();
        let other = memory.clone();
        drop(memory);
        other.write(0, b"x").unwrap();
    }

    #[test]
    fn no_bytes_are_no_memory() {
        assert!(Memory::new(0).is_err());
    }
}

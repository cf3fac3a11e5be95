//! The guest's memory, as the monitor maps it: files, at the guest's addresses.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vm_memory::{
    Address, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

use crate::port::Memory;

/// Most pieces.
const MAX_PIECES: usize = 4096;

/// What of the guest's memory is mapped here.
#[derive(Debug, Default)]
pub struct Dma {
    memory: Arc<Memory>,
}

impl Dma {
    /// As it is now.
    #[must_use]
    pub const fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Maps a file's bytes from an offset on, at the guest's address.
    ///
    /// # Errors
    /// The file has not as many, something else is there, or those of mmap(2).
    pub fn map(&mut self, file: OwnedFd, offset: u64, at: u64, len: u64) -> io::Result<()> {
        if len == 0 || at.checked_add(len).is_none() || self.memory.num_regions() >= MAX_PIECES {
            return Err(Errno::INVAL.into());
        }
        let (at, len) = (GuestAddress(at), usize::try_from(len).map_err(|_| Errno::INVAL)?);
        let file = File::from(file);
        let there = file.metadata()?;
        // Bytes behind a file's end can be mapped, and end whoever looks at them.
        if there.is_file() && offset.checked_add(len as u64).is_none_or(|end| end > there.len()) {
            return Err(Errno::INVAL.into());
        }
        let file = FileOffset::new(file, offset);
        let mapping = MmapRegion::from_file(file, len).map_err(io::Error::other)?;
        let region = GuestRegionMmap::new(mapping, at).ok_or(Errno::INVAL)?;
        let memory = self.memory.insert_region(Arc::new(region));
        self.memory = Arc::new(memory.map_err(|_| Errno::EXIST)?);
        Ok(())
    }

    /// Takes back what is in a range. What still has the memory as it was keeps it mapped: nothing may be under way.
    ///
    /// # Errors
    /// A part of a piece is.
    pub fn unmap(&mut self, at: u64, len: u64) -> io::Result<()> {
        let end = at.checked_add(len).ok_or(Errno::INVAL)?;
        let mut memory = Memory::clone(&self.memory);
        for region in self.memory.iter() {
            let (first, last) = (region.start_addr(), region.last_addr());
            if last.raw_value() < at || first.raw_value() >= end {
                continue;
            }
            if first.raw_value() < at || last.raw_value() >= end {
                return Err(Errno::INVAL.into());
            }
            let without = memory.remove_region(first, region.len()).map_err(|_| Errno::INVAL)?;
            memory = without.0;
        }
        self.memory = Arc::new(memory);
        Ok(())
    }

    /// Takes all back.
    pub fn clear(&mut self) {
        self.memory = Arc::default();
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    fn file(len: u64) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file.into()
    }

    #[test]
    fn pieces_come_and_go() {
        let mut dma = Dma::default();
        let shared = file(0x4000);
        for (n, at) in [0x10000, 0x8000].into_iter().enumerate() {
            dma.map(shared.try_clone().unwrap(), n as u64 * 0x1000, at, 0x2000).unwrap();
        }
        // The same byte of the file is at two addresses.
        dma.memory().write_slice(b"here", GuestAddress(0x11000)).unwrap();
        let mut found = [0; 4];
        dma.memory().read_slice(&mut found, GuestAddress(0x8000)).unwrap();
        assert_eq!(&found, b"here");
        // A part of one; then all of both.
        assert!(dma.unmap(0x8000, 0x1000).is_err() && dma.unmap(0x9000, 0x8000).is_err());
        assert!(dma.unmap(1, u64::MAX).is_err());
        assert_eq!(dma.memory().num_regions(), 2);
        dma.unmap(0, 0x8000).unwrap();
        dma.unmap(0x10000, 0x2000).unwrap();
        assert!(dma.memory().read_slice(&mut found, GuestAddress(0x11000)).is_err());
        dma.unmap(0, 0x100000).unwrap();
        assert_eq!(dma.memory().num_regions(), 0);
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let mut dma = Dma::default();
        dma.map(file(0x2000), 0, 0x1000, 0x2000).unwrap();
        for (len, offset, at, size) in [
            (0x2000, 0, 0x2000, 0x2000),
            (0x2000, 0, 0x10000, 0),
            (0x2000, 0x1000, 0x10000, 0x2000),
            (0x2000, 0, u64::MAX - 0xfff, 0x2000),
            (0x2000, u64::MAX - 0xfff, 0x10000, 0x1000),
            (0x2000, 0, 0x10000, u64::MAX),
            (0x2000, 1, 0x10000, 0x1000),
        ] {
            assert!(dma.map(file(len), offset, at, size).is_err(), "{offset:#x} {at:#x} {size:#x}");
        }
        assert_eq!(dma.memory().num_regions(), 1);
    }
}

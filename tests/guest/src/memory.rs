//! A guest's memory: sealed files, as QEMU's are by default.

use std::fs::File;
use std::ops::Deref;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

/// See the module's description.
#[derive(Debug)]
pub struct Memory(GuestMemoryMmap);

impl Deref for Memory {
    type Target = GuestMemoryMmap;

    fn deref(&self) -> &GuestMemoryMmap {
        &self.0
    }
}

impl Memory {
    /// With a file for each of these regions: where it is, and of how many bytes.
    #[must_use]
    pub fn of(regions: &[(u64, u64)]) -> Self {
        let region = |(at, len): &(u64, u64)| {
            let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
            let fd = memfd_create("guest", flags).unwrap();
            ftruncate(&fd, *len).unwrap();
            fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).unwrap();
            (GuestAddress(*at), *len as usize, Some(FileOffset::new(File::from(fd), 0)))
        };
        Self(GuestMemoryMmap::from_ranges_with_files(regions.iter().map(region)).unwrap())
    }

    /// Puts bytes there.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    /// The bytes from there on.
    #[must_use]
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }
}

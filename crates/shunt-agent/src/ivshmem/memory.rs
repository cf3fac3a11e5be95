//! Memory without a device, for tests.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use shunt_device::ivshmem::{Heard, Means, Transport};

/// The memory, and nobody who tells or interrupts. With as many interrupt vectors as it is said to have, which lead
/// wherever they are wanted.
pub(crate) struct Memory {
    pub(crate) memory: Arc<OwnedFd>,
    pub(crate) len: usize,
    pub(crate) vectors: usize,
}

impl Transport for Memory {
    fn memory(&self) -> &Arc<OwnedFd> {
        &self.memory
    }

    fn len(&self) -> usize {
        self.len
    }

    fn peer(&self) -> Option<u16> {
        None
    }

    fn vectors(&self) -> usize {
        self.vectors
    }

    fn ring(&self, _peer: u16, _vector: usize) {}

    fn means(&self, _peer: u16) -> io::Result<Means> {
        Ok(Means::None)
    }

    fn lead(&mut self, vector: usize, _to: Option<BorrowedFd<'_>>) -> bool {
        vector < self.vectors
    }

    fn ear(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn hear(&mut self) -> Heard {
        Heard::default()
    }
}
